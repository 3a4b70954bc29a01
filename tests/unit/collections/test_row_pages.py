"""Pages of a snapshot: together they are its rows in order, wherever they are cut."""

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.collections import CollectionSpec, StorageController, collection_snapshot
from holdfast.collections.collection_snapshot import CollectionSnapshot
from holdfast.collections.row_pages import RowPage, parse_place, place_text
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.admin.manual import compact_now
from holdfast.tables.filters import filter_of
from unit.collections.stores import Stores

KEYED = Schema.of({"k": "int16", "s": "string?"}, {"v": "string?"})
UNKEYED = Schema.of({}, {"n": "int32?", "f": "float64?", "s": "string"})
ROWS = st.lists(
    st.tuples(
        st.integers(-2, 3), st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, "", "x", "y"])
    ),
    max_size=25,
)


def write(
    stores: Stores, schema: Schema, rows: Sequence[dict[str, Any]], shards: int = 3
) -> StorageController:
    controller = StorageController(stores.open())
    controller.create_collection(CollectionSpec("c1", "t", schema, shards=shards))
    writer = controller.writer("t", purpose="test")
    half = len(rows) // 2
    writer.append(rows[:half], 0, 5)
    writer.append(rows[half:], 5, 10)
    return controller


def walk(snapshot: CollectionSnapshot, size: int) -> list[RowPage]:
    pages = [snapshot.page(size)]
    while pages[-1].more:
        last = pages[-1].places[-1]
        text = place_text(last, snapshot.stored)
        assert text is not None
        assert parse_place(text, snapshot.stored) == last
        pages.append(snapshot.page(size, type(last)(last.key, last.skip + 1)))
    return pages


def listed(pages: Sequence[RowPage]) -> list[dict[str, Any]]:
    return [row for page in pages for row in page.rows.to_pylist()]


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, size=st.integers(1, 7))
def test_pages_are_the_rows_in_order_and_each_once(rows: list[tuple[Any, ...]], size: int) -> None:
    dicts = [dict(zip("ksv", row, strict=True)) for row in rows]
    with write(Stores(), KEYED, dicts) as controller, controller.reader("t", purpose="test") as reader:
        snapshot = reader.snapshot(7)
        pages = walk(snapshot, size)
        found = listed(pages)
        assert all(page.rows.num_rows == size for page in pages[:-1])

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple((row[name] is not None, row[name]) for name in "ksv")

    wanted = sorted(snapshot.to_table().to_pylist(), key=order)
    assert found == wanted
    assert sum(row["_diff"] for row in found) == len(rows)


