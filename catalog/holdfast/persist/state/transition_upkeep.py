"""Pure transitions of upkeep: compaction claims, merges of pending batches, and orphans that become garbage.

Each transition recognizes its own effect, as in `holdfast.persist.state.transition`.

The result of a merge is installed only while the entry of its writer exists. The writer registers before its
first upload, and an entry that is gone never comes back. A sweeper treats an uploaded blob as an orphan only
if its writer is not registered.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from holdfast.persist.state.command import (
    ClaimBatches,
    Commit,
    CondemnOrphans,
    InstallCompaction,
    InstallPending,
    NoOp,
    Outcome,
    ReleaseClaim,
)
from holdfast.persist.state.state import (
    Batch,
    Change,
    CompactionClaim,
    Drop,
    Garbage,
    PutEntry,
    ReplaceBatches,
    ShardState,
    Writer,
    blob_keys,
    live_keys,
)
from holdfast.persist.state.transition_pending import garbage_of, install_pending


def upkeep(
    state: ShardState,
    command: ClaimBatches | ReleaseClaim | CondemnOrphans | InstallCompaction | InstallPending,
) -> Outcome:
    """Return what `command` does to `state`."""
    match command:
        case ClaimBatches():
            return _claim_batches(state, command)
        case ReleaseClaim(claim_id):
            return _release_claim(state, claim_id)
        case CondemnOrphans():
            return _condemn_orphans(state, command)
        case InstallCompaction():
            return _install_compaction(state, command)
        case InstallPending():
            return install_pending(state, command)
        case _:
            assert_never(command)


def _claim_batches(state: ShardState, command: ClaimBatches) -> Outcome:
    """Register the claim, and its writer. The claim ends with the lease of the writer."""
    if state.finalized or not neighbours(state, command.batch_ids):
        return NoOp(False)
    wanted = {*command.batch_ids}
    rivals = [claim for claim in state.claims.values() if wanted & {*claim.batch_ids}]
    if any(claim.id != command.claim_id for claim in rivals):
        return NoOp(False)
    handle = command.writer
    known = state.writers.get(handle.id)
    if known is None and command.heartbeat:
        # The writer was silent for too long. Its uploads may be gone, so its entry must not come back.
        return NoOp(False)
    if known is not None and rivals and known.heartbeats >= command.heartbeat:
        return NoOp(True)
    fresh = Writer(handle.id, 0, handle.lease_ms, handle.purpose, handle.hostname)
    beats = max(command.heartbeat, known.heartbeats + 1 if known else 0)
    writer = replace(known or fresh, heartbeats=beats)
    return Commit(
        (PutEntry(writer), PutEntry(CompactionClaim(command.claim_id, handle.id, command.batch_ids))), True
    )


def neighbours(state: ShardState, ids: tuple[int, ...]) -> tuple[Batch, ...]:
    """Return the batches with these ids if all of them exist and are adjacent in this order; else ()."""
    known = [batch.id for batch in state.batches]
    if not ids or ids[0] not in known:
        return ()
    start = known.index(ids[0])
    found = state.batches[start : start + len(ids)]
    return found if tuple(batch.id for batch in found) == ids else ()


def fingerprint(batches: Sequence[Batch]) -> bytes:
    """Return 16 bytes that identify batches by their contents: keys and checksums of parts, inline bytes.

    The upper is not part of it, because an append without updates extends the last batch.
    """
    found = hashlib.blake2b(digest_size=16)
    for batch in batches:
        found.update(repr((batch.id, batch.lower, batch.since)).encode())
        for part in batch.parts:
            found.update(repr((part.blob_key, part.size_bytes, part.crc32c, part.rows)).encode())
            found.update(part.inline or b"")
    return found.digest()


def _install_compaction(state: ShardState, command: InstallCompaction) -> Outcome:
    """Replace the batches that were merged by the result."""
    new_keys = {part.blob_key for part in command.parts if part.blob_key}
    if not new_keys.isdisjoint(blob_keys(state.batches)):
        return NoOp(True)
    replaced = neighbours(state, command.batch_ids)
    if not replaced:
        # If a new key is garbage, the result was installed, and was replaced by another one later.
        return NoOp(not new_keys.isdisjoint(state.garbage))
    if command.fingerprint and fingerprint(replaced) != command.fingerprint:
        return NoOp(False)
    if new_keys and (command.writer_id not in state.writers or not new_keys.isdisjoint(state.garbage)):
        return NoOp(False)
    if command.since > state.since:
        # The claim was made before the log was recovered.
        return NoOp(False)
    batch = Batch(
        state.seqno + 1,
        replaced[0].lower,
        replaced[-1].upper,
        command.since,
        (command.parts,) if command.parts else (),
        max(batch.level for batch in replaced) + 1,
    )
    others = [batch for batch in state.batches if batch.id not in command.batch_ids]
    garbage = garbage_of(state, replaced, [*others, *state.pending.values()], command.wall_ms)
    ended = dict.fromkeys([*claims_on(state, command.batch_ids), *claims_of(state, {command.writer_id})])
    writer = [Drop(Writer, command.writer_id)] if command.writer_id in state.writers else []
    return Commit((ReplaceBatches(command.batch_ids, batch), *garbage, *ended, *writer), True)


def _release_claim(state: ShardState, claim_id: str) -> Outcome:
    """Drop the claim. The writer's entry ends with its lease."""
    if claim_id not in state.claims:
        return NoOp()
    return Commit((Drop(CompactionClaim, claim_id),))


def claims_on(state: ShardState, batch_ids: tuple[int, ...]) -> list[Drop]:
    """Return the changes that end the claims on batches that are removed."""
    gone = {*batch_ids}
    return [Drop(CompactionClaim, claim.id) for claim in state.claims.values() if gone & {*claim.batch_ids}]


def claims_of(state: ShardState, writer_ids: set[str]) -> list[Drop]:
    """Return the changes that end the claims of writers that are removed."""
    return [
        Drop(CompactionClaim, claim.id) for claim in state.claims.values() if claim.writer_id in writer_ids
    ]


def _condemn_orphans(state: ShardState, command: CondemnOrphans) -> Outcome:
    """Make orphans garbage, dated by when they were put. They are deleted when nobody can need them."""
    named = live_keys(state)
    changes: list[Change] = []
    condemned: list[str] = []
    for key, put_ms in command.blobs:
        if key in named or key.split("/")[1] in state.writers:
            continue
        condemned.append(key)
        if key not in state.garbage:
            changes.append(PutEntry(Garbage(key, state.seqno + 1, put_ms)))
    return Commit(tuple(changes), tuple(condemned)) if changes else NoOp(tuple(condemned))
