"""The handler for Catalogs: observes a Catalog and its store, and applies the steps of its plan."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Protocol

from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    Deprecated,
    Fenced,
    FenceRegressed,
    HoldfastError,
    LinkConflict,
    LinkedElsewhere,
    MigrationInProgress,
    NotSourceOfTruth,
    ShardFinalized,
    StorageError,
    StoreUnreachable,
    StrategyMismatch,
    VersionTooNew,
)
from holdfast_operator.api.catalog import Access, CatalogSpec
from holdfast_operator.api.names import (
    ANNOTATION_APPROVE_UPGRADE,
    ANNOTATION_REOPEN,
    ANNOTATION_TRUTH,
    FINALIZER,
    Kind,
    Reason,
)
from holdfast_operator.catalogs import fencing, takeovers
from holdfast_operator.catalogs import plan as catalog
from holdfast_operator.catalogs.conditions import opening_since, sizes_of, upgrade_message
from holdfast_operator.catalogs.config_maps import Connections
from holdfast_operator.catalogs.connection import Seen
from holdfast_operator.catalogs.dependents import collections_of, unfinished_migrations
from holdfast_operator.catalogs.facts import (
    CatalogFacts,
    CatalogView,
    Durable,
    EpochWentBack,
    NothingThere,
    ObservedByAnother,
    Opening,
    OwnedByAnother,
    UnknownLocation,
    UpgradePending,
)
from holdfast_operator.catalogs.objects import NOTHING_DECLARED, ObjectsPlan, declared_by
from holdfast_operator.catalogs.observers import observers_of
from holdfast_operator.catalogs.opening import Observer
from holdfast_operator.catalogs.status import durable_fields, handled_truth, named_truth
from holdfast_operator.catalogs.steps import Close, Destroy, GiveUp, KeepObjects, Open, Publish, RollOut
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.deletion import asks_to_delete, deletion_of
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.handler import Halt, Handler, Json, OperatorSettings, Services
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.kube import Conflict, ObjectKey
from holdfast_operator.engine.queue import Result
from holdfast_operator.engine.resources import annotation, has_finalizer, is_deleting, kept_fields
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.engine.status_writer import is_ready, timestamp
from holdfast_operator.engine.steps import Decision, Settle, Wait, reconciling, stalled
from holdfast_operator.places.credentials import Credentials, SecretNotFound, credentials_of, forget_secrets
from holdfast_operator.places.long_calls import UnderWay
from holdfast_operator.places.storage import (
    RefusedLocation,
    RestoreSource,
    Storage,
    resolve,
    resolve_restore,
    stash_of,
)

log = logging.getLogger(__name__)

_UNSHOWN_SECONDS: Final = 30.0
"""Seconds for which a Catalog that is shown as Ready stays so while it opens. After a restart, many Catalogs
open at once. Without this, each that takes a few seconds would get a second status and a second Event."""


class Conducted(Protocol):
    """The Catalogs that migrations hold."""

    def conducts(self, catalog: ObjectKey) -> ObjectKey | None:
        """Returns the CatalogMigration that holds a Catalog, if any."""

    def is_shadowing(self, catalog: ObjectKey) -> bool:
        """Returns whether that migration has opened the Catalog in both stores."""


class CatalogHandler(Handler[CatalogView]):
    """Reconciles Catalogs."""

    kind: ClassVar[Kind] = Kind.CATALOG

    def __init__(
        self,
        services: Services,
        stores: Stores,
        cache: ObjectCache,
        settings: OperatorSettings,
        migrations: Conducted,
    ) -> None:
        super().__init__(services)
        self._stores = stores
        self._migrations = migrations
        self._cache = cache
        self._settings = settings
        self._connections = Connections(services.kube)
        self._templates: dict[ObjectKey, Json | None] = {}
        """The template of Spark jobs in each spec. The collections read it when they are reconciled."""
        self._opening: dict[ObjectKey, float] = {}
        """When each open in progress was first waited for."""

    async def observe(self, key: ObjectKey, body: Json) -> CatalogView:
        """Reads the spec, the Secret, the store, and the Catalog's dependents. Raises `Fenced`."""
        for rival in self._cache.put(key, body):
            self.services.enqueue(rival, 0.0)
        template = body.get("spec", {}).get("spark")
        if self._templates.setdefault(key, template) != template:
            self._templates[key] = template
            self._wake_dependents(key)
        spec, problem = parse_spec(CatalogSpec, body)
        storage: Storage | RefusedLocation = RefusedLocation(problem)
        restore: RestoreSource | RefusedLocation | None = None
        if spec is not None:
            where = self._settings.data_dir, self._settings.allowed_locations
            # These calls use the file system, which may hang.
            storage = await asyncio.to_thread(resolve, spec, key.namespace, *where)
            restore = await asyncio.to_thread(resolve_restore, spec, key.namespace, *where)
        if (
            isinstance(storage, RefusedLocation)
            and spec is not None
            and "shardId" not in body.get("status", {})
        ):
            self._void(key)
        deleting = is_deleting(body)
        older = self._cache.older_rival(key)
        status = body.get("status", {})
        secrets = await self._secrets(key, body, spec, storage, restore)
        version = secrets.version if isinstance(secrets, Credentials) else None
        opened = self._stores.opened(key)
        # A handle with older credentials may not reach its store. The plan closes it.
        outdated = opened is not None and version is not None and opened.secrets != version
        facts = None if deleting or outdated else await self._facts(key)
        dependents = await collections_of(self.services.kube, key) if deleting else ()
        return CatalogView(
            name=f"{key.namespace}/{key.name}",
            spec=spec,
            problem=problem,
            deleting=deleting,
            asks_to_delete=asks_to_delete(body),
            deletion=deletion_of(body),
            has_finalizer=has_finalizer(body),
            needs_finalizer=asks_to_delete(body) or self._cache.is_needed(key),
            known_epoch=status.get("epoch") or 0,
            initialized="shardId" in status,
            void=self._stores.is_void(key),
            older_twin=str(older) if older else None,
            fences=fencing.fences_of(body),
            storage=storage,
            restore=restore,
            reopen=annotation(body, ANNOTATION_REOPEN),
            approved_upgrade=annotation(body, ANNOTATION_APPROVE_UPGRADE),
            restored_from=self._restored_from(key, status),
            unusable_secret=secrets if isinstance(secrets, Health) else None,
            secrets=version or 0,
            under_way=self._stores.under_way(key),
            opened=self._stores.opened(key),
            facts=facts,
            connection=await self._connection(key, body, spec, facts),
            objects=await self._plan_objects(key, spec) if facts and spec else NOTHING_DECLARED,
            migration=str(self._migrations.conducts(key) or ""),
            in_both=self._migrations.is_shadowing(key),
            named_truth=named_truth(body),
            handled_truth=handled_truth(body),
            migrations=await unfinished_migrations(self.services.kube, key) if deleting else (),
            dependents=tuple(each.name for each in dependents),
            kept_dependents=tuple(each.name for each in dependents if not each.deleting),
            doomed_dependents=any(each.doomed for each in dependents),
            busy_dependents=any(each.busy for each in dependents),
            holder=self._settings.holder,
        )

    def plan(self, observed: CatalogView) -> Decision:
        """Returns the next step. Pure."""
        return catalog.plan(observed, self._settings.rhythm)

    async def apply(self, key: ObjectKey, body: Json, step: Decision) -> None:
        """Applies a step: opens, changes, closes or destroys the catalog."""
        match step:
            case Open():
                await self._open(key, body, step.opening)
            case KeepObjects():
                await self._stores.use(key, "keep_objects", lambda h: h.keep_objects(step.declared))
                log.info("the catalog has the declared objects")
                self._wake_dependents(key)
            case Publish():
                await self._connections.publish(key, body["metadata"]["uid"], step.connection)
            case RollOut():
                await self._roll_out(key, body, step.opening)
            case GiveUp():
                self._stores.give_up(key)
            case Close():
                await self._stores.close(key)
                self._wake_dependents(key)
            case Destroy():
                await self._stores.destroy(key)
                note = Note(Reason.DATA_DELETED, "the catalog and its data are deleted")
                log.info(note.message)
                await self.services.events.post(key, body["metadata"]["uid"], note)
            case _:
                raise AssertionError(step)

    def shown(self, key: ObjectKey, body: Json, before: Json) -> None:
        """Reconciles the Catalog's dependents if the Catalog is no longer ready, because they show that."""
        super().shown(key, body, before)
        if is_ready(before) and not is_ready(body["status"]):
            self._wake_dependents(key)

    async def gone(self, key: ObjectKey) -> None:
        """Closes the catalog, and reconciles rivals and dependents."""
        rivals = self._cache.rivals_of(key)
        self._cache.drop(key)
        self._templates.pop(key, None)
        self._opening.pop(key, None)
        self.services.metrics.forget(key.namespace, key.name)
        self._stores.note_void(key, void=False)
        self._connections.forget(key)
        await self._stores.close(key)
        forget_secrets(key)
        self._wake_dependents(key)
        for rival in rivals:
            self.services.enqueue(rival, 0.0)

    async def _patch_metadata(self, key: ObjectKey, body: Json, change: Json) -> Json:
        """As in the base class, but keeps the finalizer if a resource has started to need the Catalog."""
        if FINALIZER in change["finalizers"] or is_deleting(body):
            return await super()._patch_metadata(key, body, change)
        with self._cache.freeing(key):
            if self._cache.is_needed(key):
                raise Conflict(f"{key} is needed")
            return await super()._patch_metadata(key, body, change)

    async def _show(self, key: ObjectKey, body: Json, step: Settle) -> Result:
        """As in the base class, with the Catalog's ConfigMap and the applied annotation in the status."""
        step = self._connections.shown(key, body.get("status", {}), step)
        return await super()._show(key, body, _with_handled_truth(body, step))

    async def _roll_out(self, key: ObjectKey, body: Json, opening: Opening) -> None:
        """Lets the next deploy generation take over, if it can open the catalog."""
        try:
            await self._stores.preflight(key, opening, await self._credentials(key, opening))
        except UnderWay as wait:
            since = f"since {timestamp(wait.since)}" if wait.since else "when other catalogs are done"
            text = f"deploy generation {opening.deploy_generation} is tried in memory {since}"
            raise Halt(self._soon(wait, reconciling(Reason.ROLLING_OUT, text))) from None
        except HoldfastError as error:
            text = f"deploy generation {opening.deploy_generation} can't open the catalog: {error}"
            running = self._stores.opened(key)
            if running is not None:
                text += (
                    f"; generation {running.deploy_generation} continues, and the operator retries by itself"
                )
            raise Halt(Settle(stalled(Reason.PREFLIGHT_FAILED, text), retry=True)) from None
        await self._stores.close(key)
        await self._open(key, body, opening)

    async def _open(self, key: ObjectKey, body: Json, opening: Opening) -> None:
        await self._check_fence(key, body, opening)
        try:
            credentials = await self._credentials(key, opening)
            observers: Sequence[Observer] = ()
            if not opening.observed:
                observers = await observers_of(self.services.kube, self._cache, self._settings, key)
            await self._stores.open(key, opening, credentials, observers)
        except UnderWay as wait:
            raise Halt(await self._while_opening(key, body, opening, wait)) from None
        except (ShardFinalized, NothingThere, OwnedByAnother, ObservedByAnother) as error:
            if opening.observed and isinstance(error, NothingThere):
                raise Halt(catalog.awaiting_writer(self._settings.rhythm)) from None
            # Finalized: an earlier process got this far before it died. Owned by another Catalog: that one
            # decides what happens to the data.
            self._void(key)
            if not is_deleting(body):
                raise
            return
        except UnknownLocation as error:
            if "shardId" not in body.get("status", {}):
                self._void(key)
                if is_deleting(body):
                    return
            raise Halt(settled(error, reason=Reason.UNSUPPORTED_STORAGE)) from None
        except (VersionTooNew, Deprecated, UpgradePending) as error:
            raise Halt(await self._not_opened(key, body, opening, error)) from None
        except (LinkConflict, StrategyMismatch, LinkedElsewhere) as error:
            raise Halt(await self._not_linked(key, body, opening, error)) from None
        except Fenced as error:
            raise Halt(takeovers.shut_out(error, opening)) from None
        except EpochWentBack as error:
            raise Halt(self._went_back(body, opening, error.found, error.least)) from None
        self._opening.pop(key, None)
        facts = await self._facts(key)
        if facts is not None and opening.observed:
            log.info("observed; written by %s", facts.holder)
        elif facts is not None:
            note = Note(Reason.CATALOG_OPENED, f"opened for writing at epoch {facts.epoch}")
            log.info(note.message)
            self.services.metrics.epoch.labels(key.namespace, key.name).set(facts.epoch)
            await self.services.events.post(key, body["metadata"]["uid"], note)
            await self._tell_upgrade(key, body)
        self._wake_dependents(key)

    async def _while_opening(
        self, key: ObjectKey, body: Json, opening: Opening, wait: UnderWay
    ) -> Settle | Wait:
        """Returns what to show while an open is in progress. At first, a Ready Catalog stays Ready."""
        now = self.services.clock.monotonic()
        unshown = self._opening.setdefault(key, now) + _UNSHOWN_SECONDS - now
        status = body.get("status", {})
        # A status of an earlier spec says nothing about this one.
        is_current = status.get("observedGeneration") == body["metadata"]["generation"]
        if unshown > 0 and is_current and is_ready(status):
            return Wait(min(unshown, self._settings.rhythm.unsteady))
        return self._soon(wait, await self._opening_since(key, wait, opening))

    def _soon(self, wait: UnderWay, health: Health) -> Settle:
        """Returns what to show while a call is in progress. The Catalog is reconciled when the call ends."""
        rhythm = self._settings.rhythm
        return Settle(health, requeue_after=rhythm.steady if wait.since else rhythm.unsteady)

    async def _check_fence(self, key: ObjectKey, body: Json, opening: Opening) -> None:
        """Halts if the catalog's stored epoch is lower than before and nobody has raised it again."""
        least = self._stores.least_epoch(key, opening)
        if least is None or opening.observed:
            return
        found = await self._stores.answer(opening, await self._credentials(key, opening))
        if isinstance(found, StoreUnreachable):
            raise Halt(settled(found))
        if takeovers.needs_fence(found, least):
            raise Halt(self._went_back(body, opening, found, least))

    def _went_back(self, body: Json, opening: Opening, found: Durable | None, least: int) -> Settle:
        """Returns what to show if the stored epoch is too low. The status keeps the earlier epoch."""
        fields = None
        if found is not None and found.epoch is not None:
            fields = _closed_fields(body, replace(found, epoch=least))
        health = takeovers.regressed(opening, found, least)
        return Settle(health, fields=fields, requeue_after=self._settings.rhythm.steady)

    async def _opening_since(self, key: ObjectKey, wait: UnderWay, opening: Opening) -> Health:
        found = await self._stores.answer(opening, await self._credentials(key, opening))
        now = self.services.clock.wall()
        silent = takeovers.no_answer(opening, wait, now, found, self._settings.silence)
        return silent or opening_since(opening, wait.since, _known(found))

    async def _not_opened(self, key: ObjectKey, body: Json, opening: Opening, error: HoldfastError) -> Settle:
        """Returns what to show, with the version, for a catalog whose format keeps it closed."""
        found = await self._stores.durable_state(opening, await self._credentials(key, opening))
        retry = True
        if isinstance(error, UpgradePending):
            said, retry = await self._try_upgrade(key, opening)
            error = UpgradePending(f"{error}; {said}", hint=error.hint)
        return replace(settled(error), fields=_closed_fields(body, found), retry=retry)

    async def _not_linked(self, key: ObjectKey, body: Json, opening: Opening, error: HoldfastError) -> Settle:
        """Returns what to show for a catalog whose two stores don't fit together.

        If the stores are no longer linked, this removes the link from the status. While the status shows a
        link, the API server refuses to remove the stash from the spec.
        """
        fields = kept_fields(body.get("status", {}))
        settle = settled(error)
        if handled_truth(body):
            text = (
                f"{settle.health.message}; the annotation {ANNOTATION_TRUTH} was already applied and has no "
                "further effect: to decide again, remove it and set it again"
            )
            settle = replace(settle, health=replace(settle.health, message=text))
        with contextlib.suppress(HoldfastError):
            if not await self._stores.is_linked(opening, await self._credentials(key, opening)):
                fields.pop("link", None)
        return replace(settle, fields=fields)

    async def _try_upgrade(self, key: ObjectKey, opening: Opening) -> tuple[str, bool]:
        """Returns the result of an upgrade check, and whether to retry soon.

        The check reads the whole catalog. So it is repeated only by a resync, or if something changes.
        """
        try:
            credentials = await self._credentials(key, opening)
            return await self._stores.try_upgrade(key, opening, credentials), False
        except UnderWay as wait:
            if wait.since is None:
                return "an upgrade check is queued", True
            return f"an upgrade check is running since {timestamp(wait.since)}", False
        except StorageError as error:
            return f"the upgrade check failed ({error}): run holdfast catalog upgrade-check", False

    async def _tell_upgrade(self, key: ObjectKey, body: Json) -> None:
        start, opening = self._stores.started(key), self._stores.opened(key)
        if start is None or start.upgraded is None or opening is None:
            return
        self.services.metrics.upgraded(key.namespace, key.name, *sizes_of(start.upgraded))
        note = Note(Reason.CATALOG_UPGRADED, upgrade_message(start.upgraded, start.kept, opening))
        log.info(note.message)
        await self.services.events.post(key, body["metadata"]["uid"], note)

    async def _secrets(
        self,
        key: ObjectKey,
        body: Json,
        spec: CatalogSpec | None,
        storage: Storage | RefusedLocation,
        restore: RestoreSource | RefusedLocation | None,
    ) -> Credentials | Health | None:
        """Returns the credentials, the problem with them, or None if they are not needed."""
        if spec is None or isinstance(storage, RefusedLocation):
            return None
        ended = self._stores.opened(key) is not None or self._stores.is_void(key)
        if is_deleting(body) and (ended or deletion_of(body).abandoned):
            # The Secret is no longer needed. In a namespace that is being deleted, the Secret or the
            # permission to read it may be gone.
            return None
        source = None if isinstance(restore, RefusedLocation) else restore
        try:
            return await credentials_of(
                *(self.services.kube, key, storage, stash_of(spec), source), deleting=is_deleting(body)
            )
        except (SecretNotFound, BadInput) as error:
            return settled(error).health

    async def _credentials(self, key: ObjectKey, opening: Opening) -> Credentials:
        return await credentials_of(
            *(self.services.kube, key, opening.storage, opening.stash, opening.restore),
            deleting=opening.existing_only,
        )

    def _void(self, key: ObjectKey) -> None:
        if not self._stores.is_void(key):
            self._stores.note_void(key, void=True)
            self._wake_dependents(key)

    async def _facts(self, key: ObjectKey) -> CatalogFacts | None:
        try:
            return await self._stores.confirm(key)
        except (CatalogOutOfSync, NotSourceOfTruth, MigrationInProgress):
            # This handle may not be able to continue. A new one reads everything from the source of truth.
            await self._stores.close(key)
            raise
        except FenceRegressed as error:
            await self._stores.set_aside(key, error)
            return None
        except NothingThere:
            # The catalog is observed, and its store was emptied.
            await self._stores.close(key)
            return None

    async def _connection(
        self, key: ObjectKey, body: Json, spec: CatalogSpec | None, facts: CatalogFacts | None
    ) -> Seen | None:
        observed = spec is not None and spec.access == Access.OBSERVED and not is_deleting(body)
        if facts is None and not observed:
            return None
        return await self._connections.look(key, body["metadata"]["uid"])

    async def _plan_objects(self, key: ObjectKey, spec: CatalogSpec) -> ObjectsPlan:
        opening = self._stores.opened(key)
        if opening is None or opening.observed:
            return NOTHING_DECLARED
        declared = declared_by(spec.objects)
        return await self._stores.use(key, "plan_objects", lambda handle: handle.plan_objects(declared))

    def _restored_from(self, key: ObjectKey, status: Json) -> str | None:
        start = self._stores.started(key)
        return (start.restored if start else "") or status.get("restoredFrom")

    def _wake_dependents(self, key: ObjectKey) -> None:
        for dependent in self._cache.dependents_of(key):
            self.services.look(dependent)


def _closed_fields(body: Json, found: Durable) -> Mapping[str, Any]:
    """Returns the status of a catalog that isn't open, from the state `found` in its store."""
    return durable_fields(found, fencing.fences_of(body), body.get("status", {}).get("restoredFrom"))


def _with_handled_truth(body: Json, step: Settle) -> Settle:
    """Returns the step with `status.handledTruth`, which stays until its annotation changes or is removed."""
    fields = dict(kept_fields(body.get("status", {})) if step.fields is None else step.fields)
    if step.fields is None or "handledTruth" not in fields:
        fields.pop("handledTruth", None)
        if handled := handled_truth(body):
            fields["handledTruth"] = handled
    return replace(step, fields=fields)


def _known(found: takeovers.Found) -> Durable | None:
    return found if isinstance(found, Durable) else None
