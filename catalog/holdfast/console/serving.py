"""How a console is served: what happens to a connection before its request reaches the application.

- aiohttp writes a request that can't be parsed to the log and into its answer. Such a request may have the
  token, so here both have a fixed text.
- A connection that sends no whole request is closed after some seconds, and their number is bounded below the
  number of files that the process may open. So requests that never end don't keep others out for long.
- The handler of a page that was closed ends at once.
"""

import asyncio
import logging
import resource
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.console.server import HEADERS

_log = logging.getLogger(__name__)

_REQUEST_S: Final = 10.0
"""How long a request may take to arrive, and how long a connection stays open without one."""
_MOST_CONNECTIONS: Final = 512
_REFUSALS: Final = {
    400: "The request can't be parsed.\n",
    408: "The request took too long to arrive.\n",
}


class ConsoleRunner(web.AppRunner):
    """Serves the application of a console."""

    def __init__(
        self, app: web.Application, *, shutdown_s: float = 60.0, request_s: float = _REQUEST_S
    ) -> None:
        super().__init__(app, shutdown_timeout=shutdown_s)
        self._request_s = request_s

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _ConsoleServer(made, self._request_s)


class _ConsoleServer(web.Server):
    """Makes the connections. The handlers of requests are those of another server."""

    def __init__(self, handlers: web.Server, request_s: float) -> None:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            if request.can_read_body:
                try:
                    async with asyncio.timeout(request_s):
                        await request.read()
                except TimeoutError:
                    return _refused(408)
            return await handlers.request_handler(request)

        super().__init__(handle, request_factory=handlers.request_factory, handler_cancellation=True)
        self.request_s = request_s
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = _MOST_CONNECTIONS if files < 0 else min(_MOST_CONNECTIONS, files // 4)

    def __call__(self) -> web.RequestHandler:
        return _Connection(self)


class _Connection(web.RequestHandler):
    """One connection of a browser."""

    __slots__ = ("_server",)

    def __init__(self, server: _ConsoleServer) -> None:
        # No access log: the addresses of the first requests have the token.
        options: dict[str, Any] = {"access_log": None, "lingering_time": 1.0}
        super().__init__(
            server, loop=asyncio.get_running_loop(), keepalive_timeout=server.request_s, **options
        )
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if len(self._server.connections) >= self._server.most:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()
            return
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that can't be parsed, without a word of it."""
        if not isinstance(exc, HttpProcessingError):
            response = super().handle_error(request, status, exc, message)
            response.headers.update(HEADERS)
            return response
        _log.debug("a request from %s can't be parsed: %s", request.remote, type(exc).__name__)
        return _refused(400)


def _refused(status: int) -> web.Response:
    response = web.Response(status=status, text=_REFUSALS[status], headers=HEADERS)
    response.force_close()
    return response
