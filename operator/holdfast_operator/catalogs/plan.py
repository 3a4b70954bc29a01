"""The plan for a Catalog: a pure function of what was observed.

The first of these cases that applies decides: the Catalog is being deleted; its finalizer is not as needed;
its spec can't be parsed; a migration holds it; it is suspended; its storage is refused; an older Catalog has
the same catalog; a Secret is missing; others fenced it too often; it is not open; it is open with other
settings than requested; it is ready.
"""

from dataclasses import replace

from holdfast.catalog import CATALOG_VERSION
from holdfast_operator.api.catalog import Access, Backend, CatalogSpec, DeletionPolicy, UpgradePolicy
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs import fencing
from holdfast_operator.catalogs.conditions import restored_condition, shadow_condition
from holdfast_operator.catalogs.connection import (
    Absent,
    connection_condition,
    connection_of,
    is_passing,
    missing,
)
from holdfast_operator.catalogs.facts import CatalogFacts, CatalogView, Opening, purpose_of
from holdfast_operator.catalogs.objects import declared_by, objects_condition
from holdfast_operator.catalogs.status import (
    migrating,
    observed_health,
    open_message,
    status_fields,
    taken_message,
    truth_message,
    twin,
    waiting_for_collections,
    waiting_for_migrations,
)
from holdfast_operator.catalogs.steps import Close, Destroy, GiveUp, KeepObjects, Open, Publish, RollOut
from holdfast_operator.engine.deletion import left
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.engine.steps import (
    SUSPENDED,
    Decision,
    Free,
    Keep,
    Release,
    Rest,
    Rhythm,
    Settle,
    ready,
    reconciling,
    stalled,
)
from holdfast_operator.places.storage import RefusedLocation, Storage, stash_of


def plan(seen: CatalogView, rhythm: Rhythm) -> Decision:
    """Returns the next step."""
    step = _plan(seen, rhythm)
    # If the Catalog rests, no `Open` or `RollOut` will take the result of a call in progress.
    return GiveUp() if seen.under_way and isinstance(step, Rest) else step


def _plan(seen: CatalogView, rhythm: Rhythm) -> Decision:
    if seen.deleting:
        return _plan_deletion(seen, rhythm)
    if seen.has_finalizer != seen.needs_finalizer:
        return Keep() if seen.needs_finalizer else Free()
    if seen.spec is None:
        return Settle(stalled(Reason.INVALID_SPEC, f"{seen.problem}; correct the spec"))
    if seen.migration and not (seen.in_both and seen.facts is not None):
        # A handle of its own, even with new credentials, would make changes in one store only.
        return Close() if seen.opened else Settle(migrating(seen.migration), requeue_after=rhythm.steady)
    if seen.spec.suspend:
        return Close() if seen.opened else Settle(SUSPENDED)
    if isinstance(seen.storage, RefusedLocation):
        # A Catalog at a location that isn't allowed claims nothing. Another Catalog may open it.
        return Close() if seen.opened else Settle(stalled(seen.storage.reason, seen.storage.message))
    if seen.older_twin is not None:
        return Close() if seen.opened else Settle(twin(seen.older_twin), requeue_after=rhythm.steady)
    if seen.unusable_secret is not None:
        return Settle(seen.unusable_secret, retry=True)
    if fencing.has_stopped(seen.fences):
        # Close it even if this process has it open. If two operators compete, both must stop, or they would
        # keep overwriting each other's status.
        return Close() if seen.opened else Settle(fencing.health(seen.fences))
    return _plan_open(seen, seen.spec, seen.storage, rhythm)


