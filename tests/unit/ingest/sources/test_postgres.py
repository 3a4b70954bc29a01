"""A table of a real Postgres server feeds a collection: its contents at each time are those of the table."""

import datetime as dt
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.pq import ExecStatus

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.errors import BadInput, SourceStalled, StorageError, StoreUnreachable
from holdfast.ingest import Ingestion, StepOutcome, ingest_source, ingestion_of, parse
from holdfast.ingest.kept import errors, offsets, own_slot, progress, slots_left
from holdfast.ingest.opened import opened_source
from holdfast.ingest.source import LastMessage
from holdfast.ingest.sources import postgres_asked, postgres_contents, postgres_log, postgres_rows
from holdfast.ingest.sources.postgres import Postgres
from holdfast.ingest.sources.postgres_table import FittingTable, checked
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient, Schema
from testbed import docpages
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from testbed.pageruns import PageRun
from testbed.postgres import PostgresServer, find
from unit.collections.stores import Stores
from unit.ingest.pgtable import DEADLINE_S, ORDERS, PgTable
from unit.ingest.pipelines import bad, created, drained, pipeline, positions, rows
from unit.ingest.snapshots import taken

pytestmark = pytest.mark.postgres

PARTITION = "public.orders"
AT = dt.datetime(2026, 1, 31, 1, 2, 3, 456789)  # noqa: DTZ001 - a type without a zone


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that keeps changes for others. No test stops it."""
    with PostgresServer.start(durable=False, wal_level="logical") as server:
        yield server


@pytest.fixture
def table(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PgTable]:
    monkeypatch.setenv("PGPASSWORD", server.password)
    with server.database() as name, PgTable(server, name) as table:
        yield table


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def opened(
    client: PersistClient, table: PgTable, schema: Schema = ORDERS, block: Any = None, **changed: Any
) -> tuple[Postgres, Ingestion]:
    """The pipeline of another process, and its source."""
    source = table.source(schema, block, **changed)
    blocks = {"generator": None, "format": None, "postgres": table.block(**changed), **(block or {})}
    return source, pipeline(client, source, **blocks)


def fed(
    client: PersistClient, table: PgTable, schema: Schema = ORDERS, block: Any = None, **changed: Any
) -> int:
    """Feed until nothing is new, as another process. Returns the number of steps with messages."""
    source, ingestion = opened(client, table, schema, block, **changed)
    with closing(source):
        return drained(ingestion)


def once(client: PersistClient, table: PgTable, **changed: Any) -> None:
    """Feed up to the present end, as `holdfast ingest --once` does."""
    source, ingestion = opened(client, table, **changed)
    with closing(source):
        ingestion.run(once=True, stopped=lambda _: False)


def test_the_initial_contents_and_the_changes_are_those_of_the_table(
    client: PersistClient, table: PgTable
) -> None:
    table.insert((1, "a"), (2, "b"), (3, None))
    assert fed(client, table) == 2
    assert rows(client) == table.rows()
    table.run("UPDATE orders SET name = 'c' WHERE id = 1")
    table.run("UPDATE orders SET id = 20 WHERE id = 2")
    table.run("DELETE FROM orders WHERE id = 3")
    table.insert((4, "d"), (5, 'é\n"\\\t,'))
    assert fed(client, table) == 1
    assert rows(client) == table.rows()
    assert positions(client) == {PARTITION: table.confirmed()}


def test_each_type_has_its_values(table: PgTable) -> None:
    table.run("CREATE TYPE mood AS ENUM ('good', 'bad')")
    table.run("CREATE DOMAIN count AS integer CHECK (VALUE > 0)")
    columns = {
        "bool": ("bool?", "boolean", [True, False]),
        "small": ("int16?", "smallint", [-32768, 7]),
        "long": ("int64?", "bigint", [-(2**63), 2**63 - 1]),
        "domain": ("int32?", "count", [1, 2]),
        "real": ("float32?", "real", [0.5, float("-inf")]),
        "double": ("float64?", "double precision", [1 / 3, float("inf")]),
        "money": ("decimal128(12,2)?", "numeric(10,2)", [Decimal("-12.50"), Decimal("12345678.90")]),
        "free": ("string?", "numeric", [Decimal("1.500"), Decimal("NaN")]),
        "text": ("string?", "text", ["", '\x01"\\é\n\t\u2028😀\\N']),
        "mood": ("string?", "mood", ["good", "bad"]),
        "day": ("date32?", "date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "at": ("timestamp?", "timestamp", [AT, AT.replace(year=1)]),
        "utc": ("timestamp_utc?", "timestamptz", [dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)] * 2),
        "bytes": ("binary?", "bytea", [b"", bytes(range(256))]),
        "json": ("string?", "jsonb", ['{"a": [1, null]}', "null"]),
        "uuid": ("string?", "uuid", ["00000000-0000-0000-0000-000000000001"] * 2),
        "array": ("string?", "text[]", [["a", 'b"'], []]),
    }
    for name, (_, type_, _) in columns.items():
        table.run(f'ALTER TABLE orders ADD COLUMN "{name}" {type_}')
    schema = Schema.of(key={"id": "int64"}, value={name: each for name, (each, _, _) in columns.items()})
    client = Stores().open()
    created(client, schema=schema)
    written = [[values[at] for _, _, values in columns.values()] for at in (0, 1)]
    # The same rows come once with the contents, and once as changes.
    table.run("SET timezone = 'Asia/Tokyo'")
    table.run("SET datestyle = 'German'")
    table.insert(*([at + 1, "x", *row] for at, row in enumerate(written)), [9, "x", *[None] * len(columns)])
    assert fed(client, table, schema) == 2
    table.insert(*([at + 11, "x", *row] for at, row in enumerate(written)), [19, "x", *[None] * len(columns)])
    assert fed(client, table, schema) == 1
    assert bad(client) == []
    for id_, row in [(1, written[0]), (2, written[1]), (11, written[0]), (12, written[1])]:
        (found,) = [each for each in rows(client) if each[0] == id_]
        got = dict(zip(schema.arrow.names[1:], found[1:], strict=True))
        wanted = dict(zip(columns, row, strict=True)) | {
            "free": str(row[list(columns).index("free")]),
            "array": '{a,"b\\""}' if row[-1] else "{}",
        }
        assert {name: got[name] for name in got} == wanted
    nulls = [each for each in rows(client) if each[0] in {9, 19}]
    assert [set(each[1:]) for each in nulls] == [{None}, {None}]


def test_values_without_a_form_are_bad_records(table: PgTable) -> None:
    schema = Schema.of(key={"id": "int64"}, value={"day": "date32?", "price": "decimal128(10,2)?"})
    table.run("ALTER TABLE orders ADD COLUMN day date, ADD COLUMN price numeric")
    client = Stores().open()
    created(client, schema=schema)
    values = [
        (1, "infinity", "1"),
        (2, "0044-03-15 BC", "1"),
        (3, "2026-01-31", "NaN"),
        (4, "2026-01-31", "1.234"),
    ]
    for id_, day, price in [*values, (5, "2026-01-31", "1.20")]:
        table.run("INSERT INTO orders (id, day, price) VALUES (%s, %s, %s)", id_, day, price)
    fed(client, table, schema)
    assert [kind for _, _, kind in bad(client)] == ["decode"] * 4
    assert set(rows(client)) == {(5, dt.date(2026, 1, 31), Decimal("1.20"))}
    table.run("UPDATE orders SET day = '2026-02-01', price = 2 WHERE id = 1")
    table.run("DELETE FROM orders WHERE id IN (2, 3)")
    table.run("UPDATE orders SET price = 'NaN' WHERE id = 5")
    fed(client, table, schema)
    assert len(bad(client)) == 2
    assert set(rows(client)) == {(1, dt.date(2026, 2, 1), Decimal(2))}


def test_a_transaction_is_at_one_time(client: PersistClient, table: PgTable) -> None:
    table.insert(*((id_, "0") for id_ in range(10)))
    source, ingestion = opened(client, table, block={"batch": {"maxRows": 3}})
    uppers = []
    with closing(source):
        drained(ingestion)
        uppers.append(ingestion.step().upper)
        for number in range(1, 6):
            with table.connection.transaction():
                for id_ in range(10):
                    table.run("UPDATE orders SET name = %s WHERE id = %s", str(number), id_)
        while (step := ingestion.step()).outcome is StepOutcome.COMMITTED:
            uppers.append(step.upper)
    found = [Counter(name for _, name in rows(client, upper - 1)) for upper in uppers]
    assert found == [{str(number): 10} for number in range(6)]


def test_a_transaction_beyond_its_limit_stalls_the_source(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    fed(client, table)
    before = positions(client)
    # Small ones don't add up.
    for id_ in range(10, 20):
        table.insert((id_, "x" * 500))
    block = {"batch": {"maxTransactionBytes": "1Ki"}}
    fed(client, table, block=block)
    assert rows(client) == table.rows()
    table.insert((2, "b" * 500), (3, "c" * 500))
    for _ in range(2):
        with pytest.raises(
            SourceStalled, match=r"commit at [0-9A-F]+/[0-9A-F]+ has more than 1,024 bytes"
        ) as told:
            fed(client, table, block=block)
    assert "raise batch.maxTransactionBytes" in str(told.value.hint)
    assert len(rows(client)) == 11
    fed(client, table, block={"batch": {"maxTransactionBytes": "2Ki"}})
    assert rows(client) == table.rows()
    assert positions(client)[PARTITION] > before[PARTITION]


def test_a_step_ends_after_the_transaction_that_fills_it(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A piece is full in the middle of each transaction.
    monkeypatch.setattr(postgres_rows, "_PIECE_ROWS", 2)
    fed(client, table)
    for number in range(10):
        table.insert(*((10 * number + each, "x" * 100) for each in range(3)))
    source, ingestion = opened(client, table, block={"batch": {"maxBytes": "400"}})
    with closing(source):
        steps = []
        while (step := ingestion.step()).outcome is StepOutcome.COMMITTED:
            steps.append(step.messages)
    assert steps == [3] * 10
    assert rows(client) == table.rows()


def test_a_transaction_that_is_read_in_pieces_appears_whole(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "_PIECE_ROWS", 2)
    table.insert((1, "a"), (2, "b"))
    fed(client, table)
    with table.connection.transaction():
        table.insert(*((each, "x" * 100) for each in range(10, 17)))
        table.run("UPDATE orders SET id = id + 100 WHERE id < 15")
    with table.connection.transaction():
        table.insert((3, "c"), (4, "d"), (5, "e"))
        table.run("TRUNCATE orders")
        table.insert(*((each, "f") for each in range(5)))
    table.insert((9, "g"))
    with pytest.raises(SourceStalled, match="has more than 1,024 bytes"):
        fed(client, table, block={"batch": {"maxTransactionBytes": "1Ki"}})
    source, ingestion = opened(client, table, block={"batch": {"maxRows": 1}})
    uppers = []
    with closing(source):
        while (step := ingestion.step()).outcome is StepOutcome.COMMITTED:
            uppers.append(step.upper)
    found = [sorted(id_ for id_, _ in rows(client, upper - 1)) for upper in uppers]
    moved = [15, 16, 101, 102, *range(110, 115)]
    assert found == [moved, [*range(5)], [*range(5), 9]]
    assert rows(client) == table.rows()


# Keys, large values, and truncation


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_initial_contents_beyond_the_limit_stall_the_source(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(postgres_contents, "PIECE_BYTES", piece)
    table.insert(*((each, "x" * 50) for each in range(20)))
    with pytest.raises(SourceStalled, match="the initial contents have more than 1,024 bytes") as told:
        fed(client, table, block={"batch": {"maxTransactionBytes": "1Ki"}})
    assert "raise batch.maxTransactionBytes" in str(told.value.hint)
    # The server keeps no log for what nobody reads on.
    assert not table.slots()
    assert not rows(client)
    fed(client, table, block={"batch": {"maxTransactionBytes": "3Gi"}})
    assert rows(client) == table.rows()


def test_keys_move_and_swap(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"), (2, "b"), (3, "c"))
    fed(client, table)
    with table.connection.transaction():
        table.run("UPDATE orders SET id = -1 WHERE id = 1")
        table.run("UPDATE orders SET id = 1, name = 'B' WHERE id = 2")
        table.run("UPDATE orders SET id = 2 WHERE id = -1")
        table.run("DELETE FROM orders WHERE id = 3")
        table.insert((3, "new"), (4, "gone"))
        table.run("DELETE FROM orders WHERE id = 4")
    fed(client, table)
    assert rows(client) == table.rows() == Counter({(1, "B"): 1, (2, "a"): 1, (3, "new"): 1})


def big() -> str:
    """A text that is stored apart, because it can't be compressed."""
    return secrets.token_hex(20_000)


