"""The handler for CatalogMigrations: observes a migration and its stores, and applies the plan's steps."""

import asyncio
import itertools
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import ValidationError

from holdfast.catalog import FenceToken
from holdfast.catalog.move.truth import Action, Backend
from holdfast.errors import BadInput, Fenced, HoldfastError
from holdfast_operator.api.catalog import Access, CatalogSpec
from holdfast_operator.api.migration import CatalogMigrationSpec, CatalogMigrationStatus
from holdfast_operator.api.names import ANNOTATION_APPROVE_UPGRADE, Kind, Reason
from holdfast_operator.catalogs import fencing
from holdfast_operator.catalogs import plan as catalog
from holdfast_operator.catalogs.facts import Opening, purpose_of
from holdfast_operator.catalogs.fence_records import record
from holdfast_operator.catalogs.keeping import is_loose, keep_catalog
from holdfast_operator.catalogs.observers import observers_of
from holdfast_operator.catalogs.status import named_truth
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.deletion import deletion_of
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt, Handler, Json, OperatorSettings, Services
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.kube import Gone, ObjectKey
from holdfast_operator.engine.resources import annotation, has_finalizer, is_deleting
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.engine.steps import Decision, KeepCatalog, Settle, reconciling, stalled
from holdfast_operator.migrations import plan as migration
from holdfast_operator.migrations.facts import Course, MigrationView, RequestedMove, migration_id
from holdfast_operator.migrations.moves import Migrations
from holdfast_operator.migrations.plan import running
from holdfast_operator.migrations.status import resting
from holdfast_operator.migrations.steps import (
    Abandon,
    BeginMove,
    CloseShadow,
    DryRun,
    OpenShadow,
    Stop,
    TakeStep,
)
from holdfast_operator.places.credentials import Credentials, SecretNotFound, credentials_of, forget_secrets
from holdfast_operator.places.long_calls import UnderWay
from holdfast_operator.places.storage import RefusedLocation, resolve, stash_of

log = logging.getLogger(__name__)


