"""Looks at, and acts on, what a StorageCollection stands for."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from holdfast.collections import JobState, RenditionState
from holdfast.collections.hydration import HYDRATE
from holdfast.errors import CollectionInUse, UniquenessViolation
from holdfast.ingest.kept import SourceProgress
from holdfast.persist import StoredSize
from holdfast_operator.api.catalog import Access, DeletionPolicy
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import ANNOTATION_COMPACT, LABEL_SCHEDULE, Kind, Reason
from holdfast_operator.api.spark import SparkTemplate, effective
from holdfast_operator.catalogs.facts import NotReadable, Opening
from holdfast_operator.catalogs.keeping import is_loose, keep_catalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.collections import plan as collection
from holdfast_operator.collections import snapshot_schedule, store
from holdfast_operator.collections.attempts import Attempts
from holdfast_operator.collections.facts import (
    CatalogState,
    CollectionFacts,
    CollectionView,
    NoSuchSchema,
    SnapshotPlace,
)
from holdfast_operator.collections.long_steps import LongSteps
from holdfast_operator.collections.plan import change_message, item_name
from holdfast_operator.collections.poll import Watchlist
from holdfast_operator.collections.renditions import is_long_over
from holdfast_operator.collections.restore import begins_with_snapshot, place_of, restore_asked
from holdfast_operator.collections.snapshot_index import SnapshotIndex
from holdfast_operator.collections.snapshot_schedule import (
    CreateSnapshot,
    DeleteSnapshot,
    ScheduledSnapshot,
    SnapshotScheduleView,
    last_snapshot,
    schedule_label,
    snapshot_body,
)
from holdfast_operator.collections.spark_work import (
    KINDS,
    VIEWS,
    files_of,
    hydrations_view,
    may_have_driver,
    requested_view,
    secrets_of,
    source_view,
    template_of,
    wants_jobs,
)
from holdfast_operator.collections.status import lag, most_lag_s, shown_phases
from holdfast_operator.collections.steps import (
    AbortRendition,
    DropCollection,
    DropItem,
    EvolveColumns,
    LongChange,
)
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.deletion import asks_to_delete, deletion_of
from holdfast_operator.engine.denials import Denials
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt, Handler, Json, OperatorSettings, Services
from holdfast_operator.engine.known import record, version_of
from holdfast_operator.engine.kube import AdmissionDenied, Exists, Gone, ObjectKey, resource_type
from holdfast_operator.engine.resources import annotation, has_finalizer, is_deleting
from holdfast_operator.engine.specs import parse_part, parse_spec
from holdfast_operator.engine.status_writer import is_ready
from holdfast_operator.engine.steps import Decision, KeepCatalog, Settle, StoreChange, reconciling
from holdfast_operator.jobs import hydration
from holdfast_operator.jobs.course import (
    SNAPSHOT,
    SparkView,
    shown_launched,
    shown_running,
)
from holdfast_operator.jobs.scheduled import shown_in
from holdfast_operator.jobs.steps import FailAttempt, LaunchAttempt, RetryJob, StartJob
from holdfast_operator.places.credentials import forget_secrets, missing_secret
from holdfast_operator.sparkapps.adapter import (
    INGEST,
    AppState,
    NotInstalled,
    SparkAdapter,
)
from holdfast_operator.sparkapps.slots import Slots

log = logging.getLogger(__name__)


class CollectionHandler(Handler[CollectionView]):
    """Reconciles StorageCollections."""

    kind: ClassVar[Kind] = Kind.STORAGE_COLLECTION

    def __init__(
        self,
        services: Services,
        stores: Stores,
        watchlist: Watchlist,
        cache: ObjectCache,
        settings: OperatorSettings,
        spark: SparkAdapter,
        slots: Slots,
        snapshots: SnapshotIndex,
    ) -> None:
        super().__init__(services)
        self._stores = stores
        self._watchlist = watchlist
        self._cache = cache
        self._snapshots = snapshots
        self._settings = settings
        self._spark = spark
        self._slots = slots
        self._attempts = Attempts(services, stores, spark, slots)
        self._denials = Denials(services.clock)
        """Of CollectionSnapshots that couldn't be created."""
        self._long = LongSteps(stores, settings.data_dir, settings.allowed_locations)
        self._read: dict[ObjectKey, tuple[int, SourceProgress | None]] = {}
        """How far the source of each collection is read, and the upper of the collection then."""
        for job, step in itertools.product(
            (SNAPSHOT, HYDRATE, INGEST), ("launched", "failed", "stopped", "cancelled")
        ):
            services.metrics.spark_jobs.labels(job, step)
        services.metrics.missed_runs.labels(SNAPSHOT)

    async def observe(self, key: ObjectKey, body: Json) -> CollectionView:
        """Reads the spec, the Catalog, the store, and the Spark jobs. Raises `Fenced`."""
        seen = await self._observe(key, body)
        return replace(seen, needs_finalizer=collection.needs_finalizer(seen))

    async def _observe(self, key: ObjectKey, body: Json) -> CollectionView:
        for rival in self._cache.put(key, body):
            self.services.enqueue(rival, 0.0)
        spec, problem = parse_spec(StorageCollectionSpec, body)
        status = body.get("status", {})
        older = self._cache.older_rival(key)
        catalog = None if spec is None else _catalog_key(key, spec)
        opening = None if catalog is None else self._stores.opened(catalog)
        blank = CollectionView(
            name=key.name,
            spec=spec,
            problem=problem,
            deleting=is_deleting(body),
            asks_to_delete=asks_to_delete(body),
            deletion=deletion_of(body),
            has_finalizer=has_finalizer(body),
            created="collectionId" in status,
            shown=shown_phases(status),
            shown_running=shown_running(status),
            now=self.services.clock.wall(),
            older_twin=str(older) if older else None,
            has_waiting_snapshots=bool(self._snapshots.waiting_for(key)),
            catalog_void=catalog is not None and self._stores.is_void(catalog),
            catalog_open=opening is not None and not opening.observed,
        )
        if spec is None or catalog is None:
            return blank
        if spec.suspend or blank.deleting:
            self._long.make_way(key)
        blank = await self._with_catalog(blank, catalog)
        if blank.spec is None:
            return blank
        # Nothing is created before the finalizer is set that a deletion needs.
        waits = blank.asks_to_delete and not blank.has_finalizer and not blank.deleting
        if waits or opening is None or opening.observed != blank.catalog_observed or older is not None:
            return blank
        leaves = blank.deleting and spec.deletion_policy == DeletionPolicy.RETAIN
        if blank.deletion.abandoned or (leaves and blank.deletion.overdue):
            # The deletion no longer waits for a store that doesn't respond.
            return blank
        busy = may_have_driver(spec, compact_request(body), status) or blank.has_waiting_snapshots
        if (spec.suspend or leaves) and not busy:
            return blank
        return await self._look_into(blank, spec, opening, key, body)

    def plan(self, observed: CollectionView) -> Decision:
        """Returns the next step. Pure."""
        return collection.plan(observed, self._settings.rhythm)

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Applies a step: changes the catalog, the storage, or the jobs."""
        catalog = ObjectKey(Kind.CATALOG, key.namespace, body["spec"]["catalogRef"]["name"])
        if isinstance(step, KeepCatalog):
            self._cache.need_catalog(key)
            return await keep_catalog(self.services, catalog)
        try:
            await self._apply(key, body, step, catalog)
        except UniquenessViolation as error:
            raise Halt(settled(error, reason=Reason.NAME_TAKEN)) from None
        except CollectionInUse as error:
            text = f"{error}; {error.hint}"
            raise Halt(Settle(reconciling(Reason.COLLECTION_IN_USE, text), retry=True)) from None
        except NotInstalled as error:
            # The next reconciliation shows that it is missing.
            log.warning("%s", error)

    async def gone(self, key: ObjectKey) -> None:
        """Reconciles the rivals and the Catalog."""
        catalog, rivals = self._cache.catalog_of(key), self._cache.rivals_of(key)
        self._cache.drop(key)
        forget_secrets(key)
        self.services.metrics.forget(key.namespace, key.name)
        self._long.stop(key)
        self._watchlist.forget(key)
        self._read.pop(key, None)
        self._attempts.forget(key)
        for other in (*rivals, *((catalog,) if catalog else ())):
            self.services.enqueue(other, 0.0)

    def held(self, key: ObjectKey) -> None:
        """Reconciles the Catalog, which must outlive this resource from now on, or need no longer do so."""
        if (catalog := self._cache.catalog_of(key)) is not None:
            self.services.look(catalog)

    async def _with_catalog(self, seen: CollectionView, catalog: ObjectKey) -> CollectionView:
        try:
            await self._cache.freed(catalog)
            # A deletion that waits for its Catalog must see that it is gone.
            waits = seen.deleting and self._stores.opened(catalog) is None
            body = await self.services.kube.get(catalog, fresh=waits)
        except Gone:
            return replace(seen, catalog=CatalogState.MISSING)
        observed = body["spec"].get("access") == Access.OBSERVED
        opening = self._stores.opened(catalog)
        state = CatalogState.OPENING if is_ready(body.get("status", {})) else CatalogState.CLOSED
        if is_deleting(body):
            state = CatalogState.DELETING
        elif opening is not None and opening.observed == observed:
            state = CatalogState.OPEN
        seen = replace(seen, catalog=state, catalog_loose=is_loose(body), catalog_observed=observed)
        template, problem = parse_part(SparkTemplate, body, "spark")
        if problem and not seen.deleting:
            # With another template, running jobs would be ended and started again.
            return replace(seen, spec=None, problem=f"Catalog '{catalog.name}': {problem}")
        return replace(seen, catalog_spark=template)

    async def _look_into(
        self, blank: CollectionView, spec: StorageCollectionSpec, opening: Opening, key: ObjectKey, body: Json
    ) -> CollectionView:
        # Read the applications before the records: see the plan.
        apps, missing = await self._applications(key, body, spec)
        name = item_name(spec, key.name)
        try:
            look = await self._watchlist.look(_catalog_key(key, spec), key, name)
        except NoSuchSchema as error:
            if blank.deleting or blank.catalog_observed or spec.suspend:
                return blank
            raise Halt(settled(error, reason=Reason.NO_SUCH_SCHEMA)) from None
        except NotReadable as error:
            if blank.deleting or spec.suspend:
                return blank
            text = f"{error}; check the conditions of Catalog '{spec.catalog_ref.name}'"
            raise Halt(Settle(reconciling(Reason.CATALOG_NOT_READY, text), retry=True)) from None
        seen = replace(
            blank,
            item_id=look.item_id,
            definition=look.definition,
            collection_id=look.collection_id,
            facts=look.facts,
            # If this host's clock is wrong, the store's clock decides what is due.
            now=blank.now - timedelta(milliseconds=look.ahead_ms),
        )
        facts = look.facts
        if facts is None:
            return seen
        self._measure(key, facts)
        if is_long_over(facts, spec):
            self._long.make_way(key)
        status, compact = body.get("status", {}), compact_request(body)
        shared = SparkView(
            collection_id=facts.collection_id,
            reachable=not opening.storage.on_one_machine or self._settings.storage_shared,
            missing=missing,
            not_launched=self._attempts.not_launched(key),
            full=await self._full(key, spec, compact, missing),
            no_secret=await missing_secret(self.services.kube, key, secrets_of(spec)),
            apps=apps,
            launched=shown_launched(status),
            stored=facts.active.size if facts.renditions else StoredSize(0, 0),
            since=facts.since,
            upper=facts.upper,
            now=seen.now,
            # Each CollectionSnapshot counts the attempts of its own job.
            failed_for=self._attempts.failed_for(key, (job for job in look.jobs if job.kind != SNAPSHOT)),
            ahead=seen.now - self.services.kube.server_time(),
        )
        here = self._long.filling(key, facts.collection_id)
        takes = self._spark.objection
        base = self._template(blank.catalog_spark, spec)
        source = source_view(
            shared,
            spec,
            base,
            status,
            look.jobs,
            takes,
            fed=facts.fed,
            restoring=begins_with_snapshot(facts, spec),
            # A dropped collection has no renditions.
            facts=None if facts.dropped else facts,
        )
        if source is not None:
            is_stalled = source.shown is not None and source.shown.status == "True"
            self.services.metrics.source_stalled.labels(key.namespace, key.name).set(is_stalled)
        return replace(
            seen,
            reached=shared.reached,
            hydrations=hydrations_view(shared, spec, base, look.jobs, here, takes),
            retention_since=max(facts.upper - 1 - spec.retention.milliseconds, 0),
            asked=tuple(
                requested_view(view, shared, spec, compact, base, status, look.jobs, takes) for view in VIEWS
            ),
            snapshots=await self._scheduled(key, spec, base, status, shared.reached),
            last_snapshot=last_snapshot(look.jobs),
            restore_place=await self._restore_place(key, spec, facts),
            snapshots_running=tuple(
                job for job in look.jobs if job.kind == SNAPSHOT and job.state is JobState.RUNNING
            ),
            source=source,
            progress=await self._progress(key, _catalog_key(key, spec), spec, facts),
        )

    async def _restore_place(
        self, key: ObjectKey, spec: StorageCollectionSpec, facts: CollectionFacts
    ) -> SnapshotPlace | None:
        """Returns where the snapshot to restore is. None if there is nothing to restore."""
        asked = restore_asked(facts, spec)
        if asked is None or asked.done or spec.restore_from is None:
            return None
        if (ref := spec.restore_from.snapshot_ref) is None:
            return SnapshotPlace(spec.restore_from.snapshot or "")
        try:
            body = await self.services.kube.get(snapshot_key(key.namespace, ref.name))
        except Gone:
            return place_of(ref.name, None)
        return place_of(ref.name, body)

    async def _progress(
        self, key: ObjectKey, catalog: ObjectKey, spec: StorageCollectionSpec, facts: CollectionFacts
    ) -> SourceProgress | None:
        """Returns how far the source is read. Reads that again only if the collection has moved."""
        if spec.source is None or not facts.fed or facts.dropped:
            return None
        read_at, found = self._read.get(key, (0, None))
        if read_at != facts.upper:
            id_ = facts.collection_id
            found = await self._stores.read(catalog, "progress", lambda handle: store.progress(handle, id_))
            self._read[key] = facts.upper, found
        if found is not None:
            follows = most_lag_s(spec.source) is not None
            complete_s = found.complete_before / 1000 if follows else None
            self.services.metrics.show_source(key.namespace, key.name, complete_s, found)
        return found

    async def _applications(
        self, key: ObjectKey, body: Json, spec: StorageCollectionSpec
    ) -> tuple[tuple[AppState, ...], str | None]:
        """Returns the applications, or why there can't be any."""
        status = body.get("status", {})
        if spec.hydration.spark is None and not may_have_driver(spec, compact_request(body), status):
            return (), None
        return await self._attempts.applications(key, body["metadata"]["uid"])

    async def _scheduled(
        self,
        key: ObjectKey,
        spec: StorageCollectionSpec,
        base: SparkTemplate,
        status: Json,
        now: datetime,
    ) -> SnapshotScheduleView | None:
        """Returns the view for the plan of the schedule of snapshots. None without one."""
        if spec.snapshot_schedule is None:
            return None
        if not self.services.kube.known.follows:
            await self._list_scheduled(key)
        there = self._snapshots.scheduled(key)
        record((key, snapshot_schedule.FIELD), partial(self._schedules_same, key, there))
        shown = shown_in(status, snapshot_schedule.FIELD)
        denied = self._denials.why(key)
        objection = self._spark.objection(effective(base, spec.snapshot_schedule.spark))
        return SnapshotScheduleView(key.name, spec.snapshot_schedule, shown, there, now, denied, objection)

    async def _schedules_same(self, key: ObjectKey, before: Sequence[ScheduledSnapshot]) -> bool:
        """Returns whether the CollectionSnapshots of a schedule are still as they were."""
        await self._list_scheduled(key)
        return self._snapshots.scheduled(key) == before

    async def _list_scheduled(self, key: ObjectKey) -> None:
        """Requests the CollectionSnapshots of a schedule, and records them as events would."""
        kube, labels = self.services.kube, f"{LABEL_SCHEDULE}={schedule_label(key.name)}"
        type_ = resource_type(Kind.COLLECTION_SNAPSHOT)
        found, version = await kube.list_pages(type_, key.namespace, labels=labels)
        listed = {snapshot_key(key.namespace, body["metadata"]["name"]): body for body in found}
        for each, body in listed.items():
            if kube.known.put(each, body):
                self._note_snapshot(each, body)
            elif kube.known.version(each) == version_of(body):
                self._snapshots.put(each, body)
        for known in self._snapshots.scheduled(key):
            other = snapshot_key(key.namespace, known.name)
            if other not in listed and kube.known.version(other) <= version:
                self._snapshots.drop(other)
                self.services.enqueue(other, 0.0)

    def _note_snapshot(self, snapshot: ObjectKey, body: Json) -> None:
        """Records a CollectionSnapshot before its event comes, which is no news then."""
        self.services.seen(snapshot, body)
        self.services.enqueue(snapshot, 0.0)

    async def _full(
        self, key: ObjectKey, spec: StorageCollectionSpec, compact: str, missing: str | None
    ) -> str | None:
        if missing is not None or not wants_jobs(spec, compact):
            return None
        return await self._attempts.full(key)

    async def _apply(self, key: ObjectKey, body: Json, step: Decision, catalog: ObjectKey) -> None:
        match step:
            case LongChange():
                await self._long.take(key, step, catalog)
            case StartJob() | RetryJob() | LaunchAttempt() if not step.limited:
                await self._launch(key, body, catalog, step)
            case StartJob() | RetryJob() | LaunchAttempt():
                with self._slots.taken(key) as there:
                    # If another job has taken the last slot, the next reconciliation shows that it waits.
                    if there:
                        await self._launch(key, body, catalog, step)
            case FailAttempt():
                await self._attempts.fail(key, catalog, step)
            case CreateSnapshot():
                await self._create_snapshot(key, body, step)
            case DeleteSnapshot():
                type_ = resource_type(Kind.COLLECTION_SNAPSHOT)
                await self.services.kube.delete(type_, key.namespace, step.name, uid=step.uid)
                log.info("CollectionSnapshot '%s' is no longer kept", step.name)
            case StoreChange():
                if isinstance(step, AbortRendition | DropCollection):
                    self._long.stop(key)
                await self._stores.use(catalog, step.call, lambda handle: store.take(handle, step))
            case _:
                raise AssertionError(step)
        if isinstance(step, EvolveColumns):
            note = Note(Reason.COLUMNS_ADDED, change_message(step.before, step.schema))
            await self.services.events.post(key, body["metadata"]["uid"], note)
        if isinstance(step, DropItem):
            note = Note(Reason.DATA_DELETED, f"collection {step.item} and its data are deleted")
            notes = [note]
            if step.left:
                notes.append(Note(Reason.SOURCE_LEFT, step.left, warning=True))
            for each in notes:
                log.info(each.message)
                await self.services.events.post(key, body["metadata"]["uid"], each)

    def _template(self, of_catalog: SparkTemplate | None, spec: StorageCollectionSpec) -> SparkTemplate:
        return effective(self._settings.spark_template, of_catalog, spec.spark)

    async def _launch(
        self, key: ObjectKey, body: Json, catalog: ObjectKey, step: StartJob | RetryJob | LaunchAttempt
    ) -> None:
        job = await self._attempts.begun(catalog, step)
        if job is None:
            return
        if job.state is not JobState.RUNNING or (job.kind == HYDRATE and not hydration.is_sparks(job)):
            # Another process was faster. The next reconciliation shows the result.
            return
        spec = StorageCollectionSpec.model_validate(body["spec"])
        opening = self._stores.opened(catalog)
        owner = await self.services.kube.get(catalog)
        own, problem = parse_part(SparkTemplate, owner, "spark")
        base = self._template(own, spec)
        found = template_of(spec, compact_request(body), base, job)
        if found is None or opening is None or (problem and not is_deleting(body)):
            # The next reconciliation shows why.
            return
        template, order = found
        if not await self._attempts.launch(
            key,
            body,
            catalog,
            step,
            job,
            opening=opening,
            catalog_body=owner,
            template=template,
            order=order,
            files=files_of(spec, base, job),
        ):
            return
        log.info("attempt %d of %s %s is launched", job.attempt, job.kind, job.slot)

    async def _create_snapshot(self, key: ObjectKey, body: Json, step: CreateSnapshot) -> None:
        spec = StorageCollectionSpec.model_validate(body["spec"])
        if spec.snapshot_schedule is None:
            return
        body = snapshot_body(key.name, key.namespace, spec.snapshot_schedule, step)
        kube, snapshot = self.services.kube, snapshot_key(key.namespace, step.name)
        try:
            made = await kube.create(resource_type(Kind.COLLECTION_SNAPSHOT), key.namespace, body)
        except AdmissionDenied as error:
            # Everything else that the collection needs goes on.
            self._denials.add(key, str(error))
            return
        except Exists:
            # The list right before this step would show it if the schedule had created it.
            text = f"there is a CollectionSnapshot '{step.name}' that the schedule did not create; delete it"
            self._denials.add(key, text)
            return
        kube.known.put(snapshot, made)
        self._note_snapshot(snapshot, made)
        log.info("CollectionSnapshot '%s' is created", step.name)

    def shown(self, key: ObjectKey, body: Json, before: Json) -> None:
        """Also counts the missed runs."""
        super().shown(key, body, before)
        status = body.get("status", {})
        fields = {SNAPSHOT: snapshot_schedule.FIELD, **{kind.job: kind.schedule_field for kind in KINDS}}
        for job, field in fields.items():
            now, then = (shown_in(each, field).missed_runs for each in (status, before))
            self.services.metrics.missed_runs.labels(job).inc(max(now - then, 0))

    def _measure(self, key: ObjectKey, facts: CollectionFacts) -> None:
        metrics = self.services.metrics
        metrics.upper.show((key.namespace, key.name), facts.upper)
        metrics.since.show((key.namespace, key.name), facts.since)
        hydrating = (each for each in facts.renditions if each.state is RenditionState.HYDRATING)
        metrics.show_lags(key.namespace, key.name, {each.id: lag(facts, each) for each in hydrating})


def snapshot_key(namespace: str, name: str) -> ObjectKey:
    """Returns the key of a CollectionSnapshot."""
    return ObjectKey(Kind.COLLECTION_SNAPSHOT, namespace, name)


def compact_request(body: Json) -> str:
    """Returns the value of the annotation that requests a compaction, or empty."""
    return annotation(body, ANNOTATION_COMPACT)


def _catalog_key(key: ObjectKey, spec: StorageCollectionSpec) -> ObjectKey:
    return ObjectKey(Kind.CATALOG, key.namespace, spec.catalog_ref.name)