TOAST = "id bigint PRIMARY KEY, name text, big text"
LARGE = Schema.of(key={"id": "int64"}, value={"name": "string?", "big": "string?"})


@pytest.fixture
def large(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PgTable]:
    monkeypatch.setenv("PGPASSWORD", server.password)
    with server.database() as name, PgTable(server, name, TOAST) as table:
        yield table


def test_large_values_that_an_update_does_not_change(large: PgTable) -> None:
    client = Stores().open()
    created(client, schema=LARGE)
    large.insert((1, "a", big()), (2, "b", big()), (3, "c", "small"))
    fed(client, large, LARGE)
    large.run("UPDATE orders SET name = 'new'")
    large.run("UPDATE orders SET id = 20 WHERE id = 2")
    fed(client, large, LARGE)
    # Never a row that the table doesn't have: an error takes its place.
    assert bad(client) == [(PARTITION, at, "unchanged") for _, at, _ in bad(client)]
    assert len(bad(client)) == 2
    assert rows(client) == Counter({(3, "new", "small"): 1})
    shown = errors(StorageController(client), "orders")[1].to_pylist()
    assert "REPLICA IDENTITY FULL" in shown[0]["reason"]
    large.run("UPDATE orders SET big = %s WHERE id = 1", big())
    large.run("DELETE FROM orders WHERE id = 20")
    fed(client, large, LARGE)
    assert (rows(client), bad(client)) == (large.rows("id, name, big"), [])


def test_the_whole_row_as_identity_has_large_values(large: PgTable) -> None:
    client = Stores().open()
    created(client, schema=LARGE)
    large.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    large.insert((1, "a", big()), (2, "b", big()), (3, None, None))
    fed(client, large, LARGE)
    large.run("UPDATE orders SET name = 'new' WHERE id < 3")
    large.run("UPDATE orders SET id = 20 WHERE id = 2")
    large.run("DELETE FROM orders WHERE id = 3")
    fed(client, large, LARGE)
    assert bad(client) == []
    assert rows(client) == large.rows("id, name, big")


def test_truncate_deletes_rows_and_errors(large: PgTable) -> None:
    client = Stores().open()
    created(client, schema=LARGE)
    large.insert((1, "a", big()), (2, "b", "small"))
    fed(client, large, LARGE)
    large.run("UPDATE orders SET name = 'new'")
    fed(client, large, LARGE)
    assert len(bad(client)) == 1
    with large.connection.transaction():
        large.insert((5, "before", None))
        large.run("TRUNCATE orders")
        large.insert((2, "b", "small"), (6, "after", None))
    fed(client, large, LARGE)
    assert (rows(client), bad(client)) == (large.rows("id, name, big"), [])
    large.run("TRUNCATE orders")
    assert fed(client, large, LARGE) == 1
    assert rows(client) == Counter()


