"""Pure transitions: `transition(state, command) -> Commit | NoOp | Reject`, without I/O and without a clock.

Each command recognizes its own effect: on a version that has the effect already, it returns `NoOp` with the
same result. This settles an attempt of unknown outcome: read the newest version, and run the command again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    Fenced,
    HandleExpired,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist.ids import critical_id, fingerprint
from holdfast.persist.rows.evolution import check_evolution
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.command import (
    AddRollup,
    AppendRuns,
    AppendStaged,
    ClaimBatches,
    Command,
    Commit,
    CondemnOrphans,
    DowngradeCritical,
    DowngradeReader,
    DropCritical,
    DropReader,
    DropStaged,
    EvolveSchema,
    ExpectUpper,
    ExpireHandles,
    FinalizeShard,
    ForgetGarbage,
    Handle,
    InstallCompaction,
    InstallPending,
    NoOp,
    Outcome,
    RegisterCritical,
    RegisterReader,
    RegisterWriter,
    Reject,
    ReleaseClaim,
    Seal,
    Stage,
    Write,
)
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    Change,
    CompactionClaim,
    Create,
    CriticalReader,
    Drop,
    ExtendUpper,
    Finalize,
    Garbage,
    LeasedReader,
    PendingBatch,
    PutEntry,
    PutSchema,
    ReplaceBatches,
    Rollup,
    SetGcSeqno,
    SetSince,
    ShardState,
    WriteMode,
    Writer,
)
from holdfast.persist.state.transition_pending import Runs, bounds_of, garbage_of, sealed, written
from holdfast.persist.state.transition_staged import check_staged, drop_staged, staged, taken
from holdfast.persist.state.transition_upkeep import claims_of, upkeep


def transition(state: ShardState, command: Command) -> Outcome:
    """Return what `command` does to `state`."""
    match command:
        case AppendRuns() | AppendStaged() | Write() | Seal():
            return _written(state, command)
        case Stage() | DropStaged():
            return _staging(state, command)
        case RegisterWriter():
            return _register_writer(state, command)
        case EvolveSchema(schema):
            return _evolve(state, schema)
        case RegisterReader():
            return _register_reader(state, command)
        case DowngradeReader():
            return _downgrade_reader(state, command)
        case DropReader(reader_id):
            return _drop(state, LeasedReader, state.leased_readers, reader_id)
        case ExpireHandles():
            return _expire(state, command)
        case RegisterCritical() | DowngradeCritical() | DropCritical():
            return _critical(state, command)
        case ExpectUpper(upper):
            return _expect_upper(state, upper)
        case AddRollup():
            return _add_rollup(state, command)
        case ClaimBatches() | ReleaseClaim() | CondemnOrphans() | InstallCompaction() | InstallPending():
            return upkeep(state, command)
        case ForgetGarbage():
            return _forget_garbage(state, command)
        case FinalizeShard(wall_ms):
            return _finalize(state, wall_ms)
        case _:
            assert_never(command)


def _finalized(state: ShardState) -> Reject:
    return Reject(ShardFinalized(f"shard {state.shard_id} was finalized"))


def _missing(state: ShardState) -> Reject:
    return Reject(BadInput(f"shard {state.shard_id} does not exist"))


def check_mode(state: ShardState, mode: WriteMode) -> None:
    """Raise `BadInput` if the shard has another write mode."""
    if state.exists and state.write_mode is not mode:
        raise BadInput(
            f"shard {state.shard_id} has write mode {state.write_mode.name}, not {mode.name}",
            hint="use write and seal for a shard of mode WRITE_SEAL, and append for one of mode APPEND",
        )


def _ensure_schema(
    state: ShardState, schema: Schema, mode: WriteMode
) -> tuple[int, tuple[Change, ...]] | Reject:
    try:
        check_mode(state, mode)
        schema_id = state.schema_id(schema)
    except BadInput as error:
        return Reject(error)
    return schema_id, () if state.exists else (Create(mode), PutSchema(schema_id, schema))


def _writer(handle: Handle, *, token: bytes = b"", upper: int = 0, heartbeats: int = 0) -> Writer:
    return Writer(handle.id, heartbeats, handle.lease_ms, handle.purpose, handle.hostname, token, upper)


def _register_writer(state: ShardState, command: RegisterWriter) -> Outcome:
    if state.finalized:
        return _finalized(state)
    schema = _ensure_schema(state, command.schema, command.mode)
    if isinstance(schema, Reject):
        return schema
    schema_id, changes = schema
    known = state.writers.get(command.writer.id)
    if known is None:
        if command.heartbeat:
            return _silent(command.writer)
        return Commit((*changes, PutEntry(_writer(command.writer))), schema_id)
    if known.heartbeats >= command.heartbeat:
        return NoOp(schema_id)
    return Commit((PutEntry(replace(known, heartbeats=command.heartbeat)),), schema_id)


def _silent(writer: Handle) -> Reject:
    said = f"writer {writer.id} sent no heartbeat for too long: its uploads may be deleted"
    return Reject(HandleExpired(said, hint="nothing was appended; prepare the append again"))


def _evolve(state: ShardState, schema: Schema) -> Outcome:
    if not state.exists:
        return _missing(state)
    if state.finalized:
        return _finalized(state)
    # Look at older schemas too: this command may have added one in an attempt of unknown outcome.
    for schema_id, known in state.schemas.items():
        if known == schema:
            return NoOp(schema_id)
    try:
        check_evolution(state.schema, schema, shard=f"shard {state.shard_id}")
    except CodecMismatch as error:
        return Reject(error)
    schema_id = max(state.schemas) + 1
    return Commit((PutSchema(schema_id, schema),), schema_id)


def _staging(state: ShardState, command: Stage | DropStaged) -> Outcome:
    if isinstance(command, DropStaged):
        return drop_staged(state, command)
    if state.finalized:
        return _finalized(state)
    schema = _ensure_schema(state, command.schema, WriteMode.APPEND)
    if isinstance(schema, Reject):
        return schema
    schema_id, _ = schema
    return staged(state, command, [(name, _of_schema(runs, schema_id)) for name, runs in command.batches])


def _written(state: ShardState, command: AppendRuns | AppendStaged | Write | Seal) -> Outcome:
    upper = state.upper if isinstance(command, Write) else command.new_upper
    known = state.writers.get(command.writer.id)
    if known is not None and known.last_token == command.token:
        return NoOp(upper)
    if state.finalized:
        return _finalized(state)
    mode = WriteMode.APPEND if isinstance(command, AppendRuns | AppendStaged) else WriteMode.WRITE_SEAL
    schema = _ensure_schema(state, command.schema, mode)
    if isinstance(schema, Reject):
        return schema
    if refused := _check_written(state, command):
        return refused
    schema_id, changes = schema
    writer = _writer(
        command.writer, token=command.token, upper=upper, heartbeats=known.heartbeats + 1 if known else 1
    )
    match command:
        case AppendRuns():
            added = _appended(state, command, _of_schema(command.runs, schema_id))
        case AppendStaged():
            added = (*taken(command), *_appended(state, command, command.runs))
        case Write():
            added = written(command, _of_schema(command.runs, schema_id))
        case Seal():
            added = sealed(state, upper)
        case _:
            assert_never(command)
    return Commit((*changes, PutEntry(writer), *added), upper)


def _check_written(state: ShardState, command: AppendRuns | AppendStaged | Write | Seal) -> Reject | None:
    runs = command.runs if isinstance(command, AppendRuns | Write) else ()
    if isinstance(command, Write):
        expected = bounds_of(runs)[0] if runs else state.upper
        wrong = expected < state.upper
    else:
        expected = command.expected_upper
        wrong = expected != state.upper
    if wrong:
        return Reject(UpperMismatch(expected, state.upper, shard_id=state.shard_id))
    if isinstance(command, AppendStaged):
        return check_staged(state, command)
    if command.writer.registered and command.writer.id not in state.writers:
        return _silent(command.writer)
    if any(part.blob_key in state.garbage for run in runs for part in run):
        swept = f"uploads of writer {command.writer.id} were deleted: it sent no heartbeat for too long"
        return Reject(HandleExpired(swept, hint="prepare the append again, with a new writer"))
    return None


def _appended(state: ShardState, command: AppendRuns | AppendStaged, runs: Runs) -> tuple[Change, ...]:
    if not runs and state.batches:
        return (ExtendUpper(command.new_upper),)
    return (AppendBatch(Batch(state.seqno + 1, command.expected_upper, command.new_upper, 0, runs)),)


def _of_schema(runs: Runs, schema_id: int) -> Runs:
    if all(part.schema_id == schema_id for run in runs for part in run):
        return runs
    return tuple(tuple(replace(part, schema_id=schema_id) for part in run) for run in runs)


def _register_reader(state: ShardState, command: RegisterReader) -> Outcome:
    if not state.exists:
        return _missing(state)
    if state.finalized:
        return _finalized(state)
    handle = command.reader
    if handle.id in state.leased_readers:
        return NoOp(state.leased_readers[handle.id])
    reader = LeasedReader(
        handle.id, state.since, state.seqno + 1, 0, handle.lease_ms, handle.purpose, handle.hostname
    )
    return Commit((PutEntry(reader),), reader)


def _advance_since(state: ShardState, holds: Sequence[int]) -> tuple[Change, ...]:
    since = min(min(holds), max(state.upper - 1, 0))
    return (SetSince(since),) if since > state.since else ()


def _downgrade_reader(state: ShardState, command: DowngradeReader) -> Outcome:
    if state.finalized:
        return _finalized(state)
    reader = state.leased_readers.get(command.reader_id)
    if reader is None:
        return Reject(HandleExpired(f"the lease of reader {command.reader_id} expired"))
    moved = replace(
        reader,
        since=max(reader.since, command.since),
        seqno_hold=max(reader.seqno_hold, command.seqno_hold),
        heartbeats=max(reader.heartbeats, command.heartbeat),
    )
    if moved == reader:
        return NoOp(reader)
    others = [other.since for other in state.leased_readers.values() if other.id != reader.id]
    critical = [other.since for other in state.critical_readers.values()]
    # A hold may be ahead of the upper. A repeated downgrade then moves since; a mere heartbeat does not.
    asked = command.since >= reader.since
    changes = _advance_since(state, [moved.since, *others, *critical]) if asked else ()
    return Commit((PutEntry(moved), *changes), moved)


def _drop(state: ShardState, kind: type, table: object, id_: str) -> Outcome:
    if state.finalized or id_ not in table:  # type: ignore[operator]
        return NoOp()
    return Commit((Drop(kind, id_),))


def _expire(state: ShardState, command: ExpireHandles) -> Outcome:
    readers = [
        Drop(LeasedReader, id_)
        for id_, heartbeats in command.readers
        if id_ in state.leased_readers and state.leased_readers[id_].heartbeats == heartbeats
    ]
    writers = [
        Drop(Writer, id_)
        for id_, heartbeats in command.writers
        if id_ in state.writers and state.writers[id_].heartbeats == heartbeats
    ]
    claims = claims_of(state, {str(gone.id) for gone in writers})
    return Commit((*readers, *writers, *claims)) if readers or writers else NoOp()


def _critical(state: ShardState, command: RegisterCritical | DowngradeCritical | DropCritical) -> Outcome:
    match command:
        case RegisterCritical():
            return _register_critical(state, command)
        case DowngradeCritical():
            return _downgrade_critical(state, command)
        case DropCritical(id_, opaque):
            reader = state.critical_readers.get(id_)
            if reader is not None and reader.opaque != opaque:
                return _fenced(state, reader, opaque)
            return _drop(state, CriticalReader, state.critical_readers, id_)
        case _:
            assert_never(command)


def _fenced(state: ShardState, reader: CriticalReader, opaque: bytes) -> Reject:
    mine, durable = (fingerprint(reader.id, token) for token in (opaque, reader.opaque))
    return Reject(Fenced(mine, durable, what=f"hold {reader.purpose!r} on {state.shard_id}"))


def _register_critical(state: ShardState, command: RegisterCritical) -> Outcome:
    if not state.exists:
        return _missing(state)
    if state.finalized:
        return _finalized(state)
    id_ = critical_id(state.shard_id, command.purpose)
    if id_ in state.critical_readers:
        return NoOp(state.critical_readers[id_])
    if command.not_past is not None and state.since > command.not_past:
        return Reject(AsOfTooEarly(command.not_past, state.since))
    reader = CriticalReader(id_, state.since, command.purpose, command.opaque)
    return Commit((PutEntry(reader),), reader)


def _downgrade_critical(state: ShardState, command: DowngradeCritical) -> Outcome:
    if state.finalized:
        return _finalized(state)
    reader = state.critical_readers.get(command.id)
    if reader is None:
        return Reject(HandleExpired(f"the critical hold {command.id} was released"))
    # If the new token is stored already, this command may have stored it in an attempt of unknown outcome.
    if reader.opaque not in (command.opaque, command.new_opaque):
        return _fenced(state, reader, command.opaque)
    moved = replace(reader, since=max(reader.since, command.since), opaque=command.new_opaque)
    others = [other.since for other in state.critical_readers.values() if other.id != reader.id]
    leased = [other.since for other in state.leased_readers.values()]
    asked = command.since >= reader.since
    changes = _advance_since(state, [moved.since, *others, *leased]) if asked else ()
    if moved == reader and not changes:
        return NoOp(reader)
    return Commit((PutEntry(moved), *changes), moved)


def _expect_upper(state: ShardState, upper: int) -> Outcome:
    if state.upper != upper:
        return Reject(UpperMismatch(upper, state.upper, shard_id=state.shard_id))
    return NoOp()


def _add_rollup(state: ShardState, command: AddRollup) -> Outcome:
    newest = state.latest_rollup
    if newest is not None and newest.seqno >= command.rollup.seqno:
        # If the key is garbage, the rollup was recorded, and was replaced by a newer one later.
        key = command.rollup.blob_key
        return NoOp(newest.blob_key == key or key in state.garbage)
    if command.rollup.blob_key in state.garbage:
        # A sweeper took the blob for an orphan, and will delete it.
        return NoOp(False)
    changes: list[Change] = [PutEntry(command.rollup)]
    for old in state.rollups.values():
        changes.append(Drop(Rollup, old.seqno))
        changes.append(PutEntry(Garbage(old.blob_key, state.seqno + 1, command.wall_ms)))
    return Commit(tuple(changes), True)


def _forget_garbage(state: ShardState, command: ForgetGarbage) -> Outcome:
    changes: list[Change] = [Drop(Garbage, key) for key in command.blob_keys if key in state.garbage]
    if command.gc_seqno > state.gc_seqno:
        changes.append(SetGcSeqno(command.gc_seqno))
    return Commit(tuple(changes)) if changes else NoOp()


def _finalize(state: ShardState, wall_ms: int) -> Outcome:
    if not state.exists:
        return _missing(state)
    if state.finalized:
        return NoOp()
    seqno = state.seqno + 1
    changes: list[Change] = [
        ReplaceBatches(tuple(batch.id for batch in state.batches), None),
        AppendBatch(Batch(seqno, 0, CLOSED)),
        SetSince(CLOSED),
        *garbage_of(state, [*state.batches, *state.pending.values()], (), wall_ms),
        *(Drop(PendingBatch, id_) for id_ in state.pending),
        *(Drop(LeasedReader, id_) for id_ in state.leased_readers),
        *(Drop(CriticalReader, id_) for id_ in state.critical_readers),
        *(Drop(Writer, id_) for id_ in state.writers),
        *(Drop(CompactionClaim, id_) for id_ in state.claims),
        Finalize(),
    ]
    return Commit(tuple(changes))
