"""A table of a real Postgres server feeds a collection: its contents at each time are those of the table."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.persist import PersistClient, Schema
from testbed.postgres import PostgresServer
from unit.collections.stores import Stores
from unit.ingest.pgtable import ORDERS, PgTable
from unit.ingest.pipelines import created, drained, pipeline, positions, rows

pytestmark = pytest.mark.postgres


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


def fed(client: PersistClient, table: PgTable, schema: Schema = ORDERS, **changed: Any) -> int:
    """Feed until nothing is new, as another process. Returns the number of steps."""
    source = table.source(schema, **changed)
    try:
        ingestion = pipeline(client, source, generator=None, format=None, postgres=table.block(**changed))
        return drained(ingestion)
    finally:
        source.close()


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
    assert positions(client) == {"public.orders": table.confirmed()}
