"""The handler for CollectionSnapshots: observes the collection and the job, and applies the plan's steps."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar, Final

from pydantic import ValidationError

from holdfast.collections import JobRecord, JobState
from holdfast.collections.snapshots.locate import folder_at
from holdfast.errors import BadInput, Fenced, HoldfastError, StorageError
from holdfast.persist import StoredSize
from holdfast_operator.api.catalog import Access
from holdfast_operator.api.catalog_source import CatalogStorage
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.api.snapshot import CollectionSnapshotSpec, CollectionSnapshotStatus
from holdfast_operator.api.spark import SparkTemplate, effective
from holdfast_operator.catalogs.facts import NotReadable, Opening
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import store
from holdfast_operator.collections.attempts import Attempts
from holdfast_operator.collections.facts import CollectionLook, NoSuchSchema
from holdfast_operator.collections.plan import item_name
from holdfast_operator.collections.poll import Watchlist
from holdfast_operator.collections.snapshot_index import SnapshotIndex
from holdfast_operator.collections.spark_work import waits_for
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.deletion import asks_to_delete, deletion_of
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.handler import Handler, Json, OperatorSettings, Services
from holdfast_operator.engine.kube import Gone, ObjectKey
from holdfast_operator.engine.resources import has_finalizer, is_deleting
from holdfast_operator.engine.specs import parse_part, parse_spec
from holdfast_operator.engine.status_writer import is_ready
from holdfast_operator.engine.steps import Decision
from holdfast_operator.jobs.course import (
    SNAPSHOT,
    shown_launched,
    shown_running,
)
from holdfast_operator.jobs.snapshot import SnapshotView, slot_of, work_order
from holdfast_operator.jobs.steps import FailAttempt, ForgetRuns, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.places.bounds import Bounds
from holdfast_operator.places.credentials import SecretNotFound, credentials_of, forget_secrets
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import named_by, of_s3
from holdfast_operator.snapshots import plan as snapshot
from holdfast_operator.snapshots.facts import CollectionState, SnapshotFacts
from holdfast_operator.snapshots.status import folder_of, shown_folder
from holdfast_operator.snapshots.steps import CancelApplication, RemoveFiles
from holdfast_operator.sparkapps.adapter import NotInstalled, SparkAdapter
from holdfast_operator.sparkapps.slots import Slots

log = logging.getLogger(__name__)

_ICEBERG: Final = "is an Iceberg table, whose rows the operator doesn't delete"


@dataclass(frozen=True)
class _Source:
    """The collection of a snapshot, and how its catalog is open."""

    state: CollectionState
    why: str = ""
    is_kept: bool = False
    """Whether the collection has the finalizer."""
    spec: StorageCollectionSpec | None = None
    catalog: ObjectKey | None = None
    catalog_body: Json | None = None
    opening: Opening | None = None
    look: CollectionLook | None = None


class SnapshotHandler(Handler[SnapshotFacts]):
    """Reconciles CollectionSnapshots."""

    kind: ClassVar[Kind] = Kind.COLLECTION_SNAPSHOT

    def __init__(
        self,
        services: Services,
        stores: Stores,
        watchlist: Watchlist,
        cache: ObjectCache,
        settings: OperatorSettings,
        spark: SparkAdapter,
        slots: Slots,
        index: SnapshotIndex,
        pool: StorePool,
    ) -> None:
        super().__init__(services)
        self._stores = stores
        self._watchlist = watchlist
        self._cache = cache
        self._index = index
        self._settings = settings
        self._spark = spark
        self._slots = slots
        self._attempts = Attempts(services, stores, spark, slots)
        self._pool = pool
        self._sources: dict[ObjectKey, _Source] = {}
        """What the last observation of each object found."""
        self._removed: dict[ObjectKey, str] = {}
        """The uids of objects whose files this process has deleted."""

    async def observe(self, key: ObjectKey, body: Json) -> SnapshotFacts:
        """Reads the spec, the collection, its store, and the Spark job. Raises `Fenced`."""
        self._cache.put(key, body)
        self._index.put(key, body)
        spec, problem = parse_spec(CollectionSnapshotSpec, body)
        uid, status = body["metadata"]["uid"], body.get("status", {})
        seen = SnapshotFacts(
            spec=spec,
            slot=slot_of(uid),
            problem=problem,
            deleting=is_deleting(body),
            asks_to_delete=asks_to_delete(body),
            deletion=deletion_of(body),
            has_finalizer=has_finalizer(body),
            shown=_shown(status),
            shown_running=shown_running(status),
            removed=self._removed.get(key) == uid,
        )
        if spec is None or (seen.is_done and not seen.deleting):
            self._watchlist.forget(key)
            return await self._with_place(seen, None, key.namespace)
        # Read the applications before the record: see the plan.
        apps, missing = await self._attempts.applications(key, uid)
        source = self._sources[key] = await self._source(key, spec, seen)
        if source.spec is not None and not source.is_kept and (of := self._index.collection_of(key)):
            # The collection sets its finalizer for snapshots that are not Ready.
            self.services.enqueue(of, 0.0)
        seen = replace(
            seen, apps=apps, collection=source.state, why=source.why, collection_kept=source.is_kept
        )
        seen = replace(seen, task=_task(spec, source.spec))
        if source.look is not None and source.look.facts is not None:
            seen = replace(seen, job=await self._job(key, seen, spec, source, missing, status))
        return await self._with_place(seen, seen.record, key.namespace)

    def plan(self, observed: SnapshotFacts) -> Decision:
        """Returns the next step. Pure."""
        return snapshot.plan(observed, self._settings.rhythm)

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Applies a step: changes the record, the Spark job or the files."""
        if isinstance(step, RemoveFiles):
            await self._remove(key, body, step.folder)
            return
        if isinstance(step, CancelApplication):
            await self._attempts.cancel(key, SNAPSHOT, step.app)
            return
        catalog = self._sources[key].catalog
        assert catalog is not None
        match step:
            case StartJob() | RetryJob() | LaunchAttempt():
                with self._slots.taken(key) as there:
                    # If another job has taken the last slot, the next reconciliation shows that it waits.
                    if there:
                        try:
                            await self._launch(key, body, catalog, step)
                        except NotInstalled as error:
                            # The next reconciliation shows that it is missing.
                            log.warning("%s", error)
            case FailAttempt():
                await self._attempts.fail(key, catalog, step)
            case ForgetRuns():
                await self._stores.use(catalog, step.call, lambda handle: store.take(handle, step))
            case _:
                raise AssertionError(step)

    def shown(self, key: ObjectKey, body: Json, before: Json) -> None:
        """Also reconciles the collection: for its schedule, and because it may need no finalizer any more."""
        super().shown(key, body, before)
        self._index.put(key, body)
        if (collection := self._index.collection_of(key)) is not None:
            self.services.look(collection)

    async def gone(self, key: ObjectKey) -> None:
        """Forgets the object."""
        self._cache.drop(key)
        self._index.drop(key)
        self._watchlist.forget(key)
        self._sources.pop(key, None)
        self._removed.pop(key, None)
        self._attempts.forget(key)
        forget_secrets(key)

    async def _source(self, key: ObjectKey, spec: CollectionSnapshotSpec, seen: SnapshotFacts) -> _Source:
        """Reads the collection, its Catalog and its store.

        A deletion that only the record of an ended job still needs the store for doesn't wait for the store.
        """
        deleting = seen.deleting
        collection = ObjectKey(Kind.STORAGE_COLLECTION, key.namespace, spec.collection_ref.name)
        try:
            body = await self.services.kube.get(collection)
        except Gone:
            return _Source(CollectionState.MISSING)
        wanted, problem = parse_spec(StorageCollectionSpec, body)
        if wanted is None:
            return _Source(CollectionState.UNREADABLE, f"{problem}; correct its spec")
        catalog = ObjectKey(Kind.CATALOG, key.namespace, wanted.catalog_ref.name)
        found = _Source(CollectionState.UNREADABLE, is_kept=has_finalizer(body), spec=wanted, catalog=catalog)
        try:
            # A deletion that waits for the Catalog must see that it is gone.
            waits = deleting and self._stores.opened(catalog) is None
            catalog_body = await self.services.kube.get(catalog, fresh=waits)
        except Gone:
            return replace(found, why=f"there is no Catalog '{catalog.name}'")
        opening = self._stores.opened(catalog)
        found = replace(found, catalog_body=catalog_body, opening=opening)
        if opening is None:
            state = CollectionState.OPENING if is_ready(catalog_body.get("status", {})) else found.state
            return replace(
                found, state=state, why=f"Catalog '{catalog.name}' is not open; check its conditions"
            )
        _, problem = parse_part(SparkTemplate, catalog_body, "spark")
        if problem and not deleting:
            # With another template, a running job would be ended and started again.
            return replace(found, why=f"Catalog '{catalog.name}': {problem}")
        if deleting and not seen.asks_to_delete and seen.deletion.overdue:
            return replace(found, why="its store can't be reached")
        if opening.observed or catalog_body["spec"].get("access") == Access.OBSERVED:
            return replace(found, state=CollectionState.OBSERVED)
        try:
            look = await self._watchlist.look(catalog, key, item_name(wanted, collection.name))
        except (NoSuchSchema, NotReadable) as error:
            return replace(found, why=str(error))
        except Fenced:
            raise
        except HoldfastError as error:
            over = seen.shown.location is not None or not seen.asks_to_delete
            if deleting and over and not seen.shown_running:
                return replace(found, why=str(error))
            raise
        found = replace(found, look=look)
        facts = look.facts
        if facts is None:
            return replace(found, why="it doesn't exist in storage yet; check its conditions")
        if facts.dropped or not facts.renditions or (is_deleting(body) and not deleting):
            return replace(found, state=CollectionState.MISSING)
        if wanted.suspend:
            return replace(found, state=CollectionState.SUSPENDED)
        return replace(found, state=CollectionState.READABLE)

    async def _job(
        self,
        key: ObjectKey,
        seen: SnapshotFacts,
        spec: CollectionSnapshotSpec,
        source: _Source,
        missing: str | None,
        status: Json,
    ) -> SnapshotView:
        """Returns the view for the plan of the job."""
        assert source.look is not None
        assert source.look.facts is not None
        assert source.opening is not None
        facts, jobs = source.look.facts, source.look.jobs
        record = next((job for job in jobs if (job.kind, job.slot) == (SNAPSHOT, seen.slot)), None)
        running = record is not None and record.state is JobState.RUNNING
        template = _template(self._settings.spark_template, spec, source)
        # If this host's clock is wrong, the store's clock decides how long an attempt has been over.
        now = self.services.clock.wall() - timedelta(milliseconds=source.look.ahead_ms)
        return SnapshotView(
            collection_id=facts.collection_id,
            reachable=not source.opening.storage.on_one_machine or self._settings.storage_shared,
            missing=missing,
            objection=self._spark.objection(template),
            not_launched=self._attempts.not_launched(key),
            full=None if missing is not None else await self._attempts.full(key),
            apps=seen.apps,
            launched=shown_launched(status),
            stored=facts.active.size if facts.renditions else StoredSize(0, 0),
            since=facts.since,
            upper=facts.upper,
            now=now,
            failed_for=self._attempts.failed_for(key, () if record is None else (record,)),
            ahead=now - self.services.kube.server_time(),
            request=seen.task,
            object_name=key.name,
            template=template,
            job=record,
            running=(record,) if record is not None and running else (),
            waits_for=_other(jobs, seen.slot),
        )

    async def _with_place(
        self, seen: SnapshotFacts, record: JobRecord | None, namespace: str
    ) -> SnapshotFacts:
        """Adds where the files are, and whether the operator may delete them."""
        folder, destination = None, None if seen.task is None else seen.task.destination
        if record is not None and "destination" in record.spec:
            folder = folder_of(str(record.spec["destination"]), record.job_id)
        elif record is None:
            folder = shown_folder(seen.shown, seen.slot)
        refusal = ""
        if seen.asks_to_delete and (place := folder or destination) is not None:
            bounds = Bounds(namespace, self._settings.data_dir, self._settings.allowed_locations)
            refusal = await asyncio.to_thread(bounds.refusal, place, source=True)
        elif seen.task is not None and seen.task.iceberg is not None:
            refusal = _ICEBERG
        return replace(seen, folder=folder, not_deletable=refusal)

    async def _launch(
        self, key: ObjectKey, body: Json, catalog: ObjectKey, step: StartJob | RetryJob | LaunchAttempt
    ) -> None:
        job = await self._attempts.begun(catalog, step)
        source, opening = self._sources[key], self._stores.opened(catalog)
        if job is None or job.state is not JobState.RUNNING or opening is None or source.catalog_body is None:
            # The next reconciliation shows why.
            return
        spec = CollectionSnapshotSpec.model_validate(body["spec"])
        if not await self._attempts.launch(
            key,
            body,
            catalog,
            step,
            job,
            opening=opening,
            catalog_body=source.catalog_body,
            template=_template(self._settings.spark_template, spec, source),
            order=work_order(job),
        ):
            return
        log.info("attempt %d of the snapshot is launched", job.attempt)

    async def _remove(self, key: ObjectKey, body: Json, folder: str) -> None:
        """Deletes the files. Raises `StorageError` if some are left, and the errors of `_credentials`."""
        credentials = await self._credentials(key, body)
        await self._pool.call("remove_snapshot", folder, lambda: _remove(folder, credentials))
        self._removed[key] = body["metadata"]["uid"]
        note = Note(Reason.DATA_DELETED, f"the files in {folder} are deleted")
        log.info(note.message)
        await self.services.events.post(key, body["metadata"]["uid"], note)

    async def _credentials(self, key: ObjectKey, body: Json) -> Mapping[str, str] | None:
        """Returns the credentials of the Catalog for S3. None stands for the operator's own.

        These are used if the Catalog has none for S3, or if nothing says which Catalog it was, because the
        Catalog or the collection is gone. Raises `SecretNotFound` and `BadInput` if the credentials of a
        Catalog can't be read.
        """
        try:
            named = ObjectKey(Kind.STORAGE_COLLECTION, key.namespace, body["spec"]["collectionRef"]["name"])
            collection = await self.services.kube.get(named, fresh=True)
            owner = ObjectKey(Kind.CATALOG, key.namespace, collection["spec"]["catalogRef"]["name"])
            catalog = await self.services.kube.get(owner, fresh=True)
        except Gone:
            return None
        # Other fields may be newer than this operator.
        asked, problem = parse_part(CatalogStorage, catalog, "storage")
        if asked is None:
            hint = "the operator deletes the files only with the credentials of this Catalog"
            raise BadInput(f"Catalog '{owner.name}': {problem}", hint=hint)
        storage = named_by(asked)
        try:
            found = await credentials_of(self.services.kube, key, storage, None)
        except SecretNotFound:
            where = f"spec.storage.credentialsSecretRef of Catalog '{owner.name}'"
            raise SecretNotFound(storage.secret or "", where) from None
        return of_s3(found.storage)


