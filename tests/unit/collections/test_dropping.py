"""`drop_table` and `holdfast drop`: waits for readers for a limited time, or cuts them off."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import CollectionState, StorageController
from holdfast.collections.dropping import WAIT_S
from holdfast.errors import CollectionInUse, CollectionNotFound, NoLocation
from holdfast.persist.clock import Clock
from holdfast.tables import SqlResult
from holdfast.tables.opened import LEASE_S
from unit.collections.stores import Stores


class Sleeper(Clock):
    """A clock of one process: it stands, and sleeping moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Sleeper:
    return Sleeper()


@pytest.fixture
def stores(clock: Sleeper) -> Stores:
    return Stores(clock)


def test_a_process_that_ended_without_close_blocks_a_drop_for_its_lease(
    stores: Stores, clock: Sleeper
) -> None:
    ended = stores.open(maintenance="background")
    table = holdfast.table(ended, "orders", columns={"id": "int64"})
    table.append([{"id": 1}])
    assert len(table.read()) == 1
    other = stores.open()
    waited_from = clock.now_s
    # The thread of the first process sleeps on real time: no heartbeat comes.
    assert holdfast.drop_table(other, "orders") == ()
    assert LEASE_S <= clock.now_s - waited_from < WAIT_S
    assert holdfast.list_tables(other) == []


def test_a_reader_that_lives_stops_a_drop_and_force_says_whom_it_cuts_off(
    stores: Stores, clock: Sleeper
) -> None:
    client = stores.open()
    table = holdfast.table(client, "orders", columns={"id": "int64"})
    table.append([{"id": 1}])
    other = StorageController(stores.open())
    reader = other.reader("orders", purpose="dashboard")
    job = other.start_job(other.describe("orders").collection_id, "snapshot", "1", spec={})
    table.close()
    beats = clock.sleep

    def sleep(seconds: float) -> None:
        beats(seconds)
        reader._metadata.heartbeat()

    clock.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(CollectionInUse, match="'dashboard' on"):
        holdfast.drop_table(stores.open(), "orders", wait_s=2.0)
    (found,) = holdfast.list_tables(client)
    assert found.problem.endswith("is being dropped: drop it again")
    cut_off = holdfast.drop_table(stores.open(), "orders", force=True)
    assert [each.split(" on ")[0] for each in cut_off] == [
        "'dashboard'",
        f"job {job.job_id} (snapshot 1, attempt 1)",
    ]
    with pytest.raises(CollectionNotFound):
        reader.upper()


def test_a_process_that_reads_the_table_itself_is_told_at_once(stores: Stores, clock: Sleeper) -> None:
    client = stores.open()
    table = holdfast.table(client, "orders", columns={"id": "int64"})
    table.append([{"id": 1}])
    before = clock.now_s
    with duckdb.connect() as connection:
        relation = table.to_duckdb(connection=connection)
        tail = table.tail()
        table.close()
        # A table that is closed holds nothing, but its tail does.
        with pytest.raises(CollectionInUse, match=r"by this process \(a tail\); nothing was changed"):
            holdfast.drop_table(client, "orders")
        tail.close()
        del relation
    table = holdfast.table(client, "orders")
    uses: list[Callable[[], Any]] = [
        lambda: table.to_duckdb(),
        lambda: table.scan(),
        lambda: holdfast.sql(client, "SELECT * FROM orders"),
    ]
    for use in uses:
        using = use()
        with pytest.raises(
            CollectionInUse, match=r"this process \(an unfinished scan, a relation"
        ) as refused:
            holdfast.drop_table(client, "orders")
        assert "force=True" in refused.value.hint
        assert StorageController(client).describe("orders").state is CollectionState.ACTIVE
        assert table.count() == 1
        if isinstance(using, SqlResult):
            using.close()
        del using
        gc.collect()
    # An open table that nobody reads doesn't stop the drop.
    assert table.count() == 1
    assert holdfast.drop_table(client, "orders") == ()
    assert clock.now_s == before
    with pytest.raises(CollectionNotFound):
        table.count()


