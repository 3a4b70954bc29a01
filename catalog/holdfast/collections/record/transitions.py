"""What the controller's commands do to its state: pure, without I/O and without a clock.

- A command id that was seen before gets its answer again if it asks for the same, else it is refused.
- An id of a collection is used once for ever; a name belongs to one collection that isn't dropped.
- Only Running(my attempt) becomes Done or Failed: any other attempt, older or newer, is `Fenced`.
- A job goes to the next attempt only from Failed, or where the caller says that the attempt is abandoned.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.collections.record.jobs import BATCH, JobRecord, JobState, Json
from holdfast.collections.record.spec import (
    FIRST_RENDITION,
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    RenditionInfo,
    difference,
)
from holdfast.collections.record.state import (
    CommandKind,
    CommandRecord,
    Commit,
    ControllerState,
    NoOp,
    Outcome,
    Record,
    Reject,
)
from holdfast.errors import BadInput, CollectionInUse, CollectionNotFound, Fenced, UniquenessViolation
from holdfast.persist.rows.evolution import evolution_fault

COMMANDS_KEPT_MS: Final = 30 * 24 * 3600 * 1000
_REMOVALS_PER_COMMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Origin:
    """Who gives a command: its id, the caller, its host, its fence token if it has one, the wall time."""

    command_id: str
    who: str
    host: str
    token: str
    at_ms: int

    def record(self, kind: CommandKind, object_id: str, result: Json | None = None) -> CommandRecord:
        """What is kept of the command."""
        return CommandRecord(
            self.command_id, kind, object_id, self.who, self.host, self.token, self.at_ms, result or {}
        )


@dataclass(frozen=True, slots=True)
class ShardIds:
    """The shards chosen for a new collection. Only those that get committed ever come into being."""

    metadata: str
    data: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """The metadata shard, then the data shards."""
        return (self.metadata, *self.data)


def create_collection(
    state: ControllerState, spec: CollectionSpec, shards: ShardIds, origin: Origin
) -> Outcome[CollectionInfo]:
    """Record the collection. Its shards and their holds come into being in the same step.

    A collection of this id that was created from the same spec is the answer as it is, whatever its columns'
    comments are by now.
    """
    seen = seen_before(state, origin, CommandKind.CREATE_COLLECTION, spec.collection_id)
    if isinstance(seen, Reject):
        return seen
    known = state.collections.get(spec.collection_id)
    if known is not None:
        if known.dropped and seen is None:
            return Reject(
                BadInput(
                    f"collection {spec.collection_id} ('{known.name}') was dropped",
                    hint="create it under a new id: ids are never used again",
                )
            )
        if seen is not None and not evolution_fault(spec.schema, known.schema):
            # The same command again, after the collection evolved.
            spec = replace(spec, schema=known.schema)
        if differing := difference(known, spec):
            return Reject(BadInput(f"collection {spec.collection_id} exists with another spec: {differing}"))
        return NoOp(known)
    if (owner := state.names.get(spec.name)) is not None:
        return Reject(
            UniquenessViolation(
                f"the name '{spec.name}' belongs to collection {owner}",
                hint=f"choose another name, or use it: 'holdfast collection describe {owner}' shows it",
            )
        )
    info = CollectionInfo(
        collection_id=spec.collection_id,
        name=spec.name,
        schema=spec.schema,
        shards=spec.shards,
        hash_columns=spec.hash_columns,
        metadata_shard=shards.metadata,
        renditions=(RenditionInfo(FIRST_RENDITION, shards.data, 0, spec.hash_columns),),
        state=CollectionState.ACTIVE,
        created_ms=origin.at_ms,
        comments=spec.comments,
    )
    told = {"shards": spec.shards}
    command = origin.record(CommandKind.CREATE_COLLECTION, spec.collection_id, told)
    return Commit(info, (info, command), expired(state, origin.at_ms))


def begin_drop(state: ControllerState, collection_id: str, origin: Origin) -> Outcome[CollectionInfo]:
    """From now on nobody new may open the collection."""
    if (seen := seen_before(state, origin, CommandKind.DROP_COLLECTION, collection_id)) is not None:
        return seen
    known = state.find(collection_id)
    if known.dropped:
        return NoOp(known)
    dropping = replace(known, state=CollectionState.DROPPING)
    command = origin.record(CommandKind.DROP_COLLECTION, known.collection_id)
    return Commit(dropping, (dropping, command), expired(state, origin.at_ms))


def finish_drop(
    state: ControllerState, collection_id: str, now_ms: int, *, force: bool = False
) -> Outcome[CollectionInfo]:
    """The collection is gone. Its shards are finalized in the same step.

    Rejects with `CollectionInUse` while a job of it runs; with `force` what runs ends in this step too.
    """
    known = state.collections[collection_id]
    if known.state is CollectionState.DROPPED:
        return NoOp(known)
    if known.state is not CollectionState.DROPPING:
        return Reject(BadInput(f"collection {collection_id} is not being dropped"))
    running = state.running(collection_id)
    if running and not force:
        return Reject(
            CollectionInUse(
                f"collection {known.name} is being dropped, and still in use by"
                f" {', '.join(map(str, running))}",
                hint="its data goes with the next drop after these have ended, or by force",
            )
        )
    ended = (
        replace(job, state=JobState.FAILED, error="the collection was dropped", finished_ms=now_ms)
        for job in running
    )
    dropped = replace(known, state=CollectionState.DROPPED, dropped_ms=now_ms, holders=())
    return Commit(dropped, (dropped, *ended))


def start_job(state: ControllerState, job: JobRecord) -> Outcome[JobRecord]:
    """Record attempt 1. A job that is on record already, in whatever state, is the answer as it is.

    Rejects with `CollectionNotFound` what is for a collection that is dropped.
    """
    known = state.jobs.get(job.job_id)
    if known is not None:
        return NoOp(known)
    return _ended(state, job) or Commit(job, (job,))


def record_job(state: ControllerState, job: JobRecord) -> Outcome[JobRecord]:
    """Record a job that was done in one attempt. One that is on record already is the answer as it is."""
    known = state.jobs.get(job.job_id)
    return Commit(job, (job,)) if known is None else NoOp(known)


def record_batch(state: ControllerState, job: JobRecord, batch: int) -> Outcome[bool]:
    """Record that a batch of a stream was written, unless it or a later one is on record."""
    known = state.jobs.get(job.job_id)
    if known is not None and known.result[BATCH] >= batch:
        return NoOp(False)
    first_ms = job.started_ms if known is None else known.started_ms
    return Commit(True, (replace(job, started_ms=first_ms, result={**job.result, BATCH: batch}),))


def retry_job(
    state: ControllerState, job_id: str, now_ms: int, *, abandoned: int | None = None, by: str = ""
) -> Outcome[JobRecord]:
    """Start the next attempt of a failed job, or of one whose attempt `abandoned` will not be waited for.

    Where that attempt has been followed by another already, the answer is the job as it is. What others than
    `by` failed at is not counted any more. Rejects as `start_job`.
    """
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    match known.state:
        case JobState.DONE:
            return Reject(BadInput(f"job {job_id} ({known.kind}) is done; it is not run again"))
        case JobState.RUNNING if abandoned is not None and abandoned < known.attempt:
            return NoOp(known)
        case JobState.RUNNING if abandoned != known.attempt:
            return Reject(
                BadInput(
                    f"attempt {known.attempt} of job {job_id} ({known.kind}) is running",
                    hint="let it end, or abandon it: it can't commit any more then",
                )
            )
        case JobState.RUNNING | JobState.FAILED:
            again = replace(
                known,
                attempt=known.attempt + 1,
                state=JobState.RUNNING,
                result={},
                error="",
                started_ms=now_ms,
                finished_ms=0,
                by=by,
                failures=known.failures if by == known.by else 0,
            )
            return _ended(state, known) or Commit(again, (again,))


def _ended(state: ControllerState, job: JobRecord) -> Reject | None:
    """That a job's collection is gone or on its way out: its drop waits for no new work."""
    known = state.collections.get(job.object_id)
    return Reject(CollectionNotFound(known.end)) if known is not None and known.dropped else None


