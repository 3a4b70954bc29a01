"""Whether two known versions of a shard are of one history, or of two.

A store that was restored from an older copy, and written to since, leaves two histories: the rollups of the
lost versions are still in Blob, and the log goes on without them. Both have versions with the same numbers.
"""

from dataclasses import dataclass, replace
from typing import Literal

from holdfast.persist.ids import EPOCH_BITS
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    ExtendUpper,
    PendingBatch,
    Put,
    ReplaceBatches,
    SealPending,
    ShardState,
    StateDiff,
    apply,
)

Source = Literal["log", "rollup"]


@dataclass(frozen=True, slots=True)
class History:
    """The newest version that is known of one history of a shard, and where it was found.

    `wall_ms` and `hostname` say when and where it was written; `whole` is whether all its blobs are there.
    """

    source: Source
    seqno: int
    upper: int
    wall_ms: int
    hostname: str
    whole: bool


def history_of(state: ShardState, source: Source, *, whole: bool) -> History:
    """The history that ends with a version."""
    return History(source, state.seqno, state.upper, state.wall_ms, state.hostname, whole)


def contradiction(older: ShardState, newer: ShardState, row: StateDiff | None = None) -> str:
    """Why `newer`, which has a greater number, can't have come from `older`; "" where it can.

    `row` is the row of version `older.seqno` in the log that `newer` is of, if the log still has it.

    A batch keeps its id, the version that first held it, for as long as it exists. So what `newer` has from
    versions up to `older` must be in `older` too, byte for byte. Compaction replaces old batches by new ones;
    then the times at which the versions were written still tell: they never go back in one history.
    """
    if row is not None and not _has_made(row, older):
        return f"version {older.seqno} is another one than the log has"
    if newer.seqno == older.seqno:
        same = older.batches == newer.batches and older.wall_ms == newer.wall_ms
        return "" if same else f"there are two versions {older.seqno}"
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
            return f"version {newer.seqno} has another batch {batch.id} than version {older.seqno}"
    return ""


def _has_made(row: StateDiff, state: ShardState) -> bool:
    """Whether a row of a log can have made this version: all that the row changes is in it.

    The time alone doesn't show it. After a commit by a host with a fast clock, the following versions are a
    millisecond apart in both histories.
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
            case Put(PendingBatch()) if sealed:
                pass
            case _:
                again.append(change)
    # The other changes put, drop or set values: to do it twice changes nothing.
    return apply(replace(state, seqno=row.seqno - 1), replace(row, changes=tuple(again))) == state


def _is_same(before: Batch | None, after: Batch, *, may_reach_on: bool) -> bool:
    """Whether a batch is what it was; the last one may be extended by times without updates."""
    if before is None:
        return False
    return before == (replace(after, upper=before.upper) if may_reach_on else after)


def is_decided(seqno: int, head: int) -> bool:
    """Whether a recovery has decided between version `seqno` and the history that `head` is of."""
    return seqno >> EPOCH_BITS < head >> EPOCH_BITS


def is_one_history(one: ShardState, other: ShardState, row: StateDiff | None = None) -> bool:
    """Whether two versions can be of one history, or need no decision any more.

    `row` is as in `contradiction`.
    """
    older, newer = sorted((one, other), key=lambda each: each.seqno)
    return is_decided(older.seqno, newer.seqno) or not contradiction(older, newer, row)
