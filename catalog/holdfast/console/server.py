"""The server of the console: routes, and what happens to every request.

In this order: security headers, errors as pages, the check of the host, access, and bounds on parameters.
"""

import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from aiohttp import web

from holdfast.console.access import Access as Access
from holdfast.console.access import LocalAccess as LocalAccess
from holdfast.console.access import Viewer as Viewer
from holdfast.console.asking import TICKS, WORK
from holdfast.console.context import CONSOLE, VIEWER, VISIBLE, NotHere, console_of
from holdfast.console.context import Console as Console
from holdfast.console.pages import ROUTES, is_open
from holdfast.console.parameters import check_size
from holdfast.console.places import ShownPlaces as ShownPlaces
from holdfast.console.rendering import PAGES, Pages, page
from holdfast.console.ticks import Ticks
from holdfast.console.work import Limits as Limits
from holdfast.console.work import PlaceWork, TooBusy
from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    HoldfastError,
    StoreUnreachable,
)
from holdfast.text import one_line

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With no-referrer, browsers send "Origin: null" with the login form, so it could not be told from another
    # site's where they send no Sec-Fetch-Site: at a name other than localhost without TLS.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TITLES: Final = {
    400: "This address can't be shown",
    401: "You need the address with the token",
    403: "You may not see this",
    404: "There is nothing here",
    405: "The console only shows",
    421: "This is not the name of this console",
    429: "Too much at once",
    500: "The console failed",
    503: "The location can't be read",
}


def application(console: Console) -> web.Application:
    """The console as an application of aiohttp."""
    app = web.Application(middlewares=[_errors, _host, _access, _bounds])
    app[CONSOLE] = console
    app[PAGES] = Pages(console)
    app[WORK] = PlaceWork(console.limits)
    app[TICKS] = Ticks(app[WORK])
    app.add_routes(ROUTES)
    app.on_response_prepare.append(_headers)
    app.on_shutdown.append(_shutdown)
    app.cleanup_ctx.append(_closing)
    return app


async def _shutdown(app: web.Application) -> None:
    app[TICKS].close()


async def _closing(app: web.Application) -> AsyncIterator[None]:
    yield
    app[WORK].close()
    app[CONSOLE].places.close()


async def _headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Show an error as a page: what failed, why, and what to do."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        if error.status == 404:
            what, hint = "the console has no page with this address", "the overview leads to all pages"
            return _error_page(request, error.status, what, hint)
        return _error_page(request, error.status, error.reason, "")
    except HoldfastError as error:
        return _error_page(request, status_of(error), str(error), error.hint)
    except Exception as error:  # noqa: BLE001 - the page says that it failed, and the log says why
        text = request.app[PAGES].without_secrets("".join(traceback.format_exception(error)))
        path = one_line(request.app[PAGES].without_secrets(request.path))
        _log.error("%s failed: %s", path, text)
        return _error_page(request, 500, "An unexpected error happened.", "The log of the console has it.")


def status_of(error: HoldfastError) -> int:
    """The HTTP status of an error."""
    match error:
        case CollectionNotFound() | NotHere():
            return 404
        case BadInput() | AsOfTooEarly() | AsOfNotYetAvailable():
            return 400
        case TooBusy():
            return 429
        case StoreUnreachable():
            return 503
        case _:
            return 500


def _error_page(request: web.Request, status: int, what: str, hint: str) -> web.Response:
    title = _TITLES.get(status, "This failed")
    return page(request, "error.html", status=status, title=title, what=what, hint=hint)


@web.middleware
async def _host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request for another host: a page of somebody else may point its own name at this address."""
    if host_of(request.headers.get("Host", "")) not in console_of(request).hosts:
        return web.Response(
            status=421,
            text="This is not the name of this console. Start it with --host-name to add a name.\n",
        )
    return await handler(request)


def host_of(header: str) -> str:
    """The name or address in a `Host` header, without the port. Empty if it is neither."""
    if header.startswith("["):
        address, bracket, port = header[1:].partition("]")
        return address.lower() if bracket and (not port or port[1:].isdigit()) else ""
    name, colon, port = header.partition(":")
    return name.lower() if not colon or port.isdigit() else ""


@web.middleware
async def _access(request: web.Request, handler: Handler) -> web.StreamResponse:
    if is_open(request.path):
        return await handler(request)
    access = console_of(request).access
    if (entered := await access.enter(request)) is not None:
        return entered
    viewer = await access.viewer(request)
    if viewer is None:
        return web.Response(
            status=401,
            text=request.app[PAGES].render("refused.html", {"title": _TITLES[401], "hint": access.refusal}),
            content_type="text/html",
        )
    request[VIEWER] = viewer
    places = console_of(request).places
    request[VISIBLE] = tuple([each for each in places if await access.may_see(viewer, each.namespace)])
    return await handler(request)


@web.middleware
async def _bounds(request: web.Request, handler: Handler) -> web.StreamResponse:
    check_size(request)
    return await handler(request)
