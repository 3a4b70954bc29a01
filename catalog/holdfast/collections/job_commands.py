"""The commands on jobs: a job is started, may be retried, and ends once, together with its effects."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record import transitions
from holdfast.collections.record.jobs import AS_OF, JobRecord, JobState, Json, hold_purpose, job_id
from holdfast.collections.record.state import ControllerState
from holdfast.errors import BadInput, Fenced, HoldfastError
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.checks import check_time


class JobCommands:
    """The part of `StorageController` that keeps the records of jobs. Thread-safe."""

    def __init__(self, client: PersistClient, log: ControllerLog) -> None:
        self.client = client
        self._log = log

    def start_job(self, object_id: str, kind: str, slot: str, *, spec: Json, by: str = "") -> JobRecord:
        """Record a job of this object, kind and slot as Running, attempt 1. If it exists, return it
        unchanged.

        The first spec of a job is the one that counts. If it has an `as_of`, the collection is held at that
        time until the attempt ends. `by` names who runs this attempt, if it isn't this process. For a new
        job, raises `CollectionNotFound` if its collection is dropped, `AsOfTooEarly` if it reads times that
        are gone, and `BadInput` if `as_of` is not a time.
        """
        if AS_OF in spec:
            check_time(spec[AS_OF])
        job = replace(self._first_attempt(object_id, kind, slot, spec), by=by)
        return self._log.commit(
            lambda state: transitions.start_job(state, job),
            lambda state: self._take_hold(state, job, job.as_of),
        )

    def record_job(
        self,
        object_id: str,
        kind: str,
        slot: str,
        *,
        spec: Json,
        result: Json,
        effects: Callable[[], Sequence[Prepared]],
    ) -> tuple[JobRecord, bool]:
        """Commit effects together with the record of a job that is done by them, unless it is already
        recorded.

        Returns the record, and whether the effects were committed. `effects` is called again for each try
        after a lost race. Nothing is recorded before the commit, so an interruption leaves no attempt behind.
        Raises `UpperMismatch` if an effect failed on its shard.
        """
        job = self._done_at_once(object_id, kind, slot, spec, result)
        found = self._log.commit(lambda state: transitions.record_job(state, job), lambda _: effects())
        return found, found is job

    def record_batch(
        self,
        object_id: str,
        kind: str,
        slot: str,
        batch: int,
        *,
        spec: Json,
        result: Json,
        effects: Callable[[], Sequence[Prepared]],
    ) -> bool:
        """Commit effects together with the record that they are this batch of a stream.

        Returns whether they were committed. They are not if this batch, or a later one, was written before.
        The job stands for the stream: one record for all of its batches, with the number of the last one.
        Otherwise like `record_job`.
        """
        job = self._done_at_once(object_id, kind, slot, spec, result)
        return self._log.commit(
            lambda state: transitions.record_batch(state, job, batch), lambda _: effects()
        )

    def retry_job(self, job: str, *, abandoned: int | None = None, by: str = "") -> JobRecord:
        """Start the next attempt of a failed job, or of a running one whose attempt is given as `abandoned`.

        An abandoned attempt can't commit any more. Its holds are released in the same commit in which the new
        attempt takes its own. `by` is as in `start_job`; a new `by` resets the count of failures. Raises
        `BadInput` if the job is done, or if it runs and is not abandoned, and like `start_job`: the times
        that a failed job has to read may be gone by now, and can't be brought back.
        """
        now_ms = self.client.clock.wall_ms()

        def effects(state: ControllerState) -> list[Prepared]:
            known = state.jobs[job]
            again = replace(known, attempt=known.attempt + 1)
            return [*self._take_hold(state, again, again.as_of), *self._release_holds(state, job)]

        return self._log.commit(
            lambda state: transitions.retry_job(state, job, now_ms, abandoned=abandoned, by=by), effects
        )

    def hold_for_job(self, job: str, attempt: int, as_of: int) -> int:
        """Let the running attempt of a job hold its collection at `as_of`. Returns the time that it holds.

        An attempt holds one time. If it already holds one, by its record or for another of its drivers, that
        hold stays and its time is returned. Raises `AsOfTooEarly` if `as_of` can't be read any more, `Fenced`
        if this attempt is not the running one, and `CollectionNotFound` if there is no collection to hold.
        """
        held = check_time(as_of)

        def effects(state: ControllerState) -> list[Prepared]:
            nonlocal held
            record = state.jobs[job]
            shard, purpose = state.find(record.object_id).metadata_shard, hold_purpose(job, attempt)
            found = [hold.since for hold in self.client.inspect(shard).holds if hold.purpose == purpose]
            held = found[0] if found else as_of
            return [] if found else self._take_hold(state, record, as_of)

        self._log.commit(lambda state: transitions.check_running(state, job, attempt), effects)
        return held

    def plan_job(
        self,
        job: str,
        attempt: int,
        plan: Json,
        *,
        instead_of: Json | None = None,
        effects: Sequence[Prepared] = (),
    ) -> JobRecord:
        """Record how the attempts of a job divide its work. Returns the record with the plan that counts.

        The plan is `JobRecord.plan` until the job is done, also of later attempts. If another plan than
        `instead_of` is recorded, that one counts. Otherwise `effects`, which have no uploads, are committed
        with the new one. Raises `Fenced` if the attempt is not the running one.
        """
        return self._log.commit(
            lambda state: transitions.plan_job(state, job, attempt, plan, instead_of), lambda _: effects
        )

    def job(self, job: str) -> JobRecord | None:
        """The record of the job with this id, or None."""
        return self._log.sync().jobs.get(job)

    def check_attempt(self, job: str, attempt: int) -> JobRecord:
        """The record of a job, if this attempt of it is running or done.

        Raises `Fenced` if the attempt failed or another one replaced it, and `BadInput` if it never started.
        """
        record = self.job(job)
        if record is None:
            raise BadInput(f"there is no job {job}", hint="start it with StorageController.start_job")
        state = f"attempt {record.attempt} is {record.state.name.lower()}"
        if record.attempt < attempt:
            raise BadInput(
                f"attempt {attempt} of job {job} was never started: {state}",
                hint="retry_job starts the next attempt, and returns its number",
            )
        if record.attempt != attempt or record.state is JobState.FAILED:
            message = f"attempt {attempt} of job {job} must stop: {state}"
            raise Fenced(f"attempt {attempt}", state, what=f"job {job}", message=message)
        return record

    def jobs(self, object_id: str | None = None) -> tuple[JobRecord, ...]:
        """The records of all jobs, or of the jobs of one object, oldest first."""
        return jobs_of(self._log.sync(), object_id)

    def finish_job(
        self,
        job: str,
        attempt: int,
        result: Json,
        effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]] = (),
    ) -> JobRecord:
        """Commit the outcome of an attempt: `effects` and the change to Done, all or nothing.

        The holds of the attempts are released in the same commit. If `effects` is a function, it is called
        again for each try after a lost race. Raises `Fenced` if the attempt is not the running one, and
        `UpperMismatch` if an effect failed on its shard.
        """
        prepare = effects if callable(effects) else _Once(effects)
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.finish_job(state, job, attempt, result, now_ms),
            lambda state: [*prepare(), *self._release_holds(state, job)],
        )

    def fail_job(self, job: str, attempt: int, error: str, *, stopped: bool = False) -> JobRecord:
        """Record that an attempt failed, and why. Its holds are released.

        An attempt that somebody `stopped` doesn't count as a failure of the job. Raises `Fenced` if it isn't
        the running one.
        """
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.fail_job(state, job, attempt, error, now_ms, stopped=stopped),
            lambda state: self._release_holds(state, job),
        )

    def forget_jobs(self, jobs: Collection[str]) -> None:
        """Remove the records of these jobs, which have ended. Ignores jobs that don't exist.

        An attempt that is still working finds no record and can't commit. A new job of the same object, kind
        and slot would start from the beginning, so use this only for slots that don't come again. Raises
        `BadInput` if a job is running.
        """
        self._log.commit(lambda state: transitions.forget_jobs(state, jobs))

    def _first_attempt(self, object_id: str, kind: str, slot: str, spec: Json) -> JobRecord:
        """The record of a job that starts now."""
        return JobRecord(
            job_id=job_id(object_id, kind, slot),
            object_id=object_id,
            kind=kind,
            slot=slot,
            attempt=1,
            state=JobState.RUNNING,
            spec=spec,
            started_ms=self.client.clock.wall_ms(),
        )

    def _done_at_once(self, object_id: str, kind: str, slot: str, spec: Json, result: Json) -> JobRecord:
        """The record of a job that starts now and is done at once."""
        started = self._first_attempt(object_id, kind, slot, spec)
        return replace(started, state=JobState.DONE, result=result, finished_ms=started.started_ms)

    def _take_hold(self, state: ControllerState, job: JobRecord, as_of: int | None) -> list[Prepared]:
        """The steps that hold `as_of` for an attempt. Holding the since of the metadata holds the data."""
        info = state.collections.get(job.object_id)
        if info is None or as_of is None:
            return []
        shard, purpose = info.metadata_shard, hold_purpose(job.job_id, job.attempt)
        return [
            self.client.prepare_critical(shard, purpose=purpose, not_past=as_of),
            self.client.prepare_downgrade_critical(shard, as_of, purpose=purpose),
        ]

    def _release_holds(self, state: ControllerState, job: str) -> list[Prepared]:
        """The steps that release the holds of all attempts of a job up to its latest.

        Drivers of earlier versions held all shards, and may have done so after their attempt ended.
        """
        record = state.jobs[job]
        info = state.collections.get(record.object_id)
        if info is None:
            return []
        purposes = {hold_purpose(job, attempt) for attempt in range(1, record.attempt + 1)}
        return [
            self.client.prepare_release_critical(shard, purpose=hold.purpose)
            for shard in (info.metadata_shard, *info.data_shards)
            for hold in self.client.inspect(shard).holds
            if hold.purpose in purposes
        ]


class _Once:
    """Prepared steps for one try. Their uploads are gone after a try that failed."""

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self._prepared = prepared
        self._tried = False

    def __call__(self) -> Sequence[Prepared]:
        if self._tried and any(command.uploaded for command in self._prepared):
            raise HoldfastError(
                "another command was committed first, and the steps prepared for this one can't be reused",
                hint="prepare them again, or give the effects as a function",
            )
        self._tried = True
        return self._prepared


def jobs_of(state: ControllerState, object_id: str | None) -> tuple[JobRecord, ...]:
    """The records of all jobs (None), or of the jobs of one object, oldest first."""
    chosen = [job for job in list(state.jobs.values()) if object_id in {None, job.object_id}]
    return tuple(sorted(chosen, key=lambda job: (job.started_ms, job.job_id)))
