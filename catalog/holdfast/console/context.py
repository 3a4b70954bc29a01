"""The state of one console, and how a handler reaches it."""

from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from holdfast.console.access import Access, Viewer
from holdfast.console.cluster import Cluster
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.work import Limits
from holdfast.errors import BadInput

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Console:
    """A console: what it shows, to whom, and within which bounds.

    `hosts` are the names under which it is reached. A request for another name is refused: it comes from a
    page of somebody else whose name was pointed at this address.
    """

    places: ShownPlaces
    access: Access
    cluster: Cluster | None = None
    hosts: frozenset[str] = LOOPBACK
    limits: Limits = field(default_factory=Limits)


class NotHere(BadInput):
    """The address names something that does not exist, or that the viewer may not see."""


CONSOLE: Final = web.AppKey("console", Console)
VIEWER: Final = web.RequestKey("viewer", Viewer)
VISIBLE: Final = web.RequestKey("visible", tuple[ShownPlace, ...])


def console_of(request: web.Request) -> Console:
    """The console that a request is for."""
    return request.app[CONSOLE]


def viewer_of(request: web.Request) -> Viewer:
    """Who sent a request."""
    return request[VIEWER]


def visible_places(request: web.Request) -> tuple[ShownPlace, ...]:
    """The locations that the viewer may see."""
    try:
        return request[VISIBLE]
    except KeyError:
        # Access was not decided yet.
        return ()


def place_of(request: web.Request) -> ShownPlace:
    """The location in the address of a request.

    Raises `NotHere` if there is none. A location that the viewer may not see looks the same.
    """
    return place_named(request, request.match_info["location"])


def place_named(request: web.Request, name: str) -> ShownPlace:
    """The location with a name. Raises `NotHere` as `place_of` does."""
    for each in visible_places(request):
        if each.name == name:
            return each
    raise NotHere(
        f"the console has no location {name[:60]!r} that you may see",
        hint="the overview lists the locations that it was started with",
    )
