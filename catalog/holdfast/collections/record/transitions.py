"""What the controller's commands do to its state: pure functions, without I/O or a clock.

- A repeated command id returns the same result if the command is the same. Otherwise it is refused.
- The id of a collection is never used again. A name belongs to one collection that isn't dropped.
- Only Running(my attempt) becomes Done or Failed. Any other attempt, older or newer, is `Fenced`.
- A job goes to its next attempt only from Failed, or if the caller says that the attempt is abandoned.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.collections.record.jobs import BATCH, PLAN, JobRecord, JobState, Json
from holdfast.collections.record.spec import (
    FIRST_RENDITION,
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    PipelineShards,
    Recipe,
    RenditionInfo,
    difference,
)
from holdfast.collections.record.state import (
    CommandKind,
    CommandRecord,
    ControllerState,
    Outcome,
    Record,
    RecordCommit,
    RecordNoOp,
    RecordReject,
)
from holdfast.errors import BadInput, CollectionInUse, CollectionNotFound, Fenced, UniquenessViolation
from holdfast.persist.rows.evolution import evolution_fault

COMMANDS_KEPT_MS: Final = 30 * 24 * 3600 * 1000
_REMOVALS_PER_COMMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a command: its id, caller, host, fence token if there is one, and wall time."""

    command_id: str
    who: str
    host: str
    token: str
    at_ms: int

    def record(self, kind: CommandKind, object_id: str, result: Json | None = None) -> CommandRecord:
        """The record of the command."""
        return CommandRecord(
            self.command_id, kind, object_id, self.who, self.host, self.token, self.at_ms, result or {}
        )


@dataclass(frozen=True, slots=True)
class ShardIds:
    """The ids of the shards of a new collection. The shards are created only if they are committed."""

    metadata: str
    data: tuple[str, ...]
    pipeline: PipelineShards | None = None

    @property
    def all(self) -> tuple[str, ...]:
        """The metadata shard, the data shards, then those of the pipeline."""
        return (self.metadata, *self.data, *(self.pipeline.all if self.pipeline else ()))


def create_collection(
    state: ControllerState, spec: CollectionSpec, shards: ShardIds, origin: Origin, *jobs: JobRecord
) -> Outcome[CollectionInfo]:
    """Record the collection, and jobs that are done by creating it. Its shards and their holds are created
    in the same commit.

    A collection with this id that was created from the same spec is returned unchanged, even if the comments
    of its columns have changed.
    """
    seen = seen_before(state, origin, CommandKind.CREATE_COLLECTION, spec.collection_id)
    if isinstance(seen, RecordReject):
        return seen
    known = state.collections.get(spec.collection_id)
    if known is not None:
        if known.dropped and seen is None:
            return RecordReject(
                BadInput(
                    f"collection {spec.collection_id} ('{known.name}') was dropped",
                    hint="create it with a new id: ids are never reused",
                )
            )
        if seen is not None and not evolution_fault(spec.schema, known.schema):
            # The same command is repeated after the collection evolved.
            spec = replace(spec, schema=known.schema)
        if differing := difference(known, spec):
            return RecordReject(
                BadInput(f"collection {spec.collection_id} exists with another spec: {differing}")
            )
        return RecordNoOp(known)
    if (owner := state.names.get(spec.name)) is not None:
        return RecordReject(
            UniquenessViolation(
                f"the name '{spec.name}' belongs to collection {owner}",
                hint=f"choose another name, or use that one: see 'holdfast collection describe {owner}'",
            )
        )
    info = CollectionInfo(
        collection_id=spec.collection_id,
        name=spec.name,
        schema=spec.schema,
        shards=spec.shards,
        hash_columns=spec.hash_columns,
        metadata_shard=shards.metadata,
        renditions=(
            RenditionInfo(
                FIRST_RENDITION,
                shards.data,
                0,
                spec.hash_columns,
                recipe=Recipe.SOURCE if spec.source_fed else Recipe.COPY,
                pipeline=shards.pipeline,
                made_from=spec.made_from,
            ),
        ),
        state=CollectionState.ACTIVE,
        created_ms=origin.at_ms,
        comments=spec.comments,
        retain_ms=spec.retain_ms,
        names=spec.names,
    )
    told = {"shards": spec.shards}
    command = origin.record(CommandKind.CREATE_COLLECTION, spec.collection_id, told)
    return RecordCommit(info, (info, command, *jobs), expired(state, origin.at_ms))


