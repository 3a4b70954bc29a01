"""A catalog of 100,000 items and their audit log moves from a stash in Postgres to persist, and back.

Persist has its blobs in S3 (a MinIO server on this machine) and its consensus in Postgres. The stash is a
schema of another database of that server. Each move runs in a new process that opens everything, and
compares the contents before it ends (`verify` Compare). An application in another process writes to the
catalog all the time, and continues with `reopened`. Its work is part of the load.

- *time*: from opening the stores to the end of the last step. The first peer is the goal, 10 s.
- *copy*: the second peer moves the same bytes between the same servers and does nothing else: psycopg's
  COPY reads the stash's table, boto3 puts the bytes as one object, and a row in the other database names
  it. Back, boto3 gets it, and COPY fills an empty table with the stash's columns and indexes. It decodes
  and compares nothing, keeps no history, and nobody may write meanwhile.
- *unavailability*: as the application sees it, from the start of its first refused commit to the end of the
  next successful one, including its own opening of 100,000 items. The peer is the time of the move, which
  is the minimum for an application that is stopped by hand.
- *memory*: the peak of the process that moves, including imports. The peer is the goal, 400 MB.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from catalog import ITEM_COUNT, event, item, memory
from common import Goal, Row, log, main, median

from holdfast.catalog import OpenMode, persist_catalog, stash_catalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.reopen import reopened
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import AUDIT_LOG, ITEMS
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import MigrationInProgress, NotSourceOfTruth
from holdfast.persist import PersistClient
from holdfast.stash import DEFAULT_SCHEMA

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.minio import Minio
from testbed.postgres import PostgresServer

ORGANIZATION = uuid.UUID("11111111-2222-3333-4444-555555555555")
ROUNDS = 3
SECONDS = 10.0
MOST_MEMORY = 400.0
MEGABYTE = 1e6
PATIENCE_S = 300.0
KEY = "peer/contents"

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Place:
    """The URLs of the catalog's two stores."""

    stash: str
    blob: str
    consensus: str


@dataclass(frozen=True)
class Move:
    """The results of the migrating process."""

    seconds: float
    cpu_seconds: float
    peak_megabytes: float
    before_megabytes: float
    steps: dict[str, float]


@contextmanager
def opened(place: Place) -> Iterator[LinkedCatalog]:
    """Return the linked catalog, not open."""
    with PersistClient.open(blob=place.blob, consensus=place.consensus) as client:
        stash = stash_catalog(place.stash)
        yield linked_catalog(stash, persist_catalog(client, ORGANIZATION), backend=Backend.STASH)


def fill(place: Place) -> None:
    """Create a catalog with the items in the stash, linked with persist."""
    with opened(place) as catalog:
        catalog.open(OpenMode.WRITABLE, holder="bench", purpose="fill").close()
    store = StashStore(place.stash)
    numbers = range(ITEM_COUNT)
    rows = [encode(ITEMS, *item(n)) for n in numbers] + [encode(AUDIT_LOG, *event(n)) for n in numbers]
    store.append((RowUpdate(row, 1) for row in rows), store.upper())
    store.close()