def test_a_drop_says_whom_it_waits_for_and_the_next_one_finishes_it(
    stores: Stores, clock: Sleeper, caplog: pytest.LogCaptureFixture
) -> None:
    client = stores.open()
    holdfast.table(client, "orders", columns={"id": "int64"}).append([{"id": 1}])
    reader = StorageController(stores.open()).reader("orders", purpose="dashboard")
    with pytest.raises(CollectionInUse, match="being dropped"):
        holdfast.drop_table(client, "orders", wait_s=2.0)
    (waits,) = [each.getMessage() for each in caplog.records if "waits" in each.getMessage()]
    assert waits.startswith("the drop of table orders waits up to 2 s for 'dashboard' on ")
    # A process that opens the table gets an error and does not wait for ever.
    for columns in (None, {"id": "int64"}):
        with pytest.raises(CollectionNotFound, match="table orders is being dropped"):
            holdfast.table(client, "orders", columns=columns)
    with holdfast.sql(client, "SHOW TABLES") as result:
        assert result.read().num_rows == 0
    reader.close()
    assert holdfast.drop_table(client, "orders") == ()
    holdfast.table(client, "orders", columns={"id": "int64"}).close()
    assert clock.now_s < 1000 + WAIT_S


def test_a_durable_hold_stops_a_drop_at_once_and_nothing_changes(stores: Stores, clock: Sleeper) -> None:
    client = stores.open()
    holdfast.table(client, "orders", columns={"id": "int64"}).append([{"id": 1}])
    controller = StorageController(client)
    controller.hold("orders", "audit")
    before = clock.now_s
    with pytest.raises(CollectionInUse, match=r"'audit'.*nothing was changed"):
        holdfast.drop_table(client, "orders")
    assert clock.now_s == before
    assert controller.describe("orders").state is CollectionState.ACTIVE


def test_tables_are_listed_with_their_columns_and_dropped_by_either_name(tmp_path: Path) -> None:
    with pytest.raises(NoLocation):
        holdfast.list_tables(tmp_path)
    columns = {"id": "int64", "note": "string?"}
    with holdfast.table(tmp_path, "orders", columns=columns, key="id", shards=2, retain="1d") as orders:
        orders.append([{"id": 1}])
    with holdfast.table(tmp_path, "a", columns={"x": "bool"}, retain="forever"):
        pass
    first, second = holdfast.list_tables(tmp_path)
    assert (first.name, first.columns, first.retention, first.upper) == ("a", {"x": "bool"}, None, 0)
    assert (second.columns, second.key, second.shards) == (columns, ("id",), 2)
    assert second.retention is not None
    assert second.retention.days == 1
    assert holdfast.drop_table(tmp_path, first.id) == ()
    result = CliRunner().invoke(main, ["drop", "orders", "--yes", "--url", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, f"dropped orders ({second.id})\n")
    with pytest.raises(CollectionNotFound):
        holdfast.drop_table(tmp_path, "orders")


def test_the_command_shows_whom_force_cuts_off(tmp_path: Path) -> None:
    with holdfast.table(tmp_path, "orders", columns={"id": "int64"}) as orders:
        orders.append([{"id": 1}])
        orders.read()
        arguments = ["drop", "orders", "--force", "--yes", "--url", str(tmp_path)]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("cuts off 'table' on ")


def test_readers_with_a_short_lease_get_heartbeats_in_time() -> None:
    """The thread sends them at a quarter of the shorter lease, and not only at that of the configuration."""
    stores = Stores()
    client = stores.open(maintenance="background")
    table = holdfast.table(client, "orders", columns={"id": "int64"})
    table.append([{"id": 1}])
    beaten = threading.Event()
    reader = StorageController(client).reader("orders", purpose="dashboard", lease_s=0.04)
    send = reader._metadata.heartbeat

    def heartbeat() -> None:
        send()
        beaten.set()

    reader._metadata.heartbeat = heartbeat  # type: ignore[method-assign]
    assert beaten.wait(20)
    client.close()