def check_running(state: ControllerState, job_id: str, attempt: int) -> Outcome[JobRecord]:
    """That this attempt runs, for effects that may happen only while it does. Rejects as `start_job`."""
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    return _fenced(known, attempt) or _ended(state, known) or Commit(known)


def finish_job(
    state: ControllerState, job_id: str, attempt: int, result: Json, now_ms: int
) -> Outcome[JobRecord]:
    """Running(attempt) -> Done. The job's effects are applied in the same step, or not at all."""
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    if (fenced := _fenced(known, attempt)) is not None:
        return fenced
    done = replace(known, state=JobState.DONE, result=result, error="", finished_ms=now_ms)
    return Commit(done, (done,))


def fail_job(
    state: ControllerState, job_id: str, attempt: int, error: str, now_ms: int, *, stopped: bool = False
) -> Outcome[JobRecord]:
    """Running(attempt) -> Failed. To fail the attempt that has failed already changes nothing.

    One that was `stopped`, by somebody's word, is no failure of the job.
    """
    known = state.jobs.get(job_id)
    if known is None:
        return _no_job(job_id)
    if known.state is JobState.FAILED and known.attempt == attempt:
        return NoOp(known)
    if (fenced := _fenced(known, attempt)) is not None:
        return fenced
    failures = known.failures + (0 if stopped else 1)
    failed = replace(known, state=JobState.FAILED, error=error, finished_ms=now_ms, failures=failures)
    return Commit(failed, (failed,))


