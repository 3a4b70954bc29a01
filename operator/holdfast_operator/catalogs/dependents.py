"""The resources that refer to a Catalog, read from the API server, so that a deletion misses no new ones.

If the CRD of a kind was deleted, there are no resources of that kind. If the CRD exists but the kind is not
served, its resources are unknown, and the deletion waits until the kind is served again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

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
T = TypeVar("T")

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
    return tuple(sorted(await _referring(kube, catalog, Kind.STORAGE_COLLECTION, _dependent)))


async def unfinished_migrations(kube: Kube, catalog: ObjectKey) -> tuple[str, ...]:
    """Returns the names of the Catalog's migrations that are not finished."""
    found = await _referring(kube, catalog, Kind.CATALOG_MIGRATION, _unfinished)
    return tuple(sorted(name for name in found if name))


async def _referring(kube: Kube, catalog: ObjectKey, kind: Kind, keep: Callable[[Json], T]) -> list[T]:
    """Returns what `keep` returns for each object of a kind that refers to a Catalog."""

    def kept(body: Json) -> list[T]:
        return [keep(body)] if body["spec"].get("catalogRef", {}).get("name") == catalog.name else []

    type_ = resource_type(kind)
    try:
        found, _ = await kube.list_each(type_, catalog.namespace, kept)
    except NotServed:
        if not await kube.is_undefined(type_):
            health = unknown_dependents(f"{type_.plural}.{type_.group}")
            raise Halt(Settle(health, requeue_after=_AGAIN_SECONDS)) from None
        log.warning("CRD %s.%s was deleted: the deletion waits for none of them", type_.plural, type_.group)
        return []
    return list(chain.from_iterable(found))


def _unfinished(migration: Json) -> str:
    """Returns the name of a migration, or empty if it is finished."""
    status = migration.get("status", {})
    at_rest = status.get("phase") in AT_REST
    over = at_rest and status["observedGeneration"] == migration["metadata"]["generation"]
    return "" if over else str(migration["metadata"]["name"])


def _dependent(collection: Json) -> Dependent:
    deleting = is_deleting(collection)
    return Dependent(
        collection["metadata"]["name"],
        deleting=deleting,
        doomed=deleting and collection["spec"].get("deletionPolicy") == DeletionPolicy.DELETE,
        busy=deleting and bool(shown_running(collection.get("status", {}))),
    )
