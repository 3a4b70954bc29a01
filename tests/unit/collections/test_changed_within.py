"""How far back a number of changes reaches, in time, even if many times are stored together."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collections import CollectionReader, StorageController
from holdfast.errors import CorruptBlob
from holdfast.persist.admin.manual import compact_now
from holdfast.persist.parts.times import TimeCounts
from unit.collections.stores import SPEC, Stores, updates

CAME = Counter({1: 6, 3: 2, 4: 9, 7: 1, 8: 3, 12: 4, 13: 1, 20: 30, 21: 1, 22: 2})
"""How many rows each time has."""
MERGED = 12
"""The last time of those that are stored together."""
CAME_MERGED = sum(rows for time, rows in CAME.items() if time <= MERGED)


def append(controller: StorageController, first: int, last: int) -> None:
    writer = controller.writer("flights", purpose="test")
    for time in (time for time in CAME if first <= time <= last):
        rows = [(number, f"at {time}", time, 1) for number in range(CAME[time])]
        writer.append(updates(rows), writer.upper(), time + 1)


def compact(controller: StorageController) -> None:
    for shard in controller.describe("flights").holding.shards:
        compact_now(controller.client, shard, full=True)


def expected(after: int, until: int, rows: int) -> list[int]:
    """The times that are within the limit."""
    times = [time for time in CAME if after < time <= until]
    within = [time for time in times if sum(CAME[each] for each in times if each <= time) <= rows]
    return within or times[:1]


def check(reader: CollectionReader) -> None:
    for after, until in combinations(range(24), 2):
        for rows in (1, 4, 10, 40):
            reached = reader.changed_within(after, until, rows)
            assert after < reached <= until
            found = [time for time in CAME if after < time <= reached]
            wanted = expected(after, until, rows)
            # Of what is merged all counts where it fits, what came before too: then it may be less.
            least = expected(after, MERGED, rows) if 0 < after < MERGED < until else wanted
            assert found == wanted[: max(len(least), len(found))], (after, until, rows)


@pytest.mark.parametrize("inline_max_bytes", [0, 100_000])
def test_times_that_are_stored_together_are_told_apart(stores: Stores, inline_max_bytes: int) -> None:
    with stores.open(inline_max_bytes=inline_max_bytes, part_target_bytes=300) as client:
        controller = StorageController(client)
        controller.create_collection(SPEC)
        append(controller, 1, MERGED)
        compact(controller)
        append(controller, MERGED + 1, 22)
        controller.writer("flights", purpose="test").seal(24)
        with controller.reader("flights", purpose="test") as reader:
            check(reader)


def test_only_what_the_limit_cuts_is_read(stores: Stores) -> None:
    with stores.open(inline_max_bytes=0) as client:
        controller = StorageController(client)
        controller.create_collection(SPEC)
        append(controller, 1, MERGED)
        compact(controller)
        append(controller, MERGED + 1, 22)
        with controller.reader("flights", purpose="test") as reader:
            assert reader.changed_within(0, 22, 8) == 3
            for meta in stores.blob.list(""):
                stores.blob.delete(meta.key)
            assert reader.changed_within(0, 22, CAME.total()) == 22
            assert reader.changed_within(0, 22, 30) == 13
            assert reader.changed_within(MERGED, 22, 1) == 13
            assert reader.changed_within(13, 22, 1) == 20
            with pytest.raises(CorruptBlob, match="is missing: it is a part"):
                reader.changed_within(0, 22, 8)


def test_each_rendition_counts_while_it_held(controller: StorageController) -> None:
    controller.create_collection(SPEC)
    append(controller, 1, MERGED)
    controller.renditions.create("flights", shards=2)
    controller.hydrate("flights", "r2")
    at = controller.renditions.hand_over("flights", "r2").held_from
    writer = controller.writer("flights", purpose="test")
    for time in (at, at + 2):
        writer.append(updates([(number, "later", time, 1) for number in range(5)]), writer.upper(), time + 1)
    compact(controller)
    with controller.reader("flights", purpose="test") as reader:
        for rows, reached in ((8, 3), (CAME_MERGED, MERGED), (CAME_MERGED + 5, at), (100, at + 2)):
            assert reader.changed_within(0, at + 2, rows) == reached


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=6),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 12),
)
def test_the_first_times_are_counted_and_no_more_kept_than_asked_for(
    pieces: list[list[int]], first: int, last: int, most: int
) -> None:
    counts = TimeCounts(first, last, most)
    for number, piece in enumerate(pieces):
        times = np.array(piece, np.uint64)
        if number % 2:
            counts.add(times)
        else:
            one = TimeCounts(first, last, most)
            one.add(times)
            counts.merge(one)
    came = Counter(time for piece in pieces for time in piece if first <= time <= last)
    kept: dict[int, int] = {}
    for time in sorted(came):
        if sum(kept.values()) <= most:
            kept[time] = came[time]
    assert dict(zip(counts.times.tolist(), counts.counts.tolist(), strict=True)) == kept
    assert counts.total == sum(kept.values())
    assert counts.within == len(kept) - (counts.total > most)
