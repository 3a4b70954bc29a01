"""The catalog with 100,000 items, their definitions of about 140 characters, and their audit log.

Embedded storage (file blobs, SQLite consensus), default settings, including background maintenance.
Measured:

- *open*: `PersistClient.open` and `open(WRITABLE)` in a new process, until the catalog can be used: all
  rows are read, verified and decoded once, and the fence token is committed. The peers are the goals, 1.5 s
  and 250 MB of resident memory after it (including imports). The note shows the peak, and the memory of the
  process before.
- *audit log*: the growth of the resident memory after the open with 1,000,000 more audit events. The peer
  is the goal, 10 MB.
- *commit*: a transaction that changes one object. The peer is the persist append of the same two updates to
  another shard with as many rows in the same location.
- *DDL*: `ensure_item` of a new item, one transaction of 6 updates: the item, two allocators of ids, the
  audit event. The first peer is the goal of 500 per second. The second peer is the same change in plain
  tables with as many rows, with indexes for what is unique and with the same durability: SQLite (WAL,
  synchronous=FULL) and, for consensus in Postgres, psycopg on the same server. The plain tables have no
  history, no fence and no subscribers.
- *batch*: a transaction of 200,000 new items on top of them: the growth of the process's peak from the open
  catalog to the end of the commit. The peer is the limit, 1 kB for each item.
"""

import json
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from common import Goal, Row, in_turns, log, main, median, percentile, scratch

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode, catalog_shard_id, persist_catalog
from holdfast.catalog.objects.codec import encode
from holdfast.catalog.objects.registry import AUDIT_LOG, ITEMS
from holdfast.catalog.stores.persist import SCHEMA
from holdfast.persist import PersistClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.postgres import PostgresServer

ORGANIZATION = uuid.UUID("11111111-2222-3333-4444-555555555555")
ITEM_COUNT = 100_000
AUDIT_COUNT = 1_000_000
BATCH_COUNT = 200_000
FIRST_ID = 10_000_000  # the catalog allocates below it
OPENS = 3
ROUNDS = 300
DDL_SECONDS = 3.0
DDL_ROUNDS = 5
MEGABYTE = 1e6


def definition(number: int) -> str:
    """Return the definition of an item."""
    columns = "id bigint NOT NULL, customer bigint NOT NULL, amount numeric(38, 10), currency text"
    return f"CREATE TABLE t{number:07} ({columns}, created timestamptz NOT NULL)"


def item(number: int) -> tuple[pb.ItemKey, pb.ItemValue]:
    """Return an item of the schema `public`."""
    value = pb.ItemValue(
        schema_id=pb.ObjectId(user=1),
        name=f"t{number:07}",
        type=pb.ObjectType.OBJECT_TYPE_COLLECTION,
        definition=definition(number),
    )
    return pb.ItemKey(id=pb.ObjectId(user=FIRST_ID + number)), value


def event(number: int) -> tuple[pb.AuditLogKey, pb.AuditLogValue]:
    """Return the audit event for the creation of an item."""
    value = pb.AuditLogValue(
        event_type=pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
        object_type=pb.ObjectType.OBJECT_TYPE_COLLECTION,
        object_id=f"u{FIRST_ID + number}",
        object_name=f"holdfast.public.t{number:07}",
        user="bench",
        occurred_at_ms=1_700_000_000_000 + number,
    )
    return pb.AuditLogKey(id=FIRST_ID + number), value


@cache
def items_and_events() -> pa.Table:
    """Return items with their events, as rows of the catalog's shard."""
    numbers = range(ITEM_COUNT)
    rows = [encode(ITEMS, *item(n)) for n in numbers] + [encode(AUDIT_LOG, *event(n)) for n in numbers]
    return columns([row.key for row in rows], [row.value for row in rows])


def columns(keys: list[bytes], values: list[bytes]) -> pa.Table:
    """Return rows for an append."""
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def opened(client: PersistClient) -> Catalog:
    """Open the catalog for writing."""
    return persist_catalog(client, ORGANIZATION).open(OpenMode.WRITABLE, holder="bench", purpose="bench")


def fill(client: PersistClient) -> str:
    """Create a catalog with the items; return the id of its shard."""
    opened(client).close()
    shard = catalog_shard_id(ORGANIZATION)
    append(client, shard, items_and_events())
    return shard


