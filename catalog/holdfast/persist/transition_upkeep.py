"""Pure transitions of upkeep: claims of compactions, merges of what is pending, orphans that become garbage.

As in `holdfast.persist.transition`, each recognizes its own effect.
"""

from dataclasses import replace
from typing import assert_never

from holdfast.persist.command import (
    ClaimBatches,
    Commit,
    CondemnOrphans,
    InstallPending,
    NoOp,
    Outcome,
    ReleaseClaim,
)
from holdfast.persist.state import (
    Batch,
    Change,
    CompactionClaim,
    Drop,
    Garbage,
    Put,
    ShardState,
    Writer,
    live_keys,
)
from holdfast.persist.transition_pending import install_pending


def upkeep(
    state: ShardState, command: ClaimBatches | ReleaseClaim | CondemnOrphans | InstallPending
) -> Outcome:
    """What `command` does to `state`."""
    match command:
        case ClaimBatches():
            return _claim_batches(state, command)
        case ReleaseClaim(claim_id):
            return _release_claim(state, claim_id)
        case CondemnOrphans():
            return _condemn_orphans(state, command)
        case InstallPending():
            return install_pending(state, command)
        case _:
            assert_never(command)


def _claim_batches(state: ShardState, command: ClaimBatches) -> Outcome:
    """Register the claim and its writer, by whose lease it dies."""
    if state.finalized or not neighbours(state, command.batch_ids):
        return NoOp(False)
    wanted = {*command.batch_ids}
    rivals = [claim for claim in state.claims.values() if wanted & {*claim.batch_ids}]
    if any(claim.id != command.claim_id for claim in rivals):
        return NoOp(False)
    handle = command.writer
    known = state.writers.get(handle.id)
    if known is not None and rivals and known.heartbeats >= command.heartbeat:
        return NoOp(True)
    fresh = Writer(handle.id, 0, handle.lease_ms, handle.purpose, handle.hostname)
    beats = max(command.heartbeat, known.heartbeats + 1 if known else 0)
    writer = replace(known or fresh, heartbeats=beats)
    return Commit((Put(writer), Put(CompactionClaim(command.claim_id, handle.id, command.batch_ids))), True)


def neighbours(state: ShardState, ids: tuple[int, ...]) -> tuple[Batch, ...]:
    """The batches of these ids where they are all there and follow each other; else none."""
    known = [batch.id for batch in state.batches]
    if not ids or ids[0] not in known:
        return ()
    start = known.index(ids[0])
    found = state.batches[start : start + len(ids)]
    return found if tuple(batch.id for batch in found) == ids else ()


def _release_claim(state: ShardState, claim_id: str) -> Outcome:
    """Drop the claim; its writer's entry goes with its lease."""
    if claim_id not in state.claims:
        return NoOp()
    return Commit((Drop(CompactionClaim, claim_id),))


def claims_on(state: ShardState, batch_ids: tuple[int, ...]) -> list[Drop]:
    """The end of the claims on batches that go."""
    gone = {*batch_ids}
    return [Drop(CompactionClaim, claim.id) for claim in state.claims.values() if gone & {*claim.batch_ids}]


def claims_of(state: ShardState, writer_ids: set[str]) -> list[Drop]:
    """The end of the claims of writers that go."""
    return [
        Drop(CompactionClaim, claim.id) for claim in state.claims.values() if claim.writer_id in writer_ids
    ]


def _condemn_orphans(state: ShardState, command: CondemnOrphans) -> Outcome:
    """Put blobs into `garbage`, since when they were put: they go when nobody can need them any more."""
    named = live_keys(state)
    changes: list[Change] = []
    condemned: list[str] = []
    for key, put_ms in command.blobs:
        if key in named or key.split("/")[1] in state.writers:
            continue
        condemned.append(key)
        if key not in state.garbage:
            changes.append(Put(Garbage(key, state.seqno + 1, put_ms)))
    return Commit(tuple(changes), tuple(condemned)) if changes else NoOp(tuple(condemned))
