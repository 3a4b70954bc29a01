"""Writers that append to one table at once: processes, and threads of one process.

Each writer appends one row at a time with `Table.append` for some seconds, on local files. All numbers are
appends per second.

- *Processes*: eight of them, compared with one process alone, measured in turns. The second row is fairness:
  the appends of the process with the fewest, compared with the mean of the eight.
- *Threads*: 64 of one process, which share one table, compared with the same threads one after another: each
  holds a lock around its append, as before there was group commit.
- *Processes that append 5,000 rows*, with blobs in S3 and consensus in Postgres, if the test bed has both.
  These rows are uploaded, with their time in them.

After each round a new process counts the rows. Every append that returned must be there once, or this
benchmark fails. All of it shares two cores here.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pyarrow.compute as pc
from common import Goal, Row, log, main, median, scratch

import holdfast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.minio import Minio
from testbed.postgres import PostgresServer

PROCESSES, THREADS = 8, 64
SECONDS = 2.0
ROUNDS = 3
MANY = 5000
COLUMNS = {"id": "int64", "who": "int32"}


def append(url: str, consensus: str, who: str, rows: str) -> None:
    """Append so many rows at a time, and print how many appends returned."""
    with holdfast.table(url, "t", consensus=consensus or None) as table:
        print("ready", flush=True)
        sys.stdin.readline()
        end, done = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            table.append({"id": range(done, done + int(rows)), "who": [int(who)] * int(rows)})
            done += int(rows)
    print(json.dumps(done // int(rows)))


def processes(count: int, url: str, consensus: str = "", rows: int = 1) -> list[int]:
    """Return the appends of each of so many concurrent processes to a new table."""
    holdfast.table(url, "t", columns=COLUMNS, consensus=consensus or None).close()
    with ExitStack() as stack:
        pipes = []
        for who in range(count):
            command = [sys.executable, __file__, "--append", url, consensus, str(who), str(rows)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            assert process.stdin is not None
            assert process.stdout is not None
            pipes.append((process.stdin, process.stdout))
        for _, out in pipes:
            assert out.readline() == "ready\n"
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        done = [json.loads(out.read()) for _, out in pipes]
    with holdfast.table(url, "t", consensus=consensus or None) as table:
        check(table, [each * rows for each in done])
    return done


def check(table: holdfast.Table, rows: list[int]) -> None:
    """Fail unless the table has each row of each writer once, and nothing else."""
    found = table.read()
    wanted = Counter({who: count for who, count in enumerate(rows) if count})
    of_each = Counter({each["values"]: each["counts"] for each in pc.value_counts(found["who"]).to_pylist()})
    once = found.num_rows == found.group_by(["id", "who"]).aggregate([]).num_rows
    if of_each != wanted or not once:
        raise SystemExit(f"writers: {sum(rows)} rows were appended, {found.num_rows} are there")


def threads(count: int, *, together: bool) -> float:
    """Return the appends per second of so many threads of this process."""
    with scratch() as folder, holdfast.table(folder.as_uri(), "t", columns=COLUMNS) as table:
        turn = nullcontext() if together else threading.Lock()
        done = [0] * count
        end = time.monotonic() + SECONDS

        def work(who: int) -> None:
            while time.monotonic() < end:
                with turn:
                    table.append([{"id": done[who], "who": who}])
                done[who] += 1

        running = [threading.Thread(target=work, args=(who,)) for who in range(count)]
        begin = time.monotonic()
        for each in running:
            each.start()
        for each in running:
            each.join()
        seconds = time.monotonic() - begin
        check(table, done)
        return sum(done) / seconds


def contended(name: str, goal: float, measured: Callable[[int], list[int]]) -> Iterator[Row]:
    """Compare so many processes with one."""
    alone, together, fairness = [], [], []
    for _ in range(ROUNDS):
        alone.append(measured(1)[0] / SECONDS)
        done = measured(PROCESSES)
        together.append(sum(done) / SECONDS)
        fairness.append(min(done) / max(1, sum(done) / PROCESSES))
    note = f"median of {ROUNDS} rounds of {SECONDS:.0f} s; none lost, none twice"
    yield Row(f"{name} / one", median(together), median(alone), "appends/s", Goal(">=", goal), note)
    note = f"median of {ROUNDS}; worst {min(fairness):.2f}"
    yield Row(f"{name}: the slowest / their mean", median(fairness), 1, "of the mean", Goal(">=", 0.25), note)


def on_files(count: int) -> list[int]:
    """Measure one round on local files."""
    with scratch() as folder:
        return processes(count, folder.as_uri())


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    log("processes")
    yield from contended(f"{PROCESSES} processes that append to one table", 0.8, on_files)
    log("threads")
    grouped, locked = [], []
    for _ in range(ROUNDS):
        locked.append(threads(THREADS, together=False))
        grouped.append(threads(THREADS, together=True))
    note = f"median of {ROUNDS} rounds of {SECONDS:.0f} s"
    name = f"{THREADS} threads that append to one table / one after another"
    yield Row(name, median(grouped), median(locked), "appends/s", Goal(">=", 5), note)
    log("processes on S3 and Postgres")
    with Minio.start() as minio, PostgresServer.start() as postgres:
        os.environ.update(minio.credentials)

        def on_servers(count: int) -> list[int]:
            with postgres.database() as database:
                url = f"s3://{minio.make_bucket()}?endpoint={minio.endpoint}"
                return processes(count, url, postgres.url(database), rows=MANY)

        name = f"{PROCESSES} processes that append {MANY:,} rows, S3 and Postgres"
        yield from contended(name, 2, on_servers)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--append"]:
        append(*sys.argv[2:])
    else:
        main(rows)
