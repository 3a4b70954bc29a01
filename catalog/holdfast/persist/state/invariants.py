"""The invariants of every version of a shard, and of every step to the next version.

- Batches cover `[0, upper)` without gaps. The first begins at 0, and each begins where the previous one ends.
- The times of a part are at or after the lower of its batch, and before the upper of its batch or at its
  since. Only compaction moves a time, and at most to `since`.
- In mode WRITE_SEAL, pending updates are at times from the upper on. Batches and pending batches may name a
  blob several times, but not twice for the same time. A seal loses no time of the pending updates. In mode
  APPEND, pending batches are staged, and a blob is named once.
- `since <= max(upper - 1, 0)`, and `since` is at most every reader's hold, unless the shard is finalized.
- A blob in `garbage` is not named by a batch, a pending batch or a rollup.
- Rollups and holds are never ahead of the version that names them.
- A claim belongs to a registered writer. Its batches exist, and no other claim has them.
- Schemas have the ids 1, 2, .... Each may follow the one before it (`holdfast.persist.rows.evolution`), and
  every part names one of them. A schema never changes.

Tests check them after each step. Clients with `debug_validate` check them too.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise

from holdfast.errors import CLOSED
from holdfast.persist.rows.evolution import evolution_fault
from holdfast.persist.state.state import Part, ShardState, WriteMode, blob_keys, part_keys


def check_state(state: ShardState) -> None:
    """Raise `AssertionError`, which names the broken invariant, if `state` breaks one."""
    for fault in _faults(state):
        raise AssertionError(f"{state.shard_id} version {state.seqno}: {fault}")


def _faults(state: ShardState) -> Iterator[str]:
    """Yield the broken invariants of `state`."""
    yield from _faults_of_schemas(state)
    yield from _faults_of_batches(state)
    yield from _faults_of_pending(state)
    yield from _faults_of_blobs(state)
    yield from _faults_of_claims(state)
    yield from _faults_of_frontiers(state)


def _faults_of_schemas(state: ShardState) -> Iterator[str]:
    if [*state.schemas] != [*range(1, len(state.schemas) + 1)]:
        yield f"schemas have ids {[*state.schemas]}"
    for id_, schema in state.schemas.items():
        if id_ > 1 and (fault := evolution_fault(state.schemas[id_ - 1], schema)):
            yield f"schema {id_} can't follow: {fault}"


def _faults_of_batches(state: ShardState) -> Iterator[str]:
    lower = 0
    for batch in state.batches:
        if batch.lower != lower:
            yield f"batch {batch.id} begins at {batch.lower}, not {lower}"
        if not batch.lower < batch.upper <= CLOSED:
            yield f"batch {batch.id} is empty or beyond closed"
        if batch.id > state.seqno:
            yield f"batch {batch.id} comes from the future"
        if batch.since > state.since:
            yield f"batch {batch.id} is compacted beyond since"
        end = max(batch.upper, batch.since + 1)
        for part in batch.parts:
            if not batch.lower <= part.lower < part.upper <= end:
                yield f"batch {batch.id} has a part of times [{part.lower}, {part.upper})"
            if fault := _part_fault(state, part):
                yield f"batch {batch.id} has a part {fault}"
        lower = batch.upper
    if len({batch.id for batch in state.batches}) != len(state.batches):
        yield "two batches have one id"


def _faults_of_pending(state: ShardState) -> Iterator[str]:
    if state.pending and state.finalized:
        yield "updates are pending where they can't be"
    is_staged = state.write_mode is WriteMode.APPEND
    for batch_id, pending in state.pending.items():
        if batch_id != pending.id or not (pending.runs or is_staged):
            yield f"pending batch {batch_id} is none"
        for part in pending.parts:
            lower = pending.lower if is_staged else max(state.upper, pending.lower)
            if not lower <= part.lower < part.upper <= pending.upper:
                yield f"pending batch {batch_id} has a part of times [{part.lower}, {part.upper})"
            if fault := _part_fault(state, part):
                yield f"pending batch {batch_id} has a part {fault}"


def _part_fault(state: ShardState, part: Part) -> str:
    if (part.blob_key is None) == (part.inline is None):
        return "of no form"
    if part.rows <= 0:
        return "without rows"
    return "" if part.schema_id in state.schemas else "of an unknown schema"


def _faults_of_blobs(state: ShardState) -> Iterator[str]:
    parts = part_keys(state)
    if _overlapping(state, parts):
        yield "two live references to the same updates"
    live = [*parts, *(rollup.blob_key for rollup in state.rollups.values())]
    if len(set(live)) != len(live):
        yield "two live references to one blob"
    if set(live) & set(state.garbage):
        yield "a live blob is garbage"
    if any(seqno >= state.seqno for seqno in state.rollups):
        yield "a rollup comes from the future"


def _faults_of_claims(state: ShardState) -> Iterator[str]:
    claimed = [id_ for claim in state.claims.values() for id_ in claim.batch_ids]
    if len({*claimed}) != len(claimed):
        yield "two claims on one batch"
    if not {*claimed} <= {batch.id for batch in state.batches}:
        yield "a claim on a batch that is gone"
    if orphaned := {claim.writer_id for claim in state.claims.values()} - state.writers.keys():
        yield f"claims of writers that are gone: {orphaned}"


def _faults_of_frontiers(state: ShardState) -> Iterator[str]:
    if state.gc_seqno > state.seqno:
        yield "gc has passed the head"
    if any(reader.seqno_hold > state.seqno for reader in state.leased_readers.values()):
        yield "a reader holds a version to come"
    if state.finalized:
        if state.since != CLOSED or state.upper != CLOSED:
            yield "finalized but not closed"
        return
    if state.since > max(state.upper - 1, 0):
        yield f"since {state.since} beyond upper {state.upper}"
    if any(hold < state.since for hold in state.holds):
        yield f"since {state.since} beyond a hold"


def _overlapping(state: ShardState, keys: AbstractSet[str]) -> bool:
    """Whether the state has the updates of a blob at one time twice. In mode APPEND nothing splits a blob.

    `keys` are those of all blobs with updates.
    """
    references = chain(blob_keys(state.batches), blob_keys(state.pending.values()))
    if sum(1 for _ in references) == len(keys):
        return False
    if state.write_mode is WriteMode.APPEND:
        return True
    spans: dict[str, list[tuple[int, int]]] = {}
    parts = [part for batch in state.batches for part in batch.parts]
    parts += [part for batch in state.pending.values() for part in batch.parts]
    for part in parts:
        if part.blob_key is not None:
            spans.setdefault(part.blob_key, []).append((part.lower, part.upper))
    return any(before[1] > after[0] for each in spans.values() for before, after in pairwise(sorted(each)))


def check_step(old: ShardState, new: ShardState) -> None:
    """Raise `AssertionError` if `new` breaks an invariant, or if a frontier of `old` moved back.

    If `new` is the very next version, also check that it lost no pending updates: a seal takes or leaves
    each.
    """
    check_state(new)
    for name in ("since", "upper", "gc_seqno", "wall_ms"):
        before, after = getattr(old, name), getattr(new, name)
        if after < before:
            raise AssertionError(f"{new.shard_id} version {new.seqno}: {name} regressed {before} -> {after}")
    for id_, schema in old.schemas.items():
        if new.schemas.get(id_) != schema:
            raise AssertionError(f"{new.shard_id} version {new.seqno}: schema {id_} changed")
    is_sealed = new.write_mode is WriteMode.WRITE_SEAL and new.upper > old.upper
    if new.seqno == old.seqno + 1 and is_sealed and not new.finalized:
        _check_seal(old, new)


def _check_seal(old: ShardState, new: ShardState) -> None:
    taken = [*new.batches[-1].parts] if new.batches[-1].lower == old.upper else []
    held = [*taken, *(part for batch in new.pending.values() for part in batch.parts)]
    for batch in old.pending.values():
        for part in batch.parts:
            same = [p for p in held if (p.blob_key, p.inline) == (part.blob_key, part.inline)]
            times = sum(p.upper - p.lower for p in same if part.lower <= p.lower and p.upper <= part.upper)
            # The same inline updates may be written twice.
            if times < part.upper - part.lower:
                raise AssertionError(
                    f"{new.shard_id} version {new.seqno}: the seal lost updates of pending batch {batch.id}"
                )
