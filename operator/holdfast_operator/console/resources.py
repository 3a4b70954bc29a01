"""The resources of a cluster for the pages: one watch for each kind, shared by all viewers.

Invariants
- A page sends no request to the API server. It reads what the watches have shown.
- While a watch is broken, its last state stays. Before the first list of a kind is complete, nothing is
  known about it, and `NotListed` is raised.
- Secrets are not among these resources.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.console.cluster import Kind as Plural
from holdfast.errors import StoreUnreachable
from holdfast_operator.api.names import API_VERSION, Kind
from holdfast_operator.engine.clock import Clock, SystemClock
from holdfast_operator.engine.followed import FollowedObjects
from holdfast_operator.engine.follower import Follower
from holdfast_operator.engine.kube import EVENTS, Kube, ResourceType, resource_type

Json = Mapping[str, Any]

_OUR_EVENTS: Final = f"involvedObject.apiVersion={API_VERSION}"
_TYPES: Final = (*(resource_type(kind) for kind in Kind), EVENTS)

SHARED: Final = ","
"""Between the namespaces of a location that several of them name."""


class NotListed(StoreUnreachable):
    """Resources aren't known yet."""


class Resources:
    """The resources and Events of some namespaces, or of all: a `holdfast.console.cluster.Cluster`."""

    def __init__(self, kube: Kube, namespaces: Sequence[str] = (), clock: Clock | None = None) -> None:
        self._kube = kube
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._version = 0
        self._changes = Counter[str]()
        self._listed: set[tuple[ResourceType, str | None]] = set()
        clock = clock or SystemClock()
        self._followers = [
            Follower(
                kube,
                type_,
                namespace,
                FollowedObjects(""),
                self._on_change,
                self._on_served,
                clock,
                fields=_OUR_EVENTS if type_ is EVENTS else "",
            )
            for type_ in _TYPES
            for namespace in self._namespaces
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Follows everything until `stop` is set."""
        tasks = [asyncio.create_task(each.run(stop)) for each in self._followers]
        try:
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def unlisted(self) -> list[str]:
        """Returns the names of the kinds that aren't known yet."""
        return sorted({type_.plural for type_ in _TYPES for _ in self._unlisted(type_)})

    async def resources(self, kind: Plural, namespace: str = "") -> Sequence[Json]:
        """Returns the resources of a kind, in one namespace or in all. Don't change them.

        Several namespaces are separated by `SHARED`.

        Raises `NotListed`.
        """
        return self._select(_type_of(kind), namespace)

    async def resource(self, kind: Plural, namespace: str, name: str) -> Json | None:
        """Returns one resource, or None. Raises `NotListed`."""
        found = self._select(_type_of(kind), namespace)
        return next((body for body in found if body["metadata"]["name"] == name), None)

    async def events(self, namespace: str, name: str = "") -> Sequence[Json]:
        """Returns the Events about our resources in a namespace, or those about the objects with a name."""
        found = self._select(EVENTS, namespace)
        return [body for body in found if name in {"", body.get("involvedObject", {}).get("name")}]

    def version(self) -> int:
        """Returns a number that grows with each change that was seen."""
        return self._version

    def changes(self, namespaces: Iterable[str]) -> int:
        """Returns a number that grows with each change in these namespaces that was seen."""
        return sum(self._changes[each] for each in namespaces)

    def all(self, kind: Kind) -> Sequence[Json]:
        """Returns the resources of a kind in all namespaces. Raises `NotListed`."""
        return self._select(resource_type(kind), "")

    def _select(self, type_: ResourceType, namespace: str) -> list[Json]:
        if any(True for _ in self._unlisted(type_)):
            raise NotListed(
                f"the {type_.plural} of the cluster aren't known yet",
                hint="wait a moment; if this stays, the console's log says why they can't be listed",
            )
        kind = next((each.value for each in Kind if resource_type(each) == type_), "Event")
        found = [
            body
            for each in self._followed(type_)
            for one in namespace.split(SHARED)
            for body in each.select(one or None, None)
        ]
        # Objects in a list have no kind.
        return [body if "kind" in body else {**body, "kind": kind} for body in found]

    def _followed(self, type_: ResourceType) -> Iterator[FollowedObjects]:
        for namespace in self._namespaces:
            yield self._kube.followed[type_, namespace]

    def _unlisted(self, type_: ResourceType) -> Iterator[str | None]:
        for namespace in self._namespaces:
            place = (type_, namespace)
            followed = self._kube.followed[place]
            if followed.synced or not followed.served:
                self._listed.add(place)
            if place not in self._listed:
                yield namespace

    def _on_change(self, _type: ResourceType, body: Json) -> None:
        self._version += 1
        self._changes[body["metadata"]["namespace"]] += 1

    def _on_served(self) -> None:
        self._version += 1


def _type_of(plural: Plural) -> ResourceType:
    return next(type_ for type_ in _TYPES if type_.plural == plural)