def begin_drop(state: ControllerState, collection_id: str, origin: Origin) -> Outcome[CollectionInfo]:
    """Begin the drop of a collection. Nobody can open it any more."""
    if (seen := seen_before(state, origin, CommandKind.DROP_COLLECTION, collection_id)) is not None:
        return seen
    known = state.find(collection_id)
    if known.dropped:
        return RecordNoOp(known)
    dropping = replace(known, state=CollectionState.DROPPING)
    command = origin.record(CommandKind.DROP_COLLECTION, known.collection_id)
    return RecordCommit(dropping, (dropping, command), expired(state, origin.at_ms))


def finish_drop(
    state: ControllerState, collection_id: str, now_ms: int, *, force: bool = False
) -> Outcome[CollectionInfo]:
    """Finish the drop of a collection. Its shards are finalized in the same commit.

    Rejects with `CollectionInUse` while a job of it runs. With `force`, its running jobs end in this commit.
    """
    known = state.collections[collection_id]
    if known.state is CollectionState.DROPPED:
        return RecordNoOp(known)
    if known.state is not CollectionState.DROPPING:
        return RecordReject(BadInput(f"collection {collection_id} is not being dropped"))
    running = state.running(collection_id)
    if running and not force:
        return RecordReject(
            CollectionInUse(
                f"collection {known.name} is being dropped, and still in use by"
                f" {', '.join(map(str, running))}",
                hint="end these jobs and drop it again, or drop it by force",
            )
        )
    ended = (
        replace(job, state=JobState.FAILED, error="the collection was dropped", finished_ms=now_ms)
        for job in running
    )
    dropped = replace(known, state=CollectionState.DROPPED, dropped_ms=now_ms, holders=())
    return RecordCommit(dropped, (dropped, *ended))


def start_job(state: ControllerState, job: JobRecord) -> Outcome[JobRecord]:
    """Record attempt 1. A job that is already recorded, in any state, is returned unchanged.

    Rejects with `CollectionNotFound` if the job's collection is dropped.
    """
    known = state.jobs.get(job.job_id)
    if known is not None:
        return RecordNoOp(known)
    return _ended(state, job) or RecordCommit(job, (job,))


def record_job(state: ControllerState, job: JobRecord) -> Outcome[JobRecord]:
    """Record a job that was done in one attempt. A job that is already recorded is returned unchanged."""
    known = state.jobs.get(job.job_id)
    return RecordCommit(job, (job,)) if known is None else RecordNoOp(known)


def record_batch(state: ControllerState, job: JobRecord, batch: int) -> Outcome[bool]:
    """Record that a batch of a stream was written, unless it or a later one is recorded."""
    known = state.jobs.get(job.job_id)
    if known is not None and known.result[BATCH] >= batch:
        return RecordNoOp(False)
    first_ms = job.started_ms if known is None else known.started_ms
    return RecordCommit(True, (replace(job, started_ms=first_ms, result={**job.result, BATCH: batch}),))


def retry_job(
    state: ControllerState, job_id: str, now_ms: int, *, abandoned: int | None = None, by: str = ""
) -> Outcome[JobRecord]:
    """Start the next attempt of a failed job, or of a running one whose attempt is `abandoned`.

    If another attempt has already followed that one, the job is returned unchanged. If `by` differs from the
    last attempt's, the count of failures starts at 0. Rejects like `start_job`.
    """
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    match known.state:
        case JobState.DONE:
            return RecordReject(BadInput(f"job {job_id} ({known.kind}) is done and can't run again"))
        case JobState.RUNNING if abandoned is not None and abandoned < known.attempt:
            return RecordNoOp(known)
        case JobState.RUNNING if abandoned != known.attempt:
            return RecordReject(
                BadInput(
                    f"attempt {known.attempt} of job {job_id} ({known.kind}) is running",
                    hint="let it end, or abandon it, so that it can't commit any more",
                )
            )
        case JobState.RUNNING | JobState.FAILED:
            again = replace(
                known,
                attempt=known.attempt + 1,
                state=JobState.RUNNING,
                result={} if known.plan is None else {PLAN: known.plan},
                error="",
                started_ms=now_ms,
                finished_ms=0,
                by=by,
                failures=known.failures if by == known.by else 0,
            )
            return _ended(state, known) or RecordCommit(again, (again,))


def _ended(state: ControllerState, job: JobRecord) -> RecordReject | None:
    """The refusal if the job's collection is dropped or being dropped: a drop doesn't wait for new work."""
    known = state.collections.get(job.object_id)
    return RecordReject(CollectionNotFound(known.end)) if known is not None and known.dropped else None