def _plan_open(seen: CatalogView, spec: CatalogSpec, storage: Storage, rhythm: Rhythm) -> Decision:
    opening = _opening(seen, spec, storage)
    if seen.opened is not None and not seen.in_both and _is_otherwise(seen.opened, opening):
        return Close()
    if seen.opened is None or seen.facts is None:
        if isinstance(seen.restore, RefusedLocation) and not seen.initialized:
            why = seen.restore.reason
            why = Reason.RESTORE_FAILED if why is Reason.UNSUPPORTED_STORAGE else why
            return Settle(stalled(why, seen.restore.message))
        if opening.observed and isinstance(seen.connection, Absent):
            # The process that initializes the catalog needs to know where to do so.
            return Publish(connection_of(spec, storage, spec.backend))
        return Open(opening)
    if not seen.in_both and seen.opened.deploy_generation < spec.deploy_generation:
        return RollOut(opening)
    facts = seen.facts
    connection = connection_of(spec, storage, facts.truth)
    if missing(seen.connection, connection):
        return Publish(connection)
    if opening.observed:
        return _plan_observed(seen, facts, rhythm)
    if seen.objects.changes:
        return KeepObjects(declared_by(spec.objects))
    health = ready(open_message(facts, seen.migration if seen.in_both else ""))
    if seen.objects.taken:
        health = stalled(Reason.NAME_TAKEN, taken_message(seen.objects.taken))
    took = seen.named_truth if facts.link and not seen.in_both else ""
    return Settle(
        health,
        fields=status_fields(facts, seen.fences, seen.restored_from, took or seen.handled_truth or None),
        conditions=(
            *objects_condition(seen.objects),
            *restored_condition(spec, seen.restored_from),
            *shadow_condition(seen.opened.stash, facts.shadow),
            *_connection_condition(seen),
        ),
        requeue_after=_rest_of(seen, rhythm),
        notes=(Note(Reason.TRUTH_TAKEN, truth_message(took)),) if took else (),
    )


def _plan_observed(seen: CatalogView, facts: CatalogFacts, rhythm: Rhythm) -> Decision:
    return Settle(
        observed_health(facts),
        fields=status_fields(facts),
        conditions=_connection_condition(seen),
        requeue_after=_rest_of(seen, rhythm),
    )


def _rest_of(seen: CatalogView, rhythm: Rhythm) -> float:
    return rhythm.unsteady if is_passing(seen.connection) else rhythm.steady


def _connection_condition(seen: CatalogView) -> tuple[WantedCondition, ...]:
    return connection_condition(seen.connection, seen.name.rpartition("/")[2])


def awaiting_writer(rhythm: Rhythm) -> Settle:
    """Returns what to show for an observed Catalog that no database process has initialized."""
    text = "there is no catalog yet; a database process initializes it when it opens it for writing"
    return Settle(reconciling(Reason.AWAITING_WRITER, text), requeue_after=rhythm.unsteady)


def _is_otherwise(opened: Opening, asked: Opening) -> bool:
    """Returns whether the catalog must be opened again, because the settings have changed."""
    return any(
        getattr(opened, field) != getattr(asked, field)
        for field in (
            *("observed", "storage", "organization_id", "stash", "shadow", "strategy", "reopen", "secrets"),
        )
    )


def _plan_deletion(seen: CatalogView, rhythm: Rhythm) -> Decision:
    if not seen.has_finalizer:
        return Close() if seen.opened else Release()
    if seen.migrations:
        if seen.migration and not seen.in_both and seen.opened:
            return Close()
        return Settle(waiting_for_migrations(seen.migrations), requeue_after=rhythm.unsteady)
    if seen.dependents:
        return _plan_waiting(seen, rhythm)
    spec = seen.spec
    if spec is None and seen.asks_to_delete and seen.initialized and not seen.deletion.abandoned:
        return Settle(
            stalled(
                Reason.INVALID_SPEC,
                f"{seen.problem}; correct the spec, so that the operator can delete the data",
            )
        )
    doomed = spec is not None and _is_managed(spec) and spec.deletion_policy == DeletionPolicy.DELETE
    # If an older Catalog has the same catalog, the data belongs to it.
    if doomed and seen.older_twin is None:
        if seen.opened is not None and not seen.deletion.abandoned:
            return Destroy()
        if seen.opened is None and not seen.void:
            return _plan_late_destruction(seen)
    return Close() if seen.opened else Release(_left_in_stash(spec) if doomed and spec else ())


def _left_in_stash(spec: CatalogSpec) -> tuple[Note, ...]:
    place = stash_of(spec)
    if place is None:
        return ()
    text = f"the stash in {place.url} still holds the catalog's data; delete the data yourself"
    return (Note(Reason.DELETION_INCOMPLETE, text, warning=True),)


