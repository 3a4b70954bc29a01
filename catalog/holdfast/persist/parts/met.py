"""Finds the parts of a version that can have wanted rows, by the limits in its state. It reads nothing."""

from collections.abc import Sequence
from itertools import chain

from holdfast.errors import CLOSED, CorruptBlob
from holdfast.persist.parts.runs import At, Run, open_runs
from holdfast.persist.rows.evolution import upgraded_key
from holdfast.persist.rows.limits import key_of, stated_bounds
from holdfast.persist.rows.order import EVERYTHING, KeyRange
from holdfast.persist.rows.row_filter import RowFilter
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part, ShardState


def met_runs(
    machine: Machine, state: ShardState, wanted: KeyRange, row_filter: RowFilter | None
) -> Sequence[Run]:
    """Return the runs of a version without the parts that can't have rows of a range that a filter chooses.

    The range is one of the version's newest schema. Equal rows have equal first columns. So what is left has
    all updates of each wanted row. With `audit_pushdown`, a part that is left out is read, and
    `CorruptBlob` is raised if it has a wanted row.
    """
    runs = [run for batch in state.batches for run in batch.runs]
    if wanted == EVERYTHING and row_filter is None:
        return runs
    found = []
    for run in runs:
        met = [part for part in run if part.greatest is None or _may_meet(state, part, wanted, row_filter)]
        if machine.config.audit_pushdown:
            for part in {*run} - {*met}:
                _audit(machine, state, part, wanted, row_filter)
        if met:
            found.append(run if len(met) == len(run) else tuple(met))
    return found


def _may_meet(state: ShardState, part: Part, wanted: KeyRange, row_filter: RowFilter | None) -> bool:
    own = state.schemas[part.schema_id]
    if wanted != EVERYTHING:
        low, high = (upgraded_key(key_of(each), own, state.schema) for each in (part.least, part.greatest))
        if not wanted.may_meet(low, high):
            return False
    if row_filter is None or part.least is None or part.greatest is None:
        return True
    return bool(row_filter.groups(stated_bounds(own, part.least, part.greatest)))


def _audit(
    machine: Machine, state: ShardState, part: Part, wanted: KeyRange, row_filter: RowFilter | None
) -> None:
    opened = open_runs(machine, state.schema, [[part]], At(CLOSED - 1), wanted, row_filter=row_filter)
    if found := sum(rows.num_rows for rows in chain.from_iterable(opened)):
        raise CorruptBlob(str(part.blob_key), "no wanted row, by the limits in the state", f"{found}")
