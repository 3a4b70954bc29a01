"""Joins runs of a shard that don't overlap, by the limits in its state.

Readers have a batch of each run in memory. The first column of a run's rows is between the least value of its
first part and the greatest value of its last part. If the greatest value of a run is below the least one of
another run, then all of its rows come first in the total order. So the parts of both are one run.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from holdfast.persist.parts.runs import Run
from holdfast.persist.rows.limits import keys_of
from holdfast.persist.rows.order import NULL, Key
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.state import Part


def joined(
    runs: Sequence[Run], schema_of: Callable[[Part], Schema], newest: Schema
) -> list[tuple[Part, ...]]:
    """Return the fewest runs that runs can be joined into. Those without limits stay as they are."""
    found: list[list[Run]] = []
    stated: list[tuple[Key, Key, Run]] = []
    for run in runs:
        limits = _limits(run, schema_of, newest)
        if limits is None:
            found.append([run])
        else:
            stated.append((*limits, run))
    stated.sort(key=lambda each: each[0])
    ends: list[tuple[Key, int]] = []
    for least, greatest, run in stated:
        if ends and ends[0][0] < least:
            _, place = heappop(ends)
            found[place].append(run)
        else:
            place = len(found)
            found.append([run])
        heappush(ends, (greatest, place))
    return [tuple(part for run in chain for part in run) for chain in found]


def _limits(run: Run, schema_of: Callable[[Part], Schema], newest: Schema) -> tuple[Key, Key] | None:
    """What the first column of the run's rows lies between. None if that isn't known."""
    if not run or run[0].greatest is None or run[-1].greatest is None:
        return None
    least, _ = keys_of(run[0].least, None, schema_of(run[0]), newest)
    _, greatest = keys_of(None, run[-1].greatest, schema_of(run[-1]), newest)
    return least or NULL, greatest or NULL
