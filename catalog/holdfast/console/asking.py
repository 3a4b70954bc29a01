"""How the pages ask the stores: in a thread, within the bounds of the viewer."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from holdfast.collections import CollectionInfo
from holdfast.console.context import console_of, place_of, viewer_of
from holdfast.console.facts.collection import found_in
from holdfast.console.places import ShownPlace
from holdfast.console.rendering import freshness_s
from holdfast.console.ticks import Ticks
from holdfast.console.work import PlaceWork

T = TypeVar("T")
P = ParamSpec("P")

WORK: Final = web.AppKey("work", PlaceWork)
TICKS: Final = web.AppKey("ticks", Ticks)


async def collection_of(request: web.Request, place: ShownPlace) -> CollectionInfo:
    """Return the collection that the address of a request names, by its id or name.

    A page goes on with the id that this returns. Were the name resolved a second time, the viewer's rights
    could be those to another collection than the one that is shown. Raises `CollectionNotFound` and
    `StorageError`.
    """
    name = request.match_info["name"]
    look = await ask(request, place.look, freshness_s(request))
    return found_in(look, place, name)


async def may_read_rows(request: web.Request, place: ShownPlace, info: CollectionInfo) -> bool:
    """Return whether the viewer may read the rows of a collection.

    It is decided by the id: names of collections and of resources differ.
    """
    access = console_of(request).access
    return await access.may_read_rows(viewer_of(request), place.namespace, info.collection_id)


async def ask(request: web.Request, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a query that blocks about the location in the address, and return its result.

    Raises its errors, and `TooBusy`.
    """
    return await ask_at(request, place_of(request), query, *args, **kwargs)


async def ask_at(
    request: web.Request, place: ShownPlace, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a query that blocks about a location, and return its result. Raises its errors, and `TooBusy`."""
    return await request.app[WORK].of(place).run(viewer_of(request), query, *args, **kwargs)
