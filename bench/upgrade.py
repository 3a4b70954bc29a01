"""The upgrade of a large catalog from the oldest version of its format to the current one.

1,000,000 rows on persist (embedded storage: file blobs, SQLite consensus), and a tenth of it in a stash on
SQLite and on Postgres (a real server on this machine): mostly items with definitions, and also comments,
storage usage and audit events. Two steps rewrite every item, and the first also rewrites all other JSON.

Each upgrade runs in a new process that does nothing else: it computes and checks the steps on a temporary
copy, writes the fence, and commits the steps. The following open is not included. The peers are the goals:

- *time* in total, 90 s for a million rows (the note shows it by step, and the CPU time of the process; the
  rest is the time of others, including the server);
- *memory*: 600 MB of resident memory at the peak, including imports;
- *statement*: the largest statement on the wire to Postgres, 16 MiB.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Goal, Row, log, main, scratch

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, catalog_shard_id
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.upgrade.plan import released
from holdfast.catalog.upgrade.runner import upgrade
from holdfast.persist import PersistClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.oldcatalogs import rows_of
from testbed.postgres import PostgresServer
from testbed.wiretap import WireTap

ORGANIZATION = uuid.UUID("11111111-2222-3333-4444-555555555555")
MILLION = 1_000_000
STASHED = MILLION // 10
SECONDS = 90.0
MEGABYTE = 1e6
MOST_MEMORY = 600.0
MOST_STATEMENT = 16.0


@dataclass(frozen=True)
class Result:
    """The results of the upgrading process."""

    seconds: float
    cpu_seconds: float
    steps: dict[str, float]
    peak_megabytes: float
    before_megabytes: float


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        yield from compared("persist", folder.as_uri(), MILLION)
        yield from compared("stash on SQLite", f"sqlite://{folder}/stash.db", STASHED)
    with PostgresServer.start() as server, server.database() as name:
        tap = WireTap(server.port)
        url = server.url(name).replace(f":{server.port}/", f":{tap.port}/")
        # Neither encryption nor its offer, so that the bytes can be read.
        yield from compared("stash on Postgres", f"{url}?sslmode=disable&gssencmode=disable", STASHED)
        largest = max(tap.statements) / 2**20
        tap.close()
    title = "upgrade, stash on Postgres: largest statement"
    yield Row(title, largest, MOST_STATEMENT, "MiB", at_most(1), f"{len(tap.statements):,} statements")


def compared(name: str, url: str, count: int) -> Iterator[Row]:
    """Yield the rows of one store."""
    log(f"{name}: a catalog of {count:,} rows")
    in_another_process("make", url, count)
    log(f"{name}: its upgrade")
    done = Result(**in_another_process("upgrade", url, count))
    steps = ", ".join(f"{version} {seconds:.1f}" for version, seconds in done.steps.items())
    yield Row(
        f"upgrade, {name}, {count:,} rows: time",
        done.seconds,
        SECONDS * count / MILLION,
        "s",
        at_most(1),
        f"{done.cpu_seconds:.1f} s of CPU; to version: {steps} s",
    )
    note = f"{done.before_megabytes:.0f} MB before it"
    title = f"upgrade, {name}, {count:,} rows: memory"
    yield Row(title, done.peak_megabytes, MOST_MEMORY, "MB", at_most(1), note)


def at_most(ratio: float) -> Goal:
    """Return a goal of at most that value."""
    return Goal("<=", ratio)


def in_another_process(what: str, url: str, count: int) -> Any:
    """Run a child process; return what it printed."""
    command = [sys.executable, __file__, "--child", what, url, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def child(what: str, url: str, count: int) -> dict[str, Any]:
    """Run one of the child processes."""
    with opened(url) as store:
        if what == "make":
            store.append((RowUpdate(row, 1) for row in big_rows(count)), 0, take_hold=True)
            return {}
        before = peak()
        start, cpu_start = time.perf_counter(), time.process_time()
        done = upgrade(
            store,
            released(),
            lambda seen: seen.next_token(FenceToken(0, 0, "bench", "measure an upgrade")),
        )
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        assert done is not None
        assert (done.report.source, done.report.target) == (MIN_VERSION, CATALOG_VERSION)
        steps = {str(step.target): step.seconds for step in done.report.steps}
        return vars(Result(seconds, cpu_seconds, steps, peak(), before))


@contextmanager
def opened(url: str) -> Iterator[CatalogStore]:
    """Open the catalog's store."""
    if url.startswith("file:"):
        with PersistClient.open(url) as client:
            yield CatalogShard(client, catalog_shard_id(ORGANIZATION), purpose="bench")
    else:
        store = StashStore(url)
        yield store
        store.close()


def big_rows(count: int) -> Any:
    """Return about so many rows of the oldest version."""
    few = count // 20
    return rows_of(MIN_VERSION, items=count - 4 * few, comments=2 * few, storage_usage=few, audit_log=few)


def peak() -> float:
    """Return the peak resident memory of this process."""
    # Not getrusage: its peak includes the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MEGABYTE


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main(rows)
