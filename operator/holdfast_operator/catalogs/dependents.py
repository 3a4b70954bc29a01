"""What hangs on a Catalog, read fresh from the API server: a deletion misses nothing that is new.

Of a kind whose definition was deleted there is nothing. Of one that only isn't served nothing is known: the
deletion waits until it is again.
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
"""What isn't served is waited for without an end, and asked for so often."""


@dataclass(frozen=True, order=True)
class Dependent:
    """A collection that refers to a Catalog."""

    name: str
    doomed: bool
    """Whether it is being deleted, with what it stands for."""
    busy: bool
    """Whether it is being deleted while attempts of its Spark jobs run, which are to be ended on record."""


async def collections_of(kube: Kube, catalog: ObjectKey) -> tuple[Dependent, ...]:
    """The collections that refer to it, by name."""
    found = await _referring(kube, catalog, Kind.STORAGE_COLLECTION)
    return tuple(sorted(map(_dependent, found)))


async def unfinished_migrations(kube: Kube, catalog: ObjectKey) -> tuple[str, ...]:
    """The migrations of it that aren't over."""
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
        log.warning("the cluster has no %s.%s any more: none is waited for", type_.plural, type_.group)
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
        doomed=deleting and collection["spec"].get("deletionPolicy") == DeletionPolicy.DELETE,
        busy=deleting and bool(shown_running(collection.get("status", {}))),
    )
