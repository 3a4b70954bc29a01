"""How much history a table keeps, and new names of tables. Writers and upkeep give up old history."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import CollectionInfo, CollectionSpec, CollectionState, StorageController
from holdfast.collections.periods import period_ms, shown_period
from holdfast.collections.retention import retention_since
from holdfast.errors import AsOfTooEarly, BadInput, CollectionNotFound, NotWritable, UniquenessViolation
from holdfast.persist import PersistClient
from unit.collections.stores import SCHEMA, Stores
from unit.persist.open_stores import HandClock

DAY_MS = 86_400_000
COLUMNS = {"id": "int64", "n": "int64?"}


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("7d", 7 * DAY_MS),
        ("90m", 5_400_000),
        ("0s", 0),
        ("1500ms", 1500),
        (timedelta(hours=12), DAY_MS // 2),
        ("forever", None),
    ],
)
def test_periods(given: Any, ms: int | None) -> None:
    assert period_ms(given) == ms
    assert period_ms(shown_period(ms)) == ms


@pytest.mark.parametrize("given", ["7", "7 d", "-1d", "d", "", 7, None, True, timedelta(days=-1), "7w"])
def test_what_is_no_period(given: Any) -> None:
    with pytest.raises(BadInput, match="not a length of history"):
        period_ms(given)


def test_a_since_moves_by_a_hundredth_at_least() -> None:
    def since(retain_ms: int | None, since: int, upper: int, created_ms: int = 0) -> int | None:
        info = CollectionInfo(
            "c", "n", SCHEMA, 1, (), "m", (), CollectionState.ACTIVE, created_ms, retain_ms=retain_ms
        )
        return retention_since(info, since, upper)

    assert since(1000, 0, 1010) is None
    assert since(1000, 0, 1011) == 10
    assert since(1000, 5, 1011) is None
    assert since(0, 0, 0) is None
    assert since(0, 3, 5) == since(0, 3, 5, created_ms=4) == 4
    assert since(0, 3, 5, created_ms=5) is None
    assert since(None, 0, 5000) is None


@pytest.fixture
def clock() -> HandClock:
    clock = HandClock()
    clock.now_s = 1.8e9
    return clock


@pytest.fixture
def client(clock: HandClock) -> Iterator[PersistClient]:
    with Stores(clock).open() as client:
        yield client


def test_a_new_table_keeps_a_week_and_writers_give_up_the_rest(
    client: PersistClient, clock: HandClock
) -> None:
    with holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        assert table.retention == timedelta(days=7)
        first = table.append([{"id": 1, "n": 1}])
        clock.sleep(6 * 86_400)
        table.upsert([{"id": 1, "n": 2}])
        assert table.read(first)["n"].to_pylist() == [1]
        clock.sleep(2 * 86_400)
        last = table.upsert([{"id": 1, "n": 3}])
        clock.sleep(60)
        assert table.since == last - 7 * DAY_MS
        with pytest.raises(AsOfTooEarly):
            table.read(first)
        assert table.read(table.since)["n"].to_pylist() == [2 if table.since >= first + 6 * DAY_MS else 1]
        table.retain("forever")
        assert table.retention is None
        clock.sleep(30 * 86_400)
        table.upsert([{"id": 1, "n": 4}])
        assert table.since == last - 7 * DAY_MS
        table.retain(timedelta(0))
        clock.sleep(60)
        # The hold of the table itself follows.
        now = table.upper - 1
        assert table.count() == 1
        table.upsert([{"id": 1, "n": 5}])
        assert table.since == now


def test_a_reader_keeps_what_it_holds_and_writes_go_on(client: PersistClient, clock: HandClock) -> None:
    with holdfast.table(client, "t", columns=COLUMNS, key="id", retain="1h") as table:
        first = table.append([{"id": 1}])
        table._opened.controller.hold("t", "me", since=first)
        clock.sleep(3 * 3600)
        table.append([{"id": 2}])
        assert table.since == first
        assert table.read(first)["id"].to_pylist() == [1]
        table._opened.controller.release_hold("t", "me")
        clock.sleep(60)
        assert table.count() == 2
        assert table._opened.controller.apply_retention("t") == table.upper - 1 - 3_600_000


def test_collections_without_a_policy_keep_everything(client: PersistClient, clock: HandClock) -> None:
    controller = StorageController(client)
    info = controller.create_collection(CollectionSpec("c1", "flights", SCHEMA))
    assert info.retain_ms is None
    with holdfast.table(client, "flights") as table:
        assert table.retention is None
        first = table.append([{"id": 1, "name": "a"}])
        clock.sleep(100 * 86_400)
        table.append([{"id": 2, "name": "b"}])
        assert controller.apply_retention("flights") is None
        assert table.read(first).num_rows == 1
    for wrong in (-1, 1.5, True, 2**64):
        with pytest.raises(BadInput):
            controller.retain("flights", wrong)  # type: ignore[arg-type]


def test_a_policy_that_another_process_took_back_is_not_applied(
    client: PersistClient, clock: HandClock
) -> None:
    with holdfast.table(client, "t", columns=COLUMNS, key="id", retain="1h") as table:
        first = table.append([{"id": 1}])
        StorageController(client).retain("t", None)
        clock.sleep(3 * 3600)
        table.append([{"id": 2}])
        assert table.read(first)["id"].to_pylist() == [1]


def test_a_table_gets_another_name_while_it_is_used(client: PersistClient) -> None:
    with holdfast.table(client, "a", columns=COLUMNS) as a, holdfast.table(client, "b", columns=COLUMNS):
        with holdfast.table(client, "a") as same:
            same.rename("c")
        a.append([{"id": 1}])
        with pytest.raises(UniquenessViolation):
            a.rename("b")
        for wrong in ("", "x\n", 7):
            with pytest.raises(BadInput):
                a.rename(wrong)  # type: ignore[arg-type]
        with pytest.raises(CollectionNotFound):
            holdfast.table(client, "a")
        with holdfast.table(client, "c") as renamed, holdfast.table(client, "a", columns=COLUMNS) as other:
            assert renamed.count() == 1
            assert other.count() == 0
        StorageController(client).rename("b", "b")


def test_on_the_command_line(tmp_path: Any) -> None:
    url = (tmp_path / "lake").as_uri()

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["collection", *arguments, "--url", url])
        assert result.exit_code == code, result.output
        return result.output

    assert "keeps its history: 7d" in run("create", "t", "--column", "id:int64")
    assert "keeps its history: forever" in run("create", "all", "--column", "id:int64", "--retain", "forever")
    assert run("retain", "t", "12h") == "t keeps its history: 12h\n"
    assert json.loads(run("describe", "t", "--json"))["retain"] == "12h"
    assert "not a length of history" in run("retain", "t", "soon", code=2)
    assert "renamed t to orders" in run("rename", "t", "orders")
    assert "there is a collection all" in run("rename", "orders", "all", code=2)
    with holdfast.table(url, "orders") as table:
        table.append([{"id": 1}])
        table.retain("0s")
        table.append([{"id": 2}])
        table.append([{"id": 3}])
    run("upkeep")
    with holdfast.table(url, "orders", mode="read") as table:
        assert table.since == table.upper - 1
        with pytest.raises(NotWritable):
            table.retain("7d")
        with pytest.raises(NotWritable):
            table.rename("x")
    assert run("upkeep", "orders", "all") == ""
    assert "no collection" in run("upkeep", "nothing", code=2)
