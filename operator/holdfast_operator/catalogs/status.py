"""The status of a Catalog: the fields that show its store, and the messages of its conditions. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION
from holdfast_operator.api.base import frontier
from holdfast_operator.api.catalog import CatalogFence, CatalogStatus
from holdfast_operator.api.names import ANNOTATION_TRUTH, Reason
from holdfast_operator.catalogs.facts import CatalogFacts, Durable
from holdfast_operator.catalogs.objects import ObjectName, listed
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.kube import Json
from holdfast_operator.engine.resources import annotation
from holdfast_operator.engine.steps import ready, reconciling, stalled

_NAMED: Final = 3


def status_fields(
    facts: CatalogFacts,
    fences: tuple[CatalogFence, ...] = (),
    restored_from: str | None = None,
    handled_truth: str | None = None,
) -> Mapping[str, Any]:
    """Returns the status of an open catalog."""
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
    """Returns the status of a catalog that can't be opened. It keeps what only the status records."""
    return _fields(found, restored_from=restored_from, fenced_by=fences or None)


def _fields(found: CatalogFacts | Durable, **more: Any) -> Mapping[str, Any]:
    """Returns the fields that are known of every catalog, plus `more`."""
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
    """Returns the message of an open catalog. `both` is a migration that writes to both stores, or empty."""
    where = f" in {facts.truth}" if facts.link else ""
    also = f"; {both} makes every change in both stores" if both else ""
    return (
        f"open for writing{where} at epoch {facts.epoch} of deploy generation {facts.deploy_generation}{also}"
    )


def observed_health(facts: CatalogFacts) -> Health:
    """Returns the health of a catalog that another process writes."""
    version = facts.catalog_version
    if version > CATALOG_VERSION:
        text = (
            f"the catalog has format version {version}, but this operator supports versions up to "
            f"{CATALOG_VERSION}"
        )
        return stalled(Reason.VERSION_TOO_NEW, f"{text}; upgrade the operator")
    if version < MIN_VERSION:
        text = f"the catalog has format version {version}, but this operator needs at least {MIN_VERSION}"
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
    """Returns the message for names in `spec.objects` that the system itself uses."""
    return f"{listed(names)}: the name belongs to the system; choose other names in spec.objects"


def truth_message(value: str) -> str:
    """Returns the message for an annotation that has chosen the source of truth."""
    return f"the two stores are linked: the annotation {ANNOTATION_TRUTH}={value} has no further effect"


def twin(older: str) -> Health:
    """Returns the health of a Catalog whose catalog an older one has."""
    return stalled(
        Reason.DUPLICATE_CATALOG,
        f"{older} has this organization at this location already; delete one of the two",
    )


def migrating(migration: str) -> Health:
    """Returns the health of a Catalog that a CatalogMigration holds."""
    text = f"{migration} holds the catalog; afterwards the operator opens it in its source of truth by itself"
    return reconciling(Reason.MIGRATING, text)


def waiting_for_migrations(migrations: tuple[str, ...]) -> Health:
    """Returns the health of a Catalog whose deletion waits for CatalogMigrations."""
    text = f"deletion waits for unfinished CatalogMigrations: {', '.join(migrations[:_NAMED])}"
    return reconciling(Reason.WAITING_FOR_MIGRATIONS, f"{text}; delete them, or let them finish")


def waiting_for_collections(dependents: tuple[str, ...], kept: tuple[str, ...]) -> Health:
    """Returns the health of a Catalog whose deletion waits for StorageCollections.

    `kept` are those that nobody has asked to delete.
    """
    text = f"deletion waits for StorageCollections {_some(dependents)}"
    if not kept:
        text = f"{text}, which are being deleted; their conditions show what they wait for"
    elif kept == dependents:
        text = f"{text}; delete them"
    else:
        text = f"{text}; delete {_some(kept)}, which nobody has deleted yet"
    return reconciling(Reason.WAITING_FOR_COLLECTIONS, text)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def unknown_dependents(definition: str) -> Health:
    """Returns the health of a Catalog whose deletion waits because its dependents are unknown."""
    text = f"deletion waits until the cluster serves {definition} again, or that CRD is deleted"
    return reconciling(
        Reason.DEPENDENTS_UNKNOWN, f"{text}: it is unknown which of them refer to the catalog; check the CRD"
    )


def named_truth(body: Json) -> str:
    """Returns the source of truth that the annotation names, or empty if it is already applied."""
    value = annotation(body, ANNOTATION_TRUTH)
    return "" if value == body.get("status", {}).get("handledTruth") else value


def handled_truth(body: Json) -> str:
    """Returns the annotation if it is already applied, or empty if it was changed or removed since."""
    value = annotation(body, ANNOTATION_TRUTH)
    return value if value and value == body.get("status", {}).get("handledTruth") else ""