def check_running(state: ControllerState, job_id: str, attempt: int) -> Outcome[JobRecord]:
    """Check that this attempt runs, for effects that need that. Rejects like `start_job`."""
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    return _fenced(known, attempt) or _ended(state, known) or RecordCommit(known)


def plan_job(
    state: ControllerState, job_id: str, attempt: int, plan: Json, instead_of: Json | None
) -> Outcome[JobRecord]:
    """Record a plan for the running attempt, unless a plan other than `instead_of` is recorded."""
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    if (refused := _fenced(known, attempt) or _ended(state, known)) is not None:
        return refused
    if known.plan != instead_of:
        return RecordNoOp(known)
    planned = replace(known, result={PLAN: plan})
    return RecordCommit(planned, (planned,))


def finish_job(
    state: ControllerState, job_id: str, attempt: int, result: Json, now_ms: int
) -> Outcome[JobRecord]:
    """Running(attempt) -> Done. The effects of the job are committed with it, or nothing is."""
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    if (fenced := _fenced(known, attempt)) is not None:
        return fenced
    done = replace(known, state=JobState.DONE, result=result, error="", finished_ms=now_ms)
    return RecordCommit(done, (done,))


def fail_job(
    state: ControllerState, job_id: str, attempt: int, error: str, now_ms: int, *, stopped: bool = False
) -> Outcome[JobRecord]:
    """Running(attempt) -> Failed. Does nothing if the attempt has already failed.

    An attempt that somebody `stopped` doesn't count as a failure of the job.
    """
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    if known.state is JobState.FAILED and known.attempt == attempt:
        return RecordNoOp(known)
    if (fenced := _fenced(known, attempt)) is not None:
        return fenced
    failures = known.failures + (0 if stopped else 1)
    failed = replace(known, state=JobState.FAILED, error=error, finished_ms=now_ms, failures=failures)
    return RecordCommit(failed, (failed,))


def forget_jobs(state: ControllerState, job_ids: Collection[str]) -> Outcome[None]:
    """Remove the records of jobs that have ended. Ignores jobs that don't exist. Rejects running ones."""
    known = tuple(state.jobs[each] for each in job_ids if each in state.jobs)
    for job in known:
        if job.state is JobState.RUNNING:
            return RecordReject(BadInput(f"{job} is running", hint="let it end, or fail it"))
    return RecordCommit(None, removals=known) if known else RecordNoOp(None)


def seen_before(
    state: ControllerState, origin: Origin, kind: CommandKind, object_id: str, **arguments: object
) -> RecordNoOp[CollectionInfo] | RecordReject | None:
    """The outcome of a command id that was used before: its result, or a refusal if the command differs.

    `arguments` are compared with the recorded result. Arguments that the result doesn't contain are not
    compared. None if the id is new.
    """
    command = state.commands.get(origin.command_id)
    if command is None:
        return None
    known = state.collections.get(command.object_id)
    same = command.kind is kind and known is not None and object_id in {known.collection_id, known.name}
    told = {name: command.result[name] for name in arguments if same and name in command.result}
    if known is not None and same and all(arguments[name] == value for name, value in told.items()):
        return RecordNoOp(known)
    was = f"{command.kind.name.lower()} of {command.object_id}"
    with_ = ", ".join(f"{name} {value}" for name, value in told.items())
    return RecordReject(
        BadInput(
            f"command {origin.command_id} was used before: it was {was}{f' with {with_}' if with_ else ''}",
            hint="give each command its own id",
        )
    )


def expired(state: ControllerState, now_ms: int) -> tuple[Record, ...]:
    """Records of commands that are no longer kept. A limited number, to be removed with another commit."""

    def old() -> Iterable[Record]:
        return (each for each in state.commands.values() if each.at_ms < now_ms - COMMANDS_KEPT_MS)

    return tuple(record for _, record in zip(range(_REMOVALS_PER_COMMIT), old(), strict=False))


def _fenced(known: JobRecord, attempt: int) -> RecordReject | None:
    if known.state is JobState.RUNNING and known.attempt == attempt:
        return None
    durable = f"attempt {known.attempt} is {known.state.name.lower()}"
    job = f"job {known.job_id} ({known.kind})"
    message = f"attempt {attempt} of {job} must stop: {durable}"
    return RecordReject(Fenced(f"attempt {attempt}", durable, what=job, message=message))


def _no_job(job_id: str) -> RecordReject:
    return RecordReject(BadInput(f"there is no job {job_id}", hint="start it first"))
