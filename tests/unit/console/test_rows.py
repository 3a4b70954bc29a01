"""The rows of a collection for people: pages, cells, times that can't be read, differences and ticks."""

import datetime as dt
import tracemalloc
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.console.facts import rows as facts
from holdfast.console.facts.rows import (
    Asked,
    Bounds,
    OutOfTime,
    Reach,
    RowsDifference,
    TimeRefused,
    cell_of,
    difference,
    parse_zoom,
    reading,
    row_at,
    rows_at,
    ticks_of,
)
from holdfast.errors import AsOfTooEarly, BadInput
from holdfast.persist import Schema
from holdfast.persist.admin.manual import compact_now
from unit.collections.stores import Stores

SCHEMA = Schema.of({"id": "int64"}, {"note": "string?", "price": "float64?"})
EVERYTHING = Asked()
START = 1_767_225_600_000
"""2026-01-01."""


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def controller(stores: Stores) -> Iterator[StorageController]:
    with StorageController(stores.open()) as controller:
        yield controller


def fill(controller: StorageController, *writes: Sequence[tuple[Any, ...]], schema: Schema = SCHEMA) -> None:
    """A collection with one write per second. A row ends with its `_diff`."""
    controller.create_collection(CollectionSpec("c1", "orders", schema, shards=2))
    writer = controller.writer("orders", purpose="test")
    upper = 0
    for number, rows in enumerate(writes):
        time = START + 1000 * number
        names = [*schema.names, "_diff"]
        dicts = [{**dict(zip(names, row, strict=True)), "_time": time} for row in rows]
        writer.append(dicts or None, upper, time + 1)
        upper = time + 1


def cells(page: facts.RowsPage) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row.cells) for row in page.rows]


def schema_of(controller: StorageController) -> Any:
    return lambda: controller.describe("orders").schema


def compare(
    controller: StorageController, start: int, end: int, asked: Asked = EVERYTHING, **bounds: Any
) -> RowsDifference:
    with reading(controller, "orders") as (reader, _):
        return difference(reader, schema_of(controller), start, end, asked, Bounds(**bounds))


def test_a_page_has_rows_as_of_a_time_in_the_order_of_keys(controller: StorageController) -> None:
    fill(controller, [(number, f"n{number}", 1.5, 1) for number in range(250)], [(1, "n1", 1.5, -1)])
    with reading(controller, "orders") as (reader, reach):
        assert reach == Reach("orders", 0, START + 1001)
        first = rows_at(reader, START, Asked())
        assert [row[0] for row in cells(first)] == [str(number) for number in range(100)]
        assert first.more
        assert first.after == "[99]"
        second = rows_at(reader, START, Asked(after="[99]"))
        assert [row[0] for row in cells(second)] == [str(number) for number in range(100, 200)]
        last = rows_at(reader, START, Asked(after="[199]"))
        assert (len(last.rows), last.more, last.after) == (50, False, None)
        assert [row[0] for row in cells(rows_at(reader, START + 1000, Asked()))][:3] == ["0", "2", "3"]


def test_columns_and_filters(controller: StorageController) -> None:
    fill(controller, [(1, "pear", 1.5, 1), (2, None, None, 1), (3, "plum", 2.5, 1)])
    with reading(controller, "orders") as (reader, _):
        page = rows_at(reader, START, Asked(("note", "id"), "note like 'p%' and price > 2"))
        assert cells(page) == [("plum", "3")]
        assert [column.name for column in page.columns] == ["note", "id"]
        assert [column.name for column in page.all_columns] == ["id", "note", "price"]
        for asked, said in (
            (Asked(("nope",)), "nope"),
            (Asked(where="nope = 1"), "nope"),
            (Asked(where="id >"), "expected a value"),
            (Asked(after="[1,2]"), "place"),
        ):
            with pytest.raises(BadInput, match=said) as refused:
                rows_at(reader, START, asked)
            assert "--where" not in f"{refused.value} {refused.value.hint}"


def test_copies_are_counted_and_negative_ones_are_shown(controller: StorageController) -> None:
    fill(controller, [(1, "a", None, 3), (2, "b", None, -1)])
    with reading(controller, "orders") as (reader, _):
        page = rows_at(reader, START, Asked())
    assert [row.copies for row in page.rows] == [3, -1]
    assert page.has_copies


def test_looking_writes_nothing(stores: Stores, controller: StorageController) -> None:
    fill(controller, [(1, "a", None, 1)], [(2, "b", None, 1)])
    with stores.open(mode="read") as client:
        before = {shard: client.versions([shard]) for shard in client.shards()}
        looking = StorageController(client)
        with reading(looking, "orders") as (reader, reach):
            rows_at(reader, START, Asked(where="id = 1"))
            ticks_of(reader, reach)
            difference(reader, schema_of(looking), START, START + 1000, Asked())
            with pytest.raises(TimeRefused):
                reach.time("2026-01-01T00:00:59")
        assert {shard: client.versions([shard]) for shard in client.shards()} == before


