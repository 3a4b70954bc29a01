"""The uppers of all shards of a rendition, read in one round trip."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from holdfast.collections import CollectionSpec, CollectionState, StorageController
from holdfast.collections.frontiers import common_upper, look_together
from holdfast.errors import CollectionNotFound, TornRendition
from holdfast.persist.looks import one_look
from testbed.faults import Fault, Operation
from unit.collections.stores import SCHEMA, Stores, updates


class Calls:
    """Counts the calls of stores."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def decide(self, operation: Operation) -> Fault:
        self.seen[operation.name] += 1
        return Fault.NONE


def test_the_uppers_of_all_shards_are_read_at_once() -> None:
    stores, calls = Stores(), Calls()
    with stores.open() as first:
        spec = CollectionSpec("c1", "flights", SCHEMA, shards=8)
        info = StorageController(first).create_collection(spec)
    client = stores.open(calls)
    controller = StorageController(client)
    reader = controller.reader("flights", purpose="test")
    writer = controller.writer("flights", purpose="test")
    for upper in (5000, 20_000, 35_000):
        # Another process: nothing of it is in the caches here.
        with stores.open() as other:
            elsewhere = StorageController(other).writer("flights", purpose="other")
            elsewhere.append(updates([(1, "one", upper - 1, 1)]), elsewhere.upper(), upper)
        calls.seen.clear()
        assert client.recent_uppers(info.data_shards) == dict.fromkeys(info.data_shards, upper)
        assert calls.seen["consensus.heads"] == 1
    for upper_of in (reader.upper, writer.upper):
        calls.seen.clear()
        assert upper_of() == 35_000
        # The promise and all shards, and then the record. In a block, the record is read with them.
        assert calls.seen["consensus.heads"] == 2
        with one_look():
            upper_of()
        assert calls.seen["consensus.heads"] == 3
    unknown = client.new_shard_id()
    assert client.recent_uppers([info.data_shards[0], unknown]) == {info.data_shards[0]: 35_000, unknown: 0}
    assert client.recent_uppers([]) == {}


def test_the_record_and_the_uppers_are_read_at_once() -> None:
    stores, calls = Stores(), Calls()
    controller = StorageController(stores.open(calls))
    with pytest.raises(CollectionNotFound):
        controller.read_together("c1")
    # Another process, of which nothing is in the caches here.
    other = StorageController(stores.open())
    made = other.create_collection(CollectionSpec("c1", "flights", SCHEMA, shards=3))
    job = other.start_job("c1", "snapshot", "1", spec={})
    for upper in (5000, 20_000):
        writer = other.writer("flights", purpose="other")
        writer.append(updates([(1, "one", upper - 1, 1)]), writer.upper(), upper)
        info, jobs, uppers = controller.read_together("c1")
        assert (info, jobs) == (made, (job,))
        assert uppers.keys() == {made.metadata_shard, *made.data_shards}
        view = look_together(info, uppers)
        assert view == other.renditions.look("c1")
        assert view.upper == upper
        known = [controller.client.known(shard) for shard in uppers]
        assert [each.upper for each in known if each] == list(uppers.values())
    calls.seen.clear()
    controller.read_together("c1")
    assert calls.seen["consensus.heads"] == 1
    other.drop_collection("flights", force=True)
    info, _, uppers = controller.read_together("c1")
    assert (info.state, uppers) == (CollectionState.DROPPED, {})


@pytest.mark.parametrize(
    ("reads", "wanted"),
    [
        ([(5, 5, 5)], 5),
        ([(5, 3, 3), (5, 5, 5)], 5),
        ([(3, 5, 3), (7, 5, 5), (7, 7, 7)], 7),
        ([(3, 5, 3), (3, 5, 3)], None),
        ([(3, 5, 3), (7, 8, 4)], None),
        ([(0, 5, 0), (6, 6, 6)], 6),
    ],
)
def test_a_step_that_is_seen_half_way_is_no_torn_rendition(
    reads: list[tuple[int, ...]], wanted: int | None
) -> None:
    with Stores().open() as client:
        spec = CollectionSpec("c1", "flights", SCHEMA, shards=3)
        info = StorageController(client).create_collection(spec)
    following = iter(reads)

    def read(shards: Sequence[str]) -> Mapping[str, int]:
        return dict(zip(shards, next(following), strict=True))

    if wanted is None:
        with pytest.raises(TornRendition):
            common_upper(info, info.holding, read)
    else:
        assert common_upper(info, info.holding, read) == wanted
    assert list(itertools.islice(following, 1)) == []
