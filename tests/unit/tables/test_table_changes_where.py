"""`delete(where=)`, `update(where=, set=)` and `merge`: atomic changes that depend on the existing rows."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.compute as pc
import pytest

import holdfast
from holdfast import polars_forks
from holdfast.collections import StorageController
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.tables import Delete, SetValues, Table
from unit.collections.stores import Stores

FIELD = pc.field
COLUMNS = {"id": "int64", "note": "string?", "count": "int32"}


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def orders(stores: Stores) -> Iterator[Table]:
    with (
        stores.open(inline_max_bytes=0, audit_pushdown=True) as client,
        holdfast.table(client, "orders", columns=COLUMNS, key="id", shards=2) as table,
    ):
        table.append([{"id": i, "note": None if i % 2 else "even", "count": i} for i in range(6)])
        yield table


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.counts().to_pylist()), key=str)


def test_a_delete_takes_the_rows_that_a_condition_chooses(orders: Table) -> None:
    orders.delete(where=FIELD("note").is_null() | (FIELD("count") == 4))
    assert rows(orders) == [(0, "even", 0, 1), (2, "even", 2, 1)]
    time = orders.delete(where=[("id", "=", 77)])
    assert orders.upper == time + 1
    orders.delete(where=[("id", ">", 0)])
    assert rows(orders) == [(0, "even", 0, 1)]
    orders.delete([0])
    assert rows(orders) == []


def test_an_update_sets_values_and_expressions(orders: Table) -> None:
    orders.delete(where=FIELD("id") > 2)
    orders.update(where=FIELD("id") >= 1, set={"note": "x", "count": FIELD("count") * 10 + FIELD("id")})
    assert rows(orders) == [(0, "even", 0, 1), (1, "x", 11, 1), (2, "x", 22, 1)]
    orders.update(where=[], set={"note": None})
    assert {row[1] for row in rows(orders)} == {None}
    before = rows(orders)
    orders.update(where=[], set={"count": FIELD("count")})
    assert rows(orders) == before
    orders.update([1], lambda there: there.set_column(2, "count", [[5]]))
    assert rows(orders)[1] == (1, None, 5, 1)


def test_counts_of_a_table_without_a_key_stay(stores: Stores) -> None:
    with stores.open() as client, holdfast.table(client, "t", columns={"n": "int64"}) as table:
        table.append([{"n": 1, "_diff": 3}, {"n": 2, "_diff": 1}])
        table.update(where=FIELD("n") == 1, set={"n": 2})
        assert rows(table) == [(2, 4)]
        table.delete(where=FIELD("n") == 2)
        assert rows(table) == []


def test_no_write_of_another_is_lost(stores: Stores, orders: Table) -> None:
    others = [holdfast.table(stores.open(), "orders") for _ in range(2)]

    def add(table: Table) -> None:
        for _ in range(5):
            table.update(where=FIELD("id") == 1, set={"count": FIELD("count") + 1})

    threads = [threading.Thread(target=add, args=(table,)) for table in (orders, *others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert orders.scan(["count"], FIELD("id") == 1).read_all()["count"].to_pylist() == [16]


def test_several_tables_change_together_and_schemas_may_evolve(stores: Stores, orders: Table) -> None:
    wider = Schema.of(key={"id": "int64"}, value={"note": "string?", "count": "int64", "late": "int64?"})
    StorageController(stores.open()).evolve_collection("orders", wider)
    with holdfast.table(orders.client, "other", columns={"n": "int64"}) as other:
        time = holdfast.write(
            {
                orders: SetValues(FIELD("id") == 1, {"note": "new"}),
                other: [{"n": 1}],
            }
        )
        assert orders.upper == other.upper == time + 1
        holdfast.write({orders: Delete(where=FIELD("id") > 1)})
    orders.update(where=FIELD("id") == 0, set={"late": 5})
    assert rows(orders) == [(0, "even", 0, 5, 1), (1, "new", 1, None, 1)]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {1: ("new", 1), 2: ("new", 2), 9: ("new", 9)}),
        ({"matched": "keep"}, {1: (None, 1), 2: ("even", 2), 9: ("new", 9)}),
        ({"matched": "delete"}, {9: ("new", 9)}),
        ({"missing": "ignore"}, {1: ("new", 1), 2: ("new", 2)}),
        ({"matched": "delete", "missing": "ignore"}, {}),
        ({"matched": "keep", "missing": "ignore"}, {1: (None, 1), 2: ("even", 2)}),
    ],
)
def test_a_merge_compares_by_key(
    orders: Table,
    options: dict[str, Any],
    expected: dict[int, tuple[Any, ...]],
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polars_forks, "_lost", lost)
    orders.delete(where=FIELD("id") > 2)
    orders.merge([{"id": i, "note": "new", "count": i} for i in (9, 2, 1)], **options)
    assert rows(orders) == sorted(
        [(0, "even", 0, 1), *((id_, note, count, 1) for id_, (note, count) in expected.items())], key=str
    )


@pytest.mark.parametrize("lost", [False, True])
def test_a_merge_of_some_columns_keeps_the_others(
    orders: Table, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polars_forks, "_lost", lost)
    orders.delete(where=FIELD("id") > 2)
    orders.merge({"id": [2, 0, 7], "count": [20, 0, 70]}, missing="insert")
    orders.merge([{"id": 1, "note": "one"}, {"id": 8, "note": "none"}], missing="ignore")
    # Existing rows keep their count, which can't be null.
    orders.merge([{"id": 1, "note": "one"}])
    expected = [(0, "even", 0, 1), (1, "one", 1, 1), (2, "even", 20, 1), (7, None, 70, 1)]
    assert rows(orders) == expected
    upper = orders.upper
    assert orders.merge([{"id": 2, "count": 20}]) >= upper
    assert rows(orders) == expected
    orders.merge([])
    assert rows(orders) == expected


def test_a_merge_after_the_table_evolved(stores: Stores, orders: Table) -> None:
    wider = Schema.of(key={"id": "int64"}, value={"note": "string?", "count": "int64", "late": "int64?"})
    StorageController(stores.open()).evolve_collection("orders", wider)
    with holdfast.table(stores.open(), "orders") as new:
        new.merge({"id": [1, 9], "count": [1 << 40, 2], "late": [5, 6]})
    orders.merge([{"id": 1, "note": "again", "count": 3}])
    assert rows(orders)[1] == (1, "again", 3, 5, 1)
    assert rows(orders)[-1] == (9, None, 2, 6, 1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda t: t.merge([{"id": 1, "note": "a"}, {"id": 77, "note": "a"}]),
            r"column 'count' is missing, and the row of key \(id=77\) is new and needs it",
        ),
        (lambda t: t.merge([{"id": 1, "count": 1}] * 2), r"a merge has key \(id=1\) more than once"),
        (lambda t: t.merge([{"count": 1}]), "column 'id'"),
        (
            lambda t: t.merge([{"id": 1, "count": 1}, {"id": 2, "count": 1, "note": "a"}]),
            "row 0 has no column",
        ),
        (lambda t: t.merge([{"id": 1, "count": 1, "nope": 1}]), "'nope' is not in the schema"),
        (lambda t: t.merge([], matched="replace"), "matched must be one of update, keep, delete"),
        (lambda t: t.merge([], missing="add"), "missing must be one of insert, ignore"),
        (lambda t: t.merge(5), "not int"),
        (lambda t: t.delete(), "either keys or where"),
        (lambda t: t.delete([1], where=[]), "either keys or where"),
        (lambda t: t.delete(where=FIELD("nope") == 1), "where: column 'nope' is not in the schema"),
        (
            lambda t: t.update(where=FIELD("nope") == 1, set={"note": "a"}),
            "where: column 'nope' is not in the schema",
        ),
        (lambda t: t.update(set={"note": "a"}), "either keys and a function, or where and set"),
        (
            lambda t: holdfast.write({t: SetValues(None, {"note": "a"})}),  # type: ignore[arg-type]
            "where: None is not a condition",
        ),
        (lambda t: t.update(), "either keys and a function, or where and set"),
        (lambda t: t.update([1]), "either keys and a function, or where and set"),
        (lambda t: t.update([1], set={"note": "a"}), "either keys and a function, or where and set"),
        (lambda t: t.update(None, lambda r: r, where=[]), "either keys and a function, or where and set"),
        (lambda t: t.update(where=[], set={}), "set must be a dict"),
        (lambda t: t.update(where=[], set=["note"]), "set must be a dict"),
        (lambda t: t.update(where=[], set={"nope": 1}), "'nope' is not in the schema"),
        (lambda t: t.update(where=[], set={"id": 1}), "key column 'id' can't be set"),
        (lambda t: t.update(where=[], set={"count": "x"}), "column 'count'"),
        (lambda t: t.update(where=[], set={"count": None}), "column 'count' can't be null"),
        (
            lambda t: t.update(where=[], set={"count": FIELD("nope")}),
            "set: column 'count': column 'nope' is not in the schema",
        ),
        (lambda t: t.update(where=[], set={"count": FIELD("note")}), "column 'count'"),
        (lambda t: t.update(where=[], set={"count": FIELD("count") + 2**40}), "column 'count'"),
    ],
)
def test_what_does_not_fit_is_one_line_and_changes_nothing(
    orders: Table, use: Callable[[Table], object], message: str
) -> None:
    before, upper = rows(orders), orders.upper
    with pytest.raises(BadInput, match=message) as refused:
        use(orders)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("table orders: ")
    assert "table orders: table orders" not in str(refused.value)
    assert rows(orders) == before
    assert orders.upper == upper