def move(place: Place, migration: str, rollback: bool) -> Move:
    """Move the catalog, to persist or back, as the command does."""
    before = memory("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    steps: dict[str, float] = {}
    with opened(place) as catalog:
        moving = BackendMigration(
            catalog, migration_id=migration, target=Backend.PERSIST, rollback=rollback, holder="bench"
        )
        outcome = moving.run(lambda done: steps.update({str(done.step): done.seconds}))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    assert outcome.moved
    peak = memory("VmHWM")
    return Move(seconds, cpu, peak / MEGABYTE, before / MEGABYTE, steps)


def write(place: Place) -> None:
    """Write until standard input ends, and print the outcome of each commit."""
    opened_for = {"holder": "application", "purpose": "bench"}
    with opened(place) as openable:
        catalog = openable.open(OpenMode.WRITABLE, **opened_for)
        number = 0
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            began = time.monotonic()
            try:
                catalog.set_setting("application", str(number))
            except (NotSourceOfTruth, MigrationInProgress) as error:
                print(json.dumps(["refused", began, time.monotonic()]), flush=True)
                catalog = reopened(
                    openable, error, timeout_s=PATIENCE_S, mode=OpenMode.WRITABLE, **opened_for
                )
            else:
                print(json.dumps(["accepted", began, time.monotonic()]), flush=True)
                number += 1


class Application:
    """The process that writes."""

    def __init__(self, place: Place) -> None:
        self._process = start("write", place, stdin=subprocess.PIPE)
        self._told: list[tuple[str, float, float]] = []
        self._came = threading.Condition()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def next(self, what: str, since: float) -> tuple[float, float]:
        """Return start and end of the first commit after `since` with this outcome."""

        def found() -> list[tuple[float, float]]:
            return [(began, ended) for kind, began, ended in self._told if kind == what and began > since]

        with self._came:
            self._came.wait_for(lambda: found() or not self._listener.is_alive(), PATIENCE_S)
            return found()[0]

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listener.join()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self._told.append(tuple(json.loads(line)))
                self._came.notify_all()
        with self._came:
            self._came.notify_all()


class Copies:
    """The peer: it moves the same bytes with COPY and boto3."""

    def __init__(self, server: PostgresServer, minio: Minio, bucket: str, stash: str, other: str) -> None:
        self._source: Connection = psycopg.connect(server.url(stash), autocommit=True)
        self._other: Connection = psycopg.connect(server.url(other), autocommit=True)
        self._minio, self._bucket = minio, bucket
        self._other.execute("CREATE TABLE pointer (object text NOT NULL)")
        with self._source.transaction():
            self._source.execute(f"CREATE TABLE copied (LIKE {DEFAULT_SCHEMA}.data INCLUDING ALL)".encode())
            self._source.execute(f"INSERT INTO copied SELECT * FROM {DEFAULT_SCHEMA}.data".encode())

    def there(self) -> float:
        """Copy the table into an object; return the seconds."""
        start = time.perf_counter()
        with self._source.cursor().copy("COPY copied TO STDOUT (FORMAT binary)") as copy:
            contents = b"".join(bytes(piece) for piece in copy)
        self._minio.client.put_object(Bucket=self._bucket, Key=KEY, Body=contents)
        with self._other.transaction():
            self._other.execute("DELETE FROM pointer")
            self._other.execute("INSERT INTO pointer VALUES (%s)", (KEY,))
        return time.perf_counter() - start

    def back(self) -> float:
        """Copy the object into the table; return the seconds."""
        start = time.perf_counter()
        row = self._other.execute("SELECT object FROM pointer").fetchone()
        assert row is not None
        contents = self._minio.client.get_object(Bucket=self._bucket, Key=row[0])["Body"].read()
        with self._source.transaction():
            self._source.execute("TRUNCATE copied")
            with self._source.cursor().copy("COPY copied FROM STDIN (FORMAT binary)") as copy:
                copy.write(contents)
        return time.perf_counter() - start

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._other.close()


def start(what: str, place: Place, *more: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start a process of this file that imports the installed, compiled libraries."""
    command = [sys.executable, __file__, "--child", what, json.dumps(asdict(place)), *more]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True, env=environment)


def moved(place: Place, migration: str, way: str) -> Move:
    """Return the results of a move in a new process."""
    process = start(way, place, migration)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the move failed with exit code {process.returncode}")
    return Move(**json.loads(output))


def measured(
    place: Place, copies: Copies, application: Application
) -> tuple[dict[str, list[Move]], dict[str, list[float]], dict[str, list[float]]]:
    """Return moves, copies and times without a commit, by direction."""
    moves: dict[str, list[Move]] = {"there": [], "back": []}
    peers: dict[str, list[float]] = {"there": [], "back": []}
    gaps: dict[str, list[float]] = {"there": [], "back": []}
    for number in range(ROUNDS):
        for way, copy in (("there", copies.there), ("back", copies.back)):
            peers[way].append(copy())
            since = time.monotonic()
            application.next("accepted", since)
            moves[way].append(moved(place, f"bench-{number}", way))
            refused, _ = application.next("refused", since)
            _, accepted = application.next("accepted", refused)
            gaps[way].append(accepted - refused)
            log(f"{way}: {moves[way][-1].seconds:.1f} s, no commit for {gaps[way][-1]:.1f} s")
    return moves, peers, gaps


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with (
        Minio.start() as minio,
        PostgresServer.start() as server,
        server.database() as stash,
        server.database() as other,
    ):
        os.environ.update(minio.credentials)
        bucket = minio.make_bucket()
        blob = f"s3://{bucket}/catalog?endpoint={minio.endpoint}"
        place = Place(server.url(stash), blob, server.url(other))
        fill(place)
        log("filled the stash")
        copies = Copies(server, minio, bucket, stash, other)
        application = Application(place)
        try:
            moves, peers, gaps = measured(place, copies, application)
        finally:
            application.end()
            copies.close()
    for way, name in (("there", "stash -> persist"), ("back", "persist -> stash")):
        yield from compared(f"move {ITEM_COUNT // 1000}k items {name}", moves[way], peers[way], gaps[way])


def compared(name: str, moves: list[Move], copies: list[float], gaps: list[float]) -> Iterator[Row]:
    """Yield the rows of one direction."""
    seconds = median(each.seconds for each in moves)
    cpu = median(each.cpu_seconds for each in moves)
    steps = ", ".join(
        f"{step.partition('.')[0]}: {median(each.steps[step] for each in moves):.1f}"
        for step in moves[0].steps
    )
    note = f"median of {len(moves)}, {cpu:.1f} s of it CPU; by step {steps} s; the peer is the goal"
    yield Row(f"{name}: time", seconds, SECONDS, "s", Goal("<=", 1), note)
    note = "peer: the bytes of the table by psycopg COPY and boto3, nothing decoded, compared or fenced"
    yield Row(f"{name} / plain copy", seconds, median(copies), "s", Goal("<=", 10), note)
    note = f"from {min(gaps):.1f} to {max(gaps):.1f} s; the peer is the time of the move"
    yield Row(f"{name}: unavailability", median(gaps), seconds, "s", Goal("<=", 1.5), note)
    peak = max(each.peak_megabytes for each in moves)
    note = f"peak; {max(each.before_megabytes for each in moves):.0f} MB before it; the peer is the goal"
    yield Row(f"{name}: memory", peak, MOST_MEMORY, "MB", Goal("<=", 1), note)


def child(what: str, place: Place, *more: str) -> None:
    """Run one of the child processes."""
    if what == "write":
        write(place)
    else:
        print(json.dumps(asdict(move(place, more[0], rollback=what == "back"))))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Place(**json.loads(sys.argv[3])), *sys.argv[4:])
    else:
        main(rows)
