"""The commands on jobs: a job is started, retried, and ends once, together with its effects."""

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
        """Record the job of this object, kind and slot as Running, attempt 1, or find it as it is.

        A job's first spec stays: what is on record is what is done. Where it has an `as_of`, the collection
        is held at that time from now on, until the attempt ends. `by` is who runs this attempt, where that
        isn't this process. Raises `CollectionNotFound` for a new one of a collection that is dropped,
        `AsOfTooEarly` for one that reads what is gone, `BadInput` for an `as_of` that is no time.
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
        """Commit effects with the record of the job that they are, done, unless it is on record already.

        Answers the record, and whether the effects were committed. They are prepared again for a try after
        one that lost a race. Nothing is on record before: what breaks off leaves no attempt. Raises
        `UpperMismatch` where an effect lost on its shard.
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
        """Commit effects with the record that they are this batch of a stream; whether they were committed.

        They are not where it, or a later one, was written before. The job is the stream, one record for all
        of its batches: that of the last. As `record_job` for the rest.
        """
        job = self._done_at_once(object_id, kind, slot, spec, result)
        return self._log.commit(
            lambda state: transitions.record_batch(state, job, batch), lambda _: effects()
        )

    def retry_job(self, job: str, *, abandoned: int | None = None, by: str = "") -> JobRecord:
        """Start the next attempt of a failed job, or of a running one whose attempt is given as `abandoned`.

        An abandoned attempt can't commit any more, and what it held is released, in one step with what the
        new one holds. `by` as in `start_job`; what others failed at is not counted any more. Raises
        `BadInput` where the job is done, or runs and is not abandoned, and as `start_job`: what a failed job
        was to read may be gone by now, and then nothing brings it back.
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
        """Have the running attempt of a job hold its collection at `as_of`; answers the time that it holds.

        It holds one time: what it holds already, by its record or for another of its drivers, stays and is
        the answer. Raises `AsOfTooEarly` where that time can't be read any more, `Fenced` where this attempt
        isn't the running one, `CollectionNotFound` where there is nothing to hold.
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

    def job(self, job: str) -> JobRecord | None:
        """The record of the job with this id, None where there is none."""
        return self._log.sync().jobs.get(job)

    def check_attempt(self, job: str, attempt: int) -> JobRecord:
        """The record of a job of which this attempt runs, or is done.

        Raises `Fenced` where it has failed or another one took its place, `BadInput` where it never started.
        """
        record = self.job(job)
        if record is None:
            raise BadInput(f"there is no job {job}", hint="start it with StorageController.start_job")
        state = f"attempt {record.attempt} is {record.state.name.lower()}"
        if record.attempt < attempt:
            raise BadInput(f"attempt {attempt} of job {job} was never started: {state}")
        if record.attempt != attempt or record.state is JobState.FAILED:
            raise Fenced(f"attempt {attempt}", state, what=f"job {job}")
        return record

    def jobs(self, object_id: str | None = None) -> tuple[JobRecord, ...]:
        """The records of all jobs, or of those of one object, oldest first."""
        known = list(self._log.sync().jobs.values())
        chosen = [job for job in known if object_id in {None, job.object_id}]
        return tuple(sorted(chosen, key=lambda job: (job.started_ms, job.job_id)))

    def finish_job(
        self,
        job: str,
        attempt: int,
        result: Json,
        effects: Sequence[Prepared] | Callable[[], Sequence[Prepared]] = (),
    ) -> JobRecord:
        """Commit the outcome of an attempt: `effects` and the step to Done are one, or nothing happens.

        What the attempts held is released with it. Effects given as a function are prepared again for a try
        after one that lost a race. Raises `Fenced` where the attempt isn't the running one, `UpperMismatch`
        where an effect lost on its shard.
        """
        prepare = effects if callable(effects) else _Once(effects)
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.finish_job(state, job, attempt, result, now_ms),
            lambda state: [*prepare(), *self._release_holds(state, job)],
        )

    def fail_job(self, job: str, attempt: int, error: str, *, stopped: bool = False) -> JobRecord:
        """Record that an attempt failed, and why; what it held is released.

        One that was `stopped`, by somebody's word, is not counted as a failure of the job. Raises `Fenced`
        where it isn't the running one.
        """
        now_ms = self.client.clock.wall_ms()
        return self._log.commit(
            lambda state: transitions.fail_job(state, job, attempt, error, now_ms, stopped=stopped),
            lambda state: self._release_holds(state, job),
        )

    def forget_jobs(self, jobs: Collection[str]) -> None:
        """Remove the records of these jobs, which are over. Nothing happens to one that isn't there.

        An attempt that is still at work finds none, and can't commit. A job of the same object, kind and slot
        would start anew: this is for slots that don't come again. Raises `BadInput` where one runs.
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
        """The record of a job that starts and is done now."""
        started = self._first_attempt(object_id, kind, slot, spec)
        return replace(started, state=JobState.DONE, result=result, finished_ms=started.started_ms)

    def _take_hold(self, state: ControllerState, job: JobRecord, as_of: int | None) -> list[Prepared]:
        """The hold of an attempt at `as_of`, if any. Whoever holds the metadata's since holds the data."""
        info = state.collections.get(job.object_id)
        if info is None or as_of is None:
            return []
        shard, purpose = info.metadata_shard, hold_purpose(job.job_id, job.attempt)
        return [
            self.client.prepare_critical(shard, purpose=purpose, not_past=as_of),
            self.client.prepare_downgrade_critical(shard, as_of, purpose=purpose),
        ]

    def _release_holds(self, state: ControllerState, job: str) -> list[Prepared]:
        """The release of what the attempts of a job up to its latest hold.

        Drivers of earlier versions held all shards, and might do so after their attempt had ended.
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
    """Prepared commands for one try. What was uploaded for them is gone when the try has lost."""

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self._prepared = prepared
        self._tried = False

    def __call__(self) -> Sequence[Prepared]:
        if self._tried and any(command.uploaded for command in self._prepared):
            raise HoldfastError(
                "another command was committed first, and what was prepared for this one is gone",
                hint="prepare it again, or give the effects as a function",
            )
        self._tried = True
        return self._prepared
