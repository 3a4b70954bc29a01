"""A console that serves in a thread, and a browser without scripts that visits it."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from holdfast.console.access import LocalAccess
from holdfast.console.context import Console
from holdfast.console.server import application

T = TypeVar("T")
TOKEN = "the-token"
_TIMEOUT_S = 30


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]


class Browser:
    """Visits a console. It has the token unless it is given other headers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: TestServer, app: web.Application) -> None:
        self._loop = loop
        self.server = server
        self.app = app
        self.host = f"127.0.0.1:{server.port}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the console."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_S)

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        sent = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers

        async def ask() -> Answer:
            async with (
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.request(
                    method, f"http://{self.host}{path}", headers=dict(sent), allow_redirects=False
                ) as got,
            ):
                return Answer(got.status, await got.text(), got.headers)

        return self.run(ask())


@contextmanager
def served(console: Console) -> Iterator[Browser]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="console server")
    thread.start()
    app = application(console)
    server = TestServer(app)
    try:
        browser = Browser(loop, server, app)
        browser.run(server.start_server())
        browser.host = f"127.0.0.1:{server.port}"
        try:
            yield browser
        finally:
            browser.run(server.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_TIMEOUT_S)
        loop.close()


def access() -> LocalAccess:
    return LocalAccess(TOKEN)
