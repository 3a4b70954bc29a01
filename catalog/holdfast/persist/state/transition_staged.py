"""Pure transitions of staged batches: uploads that are recorded under names, before an append takes them all.

- A staged batch is a pending batch of a shard in mode APPEND. Its id is its name. It keeps its blobs from
  being garbage, and nobody reads it.
- All uploads with one name have the same updates. So if several processes upload them, the first one to stage
  them counts, and the others delete what they have uploaded.
- `AppendStaged` takes the batches that it names in one step, or none. Other staged batches stay. Those that
  begin before the upper can't be appended any more, and upkeep drops them.
- A staged batch may have no updates. It then shows that there are none.

Each transition recognizes its own effect, as in `holdfast.persist.state.transition`.
"""

from collections import Counter
from collections.abc import Iterable

from holdfast.errors import BadInput, HandleExpired, UpperMismatch
from holdfast.persist.state.command import AppendStaged, Commit, DropStaged, NoOp, Outcome, Reject, Stage
from holdfast.persist.state.state import (
    Change,
    Drop,
    PendingBatch,
    PutEntry,
    ShardState,
    WriteMode,
    blob_keys,
    part_keys,
)
from holdfast.persist.state.transition_pending import Runs, garbage_of


def staged(state: ShardState, command: Stage, batches: Iterable[tuple[str, Runs]]) -> Outcome:
    """Add the batches of a command. `batches` are these, with the shard's id of their schema."""
    new = []
    refused = set()
    for name, runs in batches:
        batch = PendingBatch(name, command.writer.id, command.lower, command.upper, runs)
        known = state.pending.get(name)
        if known is None:
            new.append(batch)
        elif known != batch:
            refused.add(name)
    keys = {*blob_keys(new)}
    if state.upper != command.lower:
        if keys and keys <= part_keys(state):
            # They were staged, and an append has taken them since.
            return NoOp(frozenset(refused))
        return Reject(UpperMismatch(command.lower, state.upper, shard_id=state.shard_id))
    if command.writer.id not in state.writers or not keys.isdisjoint(state.garbage):
        gone = f"uploads of writer {command.writer.id} may be deleted: it sent no heartbeat for too long"
        return Reject(HandleExpired(gone, hint="upload the rows again, with a new writer"))
    changes = tuple(PutEntry(batch) for batch in new)
    return Commit(changes, frozenset(refused)) if changes else NoOp(frozenset(refused))


def check_staged(state: ShardState, command: AppendStaged) -> Reject | None:
    """Refuse an append of staged batches that are gone, or whose parts are not those of its runs."""
    names = {*command.names}
    found = [state.pending[name] for name in names if name in state.pending]
    if len(found) != len(names):
        gone = f"{len(names) - len(found)} of {len(names)} staged batches are gone"
        return Reject(HandleExpired(f"{gone} from {state.shard_id}", hint="stage them again"))
    parts = Counter(part for batch in found for part in batch.parts)
    if parts != Counter(part for run in command.runs for part in run):
        return Reject(BadInput(f"the runs for {state.shard_id} are not those of its staged batches"))
    lower, upper = command.expected_upper, command.new_upper
    if any(batch.lower < lower or batch.upper > upper for batch in found):
        return Reject(
            BadInput(f"staged batches of {state.shard_id} have times outside of [{lower}, {upper})")
        )
    return None


def taken(command: AppendStaged) -> tuple[Change, ...]:
    """Return the changes that remove the staged batches that an append takes."""
    return tuple(Drop(PendingBatch, name) for name in command.names)


def drop_staged(state: ShardState, command: DropStaged) -> Outcome:
    """Drop the staged batches of a command, if there are any."""
    if not (gone := staged_below(state, command.below)):
        return NoOp()
    # A failover may return to a version that names them, so their blobs wait like all garbage.
    garbage = garbage_of(state, gone, state.batches, command.wall_ms)
    return Commit((*(Drop(PendingBatch, each.id) for each in gone), *garbage))


def staged_below(state: ShardState, frontier: int) -> list[PendingBatch]:
    """Return the staged batches of times that begin before a frontier."""
    if state.write_mode is not WriteMode.APPEND:
        return []
    return [each for each in state.pending.values() if each.lower < frontier]
