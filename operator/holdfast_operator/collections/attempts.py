"""Starts, launches and ends the attempts of the Spark jobs of collections and of their snapshots."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.collections import JobRecord, JobState
from holdfast.errors import AsOfTooEarly
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.engine.denials import Denials
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.failures import RETRIES
from holdfast_operator.engine.handler import Json, Services
from holdfast_operator.engine.kube import KubeError, NotLeading, ObjectKey
from holdfast_operator.jobs.course import SPARK, arguments, failed
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.places.credentials import store_keys_of
from holdfast_operator.sparkapps.adapter import (
    INGEST,
    AppState,
    Launch,
    LaunchDenied,
    LaunchRefused,
    NotInstalled,
    SecretFiles,
    SparkAdapter,
)
from holdfast_operator.sparkapps.images import mismatch
from holdfast_operator.sparkapps.objects import in_a_line, unfinished_of
from holdfast_operator.sparkapps.slots import Slots

log = logging.getLogger(__name__)

_SHOWN_FAILURES: Final = 4
"""After so many requests without success, an object shows it. These take some seconds."""


class Attempts:
    """The attempts of the jobs of one kind of objects."""

    def __init__(self, services: Services, stores: Stores, spark: SparkAdapter, slots: Slots) -> None:
        self._services = services
        self._stores = stores
        self._spark = spark
        self._slots = slots
        self._denials = Denials(services.clock)
        self._failures: Counter[ObjectKey] = Counter()
        """How many requests for an application of an object failed in a row, without a refusal."""
        self._not_launched = Denials(services.clock)
        """How they failed, if that is shown."""
        self._failed: dict[ObjectKey, dict[tuple[str, int], float]] = {}
        """When each failed attempt was first seen, by the monotonic clock."""
        self._running: dict[ObjectKey, set[tuple[str, int]]] = {}
        """The attempts of Spark jobs that were running when their records were last read."""

    async def applications(self, key: ObjectKey, uid: str) -> tuple[tuple[AppState, ...], str | None]:
        """Returns the applications of an object, or why there can't be any."""
        try:
            return await self._spark.observe(key, uid), None
        except NotInstalled as error:
            return (), str(error)

    async def full(self, key: ObjectKey) -> str | None:
        """Returns why no attempt can be launched before another one ends, or None if it can."""
        if (denied := self._denials.why(key)) is not None:
            return denied
        try:
            return await self._slots.full(key)
        except NotInstalled as error:
            return str(error)

    def not_launched(self, key: ObjectKey) -> str | None:
        """Returns how the last request for an application of an object failed, or None.

        None also until several have failed in a row, and when the next one is due.
        """
        return self._not_launched.why(key)

    def failed_for(self, key: ObjectKey, jobs: Iterable[JobRecord]) -> Mapping[tuple[str, int], float]:
        """Returns for how many seconds this process has known that attempts of an object's jobs failed."""
        jobs = list(jobs)
        now, known = self._services.clock.monotonic(), self._failed.pop(key, {})
        failed = [(job.job_id, job.attempt) for job in jobs if job.state is JobState.FAILED]
        self._count_own_failures(key, jobs)
        if failed:
            self._failed[key] = {each: known.get(each, now) for each in failed}
        return {each: now - known.get(each, now) for each in failed}

    def _count_own_failures(self, key: ObjectKey, jobs: Iterable[JobRecord]) -> None:
        """Counts the attempts whose drivers have recorded their failure since the last look."""
        was, running = self._running.pop(key, set()), set[tuple[str, int]]()
        for job in jobs:
            each = (job.job_id, job.attempt)
            if job.state is JobState.FAILED and each in was:
                self._count(job.kind, "failed")
            elif job.state is JobState.RUNNING and job.by == SPARK:
                running.add(each)
        if running:
            self._running[key] = running

    def forget(self, key: ObjectKey) -> None:
        """Forgets an object that no longer exists."""
        self._failed.pop(key, None)
        self._running.pop(key, None)
        self._failures.pop(key, None)

    async def begun(self, catalog: ObjectKey, step: StartJob | RetryJob | LaunchAttempt) -> JobRecord | None:
        """Records the attempt of a step, and returns its job. None if its time is no longer readable."""
        if isinstance(step, LaunchAttempt):
            return step.job
        try:
            return await self._stores.use(catalog, step.call, lambda handle: store.start(handle, step))
        except AsOfTooEarly:
            # The next reconciliation shows this.
            return None

    async def launch(
        self,
        key: ObjectKey,
        body: Json,
        catalog: ObjectKey,
        step: StartJob | RetryJob | LaunchAttempt,
        job: JobRecord,
        *,
        opening: Opening,
        catalog_body: Json,
        template: SparkTemplate,
        order: Mapping[str, Any],
        files: tuple[SecretFiles, ...] = (),
    ) -> bool:
        """Launches the application of an attempt. Returns False if it is refused, or `not_launched` says why.

        If it is refused, the attempt has failed, unless the cluster denies it only for now. Raises like
        `store_keys_of`, and `KubeError` if the API server fails.
        """
        reference = CatalogSpec.model_validate(catalog_body["spec"]).storage.credentials_secret_ref
        secret = None if reference is None else reference.name
        keys = await store_keys_of(self._services.kube, catalog, replace(opening.storage, secret=secret))
        if why := mismatch(template.image):
            log.warning(why)
            note = Note(Reason.OTHER_IMAGE_VERSION, why, warning=True)
            await self._services.events.post(key, body["metadata"]["uid"], note)
        order = {"partitions": step.tasks, **order}
        launch = Launch(
            owner=key,
            owner_uid=body["metadata"]["uid"],
            job_kind=job.kind,
            job_id=job.job_id,
            attempt=job.attempt,
            arguments=arguments(opening.storage.place, step.collection_id, job, order),
            template=template,
            store_keys=SecretFiles(secret, keys, shared=True) if secret is not None and keys else None,
            files=files,
        )
        try:
            await self._send(launch)
        except NotLeading:
            raise
        except KubeError as error:
            self._failures[key] += 1
            if self._failures[key] < _SHOWN_FAILURES:
                raise
            log.info("attempt %d of job %s is not launched: %s", job.attempt, job.job_id, error)
            text = f"its application can't be created: {in_a_line(error)}; {RETRIES}"
            self._not_launched.add(key, text)
            return False
        except LaunchRefused as error:
            # A job that reads a source doesn't wait for others to end.
            if isinstance(error, LaunchDenied) and job.kind != INGEST:
                log.info("attempt %d of job %s waits: %s", job.attempt, job.job_id, error)
                self._denials.add(key, f"the cluster denies its application for now: {in_a_line(error)}")
                return False
            await self.fail(key, catalog, failed(job, f"its application is refused: {in_a_line(error)}"))
            return False
        self._failures.pop(key, None)
        self._count(job.kind, "launched")
        return True

    async def _send(self, launch: Launch) -> None:
        """Has an application created. Raises like `SparkAdapter.launch`, and `KubeError`."""
        try:
            await self._spark.launch(launch)
        finally:
            # Without a response, it may have been created.
            if launch.job_kind != INGEST:
                self._slots.launched(unfinished_of(launch))

    async def fail(self, key: ObjectKey, catalog: ObjectKey, step: FailAttempt) -> None:
        """Records that an attempt has failed or was stopped, and cancels its application."""
        what = "was stopped" if step.stopped else "failed"
        log.warning("attempt %d of job %s %s: %s", step.attempt, step.job_id, what, step.error)
        await self._stores.use(catalog, step.call, lambda handle: store.take(handle, step))
        if step.app is not None:
            await self.cancel(key, step.kind, step.app)
        each = (step.job_id, step.attempt)
        self._running.get(key, set()).discard(each)
        # One that its driver has recorded is counted already.
        if step.stopped or each not in self._failed.get(key, {}):
            self._count(step.kind, "stopped" if step.stopped else "failed")

    async def cancel(self, key: ObjectKey, kind: str, app: AppState) -> None:
        """Cancels an application of a job of a kind."""
        await self._spark.cancel(key, app)
        self._count(kind, "cancelled")

    def _count(self, kind: str, step: str) -> None:
        self._services.metrics.spark_jobs.labels(kind, step).inc()
