"""Chooses where to cut a shard's rows into ranges of the first column with about equal numbers of rows.

If few rows are in parts that contain the same value, the limits of parts in the state are enough for this.
Otherwise the footers of the parts are. A row group or part that lies before a cut counts whole, and one that
contains the cut counts half. Nothing is decoded, and no checksum is verified, because every choice of cuts is
correct. Values of the column are as in `holdfast.persist.rows.order`. No cut is null.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.persist.parts.part_store import PartGone, read_inline
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.groups import GroupBounds, bounds_through
from holdfast.persist.rows.limits import keys_of
from holdfast.persist.rows.order import NULL, Key, key_at
from holdfast.persist.rows.part import UNREADABLE, check_footer, read_error
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine, read_twice, retry
from holdfast.persist.state.state import Part, ShardState

# An inline part is small, so a few positions in it are enough.
_INLINE_PIECES: Final = 4
# Limits are enough if the parts that contain one value have at most this share of the rows of a piece.
_FINE: Final = 0.25


def cuts(machine: Machine, state: ShardState, as_of: int, max_parts: int | None) -> list[Any]:
    """Return at most `max_parts - 1` ascending values that cut the rows; None: one per row group.

    Raises:
        PartGone: a part of `state` does not exist.
        CorruptBlob: a part has no readable footer.
    """
    # A part without limits is read once.
    groups_of = cache(partial(_groups, machine, state.schema))
    if max_parts is not None:
        parts = (part for batch in state.batches for part in batch.parts if part.lower <= as_of)
        stated = [each for part in parts for each in _stated(state, part) or groups_of(part)]
        if _most_at_once(stated) * max_parts <= _FINE * sum(group.rows for group in stated):
            return choose(stated, max_parts)
    runs = [
        [group for part in run if part.lower <= as_of for group in groups_of(part) if group.rows]
        for batch in state.batches
        for run in batch.runs
    ]
    pieces = max_parts
    if pieces is None:
        pieces = max((math.ceil(sum(group.weight for group in run)) for run in runs), default=1)
    return choose([group for run in runs for group in run], pieces)


def choose(groups: list[GroupBounds], pieces: int) -> list[Any]:
    """Return the values that cut rows with these groups into at most `pieces` pieces."""
    ends = {end for group in groups for end in (group.low, group.high) if end is not None and end != NULL}
    places = sorted(ends)
    before = _rows_before(groups, places)
    total = sum(group.rows for group in groups)
    chosen: list[Any] = []
    for piece in range(1, pieces):
        aim = total * piece / pieces
        index = bisect_left(before, aim)
        if index > 0 and (index == len(before) or aim - before[index - 1] <= before[index] - aim):
            index -= 1
        # There is nothing before it, so the piece below would be empty.
        if index < len(places) and before[index] > 0:
            value = places[index][0][1]
            if not chosen or chosen[-1] < value:
                chosen.append(value)
    return chosen


def _rows_before(groups: list[GroupBounds], places: list[Key]) -> list[float]:
    """Estimate for each of the ascending positions how many rows are before it."""
    steps = [0.0] * (len(places) + 1)
    for group in groups:
        # Half of the rows at each end. They are before a position that is after that end.
        start = 0 if group.low is None or group.low == NULL else bisect_left(places, group.low) + 1
        end = len(places) if group.high is None else bisect_left(places, group.high) + 1
        if group.high == NULL:
            end = 0
        steps[min(start, len(places))] += group.rows / 2
        steps[min(end, len(places))] += group.rows / 2
    sums, total = [], 0.0
    for step in steps[: len(places)]:
        total += step
        sums.append(total)
    return sums


def _stated(state: ShardState, part: Part) -> list[GroupBounds]:
    """A part as one group, if the state has limits of it."""
    if part.greatest is None:
        return []
    own = state.schemas[part.schema_id]
    low, high = keys_of(part.least, part.greatest, own, state.schema)
    return [GroupBounds(part.rows, low or NULL, high, part.lower, part.upper - 1)]


def _most_at_once(groups: Sequence[GroupBounds]) -> int:
    """The most rows of groups that contain the same value. A group without a limit contains all values."""
    begins = sorted((group.low or NULL, group.rows) for group in groups)
    ends = deque(sorted((group.high, group.rows) for group in groups if group.high is not None))
    most = there = 0
    for low, rows in begins:
        while ends and ends[0][0] < low:
            there -= ends.popleft()[1]
        there += rows
        most = max(most, there)
    return most


def _groups(machine: Machine, schema: Schema, part: Part) -> list[GroupBounds]:
    if part.inline is not None:
        return _inline_groups(schema, read_inline(machine, schema, part))
    key = part.blob_key
    assert key is not None
    own = machine.schema_of(part)

    def attempt() -> list[GroupBounds]:
        file = machine.location.blob.open_input(key, part.size_bytes + 1)
        if file is None:
            raise PartGone(key)
        with file:
            try:
                metadata = pq.read_metadata(file)
                check_footer(metadata, own, key=key)
                return bounds_through(schema, own, metadata)
            except UNREADABLE as error:
                raise read_error(error, key) from error

    def read() -> list[GroupBounds]:
        return retry(attempt, machine.config, machine.clock)

    return read_twice(machine.location, key, read)


def _inline_groups(schema: Schema, updates: pa.Table) -> list[GroupBounds]:
    rows = sort_updates(schema, updates)
    size = math.ceil(rows.num_rows / _INLINE_PIECES) or 1
    names = schema.names[:1]
    found = []
    for start in range(0, rows.num_rows, size):
        count = min(size, rows.num_rows - start)
        low, high = key_at(names, rows, start), key_at(names, rows, start + count - 1)
        found.append(GroupBounds(count, low, high, 0))
    return found