def test_a_page_begins_at_the_place_of_any_row(stores: Stores) -> None:
    rows = [{"k": number // 4, "s": None, "v": str(number)} for number in range(20)]
    with write(stores, KEYED, rows) as controller, controller.reader("t", purpose="test") as reader:
        whole = reader.snapshot(7).page(100)
        assert [place.skip for place in whole.places] == [0, 1, 2, 3] * 5
        for index, place in enumerate(whole.places):
            page = reader.snapshot(7).page(3, place)
            assert page.rows.equals(whole.rows.slice(index, 3))
            assert page.places == whole.places[index : index + 3]


def test_rows_without_a_key_have_places_too(stores: Stores) -> None:
    floats = [None, math.nan, -0.0, 1.5, -math.inf, math.inf]
    rows = [{"n": number % 3 or None, "f": each, "s": f"{number}"} for number in range(4) for each in floats]
    with (
        write(stores, UNKEYED, rows, shards=2) as controller,
        controller.reader("t", purpose="test") as reader,
    ):
        snapshot = reader.snapshot(7)
        found = listed(walk(snapshot, 4))
    assert sorted(map(repr, found)) == sorted(map(repr, snapshot.to_table().to_pylist()))


def test_a_filter_chooses_the_rows_of_pages(stores: Stores) -> None:
    rows = [{"k": number, "s": "a" if number % 2 else None, "v": "x"} for number in range(20)]
    with write(stores, KEYED, rows) as controller, controller.reader("t", purpose="test") as reader:
        snapshot = reader.snapshot(7)
        wanted = snapshot.filtered(filter_of([("s", "=", "a"), ("k", ">", 4)], snapshot.schema))
        assert [row["k"] for row in listed(walk(wanted, 3))] == list(range(5, 20, 2))


def test_pages_are_read_from_one_run_with_little(stores: Stores) -> None:
    """A page in the middle of a compacted shard decodes a few row groups, and not all of them."""
    rows = [{"k": number % 32768, "s": "a", "v": "x" * 50} for number in range(30_000)]
    with write(stores, KEYED, rows, shards=1) as controller:
        (shard,) = controller.describe("t").holding.shards
        compact_now(controller.client, shard, full=True)
        with controller.reader("t", purpose="test") as reader:
            snapshot = reader.snapshot(7)
            page = snapshot.page(2, parse_place('[20000,"a"]', snapshot.stored))
    assert page.rows["k"].to_pylist() == [20000, 20001]


def test_large_rows_end_a_page_early(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_snapshot, "_PAGE_BYTES", 9000)
    rows = [{"k": number, "s": "a", "v": chr(97 + number) * 1000} for number in range(20)]
    rows.append({"k": 7, "s": "b", "v": "a row that is larger than the bound" * 1000})
    with write(stores, KEYED, rows) as controller, controller.reader("t", purpose="test") as reader:
        pages = walk(reader.snapshot(7), 30)
    assert len(pages) > 2
    assert [row["k"] for row in listed(pages)] == sorted([7, *range(20)])


def test_the_read_can_be_ended(stores: Stores) -> None:
    class Ended(Exception):
        pass

    def end() -> None:
        raise Ended

    rows = [{"k": number, "s": "a", "v": "x"} for number in range(50)]
    with write(stores, KEYED, rows) as controller, controller.reader("t", purpose="test") as reader:
        snapshot = reader.snapshot(7)
        with pytest.raises(Ended):
            snapshot.page(10, between=end)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[1]",
        "[1,2]",
        "[1.5,null]",
        '["1",null]',
        "[1,null]+",
        "[1,null]+x",
        "[true,null]",
        "{}",
        "null",
        "[" * 5000,
        "[1,null]+999999999",
    ],
)
def test_a_place_that_nobody_made_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_place(text, KEYED)


def test_places_keep_all_types() -> None:
    schema = Schema.of(
        {
            "a": "bool",
            "b": "binary",
            "c": "decimal128(10,2)",
            "d": "date32",
            "e": "float32",
            "f": "float64",
            "g": "timestamp_utc",
            "h": "uint64",
        }
    )
    stores = Stores()
    row = {
        "a": True,
        "b": b"\x00\xff",
        "c": Decimal("-1.50"),
        "d": None,
        "e": 0.1,
        "f": math.nan,
        "g": None,
        "h": 2**64 - 1,
    }
    row |= {"d": dt.date(2026, 1, 1), "g": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    with (
        write(stores, schema, [row], shards=1) as controller,
        controller.reader("t", purpose="test") as reader,
    ):
        snapshot = reader.snapshot(7)
        (place,) = snapshot.page(5).places
        text = place_text(place, snapshot.stored)
        assert text is not None
        assert parse_place(text, snapshot.stored) == place
        assert snapshot.page(5, place).rows.num_rows == 1


def test_a_place_with_a_long_key_has_no_text(stores: Stores) -> None:
    rows = [{"k": 1, "s": "x" * 3000, "v": None}]
    with write(stores, KEYED, rows) as controller, controller.reader("t", purpose="test") as reader:
        snapshot = reader.snapshot(7)
        (place,) = snapshot.page(1).places
        assert place_text(place, snapshot.stored) is None