def forget_jobs(state: ControllerState, job_ids: Collection[str]) -> Outcome[None]:
    """Remove the records of jobs that are over; one that isn't there is no matter. Rejects one that runs."""
    known = tuple(state.jobs[each] for each in job_ids if each in state.jobs)
    for job in known:
        if job.state is JobState.RUNNING:
            return Reject(BadInput(f"{job} is running", hint="let it end, or fail it"))
    return Commit(None, removals=known) if known else NoOp(None)


def seen_before(
    state: ControllerState, origin: Origin, kind: CommandKind, object_id: str, **arguments: object
) -> NoOp[CollectionInfo] | Reject | None:
    """The answer of the command of this id where there was one: as it is, or refused where it was another.

    `arguments` are compared with what the history tells of it; what it doesn't tell is not.
    """
    command = state.commands.get(origin.command_id)
    if command is None:
        return None
    known = state.collections.get(command.object_id)
    same = command.kind is kind and known is not None and object_id in {known.collection_id, known.name}
    told = {name: command.result[name] for name in arguments if same and name in command.result}
    if known is not None and same and all(arguments[name] == value for name, value in told.items()):
        return NoOp(known)
    was = f"{command.kind.name.lower()} of {command.object_id}"
    with_ = ", ".join(f"{name} {value}" for name, value in told.items())
    return Reject(
        BadInput(
            f"command {origin.command_id} was {was}{f' with {with_}' if with_ else ''}",
            hint="give every command an id of its own",
        )
    )


def expired(state: ControllerState, now_ms: int) -> tuple[Record, ...]:
    """Records of commands that are kept no longer: some of them, to go with another commit."""

    def old() -> Iterable[Record]:
        return (each for each in state.commands.values() if each.at_ms < now_ms - COMMANDS_KEPT_MS)

    return tuple(record for _, record in zip(range(_REMOVALS_PER_COMMIT), old(), strict=False))


def _fenced(known: JobRecord, attempt: int) -> Reject | None:
    if known.state is JobState.RUNNING and known.attempt == attempt:
        return None
    durable = f"attempt {known.attempt} ({known.state.name.lower()})"
    return Reject(Fenced(f"attempt {attempt}", durable, what=f"job {known.job_id} ({known.kind})"))


def _no_job(job_id: str) -> Reject:
    return Reject(BadInput(f"there is no job {job_id}", hint="start it first"))
