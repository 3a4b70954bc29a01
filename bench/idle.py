"""Sources with nothing new: 1,000 of them on one Postgres consensus store, and 20 on S3 alone.

One process has all pipelines, one client and 8 threads. Each source looks every 5 s whether there is
something new, and commits an empty step every 60 s, as by default. So the upper of its collection follows the
clock. Another process, the other user, appends a row every 50 ms to a shard in the same store.

- *log rows*: the rows that Postgres gets per second, from its counters, without those of the other user. The
  peer is the goal: one row for each of 4 shards (rows, promise, errors and bindings) of each source every
  60 s. The note has what else the sources cost: calls of the stores per second, processor time, and the
  memory of one pipeline.
- *another user's append*: its p50 while the sources idle, against that before.

S3 alone is a MinIO server on this machine.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from common import Goal, Row, log, main, percentile, scratch

from holdfast.collections import StorageController
from holdfast.ingest import Ingestion, StepOutcome, ingestion_of, parse
from holdfast.persist import PersistClient, Schema
from holdfast.persist.stores import StoreMetrics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.minio import Minio
from testbed.postgres import PostgresServer

SOURCES = int(os.environ.get("BENCH_IDLE_SOURCES", "1000"))
ON_S3 = 20
THREADS = 8
INTERVAL_S = 5.0
PROGRESS_S = 60
SECONDS = 60.0
ALONE_S = 15.0
PAUSE_S = 0.05
SHARDS = 4
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?", "amount": "float64?"})
SPEC = parse(
    {
        "generator": {"rows": 10},
        "format": {"json": {}},
        "run": {"interval": f"{INTERVAL_S:.0f}s", "progressInterval": f"{PROGRESS_S}s"},
    }
)
USER = Schema.of(key={"id": "int64"}, value={"name": "string"})


def opened(place: dict[str, str], metrics: StoreMetrics | None = None) -> PersistClient:
    """Open the location."""
    url, blob, consensus = (place.get(each) for each in ("url", "blob", "consensus"))
    return PersistClient.open(url, blob=blob, consensus=consensus, metrics=metrics)


def calls(metrics: StoreMetrics) -> Counter[str]:
    """Return the number of calls so far, by operation."""
    return Counter({name: each.calls for name, each in metrics.snapshot().items()})


def resident() -> int:
    """Return the resident size of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def idle(place: dict[str, str], count: int) -> None:
    """Feed so many collections until nothing is new. Idle once there is a line, and print what it cost.

    Closes them once there is another line.
    """
    metrics = StoreMetrics()
    with opened(place, metrics) as client, StorageController(client) as controller, ExitStack() as stack:
        lock = threading.Lock()

        def feed(number: int) -> Ingestion:
            context = ingestion_of(controller, f"c{number}", SPEC, SCHEMA)
            ingestion = context.__enter__()
            with lock:
                stack.push(context.__exit__)
            while ingestion.step().outcome is not StepOutcome.IDLE:
                pass
            return ingestion

        feed(-1)
        before, began = resident(), time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            feeds = list(pool.map(feed, range(count)))
        made = {"memory": (resident() - before) / count, "setup": time.monotonic() - began}
        print(json.dumps(made), flush=True)
        sys.stdin.readline()
        started, cpu, called = time.monotonic(), time.process_time(), calls(metrics)
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(lambda n: some(feeds[n::THREADS], started + SECONDS), range(THREADS)))
        seconds = time.monotonic() - started
        print(
            json.dumps(
                {
                    "cpu": (time.process_time() - cpu) / seconds,
                    "steps": sum(steps for steps, _ in found) / seconds,
                    "commits": sum(commits for _, commits in found) / seconds,
                    "calls": {name: n / seconds for name, n in (calls(metrics) - called).items()},
                }
            ),
            flush=True,
        )
        # To close the pipelines writes to their shards too. That is not counted.
        sys.stdin.readline()


def some(feeds: list[Ingestion], until: float) -> tuple[int, int]:
    """Take a step of each in every interval, spread over it. Returns all steps, and those that committed."""
    steps = commits = 0
    due = time.monotonic()
    while True:
        for each in feeds:
            due += INTERVAL_S / len(feeds)
            if due > until:
                return steps, commits
            time.sleep(max(0.0, due - time.monotonic()))
            steps += 1
            commits += each.step().outcome is StepOutcome.COMMITTED


def appends(place: dict[str, str]) -> None:
    """Append a row now and then, and print the seconds of each append, until there is a line."""
    with opened(place) as client:
        writer = client.writer(client.new_shard_id(), USER, purpose="bench idle")
        print("ready", flush=True)
        ended = threading.Event()

        def wait() -> None:
            sys.stdin.readline()
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        while not ended.wait(PAUSE_S):
            upper = writer.cached_upper
            began = time.perf_counter()
            writer.compare_and_append([{"id": upper, "name": "a name"}], upper, upper + 1)
            print(json.dumps([time.monotonic(), time.perf_counter() - began]), flush=True)


