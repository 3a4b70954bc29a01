"""The resources of the cluster that a viewer may see, and the names of collections by their records."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from holdfast.console.cluster import Json, Kind
from holdfast.console.context import console_of, viewer_of
from holdfast.console.facts.activity import ObjectName, name_of
from holdfast.console.places import PlaceLook

KINDS: Final[Sequence[Kind]] = ("catalogs", "storagecollections", "catalogmigrations", "collectionsnapshots")


@dataclass(frozen=True)
class Visible:
    """What a viewer sees of the cluster. Everything is empty without one."""

    by_kind: Mapping[Kind, Sequence[Json]]
    events: Sequence[Json] = ()

    @property
    def bodies(self) -> list[Json]:
        """The resources of all kinds."""
        return [body for bodies in self.by_kind.values() for body in bodies]


async def visible_resources(request: web.Request, *, events: bool = False) -> Visible:
    """Return the resources in the namespaces that the viewer may see. With `events`, also their Events.

    Raises `StoreUnreachable` if the resources or the viewer's rights can't be read.
    """
    console, viewer = console_of(request), viewer_of(request)
    cluster, access = console.cluster, console.access
    if cluster is None:
        return Visible(dict.fromkeys(KINDS, ()))
    found = {kind: await cluster.resources(kind) for kind in KINDS}
    namespaces = sorted({_namespace(body) for bodies in found.values() for body in bodies})
    may_see = await asyncio.gather(*(access.may_see(viewer, each) for each in namespaces))
    seen = {namespace for namespace, may in zip(namespaces, may_see, strict=True) if may}
    posted: list[Json] = []
    if events:
        for each in sorted(seen):
            if await access.may_see_events(viewer, each):
                posted += await cluster.events(each)
    return Visible(
        {kind: [body for body in found[kind] if _namespace(body) in seen] for kind in KINDS}, posted
    )


def collection_names(looks: Iterable[PlaceLook], collections: Iterable[Json]) -> dict[str, ObjectName]:
    """The names of collections by their ids: of the resource if there is one, and otherwise of the record."""
    names = {
        info.collection_id: ObjectName("collection", "", info.name)
        for look in looks
        for info in look.collections
    }
    for body in collections:
        if id_ := body.get("status", {}).get("collectionId"):
            names[str(id_)] = name_of(body)
    return names


def _namespace(body: Json) -> str:
    return str(body["metadata"]["namespace"])
