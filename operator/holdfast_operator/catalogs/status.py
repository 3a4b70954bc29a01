"""What the status of a Catalog tells of its store, and what its conditions say of how it is. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION
from holdfast_operator.api.base import frontier
from holdfast_operator.api.catalog import CatalogFence, CatalogStatus
from holdfast_operator.api.names import ANNOTATION_TRUTH, Reason
from holdfast_operator.catalogs.facts import CatalogFacts, Durable
from holdfast_operator.catalogs.objects import ObjectName, listed
from holdfast_operator.engine.kube import Json
from holdfast_operator.engine.resources import annotation
from holdfast_operator.engine.status import Health
from holdfast_operator.engine.steps import ready, reconciling, stalled

_NAMED: Final = 3


def status_fields(
    facts: CatalogFacts,
    fences: tuple[CatalogFence, ...] = (),
    restored_from: str | None = None,
    handled_truth: str | None = None,
) -> Mapping[str, Any]:
    """The status of an open catalog."""
    return _fields(
        facts,
        since=frontier(facts.since),
        upper=frontier(facts.upper),
        object_counts=dict(facts.object_counts) or None,
        holder=facts.holder,
        restored_from=restored_from,
        handled_truth=handled_truth,
        fenced_by=fences or None,
    )


def durable_fields(
    found: Durable, fences: tuple[CatalogFence, ...], restored_from: str | None
) -> Mapping[str, Any]:
    """The status of a catalog that can't be opened; what nothing but the status knows stays in it."""
    return _fields(found, restored_from=restored_from, fenced_by=fences or None)


def _fields(found: CatalogFacts | Durable, **more: Any) -> Mapping[str, Any]:
    """What is known of any catalog, and more."""
    status = CatalogStatus(
        organization_id=found.organization_id,
        shard_id=found.shard_id,
        epoch=found.epoch,
        deploy_generation=found.deploy_generation,
        source_of_truth=found.truth,
        link=found.link or None,
        catalog_version=found.catalog_version,
        **more,
    )
    return status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"conditions"})


def open_message(facts: CatalogFacts, both: str) -> str:
    """What an open one says; `both` is the migration that makes every change in both stores, or empty."""
    where = f" in {facts.truth}" if facts.link else ""
    also = f"; {both} makes every change in both stores" if both else ""
    return (
        f"open for writing{where} at epoch {facts.epoch} of deploy generation {facts.deploy_generation}{also}"
    )


def observed_health(facts: CatalogFacts) -> Health:
    """What one shows that another process writes."""
    version = facts.catalog_version
    if version > CATALOG_VERSION:
        text = (
            f"the catalog has format version {version}, this operator knows versions up to {CATALOG_VERSION}"
        )
        return stalled(Reason.VERSION_TOO_NEW, f"{text}; upgrade the operator")
    if version < MIN_VERSION:
        text = f"the catalog has format version {version}, this operator knows them from {MIN_VERSION} on"
        return stalled(Reason.DEPRECATED, f"{text}; upgrade its database process")
    if version < CATALOG_VERSION:
        text = f"the catalog has format version {version}, this operator reads version {CATALOG_VERSION}"
        return reconciling(
            Reason.UPGRADE_PENDING, f"{text}; its database process upgrades it when it opens it"
        )
    return ready(
        f"written by {facts.holder} at epoch {facts.epoch} of deploy generation {facts.deploy_generation}"
    )


def taken_message(names: tuple[ObjectName, ...]) -> str:
    """What is wrong with names in `spec.objects` that the database has."""
    return f"{listed(names)}: made by the database for itself; choose other names in spec.objects"


def truth_message(value: str) -> str:
    """What became of the annotation that says which store counts."""
    return f"the two stores are linked: the annotation {ANNOTATION_TRUTH}={value} has no effect any more"


def twin(older: str) -> Health:
    """What one shows whose store is an older Catalog's."""
    return stalled(
        Reason.DUPLICATE_CATALOG,
        f"{older} has this organization at this location already; delete one of the two",
    )


def migrating(migration: str) -> Health:
    """What one shows while a CatalogMigration has it."""
    text = f"{migration} has the catalog; it is opened again by itself, where its source of truth is then"
    return reconciling(Reason.MIGRATING, text)


def waiting_for_migrations(migrations: tuple[str, ...]) -> Health:
    """What one shows whose deletion waits for CatalogMigrations."""
    text = f"deletion waits for CatalogMigrations that aren't over: {', '.join(migrations[:_NAMED])}"
    return reconciling(Reason.WAITING_FOR_MIGRATIONS, f"{text}; delete them, or let them come to their end")


def waiting_for_collections(dependents: tuple[str, ...]) -> Health:
    """What one shows whose deletion waits for StorageCollections."""
    named = ", ".join(dependents[:_NAMED])
    more = f" and {len(dependents) - _NAMED} more" if len(dependents) > _NAMED else ""
    return reconciling(
        Reason.WAITING_FOR_COLLECTIONS,
        f"deletion waits for StorageCollections {named}{more}; delete them",
    )


def unknown_dependents(definition: str) -> Health:
    """What one shows whose deletion waits to hear what refers to it."""
    text = f"deletion waits until the cluster serves {definition} again, or has no such definition any more"
    return reconciling(
        Reason.DEPENDENTS_UNKNOWN, f"{text}: which of them refer to the catalog is unknown; look at that CRD"
    )


def named_truth(body: Json) -> str:
    """Which store of a Catalog counts by its annotation; empty where that did its duty before."""
    value = annotation(body, ANNOTATION_TRUTH)
    return "" if value == body.get("status", {}).get("handledTruth") else value


def handled_truth(body: Json) -> str:
    """The annotation that did its duty; empty where it was changed or removed since."""
    value = annotation(body, ANNOTATION_TRUTH)
    return value if value and value == body.get("status", {}).get("handledTruth") else ""