def _plan_waiting(seen: CatalogView, rhythm: Rhythm) -> Decision:
    """Collections refer to it. Those to drop, or with Spark attempts to end, need the catalog open."""
    asked = seen.doomed_dependents or seen.busy_dependents
    needed = asked and not seen.deletion.abandoned and not seen.void and seen.older_twin is None
    spec = seen.spec if seen.spec is not None and _is_managed(seen.spec) else None
    if needed and seen.opened is None and isinstance(seen.storage, Storage) and spec is not None:
        return Open(_last_opening(seen, spec, seen.storage, dropping=seen.doomed_dependents))
    return Settle(
        waiting_for_collections(seen.dependents, seen.kept_dependents), requeue_after=rhythm.unsteady
    )


def _plan_late_destruction(seen: CatalogView) -> Decision:
    """The catalog must be destroyed but isn't open, after a restart or because its store can't be reached.

    Only the store knows whether the catalog exists, because a status may never have been written. So the
    operator retries until somebody abandons the data.
    """
    if seen.deletion.abandoned:
        place = str(seen.storage) if isinstance(seen.storage, Storage) else "its store"
        if seen.spec is not None and seen.spec.stash is not None:
            place = f"{place} and in the stash {seen.spec.stash.url}"
        what = "the catalog" if seen.initialized else "a catalog, if there is one,"
        return Release((left(f"{what} in {place} stays", seen.deletion),))
    if isinstance(seen.storage, RefusedLocation):
        if not seen.initialized:
            return Release()
        text = f"{seen.storage.message}; what the catalog has in its store can't be deleted"
        return Settle(stalled(seen.storage.reason, text), retry=True)
    if seen.unusable_secret is not None:
        return Settle(seen.unusable_secret, retry=True)
    assert seen.spec is not None
    return Open(_last_opening(seen, seen.spec, seen.storage, dropping=True))


def _is_managed(spec: CatalogSpec) -> bool:
    return spec.access == Access.MANAGED


def _opening(seen: CatalogView, spec: CatalogSpec, storage: Storage) -> Opening:
    opening = opening_for(
        spec,
        storage,
        name=seen.name,
        holder=seen.holder,
        approved_upgrade=seen.approved_upgrade,
        truth=seen.named_truth,
    )
    restore = None if isinstance(seen.restore, RefusedLocation) else seen.restore
    return replace(
        opening, reopen=seen.reopen, secrets=seen.secrets, restore=restore, least_epoch=seen.known_epoch
    )


def _last_opening(seen: CatalogView, spec: CatalogSpec, storage: Storage, *, dropping: bool) -> Opening:
    """Returns how to open the catalog during its deletion, if it exists. A shadow no longer matters."""
    opening = _opening(seen, spec, storage)
    # Dropping the catalog or one of its collections needs the current format, so it may be upgraded.
    upgrade = opening.upgrade or dropping
    return replace(opening, existing_only=True, upgrade=upgrade, shadow=False, restore=None)


def opening_for(
    spec: CatalogSpec, storage: Storage, *, name: str, holder: str, approved_upgrade: str, truth: str
) -> Opening:
    """Returns how to open the catalog of a spec. `truth` is the annotation's source of truth, or empty."""
    return Opening(
        storage=storage,
        organization_id=spec.organization_id,
        deploy_generation=spec.deploy_generation,
        default_cluster=spec.bootstrap.default_cluster,
        roles=spec.bootstrap.roles,
        replica_sizes=spec.bootstrap.replica_sizes,
        system_configurations=tuple(sorted(spec.bootstrap.system_configurations.items())),
        holder=holder,
        purpose=purpose_of(name),
        upgrade=spec.upgrade_policy == UpgradePolicy.AUTOMATIC or approved_upgrade == str(CATALOG_VERSION),
        stash=stash_of(spec),
        shadow=spec.shadow and spec.stash is not None,
        backend=spec.backend,
        strategy=spec.migration_strategy,
        truth=truth if truth in set(Backend) else None,
        observed=not _is_managed(spec),
    )
