"""How the pages ask the stores: in a thread, within the bounds of the viewer."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from holdfast.console.context import console_of, place_of, viewer_of
from holdfast.console.places import ShownPlace
from holdfast.console.ticks import Ticks
from holdfast.console.work import PlaceWork

T = TypeVar("T")
P = ParamSpec("P")

WORK: Final = web.AppKey("work", PlaceWork)
TICKS: Final = web.AppKey("ticks", Ticks)


async def may_read_rows(request: web.Request, place: ShownPlace, name: str) -> bool:
    """Return whether the viewer may read the rows of a collection, by its name or id.

    It is decided by the id: names of collections and of resources differ. Raises `StorageError`.
    """
    console = console_of(request)
    look = await ask(request, place.look, console.limits.tick_s)
    info = look.find(name)
    id_ = name if info is None else info.collection_id
    return await console.access.may_read_rows(viewer_of(request), place.namespace, id_)


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