def append(client: PersistClient, shard: str, rows: pa.Table) -> None:
    """Write to a shard."""
    with client.writer(shard, SCHEMA, purpose="bench catalog") as writer:
        upper = writer.upper()
        writer.compare_and_append(rows, upper, upper + 1)


def add_events(client: PersistClient, shard: str) -> None:
    """Add a million events that differ only in their ids."""
    value = encode(AUDIT_LOG, *event(0)).value
    for start in range(2 * ITEM_COUNT, 2 * ITEM_COUNT + AUDIT_COUNT, ITEM_COUNT):
        tag = AUDIT_LOG.kind.tag
        ids = range(start, start + ITEM_COUNT)
        keys = [tag + pb.AuditLogKey(id=FIRST_ID + id_).SerializeToString() for id_ in ids]
        append(client, shard, columns(keys, [value + b"" for _ in ids]))


def memory(field: str) -> int:
    """Return `VmRSS` or `VmHWM` (the peak) of this process, in bytes."""
    # Not getrusage: its peak includes the peak of the parent process.
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def in_a_process(what: str, folder: Path) -> list[float]:
    """Return the result of one of the functions below, run in a new process."""
    command = [sys.executable, __file__, what, str(folder)]
    answer: list[float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer


def measure_open(folder: str) -> list[float]:
    """Return seconds, CPU seconds, resident memory before and after, and the peak."""
    before = memory("VmRSS")
    start, cpu_start = time.perf_counter(), time.process_time()
    with PersistClient.open(f"file://{folder}") as client, opened(client) as catalog:
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        after, peak = memory("VmRSS"), memory("VmHWM")
        with catalog.transaction() as tx:
            assert tx.get(ITEMS, item(ITEM_COUNT - 1)[0]) == item(ITEM_COUNT - 1)[1]
    return [seconds, cpu, before, after, peak]


def measure_batch(folder: str) -> list[float]:
    """Return the seconds of the changes and of the commit, and the growth of the peak."""
    with PersistClient.open(f"file://{folder}") as client, opened(client) as catalog:
        before = memory("VmRSS")
        start = time.perf_counter()
        with catalog.transaction() as tx:
            for number in range(BATCH_COUNT):
                tx.insert(ITEMS, *item(2 * ITEM_COUNT + number))
            changed = time.perf_counter()
            catalog.commit_transaction(tx)
        return [changed - start, time.perf_counter() - changed, memory("VmHWM") - before]


def one_object(catalog: Catalog) -> Callable[[], None]:
    """Return a transaction that changes one item."""
    numbers = count()

    def change() -> None:
        number = next(numbers)
        key, value = item(number)
        value.definition += " -- changed"
        with catalog.transaction() as tx:
            tx.update(ITEMS, key, value)
            catalog.commit_transaction(tx)

    return change


def rate(change: Callable[[], None]) -> float:
    """Return how often per second the action runs, over some seconds."""
    done, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < DDL_SECONDS:
        change()
        done += 1
    return done / seconds


def beneath(client: PersistClient) -> Callable[[], None]:
    """Return an append of the same two updates to a shard with as many rows."""
    writer = client.writer(client.new_shard_id(), SCHEMA, purpose="bench catalog")
    writer.compare_and_append(items_and_events(), 0, 1)
    batches = []
    for number in range(2 * ROUNDS):
        key, value = item(number)
        row = encode(ITEMS, key, value)
        value.definition += " -- changed"
        table = columns([row.key] * 2, [row.value, encode(ITEMS, key, value).value])
        batches.append(table.append_column("_diff", pa.array([-1, 1], pa.int64())).to_batches()[0])
    rest = iter(batches)

    def change() -> None:
        upper = writer.cached_upper
        writer.compare_and_append(next(rest), upper, upper + 1)

    return change


def ddl(catalog: Catalog) -> Callable[[], None]:
    """Return a function that creates one item."""
    numbers = count(10_000_000)

    def change() -> None:
        number = next(numbers)
        catalog.ensure_item("holdfast", "public", f"t{number:07}", definition=definition(number))

    return change


TABLES = """
CREATE TABLE databases (id bigint PRIMARY KEY, name text NOT NULL UNIQUE);
CREATE TABLE schemas (id bigint PRIMARY KEY, database_id bigint, name text NOT NULL,
  UNIQUE (database_id, name));
CREATE TABLE items (id bigint PRIMARY KEY, schema_id bigint NOT NULL, name text NOT NULL, type int NOT NULL,
  definition text NOT NULL, UNIQUE (schema_id, name));
CREATE TABLE id_allocators (name text PRIMARY KEY, next_id bigint NOT NULL);
CREATE TABLE audit_log (id bigint PRIMARY KEY, event_type int, object_type int, object_id text,
  object_name text, who text, occurred_at_ms bigint);
INSERT INTO databases VALUES (1, 'holdfast');
INSERT INTO schemas VALUES (1, 1, 'public');
INSERT INTO id_allocators VALUES ('user_item', 1), ('audit_log', 1);
"""
INSERT_ITEM = "INSERT INTO items VALUES (?, ?, ?, ?, ?)"
INSERT_EVENT = "INSERT INTO audit_log VALUES (?, ?, ?, ?, ?, ?, ?)"


@cache
def item_rows() -> list[tuple[Any, ...]]:
    """Yield the items as rows of the plain table."""
    found = (item(number) for number in range(ITEM_COUNT))
    return [(key.id.user, 1, value.name, value.type, value.definition) for key, value in found]


@cache
def event_rows() -> list[tuple[Any, ...]]:
    """Yield the events as rows of the plain table."""
    return [
        (k.id, v.event_type, v.object_type, v.object_id, v.object_name, v.user, v.occurred_at_ms)
        for k, v in (event(number) for number in range(ITEM_COUNT))
    ]


def plain_change(execute: Callable[[str, tuple[Any, ...]], Any], number: int) -> None:
    """Do the changes of `ensure_item` on plain tables, in an open transaction."""
    name = f"t{number:07}"
    (database,) = execute("SELECT id FROM databases WHERE name = ?", ("holdfast",)).fetchone()
    found = "SELECT id FROM schemas WHERE database_id = ? AND name = ?"
    (schema,) = execute(found, (database, "public")).fetchone()
    assert execute("SELECT id FROM items WHERE schema_id = ? AND name = ?", (schema, name)).fetchone() is None
    allocate = "UPDATE id_allocators SET next_id = next_id + 1 WHERE name = ? RETURNING next_id - 1"
    (id_,) = execute(allocate, ("user_item",)).fetchone()
    (event_id,) = execute(allocate, ("audit_log",)).fetchone()
    execute(INSERT_ITEM, (id_, schema, name, 3, definition(number)))
    now_ms = time.time_ns() // 1_000_000
    execute(INSERT_EVENT, (event_id, 1, 3, f"u{id_}", f"holdfast.public.{name}", "bench", now_ms))


def sqlite_ddl(path: Path) -> Callable[[], None]:
    """The same in SQLite, as durable as ours."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; BEGIN; " + TABLES)
    connection.executemany(INSERT_ITEM, item_rows())
    connection.executemany(INSERT_EVENT, event_rows())
    connection.execute("COMMIT")
    numbers = count(10_000_000)

    def change() -> None:
        connection.execute("BEGIN IMMEDIATE")
        plain_change(connection.execute, next(numbers))
        connection.execute("COMMIT")

    return change


def postgres_ddl(connection: psycopg.Connection[tuple[Any, ...]]) -> Callable[[], None]:
    """The same with psycopg."""

    def execute(query: str, values: tuple[Any, ...]) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(query.replace("?", "%s").encode(), values)

    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(TABLES.encode())
        for table, rows in (("items", item_rows()), ("audit_log", event_rows())):
            with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
    numbers = count(10_000_000)

    def change() -> None:
        with connection.transaction():
            plain_change(execute, next(numbers))

    return change


def p50s(ours: list[float], peer: list[float]) -> str:
    """Format the note for two lists of seconds."""
    p99 = f"p99 {percentile(ours, 99) * 1e3:.2f} ms against {percentile(peer, 99) * 1e3:.2f} ms"
    return f"p50 of {len(ours)}; {p99}"


def open_rows(folder: Path) -> Iterator[Row]:
    """Measure opens in new processes, before and after the events are added."""
    before = [in_a_process("--open", folder) for _ in range(OPENS)]
    seconds, cpu, at_start, after, peak = (median(column) for column in zip(*before, strict=True))
    yield Row(
        f"catalog open {ITEM_COUNT // 1000}k items: seconds",
        seconds,
        1.5,
        "s",
        Goal("<=", 1),
        f"median of {OPENS} processes, {cpu:.2f} s of it CPU; the peer is the goal",
    )
    yield Row(
        f"catalog open {ITEM_COUNT // 1000}k items: memory",
        after / MEGABYTE,
        250,
        "MB",
        Goal("<=", 1),
        f"resident after it; {at_start / MEGABYTE:.0f} MB before it, peak {peak / MEGABYTE:.0f} MB;"
        " the peer is the goal",
    )
    with PersistClient.open(f"file://{folder}") as client:
        add_events(client, catalog_shard_id(ORGANIZATION))
    log("added the events")
    more = [in_a_process("--open", folder) for _ in range(OPENS - 1)]
    grown, seconds = median([found[3] for found in more]), median([found[0] for found in more])
    yield Row(
        f"catalog open: memory of {AUDIT_COUNT // 1_000_000}M audit events",
        max(grown - after, 0.1 * MEGABYTE) / MEGABYTE,
        10,
        "MB",
        Goal("<=", 1),
        f"{grown / MEGABYTE:.0f} MB resident against {after / MEGABYTE:.0f} MB; open takes {seconds:.2f} s;"
        " the peer is the goal",
    )


def embedded_rows(folder: Path) -> Iterator[Row]:
    """Measure changes on file blobs and SQLite."""
    with PersistClient.open(f"file://{folder}/holdfast") as client:
        fill(client)
        log("filled the catalog")
        with opened(client) as catalog:
            ours, peer = in_turns(one_object(catalog), beneath(client), rounds=ROUNDS, warmup=30)
            yield Row(
                "catalog commit of one object / persist append",
                median(ours) * 1e3,
                median(peer) * 1e3,
                "ms",
                Goal("<=", 2),
                p50s(ours, peer),
            )
            change = ddl(catalog)
            cpu_start = time.process_time()
            rates = sorted(rate(change) for _ in range(DDL_ROUNDS))
            cpu_ms = (time.process_time() - cpu_start) / (sum(rates) * DDL_SECONDS) * 1e3
            note = (
                f"median of {DDL_ROUNDS} x {DDL_SECONDS:.0f} s, from {rates[0]:.0f} to {rates[-1]:.0f};"
                f" {cpu_ms:.2f} ms of CPU each; the peer is the goal"
            )
            yield Row("catalog DDL on files and SQLite", median(rates), 500, "1/s", Goal(">=", 1), note)
            plain = sqlite_ddl(folder / "plain.sqlite")
            ours, peer = in_turns(change, plain, rounds=ROUNDS, warmup=30)
            yield Row(
                "catalog DDL / plain SQLite tables",
                median(ours) * 1e3,
                median(peer) * 1e3,
                "ms",
                Goal("<=", 3),
                p50s(ours, peer),
            )


def postgres_rows(folder: Path) -> Iterator[Row]:
    """Measure changes with consensus in Postgres."""
    with PostgresServer.start() as server, server.database() as name:
        url = server.url(name)
        connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(url, autocommit=True)
        with connection, PersistClient.open(blob=f"file://{folder}/blobs", consensus=url) as client:
            fill(client)
            with opened(client) as catalog:
                ours, peer = in_turns(ddl(catalog), postgres_ddl(connection), rounds=ROUNDS, warmup=30)
    yield Row(
        "catalog DDL on Postgres / plain psycopg tables",
        median(ours) * 1e3,
        median(peer) * 1e3,
        "ms",
        Goal("<=", 3),
        p50s(ours, peer),
    )


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        yield from embedded_rows(folder)
        yield from postgres_rows(folder)
    with scratch() as folder:
        with PersistClient.open(f"file://{folder}") as client:
            fill(client)
        yield from open_rows(folder)
        changing, committing, grown = in_a_process("--batch", folder)
        yield Row(
            f"catalog transaction of {BATCH_COUNT // 1000}k items: memory",
            grown / MEGABYTE,
            BATCH_COUNT * 1000 / MEGABYTE,
            "MB",
            Goal("<=", 1),
            f"peak above the open catalog; {changing:.1f} s to change, {committing:.1f} s to commit",
        )


MEASURES = {"--open": measure_open, "--batch": measure_batch}

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in MEASURES:
        print(json.dumps(MEASURES[sys.argv[1]](sys.argv[2])))
    else:
        main(rows)
