"""A snapshot that reads some columns straight from its parts has the rows of a snapshot of all columns."""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from holdfast.persist import Schema
from holdfast.persist.parts import snapshot as snapshots
from holdfast.persist.parts.direct import direct
from unit.persist.open_stores import SCHEMA, SHARD, Stores, Update, updates

SMALL: dict[str, Any] = {"inline_max_bytes": 0, "part_target_bytes": 600}
COLUMNS: list[list[str]] = [["v"], ["k"], ["k", "v"], []]


@pytest.fixture
def direct_reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read, so far, was direct."""
    found: list[bool] = []

    def noted(*given: object, **named: object) -> object:
        result = direct(*given, **named)  # type: ignore[arg-type]
        found.append(result is not None)
        return result

    monkeypatch.setattr(snapshots, "direct", noted)
    return found


def adds() -> list[Update]:
    """Updates that add rows. Many of them are equal, at the same time or at other times."""
    rng = random.Random(1)
    return [(rng.randrange(12), rng.choice("ab"), rng.randrange(3), rng.randrange(1, 4)) for _ in range(150)]


def counted(batches: Iterable[pa.RecordBatch], columns: list[str]) -> Counter[tuple[object, ...]]:
    """The rows of these columns, with the sums of their diffs."""
    found: Counter[tuple[object, ...]] = Counter()
    for batch in batches:
        assert batch.schema.names == [*columns, "_diff"]
        for row in batch.to_pylist():
            found[tuple(row[name] for name in columns)] += row["_diff"]
    return found


def expected(given: list[Update], as_of: int, columns: list[str]) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for key, value, time, diff in given:
        if time <= as_of:
            found[tuple({"k": key, "v": value}[name] for name in columns)] += diff
    return +found


@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_a_direct_read_has_the_rows_of_the_contents(columns: list[str], direct_reads: list[bool]) -> None:
    client = Stores().open(**SMALL, audit_pushdown=True)
    given = adds()
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(updates(given), 0, 5)
    reader = client.reader(SHARD, purpose="t")
    for as_of in (0, 1, 2, 4):
        found = counted(reader.snapshot(as_of, columns=columns), columns)
        assert found == expected(given, as_of, columns)
    assert direct_reads == [True] * 4


@pytest.mark.parametrize("inline", [0, 10_000])
def test_rows_that_need_a_sum_are_not_read_directly(inline: int, direct_reads: list[bool]) -> None:
    stores = Stores()
    client = stores.open(**{**SMALL, "inline_max_bytes": inline})
    writer = client.writer(SHARD, SCHEMA, purpose="t")
    # A deletion in the run of its row.
    first = [*adds(), (3, "c", 1, 1), (3, "c", 2, -1)]
    writer.compare_and_append(updates(first), 0, 5)
    reader = client.reader(SHARD, purpose="t")
    assert counted(reader.snapshot(4, columns=["v"]), ["v"]) == expected(first, 4, ["v"])
    # Two runs.
    second = [(3, "b", 5, 1), (4, "a", 5, 1)]
    writer.compare_and_append(updates(second), 5, 6)
    assert counted(reader.snapshot(5, columns=["v"]), ["v"]) == expected([*first, *second], 5, ["v"])
    assert direct_reads == [False, False]


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("seen", [1, 2, 3])
def test_a_direct_read_goes_on_after_its_parts_were_replaced(
    deletes: bool, seen: int, direct_reads: list[bool]
) -> None:
    """The read goes on directly, or where the parts now have deletions at a later time, by a merge."""
    stores = Stores()
    client, other = (
        stores.open(**SMALL),
        stores.open(**{**SMALL, "part_target_bytes": 900, "compaction_fanin": 2}),
    )
    given = adds()
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(updates(given), 0, 5)
    before = stores.parts()
    assert len(before) > seen
    batches = iter(client.reader(SHARD, purpose="t").snapshot(4, columns=["v"]))
    read = [next(batches) for _ in range(seen)]
    writer = other.writer(SHARD, SCHEMA, purpose="t")
    later = [(key, value, 5, -1 if deletes else 1) for key, value, _, _ in given[:9]]
    writer.compare_and_append(updates(later), 5, 6)
    other.maintain(SHARD)
    for key in before:
        stores.blob.delete(key)
    assert counted([*read, *batches], ["v"]) == expected(given, 4, ["v"])
    assert direct_reads == [True, not deletes]


@pytest.mark.parametrize("one_time", [True, False])
def test_a_column_that_a_part_does_not_have_is_null(one_time: bool, direct_reads: list[bool]) -> None:
    """With one time and one diff, the footer has all that a read of such a column needs."""
    client = Stores().open(**SMALL, audit_pushdown=True)
    given: list[Update] = [(key, "a", 0, 1) for key in range(100)] if one_time else adds()
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(updates(given), 0, 5)
    client.evolve(SHARD, Schema.of({"k": "int64"}, {"v": "string", "w": "int64?"}))
    reader = client.reader(SHARD, purpose="t")
    rows = expected(given, 4, [])[()]
    assert counted(reader.snapshot(4, columns=["w"]), ["w"]) == {(None,): rows}
    assert counted(reader.snapshot(4, columns=[]), []) == {(): rows}
    assert direct_reads == [True] * 2
