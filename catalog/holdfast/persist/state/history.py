"""Checks whether two versions of a shard belong to the same history.

If a store is restored from an older copy and written to afterwards, the shard has two histories. The rollups
of the lost versions are still in Blob, and the log continues without these versions. Both histories have
versions with the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from holdfast.persist.ids import EPOCH_BITS
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    Change,
    ExtendUpper,
    PendingBatch,
    PutEntry,
    ReplaceBatches,
    SealPending,
    ShardState,
    StateDiff,
    apply,
)

Source = Literal["log", "rollup"]


@dataclass(frozen=True, slots=True)
class History:
    """The newest known version of one history of a shard, and its source.

    `wall_ms` and `hostname` are when and where the version was written. `whole` is whether all of its blobs
    exist.
    """

    source: Source
    seqno: int
    upper: int
    wall_ms: int
    hostname: str
    whole: bool


def history_of(state: ShardState, source: Source, *, whole: bool) -> History:
    """Describe the history that ends with the version `state`."""
    return History(source, state.seqno, state.upper, state.wall_ms, state.hostname, whole)


def contradiction(older: ShardState, newer: ShardState, row: StateDiff | None = None) -> str:
    """Return why `newer` can't have come from `older`, or "" if it can. `newer` has the greater number.

    `row` is the row of version `older.seqno` in the log that `newer` comes from, if the log still has it.

    A batch keeps its id for as long as it exists: the number of the version that added it. So each batch of
    `newer` that a version up to `older` added must be in `older` too, and be equal. Compaction replaces old
    batches by new ones. In that case the times of the versions still decide: in one history they never go
    back.
    """
    if row is not None and not _has_made(row, older):
        return f"version {older.seqno} differs from the one in the log"
    if newer.seqno == older.seqno:
        same = older.batches == newer.batches and older.wall_ms == newer.wall_ms
        return "" if same else f"there are two different versions {older.seqno}"
    if newer.wall_ms <= older.wall_ms:
        return f"version {newer.seqno} was written before version {older.seqno}"
    for what in ("upper", "since", "finalized"):
        if getattr(newer, what) < getattr(older, what):
            return f"version {newer.seqno} has an earlier {what} than version {older.seqno}"
    if any(newer.schemas.get(id_) != schema for id_, schema in older.schemas.items()):
        return f"version {newer.seqno} lacks a schema of version {older.seqno}"
    known = {batch.id: batch for batch in older.batches}
    last = older.batches[-1].id if older.batches else 0
    for batch in newer.batches:
        if batch.id <= older.seqno and not _is_same(
            known.get(batch.id), batch, may_reach_on=batch.id == last
        ):
            return f"batch {batch.id} differs between version {newer.seqno} and version {older.seqno}"
    return ""


def contradicts_rows(state: ShardState, rows: Sequence[StateDiff]) -> bool:
    """Whether a version certainly belongs to another history than the rows of a log, which are gapless.

    The versions of the rows are not known. So this compares the row of the version, or else the times, the
    uppers and the batches that the rows add.
    """
    first, last = rows[0], rows[-1]
    if is_decided(state.seqno, last.seqno) or is_decided(last.seqno, state.seqno):
        return False
    if state.seqno < first.seqno:
        return state.wall_ms >= first.wall_ms
    if state.seqno <= last.seqno:
        return not _has_made(rows[state.seqno - first.seqno], state)
    if state.wall_ms <= last.wall_ms or state.upper < upper_of(rows):
        return True
    added = {row.seqno: row.changes for row in rows}
    return any(
        batch.id in added and not _adds(added[batch.id], batch, may_reach_on=batch is state.batches[-1])
        for batch in state.batches
    )


def upper_of(rows: Sequence[StateDiff]) -> int:
    """Return the greatest upper that rows of a log set; 0 if none does."""
    found = 0
    for row in rows:
        for change in row.changes:
            match change:
                case AppendBatch(batch):
                    found = max(found, batch.upper)
                case ExtendUpper(upper):
                    found = max(found, upper)
    return found


def _adds(changes: Sequence[Change], batch: Batch, *, may_reach_on: bool) -> bool:
    """Whether the changes of a row add a batch."""
    for change in changes:
        match change:
            case AppendBatch(added) | ReplaceBatches(_, Batch() as added):
                if _is_same(added, batch, may_reach_on=may_reach_on):
                    return True
            case SealPending():
                return True
    return False


def _has_made(row: StateDiff, state: ShardState) -> bool:
    """Whether a row of a log can have made this version: the version has everything that the row changes.

    Comparing the time is not enough. After a commit by a host with a fast clock, the next versions of both
    histories are one millisecond apart.
    """
    sealed = any(isinstance(change, SealPending) for change in row.changes)
    again = []
    for change in row.changes:
        match change:
            case AppendBatch(batch) | ReplaceBatches(_, Batch() as batch):
                kept = [each for each in state.batches if each.id == batch.id]
                if not kept or not _is_same(replace(batch, upper=kept[0].upper), kept[0], may_reach_on=True):
                    return False
            case SealPending():
                if all(batch.id != row.seqno for batch in state.batches):
                    return False
            case ExtendUpper(upper):
                if state.upper < upper:
                    return False
            case ReplaceBatches(ids, None):
                if any(batch.id in ids for batch in state.batches):
                    return False
            case PutEntry(PendingBatch()) if sealed:
                pass
            case _:
                again.append(change)
    # The remaining changes put, drop or set values, so applying them twice makes no difference.
    return apply(replace(state, seqno=row.seqno - 1), replace(row, changes=tuple(again))) == state


def _is_same(before: Batch | None, after: Batch, *, may_reach_on: bool) -> bool:
    """Whether a batch is unchanged. The last batch may have a later upper, if no updates were added."""
    if before is None:
        return False
    return before == (replace(after, upper=before.upper) if may_reach_on else after)


def is_decided(seqno: int, head: int) -> bool:
    """Whether a recovery has chosen between version `seqno` and the history of `head`."""
    return seqno >> EPOCH_BITS < head >> EPOCH_BITS


def is_one_history(one: ShardState, other: ShardState, row: StateDiff | None = None) -> bool:
    """Whether two versions can belong to one history, or a recovery has already chosen between them.

    `row` is the same as in `contradiction`.
    """
    older, newer = sorted((one, other), key=lambda each: each.seqno)
    return is_decided(older.seqno, newer.seqno) or not contradiction(older, newer, row)
