"""The difference between the contents of some shards and others, at once and as streams."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DiffOverflow, StorageError
from holdfast.persist import PersistClient, PersistConfig, ReadHandle, Schema
from holdfast.persist.clock import Clock
from holdfast.persist.parts.difference import Difference
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from testbed.faults import Fault, FaultyBlob, ScriptedPlan

OLD = Schema.of(key={"id": "int32"}, value={"price": "float32"})
NEW = Schema.of(key={"id": "int32"}, value={"price": "float64", "name": "string?"})
AS_OF, AT = 9, 20

Row = tuple[int, float]
rows = st.dictionaries(
    st.tuples(st.integers(0, 30), st.sampled_from([0.5, 1.5])), st.integers(-2, 2).filter(bool), max_size=30
)


def opened() -> PersistClient:
    config = PersistConfig(debug_validate=True, maintenance="off", inline_max_bytes=0)
    return PersistClient(Location.of(MemoryBlob(), MemoryConsensus()), config=config)


def shard(client: PersistClient, contents: dict[Row, int], schema: Schema = OLD) -> ReadHandle:
    """A shard with these contents at `AS_OF`, in two runs, and other ones later."""
    writer = client.writer(client.new_shard_id(), schema, purpose="test")
    empty = {"name": None} if schema is NEW else {}
    added = [{"id": id_, "price": price, "_diff": diff, **empty} for (id_, price), diff in contents.items()]
    writer.compare_and_append(added[::2], 0, 5)
    writer.compare_and_append(added[1::2], 5, AS_OF + 1)
    writer.compare_and_append([{"id": 1, "price": 0.5, **empty}], AS_OF + 1, AS_OF + 2)
    return client.reader(writer.shard_id, purpose="test")


def told(difference: Difference) -> Counter[Row]:
    found: Counter[Row] = Counter()
    last: Row | None = None
    for table in difference:
        assert table.num_rows
        assert table.schema.equals(difference.schema.arrow_updates)
        assert set(table["_time"].to_pylist()) == {AT}
        for row in table.to_pylist():
            this = (row["id"], row["price"])
            assert last is None or last < this, "each row once, in order"
            last = this
            found[this] = row["_diff"]
    return found


def sides(client: PersistClient, more: dict[Row, int], less: dict[Row, int]) -> list[list[ReadHandle]]:
    """`more` in two shards of the newer schema, `less` in one of the older."""
    halves: list[dict[Row, int]] = [{}, {}]
    for row, diff in more.items():
        halves[row[0] % 2][row] = diff
    return [[shard(client, half, NEW) for half in halves], [shard(client, less)]]


def differing(more: dict[Row, int], less: dict[Row, int]) -> Counter[Row]:
    total = Counter(more)
    total.subtract(less)
    return Counter({row: diff for row, diff in total.items() if diff})


@pytest.mark.parametrize("in_memory_bytes", [1 << 30, -1])
@settings(max_examples=25, deadline=None)
@given(more=rows, less=rows)
def test_it_is_one_side_less_the_other(
    in_memory_bytes: int, more: dict[Row, int], less: dict[Row, int]
) -> None:
    with opened() as client:
        both = [[each.snapshot(AS_OF) for each in side] for side in sides(client, more, less)]
        difference = Difference(*both, AT, in_memory_bytes=in_memory_bytes)
        assert told(difference) == differing(more, less)
        assert list(difference) == []


def test_large_sides_are_read_by_the_engine_as_by_the_small_path() -> None:
    more = {(number, 0.5): 1 for number in range(3000)}
    less = {(number, 0.5): 2 if number == 7 else 1 for number in range(1, 3001)}
    with opened() as client:
        both = [[each.snapshot(AS_OF) for each in side] for side in sides(client, more, less)]
        assert told(Difference(*both, AT)) == {(0, 0.5): 1, (7, 0.5): -1, (3000, 0.5): -1}


def test_the_least_number_of_copies_has_no_negative_of_its_own() -> None:
    least = {(1, 0.5): -(2**63)}
    many = {(number, 1.5): 1 for number in range(600)}
    with opened() as client:
        same = [[each.snapshot(AS_OF) for each in side] for side in sides(client, least | many, least)]
        assert told(Difference(*same, AT)) == many
        alone = [[each.snapshot(AS_OF) for each in side] for side in sides(client, many, least)]
        for in_memory_bytes in (1 << 30, -1):
            with pytest.raises(DiffOverflow, match="id=1"):
                told(Difference(*alone, AT, in_memory_bytes=in_memory_bytes))


class NoWait(Clock):
    def sleep(self, seconds: float) -> None:
        pass


def test_a_stream_that_failed_goes_on_after_what_it_told() -> None:
    plan = ScriptedPlan(
        dict.fromkeys((4, 30, 60), Fault.DETERMINATE), matches=lambda op: op.name == "blob.open_input"
    )
    config = PersistConfig(maintenance="off", inline_max_bytes=0, part_target_bytes=200, retry_deadline_s=0.0)
    client = PersistClient(
        Location.of(FaultyBlob(MemoryBlob(), plan), MemoryConsensus()), config=config, clock=NoWait()
    )
    more, less = {(number, 0.5): 1 for number in range(400)}, {(number, 0.5): 1 for number in range(50)}
    both = [[each.snapshot(AS_OF) for each in side] for side in sides(client, more, less)]
    difference = Difference(*both, AT, in_memory_bytes=-1)
    ids: list[int] = []
    failures: list[int] = []
    stream = iter(difference)
    while True:
        try:
            piece = next(stream, None)
        except StorageError:
            failures.append(len(ids))
            stream = iter(difference)
            continue
        if piece is None:
            break
        ids += piece["id"].to_pylist()
    assert len(failures) == 3
    assert failures[-1] > 0
    assert ids == list(range(50, 400))
