"""The resources that refer to a Catalog, read from the API server, so that a deletion misses no new ones.

If the CRD of a kind was deleted, there are no resources of that kind. If the CRD exists but the kind is not
served, its resources are unknown, and the deletion waits until the kind is served again.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.migration import AT_REST
from holdfast_operator.api.names import Kind
from holdfast_operator.catalogs.status import unknown_dependents
from holdfast_operator.engine.handler import Halt
from holdfast_operator.engine.kube import Kube, NotServed, ObjectKey, resource_type
from holdfast_operator.engine.resources import is_deleting
from holdfast_operator.engine.steps import Settle
from holdfast_operator.jobs.course import shown_running

Json = dict[str, Any]

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 3.0
"""How often to check a kind that is not served. There is no limit on the number of checks."""


@dataclass(frozen=True, order=True)
class Dependent:
    """A collection that refers to a Catalog."""

    name: str
    deleting: bool
    doomed: bool
    """Whether it is being deleted together with its data."""
    busy: bool
    """Whether it is being deleted while its Spark jobs run. The end of their attempts must be recorded."""


async def collections_of(kube: Kube, catalog: ObjectKey) -> tuple[Dependent, ...]:
    """Returns the collections that refer to the Catalog, by name."""
    found = await _referring(kube, catalog, Kind.STORAGE_COLLECTION)
    return tuple(sorted(map(_dependent, found)))


async def unfinished_migrations(kube: Kube, catalog: ObjectKey) -> tuple[str, ...]:
    """Returns the names of the Catalog's migrations that are not finished."""
    found = await _referring(kube, catalog, Kind.CATALOG_MIGRATION)
    return tuple(sorted(body["metadata"]["name"] for body in found if not _is_over(body)))


async def _referring(kube: Kube, catalog: ObjectKey, kind: Kind) -> list[Json]:
    type_ = resource_type(kind)
    try:
        there = await kube.list(type_, catalog.namespace)
    except NotServed:
        if not await kube.is_undefined(type_):
            health = unknown_dependents(f"{type_.plural}.{type_.group}")
            raise Halt(Settle(health, requeue_after=_AGAIN_SECONDS)) from None
        log.warning("CRD %s.%s was deleted: the deletion waits for none of them", type_.plural, type_.group)
        return []
    return [body for body in there if body["spec"].get("catalogRef", {}).get("name") == catalog.name]


def _is_over(migration: Json) -> bool:
    status = migration.get("status", {})
    at_rest = status.get("phase") in AT_REST
    return at_rest and status["observedGeneration"] == migration["metadata"]["generation"]


def _dependent(collection: Json) -> Dependent:
    deleting = is_deleting(collection)
    return Dependent(
        collection["metadata"]["name"],
        deleting=deleting,
        doomed=deleting and collection["spec"].get("deletionPolicy") == DeletionPolicy.DELETE,
        busy=deleting and bool(shown_running(collection.get("status", {}))),
    )
