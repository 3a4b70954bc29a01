"""The upgrade of a big catalog from the oldest version of its format to the current one.

1,000,000 rows on persist (embedded storage: file blobs, SQLite consensus), a tenth of it in a stash on
SQLite and on Postgres (a real server on this machine): items with definitions for the most part, and
comments, storage usage, audit events. Two steps write every item anew, the first also all that is JSON.

Each upgrade runs in a new process, which does nothing else: the steps are worked out and checked on a
temporary copy, the fence is put, the steps are committed. The open that follows is not part of it. The peers
are the goals:

- *time* for all of it, 90 s for a million rows (the note tells it by step, and the CPU that the process
  took: more seconds than that are those of others, the server's among them);
- *memory*: 600 MB of resident memory at the peak, imports included;
- *statement*: what the largest statement takes on the wire to Postgres, 16 MiB.
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
from holdfast.catalog.objects.codec import Update
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
    """What the upgrading process says of itself."""

    seconds: float
    cpu_seconds: float
    steps: dict[str, float]
    peak_megabytes: float
    before_megabytes: float


def rows() -> Iterator[Row]:
    """All rows."""
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
    """The rows of one store."""
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
    """A goal below that."""
    return Goal("<=", ratio)


def in_another_process(what: str, url: str, count: int) -> Any:
    """What it printed."""
    command = [sys.executable, __file__, "--child", what, url, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def child(what: str, url: str, count: int) -> dict[str, Any]:
    """What one of the processes does."""
    with opened(url) as store:
        if what == "make":
            store.append((Update(row, 1) for row in big_rows(count)), 0, take_hold=True)
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
    """The catalog's store."""
    if url.startswith("file:"):
        with PersistClient.open(url) as client:
            yield CatalogShard(client, catalog_shard_id(ORGANIZATION), purpose="bench")
    else:
        store = StashStore(url)
        yield store
        store.close()


def big_rows(count: int) -> Any:
    """So many rows of the oldest version, about."""
    few = count // 20
    return rows_of(MIN_VERSION, items=count - 4 * few, comments=2 * few, storage_usage=few, audit_log=few)


def peak() -> float:
    """The most resident memory that this process has had."""
    # Not getrusage: its peak includes that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MEGABYTE


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main(rows)