def _template(default: SparkTemplate | None, spec: CollectionSnapshotSpec, source: _Source) -> SparkTemplate:
    assert source.spec is not None
    assert source.catalog_body is not None
    own, _ = parse_part(SparkTemplate, source.catalog_body, "spark")
    return effective(default, own, source.spec.spark, spec.spark)


def _task(
    spec: CollectionSnapshotSpec, collection: StorageCollectionSpec | None
) -> CollectionSnapshotSpec | None:
    """Returns the spec with its place. The default is that of the collection's schedule, if it has one."""
    if spec.destination is not None or spec.iceberg is not None:
        return spec
    schedule = None if collection is None else collection.snapshot_schedule
    if schedule is None:
        return None
    return spec.model_copy(update={"destination": schedule.destination, "iceberg": schedule.iceberg})


def _other(jobs: tuple[JobRecord, ...], slot: str) -> str | None:
    """Describes another running job of the collection that must end first."""
    for job in jobs:
        if job.kind == SNAPSHOT and job.state is JobState.RUNNING and job.slot != slot:
            return "another snapshot of the collection"
    return waits_for(SnapshotView.kind, jobs)


def _remove(folder: str, credentials: Mapping[str, str] | None) -> None:
    try:
        folder_at(folder, credentials).remove()
    except OSError as error:
        raise StorageError(f"the files in {folder} can't be deleted: {error}") from error


def _shown(status: Json) -> CollectionSnapshotStatus:
    """Returns the current status, or an empty one if another version of the operator wrote it."""
    try:
        return CollectionSnapshotStatus.model_validate(status)
    except ValidationError:
        return CollectionSnapshotStatus()