@pytest.mark.parametrize(
    ("given", "nearest", "said"),
    [
        ("2026-01-02", START + 1000, "not complete"),
        ("1767225600", START + 1000, "seconds"),
        ("yesterday", START + 1000, "ISO date"),
        (str(1 << 70), START + 1000, "out of range"),
        ("1767225500000", START, "compacted"),
    ],
)
def test_a_time_that_cannot_be_read_names_the_nearest(given: str, nearest: int, said: str) -> None:
    with pytest.raises(TimeRefused, match=said) as refused:
        Reach("orders", START, START + 1001).time(given)
    assert refused.value.nearest == nearest
    assert "\n" not in str(refused.value)


def test_times_are_read_in_all_forms() -> None:
    reach = Reach("orders", START, START + 1001)
    assert reach.time("") == START + 1000
    assert reach.time(f" {START} ") == START
    assert reach.time("2026-01-01T00:00:01Z") == START + 1000
    with pytest.raises(TimeRefused, match="nothing has been written") as refused:
        Reach("orders", 0, 0).time("")
    assert refused.value.nearest is None


def test_a_time_that_is_compacted_during_the_read_is_refused(controller: StorageController) -> None:
    fill(controller, [(1, "a", None, 1)])
    with pytest.raises(TimeRefused, match="orders can't be read") as refused, reading(controller, "orders"):
        raise AsOfTooEarly(START, START + 1000)
    assert refused.value.nearest == START + 1000


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "null", "null"),
        ("", "empty", ""),
        (b"", "empty", ""),
        ("null", "text", "null"),
        (b"\x00\xff", "binary", "00ff"),
        (True, "bool", "true"),
        (7, "number", "7"),
        (Decimal("1.50"), "number", "1.50"),
        (float("nan"), "number", "nan"),
        (dt.date(2026, 1, 31), "time", "2026-01-31"),
        ([1, {"a": b"\x01"}], "nested", '[1, {"a": "01"}]'),
        ("<script>", "text", "<script>"),
    ],
)
def test_cells(value: object, kind: str, text: str) -> None:
    assert cell_of(value, 80, 2000) == facts.Cell(kind, text)  # type: ignore[arg-type]


def test_long_cells_are_cut() -> None:
    cell = cell_of("x" * 5000, 80, 2000)
    assert (len(cell.text), len(cell.whole), cell.left) == (80, 2000, 3000)
    assert cell.is_cut
    assert cell_of("x" * 5000, 80, 0) == facts.Cell("text", "x" * 80, "", 4920)


def test_a_page_has_a_bound_of_bytes(controller: StorageController) -> None:
    fill(controller, [(number, "x" * 5000, None, 1) for number in range(50)])
    with reading(controller, "orders") as (reader, _):
        page = rows_at(reader, START, Asked(), Bounds(page=20_000))
        assert sum(len(cell.whole) for row in page.rows for cell in row.cells) < 23_000
        assert all(len(row.cells[1].text) == 80 for row in page.rows)
        place = page.rows[7].place
        assert place is not None
        row = row_at(reader, START, place)
        assert row is not None
        assert row.rows[0].cells[1].text == "x" * 5000
        assert row_at(reader, START, "[77]") is None


def test_a_read_ends_in_time(controller: StorageController) -> None:
    fill(controller, [(number, "x", None, 1) for number in range(50)])
    with reading(controller, "orders") as (reader, _), pytest.raises(OutOfTime):
        rows_at(reader, START, Asked(), Bounds(seconds=-1.0))


def test_a_difference_pairs_the_rows_of_a_key(controller: StorageController) -> None:
    fill(
        controller,
        [(1, "a", 1.0, 1), (2, "b", None, 1), (3, "c", 3.0, 1)],
        [(1, "a", 1.0, -1), (1, "a", 1.5, 1), (2, "b", None, -1), (4, "d", 4.0, 2)],
    )
    found = compare(controller, START, START + 1000)
    told = [(row.added, row.cells[0].text, row.changed and sorted(row.changed)) for row in found.rows]
    assert sorted(told[:2]) == [(-1, "1", [2]), (1, "1", [2])]
    assert told[2:] == [(-1, "2", None), (2, "4", None)]
    assert (found.added, found.removed, found.changed) == (3, 2, 1)
    assert found.is_whole
    # The removed row comes first, as in every other program.
    assert [row.added for row in found.rows[:2]] == [-1, 1]


def test_the_difference_of_equal_times_is_empty(controller: StorageController) -> None:
    fill(controller, [(1, "a", None, 1)])
    found = compare(controller, START, START)
    assert (found.rows, found.added, found.removed, found.is_whole) == ((), 0, 0, True)


def test_a_large_difference_is_cut_and_counted(controller: StorageController) -> None:
    fill(controller, [], [(number, "a", None, 1) for number in range(500)])
    found = compare(controller, START, START + 1000, changed_rows=20)
    assert len(found.rows) <= 20
    assert (found.added, found.removed, found.is_whole, found.is_counted) == (500, 0, False, True)