class MigrationHandler(Handler[MigrationView]):
    """Reconciles CatalogMigrations."""

    kind: ClassVar[Kind] = Kind.CATALOG_MIGRATION

    def __init__(
        self,
        services: Services,
        stores: Stores,
        cache: ObjectCache,
        settings: OperatorSettings,
        migrations: Migrations,
    ) -> None:
        super().__init__(services)
        self._stores = stores
        self._cache = cache
        self._settings = settings
        self._migrations = migrations
        for action, store, outcome in itertools.product(Action, Backend, ("ok", "error")):
            services.metrics.migration_steps.labels(action.name.lower(), store.value, outcome)

    async def observe(self, key: ObjectKey, body: Json) -> MigrationView:
        """Reads the spec, the Catalog, and the records in its stores."""
        seen = await self._observe(key, body)
        return replace(seen, needs_finalizer=migration.needs_finalizer(seen))

    async def _observe(self, key: ObjectKey, body: Json) -> MigrationView:
        self._cache.put(key, body)
        spec, problem = parse_spec(CatalogMigrationSpec, body)
        status = body.get("status", {})
        seen = MigrationView(
            name=f"{key.namespace}/{key.name}",
            spec=spec,
            problem=problem,
            deleting=is_deleting(body),
            deletion=deletion_of(body),
            has_finalizer=has_finalizer(body),
            now=self.services.kube.server_time(),
            changed=status.get("observedGeneration") != body["metadata"]["generation"],
            shown=_shown(status),
            course=self._migrations.course(key),
            stepping=self._migrations.is_stepping(key),
            fences=fencing.fences_of(body),
        )
        if spec is None or seen.deletion.abandoned:
            return seen
        seen = await self._with_catalog(seen, spec, key, body["metadata"]["uid"])
        if seen.move is None:
            return seen
        try:
            credentials = await self._credentials(key, seen.move.opening)
            state = await self._migrations.state(key, seen.move, credentials)
        except HoldfastError as error:
            return replace(seen, trouble=settled(error).health)
        return replace(seen, state=state, planned=self._migrations.planned(key, seen.move))

    def plan(self, observed: MigrationView) -> Decision:
        """Returns the next step. Pure."""
        return migration.plan(observed, self._settings.rhythm)

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Applies a step: runs a step of the migration, or releases the Catalog."""
        owner = ObjectKey(Kind.CATALOG, key.namespace, body["spec"]["catalogRef"]["name"])
        match step:
            case KeepCatalog():
                await keep_catalog(self.services, owner)
            case BeginMove():
                move = step.move
                log.info("%s: holds the catalog to move it to %s", move.migration_id, move.destination.value)
                self._migrations.begin(key, owner, move)
                self.services.enqueue(owner, 0.0)
            case TakeStep():
                await self._advance(key, body, owner, step)
            case OpenShadow():
                await self._open_shadow(key, body, owner, step)
            case CloseShadow():
                await self._migrations.close_shadow(key, owner)
            case Abandon():
                await self._abandon(key, owner, step)
            case DryRun():
                await self._dry_run(key, step)
            case Stop():
                await self._migrations.stop(key)
                self._wake(owner)
            case _:
                raise AssertionError(step)

    async def gone(self, key: ObjectKey) -> None:
        """Releases the Catalog, and reconciles it and the other resources that wait for it."""
        owner = self._cache.catalog_of(key)
        self._cache.drop(key)
        if self._migrations.course(key) is not None:
            await self._migrations.stop(key)
        self._migrations.forget(key)
        forget_secrets(key)
        if owner is not None:
            self._wake(owner)

    def held(self, key: ObjectKey) -> None:
        """Reconciles the Catalog, which must outlive this resource from now on, or need no longer do so."""
        if (catalog := self._cache.catalog_of(key)) is not None:
            self.services.look(catalog)

    async def _with_catalog(
        self, seen: MigrationView, spec: CatalogMigrationSpec, key: ObjectKey, uid: str
    ) -> MigrationView:
        owner = ObjectKey(Kind.CATALOG, key.namespace, spec.catalog_ref.name)
        conducts = self._migrations.conducts(owner)
        seen = replace(
            seen,
            rival="" if conducts in (None, key) else str(conducts),
            catalog_open=self._stores.opened(owner) is not None or self._stores.under_way(owner),
        )
        try:
            await self._cache.freed(owner)
            body = await self.services.kube.get(owner)
        except Gone:
            text = f"there is no Catalog '{owner.name}' in this namespace: create it"
            health = stalled(Reason.CATALOG_NOT_FOUND, text)
            return replace(seen, catalog_missing=True, no_catalog=health)
        asked, problem = parse_spec(CatalogSpec, body)
        seen = replace(
            seen,
            catalog_deleting=is_deleting(body),
            catalog_loose=is_loose(body),
            catalog_observed=asked is not None and asked.access == Access.OBSERVED,
            catalog_fences=fencing.fences_of(body),
            known_epoch=body.get("status", {}).get("epoch") or 0,
        )
        if asked is None:
            text = f"the spec of Catalog '{owner.name}' can't be parsed: {problem}; correct it"
            return replace(seen, no_catalog=stalled(Reason.CATALOG_NOT_READY, text))
        opening = await self._opening(owner, asked, body, key)
        if isinstance(opening, Health):
            return replace(seen, no_catalog=opening)
        move = RequestedMove(
            migration_id=migration_id(key, uid, spec, seen.shown.migration_id),
            target=Backend(spec.target),
            rollback=spec.rollback,
            verify=spec.verify,
            purpose=purpose_of(f"{owner.namespace}/{owner.name}", seen.name),
            opening=opening,
        )
        return replace(seen, move=move)

    async def _opening(
        self, owner: ObjectKey, asked: CatalogSpec, body: Json, key: ObjectKey
    ) -> Opening | Health:
        """Returns how to open the catalog, or why there is no catalog to move."""
        if asked.stash is None:
            text = f"Catalog '{owner.name}' has no stash: set its spec.stash"
            return stalled(Reason.CATALOG_NOT_LINKED, text)
        if asked.suspend:
            text = f"Catalog '{owner.name}' is suspended: set its spec.suspend to false"
            return stalled(Reason.CATALOG_NOT_READY, text)
        where = self._settings.data_dir, self._settings.allowed_locations
        storage = await asyncio.to_thread(resolve, asked, key.namespace, *where)
        if isinstance(storage, RefusedLocation):
            return stalled(storage.reason, storage.message)
        if (older := self._cache.older_rival(owner)) is not None:
            text = f"{older} already has the catalog of Catalog '{owner.name}': move that one instead"
            return stalled(Reason.DUPLICATE_CATALOG, text)
        try:
            await credentials_of(self.services.kube, owner, storage, stash_of(asked))
        except (SecretNotFound, BadInput) as error:
            return settled(error).health
        return catalog.opening_for(
            asked,
            storage,
            name=f"{owner.namespace}/{owner.name}",
            holder=self._settings.holder,
            approved_upgrade=annotation(body, ANNOTATION_APPROVE_UPGRADE),
            truth=named_truth(body),
        )

    async def _credentials(self, key: ObjectKey, opening: Opening) -> Credentials:
        return await credentials_of(self.services.kube, key, opening.storage, opening.stash)

    async def _advance(self, key: ObjectKey, body: Json, owner: ObjectKey, step: TakeStep) -> None:
        seen, course = step.seen, step.seen.course
        assert course is not None
        until = seen.deadline or seen.now
        try:
            credentials = await self._credentials(key, step.move.opening)
            others = await observers_of(self.services.kube, self._cache, self._settings, owner)
            after = await self._migrations.advance(
                key, step.move, credentials, others, seconds=(until - seen.now).total_seconds()
            )
        except UnderWay as wait:
            raise Halt(self._waiting(seen, running(course), wait)) from None
        except HoldfastError as error:
            self._count(course, "error")
            raise Halt(await self._failed(key, seen, error)) from None
        if after is None:
            return
        self._count(after, "ok")
        note = Note(Reason.MIGRATION_STEP, f"done: {after.done} (epoch {after.epoch})")
        await self.services.events.post(key, body["metadata"]["uid"], note)
        # The status is written before the next step starts.
        raise Halt(resting(replace(seen, course=after), running(after), requeue_after=0.0))

    async def _failed(self, key: ObjectKey, seen: MigrationView, error: HoldfastError) -> Settle:
        """Returns what to show after a failed step. The migration starts again at its first step."""
        course = self._migrations.course(key)
        log.warning("%s: the step failed, the migration starts again: %s", _id(seen), error)
        if isinstance(error, Fenced):
            durable = error.durable
            purpose = durable.purpose if isinstance(durable, FenceToken) else ""
            if seen.move is not None and purpose == seen.move.purpose:
                # Another operator runs the same migration.
                await record(self.services, key, error, fencing.health_of_move)
                raise error
            text = f"{error}; the operator restarts its steps by itself"
            return resting(
                replace(seen, course=course), reconciling(Reason.FENCED_BY_OTHER, text), retry=True
            )
        return resting(replace(seen, course=course), settled(error).health, retry=True)

    async def _open_shadow(self, key: ObjectKey, body: Json, owner: ObjectKey, step: OpenShadow) -> None:
        seen = step.seen
        assert seen.spec is not None
        until = seen.now + timedelta(seconds=seen.spec.shadow_seconds)
        try:
            await self._migrations.open_shadow(key, owner, until.replace(microsecond=0))
        except UnderWay as wait:
            text = "the catalog is being opened in both stores"
            raise Halt(self._waiting(seen, reconciling(Reason.SHADOWING, text), wait)) from None
        except HoldfastError as error:
            raise Halt(await self._failed(key, seen, error)) from None
        text = f"every change is made in both stores until {timestamp(until)}"
        await self.services.events.post(key, body["metadata"]["uid"], Note(Reason.SHADOWING, text))
        self._wake(owner)

    async def _abandon(self, key: ObjectKey, owner: ObjectKey, step: Abandon) -> None:
        seen = step.seen
        try:
            credentials = await self._credentials(key, step.move.opening)
            others = await observers_of(self.services.kube, self._cache, self._settings, owner)
            await self._migrations.abandon(key, step.move, credentials, others)
        except UnderWay as wait:
            text = "finishing or undoing the migration"
            raise Halt(self._waiting(seen, reconciling(Reason.ABANDONING, text), wait)) from None
        except HoldfastError as error:
            raise Halt(await self._failed(key, seen, error)) from None

    async def _dry_run(self, key: ObjectKey, step: DryRun) -> None:
        try:
            credentials = await self._credentials(key, step.move.opening)
            await self._migrations.dry_run(key, step.move, credentials)
        except UnderWay as wait:
            text = "reading the catalog to find out what the migration would do"
            raise Halt(self._waiting(step.seen, reconciling(Reason.MIGRATION_PENDING, text), wait)) from None
        except HoldfastError as error:
            raise Halt(resting(step.seen, settled(error).health, retry=True)) from None

    def _waiting(self, seen: MigrationView, health: Health, wait: UnderWay) -> Settle:
        """Returns what to show while a call is in progress. It is reconciled again when the call ends."""
        rhythm = self._settings.rhythm
        since = f"since {timestamp(wait.since)}" if wait.since else "queued"
        health = replace(health, message=f"{health.message}; {since}")
        return resting(seen, health, requeue_after=rhythm.steady if wait.since else rhythm.unsteady)

    def _wake(self, owner: ObjectKey) -> None:
        self.services.enqueue(owner, 0.0)
        for dependent in self._cache.dependents_of(owner):
            self.services.look(dependent)

    def _count(self, course: Course, outcome: str) -> None:
        step = course.done if outcome == "ok" else course.next
        name = step.action.name.lower() if step else "end"
        store = step.store.value if step else ""
        self.services.metrics.migration_steps.labels(name, store, outcome).inc()


def _id(seen: MigrationView) -> str:
    return seen.move.migration_id if seen.move else seen.name


def _shown(status: dict[str, Any]) -> CatalogMigrationStatus:
    """Returns the current status, or an empty one if another version of the operator wrote it."""
    try:
        return CatalogMigrationStatus.model_validate(status)
    except ValidationError:
        return CatalogMigrationStatus()
