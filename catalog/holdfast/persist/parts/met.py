"""Finds the parts of a version that can have wanted rows, by the limits in its state. It reads nothing."""

from collections import OrderedDict
from contextlib import suppress
from itertools import chain
from typing import Final

from holdfast.errors import CorruptBlob
from holdfast.forks import ForkLock
from holdfast.persist.parts.chains import joined
from holdfast.persist.parts.runs import At, Run, open_runs
from holdfast.persist.rows.limits import StatedBounds, keys_of
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.rows.row_filter import ConditionFailed, RowFilter
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part, ShardState

_MOST_RUNS: Final = 256
_lock: Final = ForkLock()
_kept: "Final[OrderedDict[int, tuple[Run, Schema, StatedBounds]]]" = OrderedDict()
"""The bounds of the parts of the runs that were used last, by the identity of the run."""


def met_runs(state: ShardState, wanted: KeyRange, row_filter: RowFilter | None) -> list[Run]:
    """Return the runs of a version without the parts that can't have rows of a range that a filter chooses.

    The range is one of the version's newest schema. Equal rows have equal first columns. So what is left has
    all updates of each wanted row. Runs that don't overlap are joined.
    """
    runs: list[Run] = [run for batch in state.batches for run in batch.runs]
    if wanted != EVERYTHING or row_filter is not None:
        found = (_met(state, run, wanted, row_filter) for run in runs)
        runs = [run for run in found if run]
    return [*joined(runs, lambda part: state.schemas[part.schema_id], state.schema)]


def audit_left_out(
    machine: Machine, state: ShardState, view: At, wanted: KeyRange, row_filter: RowFilter | None
) -> None:
    """Read the parts that `met_runs` leaves out. Raises `CorruptBlob` if one of them has a wanted row."""
    runs = [run for batch in state.batches for run in batch.runs]
    left_out = {part for run in runs for part in run}
    left_out -= {part for run in met_runs(state, wanted, row_filter) for part in run}
    for part in left_out:
        opened = open_runs(machine, state.schema, [[part]], view, wanted, row_filter=row_filter)
        # If a condition fails, it may be for a row that was removed.
        with suppress(ConditionFailed):
            if found := sum(rows.num_rows for rows in chain.from_iterable(opened)):
                raise CorruptBlob(str(part.blob_key), "no wanted row, by the limits in the state", f"{found}")


def _met(state: ShardState, run: Run, wanted: KeyRange, row_filter: RowFilter | None) -> Run:
    if all(part.greatest is None for part in run):
        return run
    met = [part for part in run if wanted == EVERYTHING or _may_meet(state, part, wanted)]
    own = state.schemas[run[0].schema_id]
    if met and row_filter is not None and own.columns[0].name in row_filter.columns:
        chosen = {id(run[index]) for index in row_filter.groups(_bounds(own, run))}
        met = [part for part in met if id(part) in chosen]
    return run if len(met) == len(run) else met


def _may_meet(state: ShardState, part: Part, wanted: KeyRange) -> bool:
    own = state.schemas[part.schema_id]
    return wanted.may_meet(*keys_of(part.least, part.greatest, own, state.schema))


def _bounds(own: Schema, run: Run) -> StatedBounds:
    """The bounds of the parts of a run. They are kept for the next read."""
    with _lock:
        kept = _kept.get(id(run))
        if kept is not None and kept[0] is run and kept[1] == own:
            _kept.move_to_end(id(run))
            return kept[2]
    limits = [
        (part.least, part.greatest) if part.schema_id == run[0].schema_id else (None, None) for part in run
    ]
    bounds = StatedBounds(own, limits)
    with _lock:
        _kept[id(run)] = run, own, bounds
        while len(_kept) > _MOST_RUNS:
            _kept.popitem(last=False)
    return bounds