def test_a_difference_of_chosen_rows(controller: StorageController) -> None:
    fill(controller, [(1, "a", None, 1)], [(number, "b", None, 1) for number in range(2, 30)])
    found = compare(controller, START, START + 1000, Asked(("id",), "id < 5"))
    assert [row.cells[0].text for row in found.rows] == ["2", "3", "4"]
    with pytest.raises(BadInput, match="nope"):
        compare(controller, START, START + 1000, Asked(where="nope = 1"))
    with pytest.raises(BadInput, match="nope"):
        compare(controller, START, START, Asked(where="nope = 1"))


def test_ticks_are_the_times_of_writes(controller: StorageController) -> None:
    fill(controller, *([(number, "a", None, 1)] for number in range(5)), [(0, "a", None, -1)])
    with reading(controller, "orders") as (reader, reach):
        found = ticks_of(reader, reach)
        assert [(tick.time, tick.added, tick.removed) for tick in found.ticks] == [
            *((START + 1000 * number, 1, 0) for number in range(5)),
            (START + 5000, 0, 1),
        ]
        assert found.last == START + 5000
        assert START - 1000 < found.first < START
        assert found.before(START + 1500) == START + 1000
        assert found.after(START + 1000) == START + 2000
        assert found.after(START + 5000) is None
        zoomed = ticks_of(reader, reach, (START + 1000, START + 3000))
        assert [tick.time for tick in zoomed.ticks] == [START + 2000, START + 3000]
        assert (zoomed.first, zoomed.last, zoomed.is_zoomed) == (START + 1000, START + 3000, True)


def test_ticks_of_what_is_stored_together_are_refined_on_zoom(
    controller: StorageController, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(controller, *([(number, "a", None, 1)] for number in range(6)))
    for shard in controller.describe("orders").holding.shards:
        compact_now(controller.client, shard, full=True)
    monkeypatch.setattr(facts, "_REFINED_ROWS", 0)
    with reading(controller, "orders") as (reader, reach):
        assert len(ticks_of(reader, reach).ticks) < 3
        zoomed = ticks_of(reader, reach, (START, START + 3000))
        assert [tick.time for tick in zoomed.ticks] == [START + 1000, START + 2000, START + 3000]
        assert all(tick.is_exact for tick in zoomed.ticks)


def test_very_many_ticks_are_thinned(controller: StorageController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_TICKS", 4)
    monkeypatch.setattr(facts, "_REFINED_ROWS", 0)
    fill(controller, *([(number, "a", None, 1)] for number in range(20)))
    with reading(controller, "orders") as (reader, reach):
        found = ticks_of(reader, reach)
    assert len(found.ticks) <= 4
    assert found.is_thinned
    assert sum(tick.rows for tick in found.ticks) == 20


def test_a_collection_without_writes_has_no_ticks(controller: StorageController) -> None:
    controller.create_collection(CollectionSpec("c1", "orders", SCHEMA, shards=1))
    with reading(controller, "orders") as (reader, reach):
        assert ticks_of(reader, reach).ticks == ()
        assert reach.latest is None


def test_zooms() -> None:
    assert parse_zoom("") is None
    assert parse_zoom("5..9") == (5, 9)
    for wrong in ("9..5", "5", "..", "a..b"):
        with pytest.raises(BadInput):
            parse_zoom(wrong)


def test_a_difference_has_a_bound_of_bytes(controller: StorageController) -> None:
    long = "x" * 100_000
    changed = [
        row for number in range(40) for row in ((number, long, None, -1), (number, long + "y", None, 1))
    ]
    fill(controller, [(number, long, None, 1) for number in range(40)], changed)
    found = compare(controller, START, START + 1000, changed_bytes=1_000_000)
    assert 2 <= len(found.rows) <= 12
    assert (found.added, found.removed, found.is_whole) == (40, 40, False)
    assert all(row.changed == frozenset({1}) for row in found.rows)
    # A row is shown even if it has more.
    found = compare(controller, START, START + 1000, changed_bytes=1)
    assert [row.added for row in found.rows] == [-1, 1]
    # Long values are compared and cut before they become objects.
    tracemalloc.start()
    found = compare(controller, START, START + 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.rows) == 80
    assert found.rows[0].cells[1] == facts.Cell("text", "x" * 80, "x" * 2000, 98_000)
    assert peak < 10_000_000


def test_cells_are_compared_with_nulls_and_cut_as_bytes(controller: StorageController) -> None:
    schema = Schema.of({"id": "int64"}, {"note": "string?", "price": "binary?"})
    data = bytes(range(256)) * 20
    before = [(1, None, b""), (2, "a", data), (3, None, None), (4, "", None)]
    after = [(1, "a", b""), (2, "a", data + b"x"), (3, None, b"\1"), (4, None, None)]
    fill(
        controller,
        [(*row, 1) for row in before],
        [*((*row, -1) for row in before), *((*row, 1) for row in after)],
        schema=schema,
    )
    found = compare(controller, START, START + 1000)
    assert [row.changed for row in found.rows[::2]] == [frozenset({each}) for each in (1, 2, 2, 1)]
    text = data.hex()
    assert found.rows[2].cells[2] == cell_of(data, 80, 2000)
    assert found.rows[2].cells[2] == facts.Cell("binary", text[:80], text[:2000], 8240)