@contextmanager
def child(role: str, place: dict[str, str], *given: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a role in its own process."""
    command = [sys.executable, __file__, "--role", role, json.dumps(place), *map(str, given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: "subprocess.Popen[str]") -> Any:
    """Return what a process prints next."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: "subprocess.Popen[str]") -> None:
    """Let a process go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measured(
    place: dict[str, str], count: int, counters: Callable[[], dict[str, float]]
) -> tuple[dict[str, Any], list[float], list[float], dict[str, float]]:
    """Return what the sources cost, the other user's seconds before and meanwhile, and what was counted.

    What is counted is per second, and without the other user's share.
    """
    seconds: list[tuple[float, float]] = []
    with child("idle", place, count) as fleet:
        made = read(fleet)
        log(f"{count} sources after {made['setup']:.0f} s")
        with child("appends", place) as user:
            assert user.stdout is not None
            user.stdout.readline()
            reader = threading.Thread(target=lambda: seconds.extend(map(json.loads, user.stdout or ())))
            reader.start()
            marks = [(time.monotonic(), counters())]
            time.sleep(ALONE_S)
            marks.append((time.monotonic(), counters()))
            tell(fleet)
            cost = read(fleet)
            marks.append((time.monotonic(), counters()))
            tell(fleet)
            tell(user)
            reader.join()
    (t0, c0), (t1, c1), (t2, c2) = marks
    counted = {each: (c2[each] - c1[each]) / (t2 - t1) - (c1[each] - c0[each]) / (t1 - t0) for each in c0}
    alone = [took for at, took in seconds if t0 + 2 < at < t1]
    return made | cost, alone, [took for at, took in seconds if t1 < at < t2], counted


def rows_of(
    what: str, count: int, place: dict[str, str], counters: Callable[[], dict[str, float]]
) -> Iterator[Row]:
    """Yield the rows of one store."""
    cost, alone, shared, counted = measured(place, count, counters)
    log(f"{what}: {cost} {counted}")
    called = ", ".join(f"{each:.1f} {name}" for name, each in cost["calls"].items())
    costs = (
        f"{cost['commits']:.1f} empty steps/s, {cost['steps']:.0f} looks/s; calls per second: {called};"
        f" {cost['cpu'] * 100:.0f} % of one core in the client; {cost['memory'] / 1024:.0f} KiB per pipeline"
    )
    if counted:
        server = counted["server"] * 100
        yield Row(
            f"{count:,} idle sources on {what}: log rows",
            counted["log rows"],
            count * SHARDS / PROGRESS_S,
            "rows/s",
            Goal("<=", 1.1),
            f"the peer is the goal; {costs}; {server:.0f} % of one core in the server",
        )
    yield Row(
        f"{count:,} idle sources on {what}: another user's append",
        percentile(shared, 50) * 1e3,
        percentile(alone, 50) * 1e3,
        "ms",
        Goal("<=", 1.5),
        f"p50, with the sources / without; p99 {percentile(shared, 99) * 1e3:.1f} and"
        f" {percentile(alone, 99) * 1e3:.1f} ms; load average {os.getloadavg()[0]:.1f}"
        + ("" if counted else f"; {costs}"),
    )


def processor_s(parent: int) -> float:
    """Return the processor time of a process and its children, also of those that ended."""
    ticks = 0
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = each.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if int(each.parent.name) == parent:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == parent:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def on_postgres() -> Iterator[Row]:
    """Yield the rows about Postgres."""
    with scratch() as folder, PostgresServer.start() as server, server.database() as name:
        place = {"blob": f"file://{folder}/blob", "consensus": server.url(name)}
        with psycopg.connect(server.url(), autocommit=True) as connection:
            found = connection.execute("SELECT pg_backend_pid()").fetchone()
            assert found is not None
            backend = Path(f"/proc/{found[0]}/stat").read_text().rpartition(")")[2].split()
            postmaster = int(backend[1])

            def counters() -> dict[str, float]:
                time.sleep(1.5)  # Backends report their counters once a second.
                row = connection.execute(
                    "SELECT tup_inserted FROM pg_stat_database WHERE datname = %s", (name,)
                ).fetchone()
                assert row is not None
                return {
                    "log rows": row[0],
                    "server": processor_s(postmaster),
                }

            yield from rows_of("Postgres", SOURCES, place, counters)


def on_s3() -> Iterator[Row]:
    """Yield the rows about S3."""
    with Minio.start() as minio:
        os.environ.update(minio.credentials)
        bucket = minio.make_bucket()

        yield from rows_of("S3", ON_S3, {"url": f"s3://{bucket}?endpoint={minio.endpoint}"}, dict)


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    yield from on_postgres()
    yield from on_s3()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        role, place, *given = sys.argv[2:]
        if role == "idle":
            idle(json.loads(place), int(given[0]))
        else:
            appends(json.loads(place))
    else:
        main(rows)
