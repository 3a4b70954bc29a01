"""How the pages ask the stores: in a thread, within the bounds of the viewer."""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from holdfast.console.context import viewer_of
from holdfast.console.ticks import Ticks
from holdfast.console.work import Work

T = TypeVar("T")
P = ParamSpec("P")

WORK: Final = web.AppKey("work", Work)
TICKS: Final = web.AppKey("ticks", Ticks)


async def ask(request: web.Request, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a query that blocks, and return its result. Raises its errors, and `TooBusy`."""
    return await request.app[WORK].run(viewer_of(request), query, *args, **kwargs)