# Which tables fit


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX orders_name"])
def test_replica_identities(table: PgTable, identity: str) -> None:
    table.run("ALTER TABLE orders ALTER COLUMN name SET NOT NULL")
    table.run("CREATE UNIQUE INDEX orders_name ON orders (name)")
    table.run(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    schema = ORDERS if identity == "DEFAULT" else Schema.of(key={"name": "string"}, value={"id": "int64?"})
    client = Stores().open()
    created(client, schema=schema)
    table.insert((1, "a"), (2, "b"), (3, "c"), (4, "d"))
    fed(client, table, schema)
    table.run("UPDATE orders SET id = 10 WHERE id = 1")
    table.run("UPDATE orders SET name = 'e' WHERE id = 2")
    table.run("DELETE FROM orders WHERE id = 3")
    fed(client, table, schema)
    assert rows(client) == table.rows(", ".join(schema.arrow.names))


@pytest.mark.parametrize(
    ("statements", "columns", "told"),
    [
        (["DROP TABLE orders"], {}, "table public.orders at HOST doesn't exist"),
        (["DROP PUBLICATION shop"], {}, "is not published: there is no publication shop"),
        (["ALTER PUBLICATION shop DROP TABLE orders"], {}, "is not in publication shop"),
        (
            ["ALTER PUBLICATION shop SET (publish = 'insert')"],
            {},
            "has changes that publication shop leaves out",
        ),
        (
            ["ALTER PUBLICATION shop SET TABLE orders WHERE (id > 3)"],
            {},
            "has rows that publication shop leaves out",
        ),
        (
            ["ALTER PUBLICATION shop SET TABLE orders (id)"],
            {},
            "has a column 'name' that publication shop leaves out",
        ),
        (
            ["ALTER TABLE orders DROP CONSTRAINT orders_pkey"],
            {},
            "no unique index on the collection's key (id)",
        ),
        (["ALTER TABLE orders REPLICA IDENTITY NOTHING"], {}, "its replica identity is nothing"),
        (
            [
                "CREATE UNIQUE INDEX u ON orders (name)",
                "ALTER TABLE orders ALTER name SET NOT NULL",
                "ALTER TABLE orders REPLICA IDENTITY USING INDEX u",
            ],
            {},
            "its replica identity has name",
        ),
        (
            [
                "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
                "ALTER TABLE orders ADD PRIMARY KEY (id) DEFERRABLE",
            ],
            {},
            "has no primary key and no unique index",
        ),
        ([], {"other": "string?"}, "has no column 'other', which the collection has"),
        (
            ["ALTER TABLE orders ADD other text GENERATED ALWAYS AS (name) STORED"],
            {"other": "string?"},
            "has a column 'other' that publication shop leaves out",
        ),
        (
            ["ALTER TABLE orders ADD other bigint"],
            {"other": "float64?"},
            "column 'other' of type bigint, which type float64 of the collection does not fit",
        ),
        (
            ["ALTER TABLE orders ADD other regclass"],
            {"other": "string?"},
            "column 'other' of type regclass, whose values change without a message",
        ),
        (["ALTER TABLE orders SET UNLOGGED"], {}, "is not an ordinary table"),
        (
            [
                "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
                "ALTER TABLE orders ALTER id DROP NOT NULL",
                "CREATE UNIQUE INDEX u ON orders (id)",
                "ALTER TABLE orders REPLICA IDENTITY FULL",
            ],
            {},
            "allows null in column 'id' of the collection's key",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_one_clear_line(
    table: PgTable, statements: list[str], columns: dict[str, str], told: str
) -> None:
    if "SET UNLOGGED" in str(statements):
        table.run("ALTER PUBLICATION shop DROP TABLE orders")
    for each in statements:
        table.run(each)
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?", **columns})
    with pytest.raises(BadInput, match=re.escape(told.replace("HOST", where(table)))) as caught:
        table.source(schema)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert table.slots() == []


def where(table: PgTable) -> str:
    return f"127.0.0.1:{table.server.port}/{table.database}"


# What changes besides the rows


def test_a_new_column_is_ignored(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    fed(client, table)
    table.run("ALTER TABLE orders ADD COLUMN other text DEFAULT 'x'")
    table.insert((2, "b", "y"))
    table.run("UPDATE orders SET name = 'c' WHERE id = 1")
    table.run("ALTER TABLE orders DROP COLUMN other")
    table.insert((3, "c"))
    fed(client, table)
    assert rows(client) == table.rows()


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (
            ["ALTER TABLE orders DROP COLUMN name", "ALTER TABLE orders ADD COLUMN name text"],
            "column 'name' was dropped and added again",
        ),
        (
            ["ALTER TABLE orders ALTER COLUMN name TYPE varchar(1) USING 'x'"],
            "column 'name' was changed to another type",
        ),
        (
            [
                "ALTER TABLE orders ALTER COLUMN name TYPE varchar(9) USING 'x'",
                "INSERT INTO orders VALUES (9, 'v')",
                "ALTER TABLE orders ALTER COLUMN name TYPE text USING 'y'",
            ],
            "column 'name' was altered, and the rows were written anew",
        ),
        (
            [
                "ALTER PUBLICATION shop DROP TABLE orders",
                "INSERT INTO orders VALUES (9, 'unseen')",
                "ALTER PUBLICATION shop ADD TABLE orders",
            ],
            "the publication was changed, or has left the table out",
        ),
        (
            [
                "ALTER PUBLICATION shop SET (publish = 'insert')",
                "DELETE FROM orders",
                "ALTER PUBLICATION shop SET (publish = 'insert, update, delete, truncate')",
            ],
            "the publication was changed, or has left the table out",
        ),
        (
            [
                "ALTER TABLE orders RENAME TO old",
                "CREATE TABLE orders (id bigint PRIMARY KEY, name text)",
                "ALTER PUBLICATION shop ADD TABLE orders",
            ],
            "the table was dropped and created again",
        ),
        (
            ["ALTER TABLE orders REPLICA IDENTITY FULL"],
            "the replica identity or its unique index was changed",
        ),
    ],
)
def test_what_may_change_rows_without_a_message_stalls_the_source(
    client: PersistClient, table: PgTable, statements: list[str], told: str
) -> None:
    table.insert((1, "a"), (2, "b"))
    fed(client, table)
    before = rows(client)
    table.insert((3, "c"))
    for each in statements:
        table.run(each)
    table.run("INSERT INTO orders VALUES (4, 'd')")
    for _ in range(2):
        with pytest.raises(SourceStalled, match=re.escape(told)):
            once(client, table)
    assert rows(client) == before
    # A new epoch has the contents of the table, and replaces the old ones at one time.
    once(client, table, onReset="NewEpoch")
    assert rows(client) == table.rows()
    table.run("INSERT INTO orders VALUES (5, 'e')")
    assert fed(client, table) == 1
    assert rows(client) == table.rows()
    assert len(table.slots()) == 1


FOR_ALL = ["DROP PUBLICATION shop", "CREATE PUBLICATION shop FOR ALL TABLES"]
VIA_ROOT = [FOR_ALL[0], f"{FOR_ALL[1]} WITH (publish_via_partition_root)"]
IN_SCHEMA = ["DROP PUBLICATION shop", "CREATE PUBLICATION shop FOR TABLES IN SCHEMA public"]
MOOD = [
    "CREATE TYPE mood AS ENUM ('a', 'b', 'c', 'd', 'e')",
    "ALTER TABLE orders ALTER name TYPE mood USING name::mood",
]
ANEW = "the rows were written anew"


@pytest.mark.parametrize(
    ("before", "statements", "told"),
    [
        (
            [],
            ["ALTER TABLE orders ALTER name TYPE text USING 'x'"],
            f"column 'name' was altered, and {ANEW}",
        ),
        (
            [],
            ["ALTER TABLE orders ALTER id TYPE bigint USING id + 10"],
            f"column 'id' was altered, and {ANEW}",
        ),
        (
            FOR_ALL,
            [
                "ALTER TABLE orders SET UNLOGGED",
                "UPDATE orders SET name = 'e' WHERE id = 1",
                "ALTER TABLE orders SET LOGGED",
            ],
            f"{ANEW} (by TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE), and the table may have been",
        ),
        (
            IN_SCHEMA,
            [
                "CREATE SCHEMA away",
                "ALTER TABLE orders SET SCHEMA away",
                "DELETE FROM away.orders",
                "ALTER TABLE away.orders SET SCHEMA public",
            ],
            "may have been in another schema for a while",
        ),
        (
            VIA_ROOT,
            [
                "CREATE TABLE parent (id bigint, name text) PARTITION BY RANGE (id)",
                "ALTER TABLE parent ATTACH PARTITION orders FOR VALUES FROM (0) TO (10)",
                "DELETE FROM orders WHERE id = 1",
                "ALTER TABLE parent DETACH PARTITION orders",
            ],
            "may have been a partition for a while",
        ),
        (MOOD, ["ALTER TYPE mood RENAME VALUE 'a' TO 'z'"], "a value of an enum was renamed"),
        (
            [*MOOD, "ALTER TABLE orders ALTER name TYPE mood[] USING ARRAY[name]"],
            [
                "ALTER TYPE mood RENAME VALUE 'a' TO 'z'",
                "INSERT INTO orders VALUES (9, '{z}')",
                "ALTER TYPE mood RENAME VALUE 'z' TO 'a'",
            ],
            "a value of an enum was renamed",
        ),
        (
            [
                "CREATE TYPE pair AS (one text, two text)",
                "CREATE DOMAIN pairs AS pair",
                "ALTER TABLE orders ALTER name TYPE pairs USING ROW(name, name)::pairs",
            ],
            ["ALTER TYPE pair ADD ATTRIBUTE three text"],
            "a composite type that a column uses was changed",
        ),
        (
            [],
            [
                "ALTER PUBLICATION shop SET TABLE orders WHERE (id > 9)",
                "ALTER PUBLICATION shop SET TABLE orders",
            ],
            "the publication was changed, or has left the table out",
        ),
        (
            [],
            ["ALTER PUBLICATION shop SET TABLE orders (id)", "ALTER PUBLICATION shop SET TABLE orders"],
            "the publication was changed, or has left the table out",
        ),
        (
            [],
            [
                "ALTER PUBLICATION shop SET (publish = 'insert, update, delete')",
                "TRUNCATE orders",
                "ALTER PUBLICATION shop SET (publish = 'insert, update, delete, truncate')",
            ],
            "the publication was changed, or has left the table out",
        ),
        (
            [],
            ["DROP TABLE orders", "CREATE TABLE orders (id bigint PRIMARY KEY, name text)", *IN_SCHEMA],
            "the table was dropped and created again",
        ),
    ],
)
def test_what_leaves_only_traces_stalls_the_source(
    client: PersistClient, table: PgTable, before: list[str], statements: list[str], told: str
) -> None:
    table.insert((1, "a"), (2, "b"))
    for each in before:
        table.run(each)
    fed(client, table)
    contents = rows(client)
    for each in statements:
        table.run(each)
    table.run("UPDATE orders SET id = id + 100 WHERE id = 2")
    for _ in range(2):
        with pytest.raises(SourceStalled, match=re.escape(told)) as caught:
            once(client, table)
    assert "\n" not in str(caught.value)
    assert "onReset: NewEpoch" in str(caught.value.hint)
    assert rows(client) == contents
    once(client, table, onReset="NewEpoch")
    assert rows(client) == table.rows("id, name::text")


@pytest.mark.parametrize(
    "publication",
    [[], FOR_ALL, *(pytest.param(each, marks=pytest.mark.long) for each in (IN_SCHEMA, VIA_ROOT))],
)
def test_what_changes_no_row_stalls_nothing(
    client: PersistClient, table: PgTable, publication: list[str]
) -> None:
    table.insert((1, "a"), (2, "b"))
    for each in [*publication, *MOOD, "ALTER TABLE orders ADD COLUMN other mood"]:
        table.run(each)
    fed(client, table)
    for each in [
        "VACUUM ANALYZE orders",
        "VACUUM FREEZE pg_class, pg_attribute, pg_enum",
        "ALTER TABLE orders ALTER name SET STATISTICS 10",
        "ALTER TABLE orders ALTER name SET DEFAULT 'a'",
        "GRANT SELECT ON orders TO PUBLIC",
        "CREATE INDEX ON orders (name)",
        "ALTER TYPE mood ADD VALUE 'aa' BEFORE 'b'",
        "ALTER TABLE orders ADD COLUMN note text",
        "TRUNCATE orders",
        # The publication names the table, so that Postgres refuses that it is unlogged.
        *([] if publication else ["VACUUM FULL orders", "CLUSTER orders USING orders_pkey"]),
        *([] if publication else ["ALTER TABLE orders ALTER other TYPE mood USING 'a'"]),
        *([] if publication == VIA_ROOT else ["ALTER TABLE orders ALTER id SET STATISTICS 10"]),
    ]:
        table.run(each)
        table.run("INSERT INTO orders (id, name) SELECT count(*) + 10, 'c' FROM orders")
        assert fed(client, table) == 1, each
        assert rows(client) == table.rows(), each
    table.run("INSERT INTO orders (id, name) VALUES (99, 'aa')")
    fed(client, table)
    assert rows(client) == table.rows()


def test_a_table_without_toast_can_be_truncated_if_its_publication_names_it(
    tmp_path: Path, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", table.server.password)
    for each in ["DROP TABLE orders", "CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(9))"]:
        table.run(each)
    table.run("DROP PUBLICATION shop")
    table.run("CREATE PUBLICATION shop FOR ALL TABLES")

    def ingested(**changed: Any) -> tuple[int, str]:
        spec = {
            "collection": "orders",
            "key": {"id": "int64"},
            "columns": {"name": "string?"},
            "source": {"postgres": table.block(**changed)},
        }
        (tmp_path / "orders.yaml").write_text(json.dumps(spec))
        command = ["ingest", str(tmp_path / "orders.yaml"), "--url", f"file://{tmp_path}/to", "--once"]
        done = CliRunner().invoke(main, command)
        return done.exit_code, done.stderr

    table.insert((1, "a"))
    assert ingested()[0] == 0
    table.run("TRUNCATE orders")
    table.insert((2, "b"))
    code, told = ingested()
    line, hint = told.strip().splitlines()[-2:]
    assert (code, line.count("rows were written anew (by TRUNCATE")) == (1, 1), told
    assert "set onReset: NewEpoch" in hint
    assert "drop the publication and make it again FOR TABLE" in hint
    # That is what one does.
    table.run("DROP PUBLICATION shop")
    table.run("CREATE PUBLICATION shop FOR TABLE orders")
    assert ingested(onReset="NewEpoch")[0] == 0
    for statement in ("TRUNCATE orders", "INSERT INTO orders VALUES (3, 'c')", "VACUUM FULL orders"):
        table.run(statement)
    assert ingested()[0] == 0
    with holdfast.table(f"file://{tmp_path}/to", "orders", mode="read") as orders:
        assert orders.read().to_pylist() == [{"id": 3, "name": "c"}]


def test_a_binding_of_an_earlier_build_gets_traces(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert((1, "a"))
    with monkeypatch.context() as patched:
        patched.setattr(postgres_asked, "checked", lambda *each: untraced(checked(*each)))
        fed(client, table)
        table.insert((2, "b"))
        fed(client, table)
    assert "traces" not in offsets(StorageController(client), "orders")[1]["identity"][0].as_py()
    table.insert((3, "c"))
    assert fed(client, table) == 1
    assert "traces" in offsets(StorageController(client), "orders")[1]["identity"][0].as_py()
    table.run("ALTER TABLE orders ALTER name TYPE text USING 'x'")
    with pytest.raises(SourceStalled, match=ANEW):
        fed(client, table)


def untraced(table: FittingTable) -> FittingTable:
    facts = {name: each for name, each in table.facts.items() if name != "traces"}
    return replace(table, facts=facts)


def test_a_column_that_had_the_name_of_another_one_for_a_while_stalls_the_source(
    client: PersistClient, table: PgTable
) -> None:
    table.run("ALTER TABLE orders DROP name, ADD old text, ADD name text, ADD other text")
    table.run("INSERT INTO orders (id, name) VALUES (1, 'a')")
    fed(client, table)
    # Other columns may come and go, also while a step ends in between.
    for number, each in enumerate(["DROP old", "ADD new int", "ADD newer int", "DROP new"]):
        table.run("INSERT INTO orders (id, name) VALUES (%s, 'b')", 10 + number)
        table.run(f"ALTER TABLE orders {each}")
    table.run("INSERT INTO orders (id, name) VALUES (20, 'c')")
    assert fed(client, table, block={"batch": {"maxRows": 1}}) > 2
    assert rows(client) == table.rows()
    contents = rows(client)
    for each in ["name TO kept", "other TO name"]:
        table.run(f"ALTER TABLE orders RENAME {each}")
    table.run("INSERT INTO orders (id, name, kept) VALUES (2, 'wrong', 'b')")
    for each in ["name TO other", "kept TO name"]:
        table.run(f"ALTER TABLE orders RENAME {each}")
    for _ in range(2):
        with pytest.raises(SourceStalled, match="'name' was renamed, and another one had its name") as told:
            once(client, table)
    assert "onReset: NewEpoch" in str(told.value.hint)
    assert rows(client) == contents
    once(client, table, onReset="NewEpoch")
    assert rows(client) == table.rows()


def test_a_dropped_column_stalls_the_source(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    fed(client, table)
    source, ingestion = opened(client, table)
    table.run("ALTER TABLE orders DROP COLUMN name")
    with (
        closing(source),
        pytest.raises(SourceStalled, match="has no column 'name', which the collection has"),
    ):
        drained(ingestion)
    with pytest.raises(BadInput, match="has no column 'name', which the collection has"):
        fed(client, table)


def test_a_column_that_the_collection_gets_later_needs_the_contents_again(
    client: PersistClient, table: PgTable
) -> None:
    table.run("ALTER TABLE orders ADD COLUMN other text DEFAULT 'x'")
    table.insert((1, "a", "y"))
    fed(client, table)
    wider = Schema.of(key={"id": "int64"}, value={"name": "string?", "other": "string?"})
    StorageController(client).evolve_collection("orders", wider)
    with pytest.raises(SourceStalled, match="the collection has got column 'other'"):
        fed(client, table, wider)
    fed(client, table, wider, onReset="NewEpoch")
    assert rows(client) == table.rows("id, name, other")


def test_an_instance_reads_a_column_that_the_collection_got_while_it_ran(table: PgTable) -> None:
    table.run("ALTER TABLE orders ADD COLUMN other text")
    table.insert((1, "a", "x"))
    client = Stores().open()
    wider = Schema.of(key={"id": "int64"}, value={"name": "string?", "other": "string?"})
    spec = parse({"postgres": table.block(onReset="NewEpoch")})
    controller = StorageController(client)
    with ingestion_of(controller, "orders", spec, ORDERS) as older:
        drained(older)
        controller.evolve_collection("orders", wider)
        with ingestion_of(controller, "orders", spec) as newer:
            drained(newer)
            assert rows(client) == table.rows("id, name, other")
            # It must not begin another epoch, whose rows lack the column.
            for step in range(3):
                table.insert((10 + step, "b", "y"))
                drained(older)
                assert rows(client) == table.rows("id, name, other")
                assert drained(newer) == 0
        table.run("ALTER TABLE orders ADD COLUMN more text")
        table.insert((20, "c", "z", "w"))
        more = Schema.of(
            key={"id": "int64"}, value={"name": "string?", "other": "string?", "more": "string?"}
        )
        controller.evolve_collection("orders", more)
        # It is alone.
        drained(older)
        assert rows(client) == table.rows("id, name, other, more")


# Slots that are gone


def slot_of_the(table: PgTable) -> str:
    (name,) = table.slots()
    return name


def test_a_dropped_slot_stalls_the_source(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"), (2, "b"))
    fed(client, table)
    name, position = slot_of_the(table), positions(client)[PARTITION]
    table.run("SELECT pg_drop_replication_slot(%s)", name)
    table.run("DELETE FROM orders WHERE id = 1")
    with pytest.raises(
        SourceStalled, match=f"slot {name} doesn't exist any more: changes from .* may be lost"
    ):
        fed(client, table)
    # One that was made again has not what was between.
    table.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    table.insert((3, "c"))
    with pytest.raises(SourceStalled, match=r"is confirmed up to .* the slot was made again"):
        fed(client, table)
    assert (rows(client), positions(client)) == (Counter({(1, "a"): 1, (2, "b"): 1}), {PARTITION: position})
    assert fed(client, table, onReset="NewEpoch") == 2
    assert rows(client) == table.rows()
    assert name not in table.slots()


def test_a_slot_of_another_kind_stalls_the_source(client: PersistClient, table: PgTable) -> None:
    fed(client, table)
    name = slot_of_the(table)
    table.run("SELECT pg_drop_replication_slot(%s)", name)
    table.run("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", name)
    with pytest.raises(SourceStalled, match="was made by somebody else"):
        fed(client, table)


def test_a_slot_that_the_server_gave_up_stalls_the_source(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    fed(client, table)
    table.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    table.run("SELECT pg_reload_conf()")
    try:
        lost = "SELECT wal_status FROM pg_replication_slots WHERE database = current_database()"
        deadline = time.monotonic() + DEADLINE_S
        while table.run(lost) != [("lost",)]:
            assert time.monotonic() < deadline
            table.run("SELECT pg_switch_wal(), pg_logical_emit_message(false, '', repeat('x', 100000))")
            table.run("SELECT pg_switch_wal()")
            table.run("CHECKPOINT")
    finally:
        table.run("ALTER SYSTEM RESET max_slot_wal_keep_size")
        table.run("SELECT pg_reload_conf()")
    table.insert((2, "b"))
    with pytest.raises(SourceStalled, match="is lost, because the server has deleted the log") as caught:
        fed(client, table)
    assert "raise max_slot_wal_keep_size" in str(caught.value.hint)
    fed(client, table, onReset="NewEpoch")
    assert rows(client) == table.rows()


def test_another_server_stalls_the_source(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert((1, "a"))
    fed(client, table)
    with PostgresServer.start(durable=False, wal_level="logical") as other:
        monkeypatch.setenv("PGPASSWORD", other.password)
        with psycopg.connect(other.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{table.database}"')
        with (
            PgTable(other, table.database) as copy,
            pytest.raises(SourceStalled, match="was fed from postgres://"),
        ):
            fed(client, copy)
    assert rows(client) == Counter({(1, "a"): 1})


# Attempts for the initial contents


def test_an_attempt_that_ended_is_taken_over_and_leaves_no_slot(
    client: PersistClient, table: PgTable
) -> None:
    table.insert((1, "a"))
    dead, first = opened(client, table)
    assert first.step().outcome is StepOutcome.COMMITTED
    (wanted,) = dead.probe(first.bound)
    assert wanted.whole
    left = slot_of_the(table)
    # While it lives, others wait for it, and make no step that would take its place.
    source, second = opened(client, table, block={"run": {"progressInterval": "1ms"}})
    for _ in range(3):
        time.sleep(0.002)
        assert second.step().outcome is StepOutcome.IDLE
    assert first.step().outcome is StepOutcome.COMMITTED
    assert rows(client) == table.rows()
    assert drained(second) == 0 or positions(client)[PARTITION] > 0
    assert slot_of_the(table) == left
    dead.close()
    source.close()


def test_a_dead_attempt_is_taken_over(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    dead, first = opened(client, table)
    first.step()
    dead.probe(first.bound)
    left = slot_of_the(table)
    dead.close()
    assert fed(client, table) == 2
    assert rows(client) == table.rows()
    assert slot_of_the(table) != left


def test_a_dead_attempt_that_comes_back_commits_nothing(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    source, slow = opened(client, table)
    slow.step()
    # Its connection that shows that it lives breaks, but it still has its snapshot.
    source.probe(slow.bound)
    source._client.close()
    table.insert((2, "b"))
    assert fed(client, table) == 2
    table.insert((3, "c"))
    assert fed(client, table) == 1
    assert slow.step().outcome is StepOutcome.LOST
    drained(slow)
    assert rows(client) == table.rows()
    assert len(table.slots()) == 1
    source.close()


@pytest.mark.parametrize("which", ["replication = false", "replication = true"])
def test_a_lost_snapshot_starts_over(client: PersistClient, table: PgTable, which: str) -> None:
    table.insert(*((id_, "x") for id_ in range(1000)))
    source, ingestion = opened(client, table)
    ingestion.step()
    source.probe(ingestion.bound)
    kind = "walsender" if which.endswith("true") else "client backend"
    ended = table.run(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = %s",
        kind,
    )
    assert ended
    table.run("DELETE FROM orders WHERE id < 10")
    deadline = time.monotonic() + DEADLINE_S
    while rows(client) != table.rows():
        ingestion.step()
        assert time.monotonic() < deadline
    assert len(table.slots()) == 1
    source.close()


def test_a_table_that_is_truncated_while_the_snapshot_is_made_is_no_empty_one(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert((1, "a"), (2, "b"))
    source, ingestion = opened(client, table)
    ingestion.step()
    made = source._contents._made_slot

    def slot_and_truncation(replication: Any) -> Any:
        found = made(replication)
        monkeypatch.setattr(source._contents, "_made_slot", made)
        table.run("TRUNCATE orders")
        table.insert((3, "c"))
        return found

    monkeypatch.setattr(source._contents, "_made_slot", slot_and_truncation)
    assert [each.waits for each in source.probe(ingestion.bound)] == [True]
    drained(ingestion)
    assert rows(client) == table.rows()
    source.close()


def test_twins_have_each_change_once(client: PersistClient, table: PgTable) -> None:
    pairs = [opened(client, table) for _ in range(2)]
    outcomes = []
    for number in range(12):
        table.insert((number, "x"))
        table.run("UPDATE orders SET name = name || 'y' WHERE id = %s", number // 2)
        outcomes += [pairs[number // 3 % 2][1].step().outcome, pairs[number % 2][1].step().outcome]
    for _, each in pairs:
        each.run(once=True, stopped=lambda _: False)
    assert {StepOutcome.LOST, StepOutcome.COMMITTED} <= set(outcomes)
    assert rows(client) == table.rows()
    assert positions(client)[PARTITION] >= table.confirmed()
    for source, _ in pairs:
        source.close()


def test_a_slot_that_is_in_use_is_waited_for(client: PersistClient, table: PgTable) -> None:
    fed(client, table)
    table.insert((1, "a"))
    source, ingestion = opened(client, table)
    consumer = psycopg.connect(f"{table.url}?replication=database", autocommit=True)
    with closing(source), closing(consumer) as other:
        # A consumer that streams holds the slot.
        options = "proto_version '1', publication_names 'shop'"
        start = f"START_REPLICATION SLOT {slot_of_the(table)} LOGICAL 0/0 ({options})"
        assert other.pgconn.exec_(start.encode()).status == ExecStatus.COPY_BOTH
        assert ingestion.step().outcome is StepOutcome.IDLE
    assert fed(client, table) == 1
    assert rows(client) == table.rows()


# Faults, and a location that was restored


FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_a_fault_at_any_write_changes_nothing(table: PgTable, fault: Fault) -> None:
    for number in range(0, 100, 4):
        stores = Stores()
        created(stores.open())
        table.run("DELETE FROM orders")
        table.insert((1, "a"), (2, "b"))
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        work = [
            lambda: table.run("UPDATE orders SET name = 'c' WHERE id = 1"),
            lambda: table.run("DELETE FROM orders WHERE id = 2"),
        ]
        open_ = stores.open(plan)
        while True:
            try:
                once(open_, table)
            except (StorageError, ProcessDeath):
                open_ = stores.open()
                continue
            assert rows(stores.open()) == table.rows()
            if not work:
                break
            work.pop(0)()
        assert len(table.slots()) == 1
        table.run("SELECT pg_drop_replication_slot(%s)", slot_of_the(table))
        if plan.seen <= number:
            assert number > 5
            return
    raise AssertionError("the work never ends")


def test_a_location_restored_to_an_earlier_state_is_never_a_silent_gap(
    tmp_path: Path, table: PgTable
) -> None:
    block = {"postgres": table.block()}
    url = f"file://{tmp_path}/location"
    table.insert((1, "a"), (2, "b"))
    ingest_source(url, "orders", block, schema=ORDERS, once=True)
    shutil.copytree(tmp_path / "location", tmp_path / "backup")
    table.run("DELETE FROM orders WHERE id = 1")
    ingest_source(url, "orders", block, once=True)
    confirmed = table.confirmed()
    shutil.rmtree(tmp_path / "location")
    shutil.copytree(tmp_path / "backup", tmp_path / "location")
    table.insert((3, "c"))
    for _ in range(2):
        with pytest.raises(
            SourceStalled, match=r"the location was restored to an earlier state.* may be lost"
        ):
            ingest_source(url, "orders", block, once=True)
    assert table.confirmed() == confirmed
    block["postgres"] = table.block(onReset="NewEpoch")
    ingest_source(url, "orders", block, once=True)
    with holdfast.table(url, "orders") as found:
        assert Counter((each["id"], each["name"]) for each in found.read().to_pylist()) == table.rows()


def test_a_collection_restored_from_a_snapshot_stalls_until_the_table_is_read_again(
    tmp_path: Path, table: PgTable
) -> None:
    block = {"postgres": table.block()}
    url = f"file://{tmp_path}/location"
    table.insert((1, "a"), (2, "b"))
    ingest_source(url, "orders", block, schema=ORDERS, once=True)
    with PersistClient.open(url) as client:
        source = taken(client, tmp_path / "snapshot")
    table.run("DELETE FROM orders WHERE id = 1")
    ingest_source(url, "orders", block, once=True)
    with PersistClient.open(url) as client:
        StorageController(client).restore_collection("orders", source)
    table.insert((3, "c"))
    # The slot belongs to the rendition before, and has passed the snapshot.
    for _ in range(2):
        with pytest.raises(SourceStalled, match=r"slot .* belongs to .* changes from .* may be lost") as told:
            ingest_source(url, "orders", block, once=True)
    assert "onReset: NewEpoch" in str(told.value.hint)
    with holdfast.table(url, "orders") as found:
        assert sorted(found.read()["id"].to_pylist()) == [1, 2]
    block["postgres"] = table.block(onReset="NewEpoch")
    ingest_source(url, "orders", block, once=True)
    with holdfast.table(url, "orders") as found:
        assert Counter((each["id"], each["name"]) for each in found.read().to_pylist()) == table.rows()


def test_a_copied_location_goes_on_with_a_slot_of_its_own(tmp_path: Path, table: PgTable) -> None:
    block = {"postgres": table.block()}
    here, there, late = (f"file://{tmp_path}/{name}" for name in ("here", "there", "late"))

    def fed_rows(url: str, **changed: Any) -> Counter[tuple[Any, ...]]:
        ingest_source(url, "orders", {"postgres": table.block(**changed)}, once=True)
        with holdfast.table(url, "orders", mode="read") as found:
            return Counter((each["id"], each["name"]) for each in found.read().to_pylist())

    table.insert((1, "a"), (2, "b"))
    ingest_source(here, "orders", block, schema=ORDERS, once=True)
    (first,) = table.slots()
    holdfast.copy_tables(here, there)
    table.insert((3, "c"))
    table.run("DELETE FROM orders WHERE id = 1")
    assert fed_rows(there) == table.rows()
    mine = set(table.slots()) - {first}
    assert len(mine) == 1
    # Neither moves the slot of the other one.
    assert fed_rows(here) == table.rows()
    holdfast.copy_tables(here, late)
    for number in range(10, 13):
        table.insert((number, "d"))
        table.run("UPDATE orders SET name = 'e' WHERE id = 2")
        for url in (there, here):
            assert fed_rows(url) == table.rows()
    assert set(table.slots()) == {first, *mine}
    # The slot has passed what this copy has.
    with pytest.raises(SourceStalled, match=r"slot .* belongs to another .* changes from .* may be lost"):
        fed_rows(late)
    assert set(table.slots()) == {first, *mine}
    assert fed_rows(late, onReset="NewEpoch") == table.rows()
    assert set(table.slots()) > {first, *mine}
    with pytest.raises(BadInput, match="'orders' was fed on from its source"):
        holdfast.copy_table(here, "orders", there)


def test_a_failover_with_the_slot_goes_on_and_without_it_stalls(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer.start(durable=False, wal_level="logical") as primary:
        monkeypatch.setenv("PGPASSWORD", primary.password)
        table = PgTable(primary, "postgres")
        table.insert((1, "a"))
        fed(client, table)
        with primary.standby() as standby:
            for number in range(4):
                # The slot needs nothing any more from before the standby.
                table.run("CHECKPOINT")
                table.insert((10 + number, "b"))
                fed(client, table)
            standby.follow(primary)
            table.connection.close()
            slots = primary._data / "pg_replslot"
            primary.stop()
            standby.stop()
            # As a failover slot of newer servers.
            for each in slots.iterdir():
                shutil.copytree(each, standby._data / "pg_replslot" / each.name)
            subprocess.run(
                ["chown", "-R", "--reference", standby._data, standby._data / "pg_replslot"], check=True
            )
            standby.resume()
            standby.promote()
            table.server, table.url = standby, standby.url()
            table.reconnect()
            table.insert((3, "c"))
            fed(client, table)
            assert rows(client) == table.rows()
            assert '"timeline":2' in offsets(StorageController(client), "orders")[1]["identity"][0].as_py()
            table.run("SELECT pg_drop_replication_slot(%s)", slot_of_the(table))
            with pytest.raises(SourceStalled, match="doesn't exist any more"):
                fed(client, table)
            table.connection.close()


@pytest.mark.long
def test_a_failover_that_lost_changes_stalls(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresServer.start(durable=False, wal_level="logical") as primary:
        monkeypatch.setenv("PGPASSWORD", primary.password)
        table = PgTable(primary, "postgres")
        table.insert((1, "a"))
        fed(client, table)
        with primary.standby() as standby:
            standby.follow(primary)
            standby.stop()
            table.insert((2, "lost"))
            fed(client, table)
            table.connection.close()
            primary.kill()
            standby.resume()
            standby.promote()
            table.server, table.url = standby, standby.url()
            table.reconnect()
            with pytest.raises(SourceStalled, match="has lost changes"):
                fed(client, table)
            table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")
            with pytest.raises(SourceStalled, match=r"is on timeline 2 after a failover.* has lost changes"):
                fed(client, table)
            fed(client, table, onReset="NewEpoch")
            assert rows(client) == table.rows()
            table.connection.close()


def test_a_slot_that_lags_is_compared_with_what_is_bound(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert((1, "a"))
    fed(client, table)
    confirmed = table.confirmed()
    for statements in [
        # Nothing of the table, its last transaction, and one that truncates it.
        ["SELECT pg_logical_emit_message(false, '', 'x')"],
        ["INSERT INTO orders VALUES (2, 'b')", "UPDATE orders SET name = 'c'", "CREATE TABLE other (id int)"],
        ["TRUNCATE orders"],
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(Postgres, "_acknowledge", lambda _: None)
            for each in statements:
                table.run(each)
            once(client, table)
        assert table.confirmed() == confirmed
        table.run("INSERT INTO orders VALUES (3, 'd') ON CONFLICT (id) DO UPDATE SET name = 'e'")
        once(client, table)
        assert rows(client) == table.rows()
        assert table.confirmed() > confirmed
        confirmed = table.confirmed()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_log_with_other_transactions_than_the_bound_ones_stalls_the_source(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    table.insert((1, "a"))
    fed(client, table)
    with monkeypatch.context() as patched:
        patched.setattr(Postgres, "_acknowledge", lambda _: None)
        # It stands for an earlier state of the server, where the transaction was another one.
        patched.setattr(postgres_log, "last_of", lambda transaction: LastMessage(transaction.at, 1))
        table.insert((2, "lost"))
        fed(client, table)
    contents, confirmed = rows(client), table.confirmed()
    if is_new:
        table.insert((3, "new"))
    for _ in range(2):
        with pytest.raises(SourceStalled, match=r"replaced by an older copy. Changes from .* may be lost"):
            once(client, table)
    assert (rows(client), table.confirmed()) == (contents, confirmed)
    once(client, table, onReset="NewEpoch")
    assert rows(client) == table.rows()


@pytest.mark.long
def test_an_older_copy_of_the_server_whose_log_has_grown_again_stalls(
    client: PersistClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer.start(durable=False, wal_level="logical") as server:
        monkeypatch.setenv("PGPASSWORD", server.password)
        table = PgTable(server, "postgres")
        table.insert((1, "a"))
        fed(client, table)
        table.connection.close()
        server.stop()
        subprocess.run(["cp", "-a", server._data, tmp_path / "copy"], check=True)
        server.resume()
        table.reconnect()
        table.insert((2, "lost"))
        table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")
        fed(client, table)
        contents = rows(client)
        source, ingestion = opened(client, table)
        with closing(source):
            ingestion.load()
            table.connection.close()
            server.stop()
            shutil.rmtree(server._data)
            subprocess.run(["cp", "-a", tmp_path / "copy", server._data], check=True)
            server.resume()
            table.reconnect()
            table.insert((3, "new"))
            for _ in range(2):
                table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))")
            table.insert((4, "newer"))
            # One instance was there before, and another one begins.
            with pytest.raises(
                SourceStalled, match=r"replaced by an older copy. Changes from .* may be lost"
            ):
                ingestion.run(once=True, stopped=lambda _: False)
        with pytest.raises(SourceStalled, match="replaced by an older copy"):
            once(client, table)
        assert rows(client) == contents
        once(client, table, onReset="NewEpoch")
        assert rows(client) == table.rows()
        table.connection.close()


def test_idle_steps_move_the_slot(client: PersistClient, table: PgTable) -> None:
    source, ingestion = opened(client, table, block={"run": {"progressInterval": "1ms"}})
    for _ in range(3):
        ingestion.step()
    before = table.confirmed()
    table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 100000))")
    time.sleep(0.002)
    step = ingestion.step()
    assert (step.outcome, step.messages) == (StepOutcome.COMMITTED, 0)
    assert table.confirmed() == positions(client)[PARTITION] > before + 100_000
    source.close()
    # Without progress it waits before it binds that there is nothing.
    source, ingestion = opened(client, table)
    table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 100000))")
    assert ingestion.step().outcome is StepOutcome.IDLE
    source.close()


# Commands and bad input


def holdfast_(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", f"file://{folder}/location"])


def spec_file(folder: Path, block: dict[str, Any]) -> Path:
    path = folder / "orders.yaml"
    spec = {"collection": "orders", "key": {"id": "int64"}, "columns": {"name": "string?"}}
    path.write_text(json.dumps({**spec, "source": {"postgres": block}}))
    return path


def refused(folder: Path, block: dict[str, Any]) -> str:
    """What a command that fails shows, on one line."""
    result = holdfast_(folder, "ingest", str(spec_file(folder, block)), "--once")
    assert result.exit_code != 0
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_the_command_feeds_and_shows_offsets(tmp_path: Path, table: PgTable) -> None:
    block = table.block()
    del block["slot"]
    table.insert((1, "a"), (2, "b"))
    result = holdfast_(tmp_path, "ingest", str(spec_file(tmp_path, block)), "--once")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("fed orders with 2 messages, 2 updates: complete up to "), result.stdout
    shown = holdfast_(tmp_path, "collection", "offsets", "orders", "--format", "json")
    (found,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (found["partition"], found["position"], found["rows"]) == (PARTITION, table.confirmed(), 2)
    assert re.fullmatch(rf"postgres://\d+/{table.database}/shop/public.orders", found["source"])
    with PersistClient.open(f"file://{tmp_path}/location") as client:
        id_ = StorageController(client).describe("orders").collection_id
    slot = slot_of_the(table)
    assert slot.startswith(f"holdfast_{id_.replace('-', '')}_")
    described = holdfast_(tmp_path, "collection", "describe", "orders")
    assert f"fed from {found['source']}" in described.stdout
    assert f"replication slot {slot}\n" in described.stdout
    dropped = holdfast_(tmp_path, "collection", "drop", "orders", "--yes")
    assert f"replication slot {slot} keeps WAL" in dropped.stderr


def test_what_can_not_be_reached_is_one_clear_line(
    tmp_path: Path, table: PgTable, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = refused(tmp_path, table.block(url=f"postgresql://postgres@127.0.0.1:1/{table.database}"))
    assert "can't connect: Postgres at 127.0.0.1:1/" in told
    assert "check source.postgres.url" in told
    told = refused(tmp_path, table.block(url=table.server.url("none", password=False)))
    assert 'database "none" does not exist' in told
    told = refused(tmp_path, table.block(publication="none"))
    assert f"table public.orders at {where(table)} is not published: there is no publication none" in told
    told = refused(tmp_path, table.block(table="public.none"))
    assert f"table public.none at {where(table)} doesn't exist" in told
    table.run("CREATE ROLE reader LOGIN PASSWORD 'p'")
    try:
        (tmp_path / "password").write_text("p\n")
        url = table.server.url(table.database, password=False).replace("postgres@", "reader@")
        told = refused(tmp_path, table.block(url=url, passwordFile=str(tmp_path / "password")))
        assert "the role needs REPLICATION, USAGE on the schema, and SELECT on the table" in told
        table.run("ALTER ROLE reader REPLICATION")
        told = refused(tmp_path, table.block(url=url, passwordFile=str(tmp_path / "password")))
        assert "permission denied for table orders" in told
        assert "SELECT on the table" in told
        table.run("GRANT SELECT ON orders TO reader")
        result = holdfast_(
            tmp_path,
            "ingest",
            str(spec_file(tmp_path, table.block(url=url, passwordFile=str(tmp_path / "password")))),
            "--once",
        )
        assert result.exit_code == 0, result.stderr
    finally:
        table.run("DROP OWNED BY reader")
        table.run("DROP ROLE reader")
    assert len(table.slots()) == 1
    monkeypatch.setenv("WRONG", "wrong-secret")
    told = refused(tmp_path, table.block(passwordEnv="WRONG"))
    assert 'password authentication failed for user "postgres"' in told
    assert "wrong-secret" not in told
    told = refused(tmp_path, table.block(passwordEnv="UNSET"))
    assert "the environment variable UNSET with the password of source.postgres is not set" in told
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    told = refused(tmp_path, table.block(url=postgres.url(password=False)))
    assert "has wal_level = replica, which keeps no changes for others" in told
    assert "ALTER SYSTEM SET wal_level = logical, and restart the server" in told


def test_the_password_is_never_shown(table: PgTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("SECRET", table.server.password)
    with closing(table.source(passwordEnv="SECRET")) as source:
        assert table.server.password not in repr(vars(source))
        assert table.server.password not in repr(vars(source._client))


def test_user_and_password_come_from_a_secret(
    table: PgTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("HOLDFAST_SECRETS", str(tmp_path))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/username").write_text("postgres")
    (tmp_path / "shop/password").write_text(f"{table.server.password}\n")
    url = table.server.url(table.database, password=False).replace("postgres@", "")
    with closing(table.source(url=url, secretRef={"name": "shop"})) as source:
        assert table.server.password not in repr(vars(source))
        assert source._client.rows("SELECT current_user") == [("postgres",)]
    # The user of the URL goes first.
    other = table.server.url(table.database, password=False).replace("postgres@", "nobody@")
    told = refused(tmp_path, table.block(url=other, secretRef={"name": "shop"}))
    assert 'password authentication failed for user "nobody"' in told
    (tmp_path / "shop/ca.crt").write_text("not a certificate")
    told = refused(tmp_path, table.block(url=f"{url}?sslmode=verify-ca", secretRef={"name": "shop"}))
    assert "SSL" in told or "root certificate" in told


def test_an_open_transaction_is_named(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_contents, "PATIENCE_S", 0.5)
    with psycopg.connect(table.url, application_name="late") as other:
        other.execute("INSERT INTO orders VALUES (1, 'late')")
        process = other.info.backend_pid
        with pytest.raises(
            StoreUnreachable,
            match=r"can't make a slot for table public\.orders at .* within 0\.5 s: waiting for the"
            rf" transaction of process {process} \(user postgres, application late\): it is open for \d+ s,",
        ) as told:
            fed(client, table)
        assert f"pg_terminate_backend({process})" in str(told.value.hint)
    drained_ = fed(client, table)
    assert drained_ >= 1
    assert rows(client) == table.rows()


def test_the_page_does_what_it_says(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", server.password)
    with server.database() as name:
        path = f"{Path(sys.executable).parent}:{find()}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        url = server.url(name, password=False)
        with PageRun(
            tmp_path, environment=environment, places={"postgresql://shop@localhost/shop": url}
        ) as run:
            docpages.run("docs/how-to/ingest-postgres.md", run)
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            ours = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"
            connection.execute(ours, (name,))


def test_nothing_imports_the_driver_before_a_table_is_opened() -> None:
    code = "import sys, holdfast.ingest, holdfast.cli.ingest; assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class Dead(Exception):
    pass


def given(table: PgTable, **changed: Any) -> dict[str, Any]:
    """The block `postgres` of a spec, without those that are None."""
    return {name: each for name, each in table.block(**changed).items() if each is not None}


def of_reader(client: PersistClient, table: PgTable, rendition: str = "r1", **changed: Any) -> Postgres:
    """The source with the slots that a rendition has in Postgres."""
    controller, spec = StorageController(client), parse({"postgres": given(table, **changed)})
    source = opened_source(controller, spec, controller.describe("orders"), rendition, Waits())
    assert isinstance(source, Postgres)
    return source


def fed_with_own(client: PersistClient, table: PgTable, rendition: str = "r1", **changed: Any) -> None:
    """Feed a rendition until nothing is new, with slots of its own."""
    with closing(of_reader(client, table, rendition, **changed)) as source:
        block = {"generator": None, "format": None, "postgres": given(table, **changed)}
        drained(pipeline(client, source, rendition, **block))


def begun(client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Feed a copy until Postgres has copied the slot, and end before the slot is bound."""

    def dying(*_: object) -> None:
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(Postgres, "_compare", dying)
        with pytest.raises(Dead):
            fed_with_own(client, table)


def test_only_its_own_slots_are_shown_for_a_copy(
    tmp_path: Path, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = (f"file://{tmp_path}/{name}" for name in ("here", "there"))
    table.insert((1, "a"))
    ingest_source(here, "orders", {"postgres": table.block()}, schema=ORDERS, once=True)
    (live,) = table.slots()
    holdfast.copy_tables(here, there)
    described = [
        CliRunner().invoke(main, ["collection", "describe", "orders", "--url", each]).stdout
        for each in (here, there)
    ]
    assert ["fed from postgres://" in each for each in described] == [True, True]
    assert [f"replication slot {live}" in each for each in described] == [True, False]
    with PersistClient.open(there) as client:
        begun(client, table, monkeypatch)
    assert len(table.slots()) == 2
    dropped = CliRunner().invoke(main, ["drop", "orders", "--yes", "--force", "--url", there])
    assert (dropped.exit_code, live in dropped.stderr) == (0, False), dropped.output
    (statement,) = re.findall("drop it in Postgres with (SELECT .*)\n", dropped.stderr)
    table.run(statement)
    assert table.slots() == [live]
    dropped = CliRunner().invoke(main, ["drop", "orders", "--yes", "--force", "--url", here])
    assert f"replication slot {live} keeps WAL" in dropped.stderr
    assert "SELECT" not in dropped.stderr


def test_the_slot_of_a_rendition_that_took_over_is_shown(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    fed_with_own(client, table)
    controller = StorageController(client)
    for id_, slot in (("r2", "orders"), ("r3", None)):
        controller.renditions.create("orders", shards=1, rendition_id=id_)
        controller.hydrate("orders", id_)
        controller.renditions.hand_over("orders", id_)
        info = controller.describe("orders")
        before = progress(client, info.holding)
        assert before is not None
        assert own_slot(info, before) == before.slot
        assert slots_left(info, info.holding, before)
        table.insert((len(table.rows()) + 1, id_))
        fed_with_own(client, table, id_, slot=slot)
        after = progress(client, info.holding)
        assert after is not None
        assert own_slot(info, after) == after.slot != before.slot
        assert not slots_left(info, info.holding, after)


def test_a_slot_that_was_copied_and_not_bound_is_used_or_dropped_next_time(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.insert((1, "a"))
    fed_with_own(client, table)
    (live,) = table.slots()
    other, late = Stores().open(), Stores().open()
    for each in (other, late):
        holdfast.copy_table(client, "orders", each)
        begun(each, table, monkeypatch)
    left = set(table.slots()) - {live}
    assert len(left) == 2
    # The copy gets what it lacks, and goes on with the slot.
    table.insert((2, "b"))
    fed_with_own(client, table)
    holdfast.copy_table(client, "orders", other)
    table.insert((3, "c"))
    fed_with_own(other, table)
    assert rows(other) == table.rows()
    assert set(table.slots()) == {live, *left}
    # The table has another slot now, which then passes what this copy has.
    table.run("SELECT pg_drop_replication_slot(%s)", live)
    fed_with_own(client, table, onReset="NewEpoch")
    holdfast.copy_table(client, "orders", late)
    table.insert((4, "d"))
    fed_with_own(client, table)
    with pytest.raises(SourceStalled, match="belongs to another rendition or collection"):
        fed_with_own(late, table)
    (now,) = set(table.slots()) - left
    assert len(table.slots()) == 2
    # The deletion of a copy drops only the slots of the copy.
    begun(late, table, monkeypatch)
    for each in (late, other):
        with closing(of_reader(each, table)) as source:
            source.forget()
    assert table.slots() == [now]
