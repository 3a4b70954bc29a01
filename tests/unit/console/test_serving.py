"""Connections before their request reaches the console: bad requests, slow ones and too many of them."""

import asyncio
import logging
import resource
from collections.abc import Awaitable, Callable

import pytest

from holdfast.console.context import Console
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.server import HEADERS, application
from holdfast.console.serving import ConsoleRunner
from unit.console.browsing import TOKEN, access

AUTHORIZED = f"Authorization: Bearer {TOKEN}\r\n"
BAD = {
    "a null byte": f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\x00\r\n\r\n",
    "a control byte": f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\x01\r\n\r\n",
    "no colon": f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization Bearer {TOKEN}\r\n\r\n",
    "a bad line": f"GET /?token={TOKEN} x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a long cookie": f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: token={TOKEN}; a={'b' * 9000}\r\n\r\n",
    "a long URL": f"GET /?token={TOKEN}&a={'b' * 9000} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a bad URL": f"GET http://[/?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


def serve(place: ShownPlace, visit: Callable[[int], Awaitable[None]], request_s: float = 10.0) -> None:
    """Serve the console as its commands do, and visit it at its port."""

    async def run() -> None:
        runner = ConsoleRunner(
            application(Console(ShownPlaces({place.name: place}), access())),
            shutdown_s=2.0,
            request_s=request_s,
        )
        await runner.setup()
        try:
            from aiohttp import web

            await web.TCPSite(runner, "127.0.0.1", 0).start()
            await visit(int(runner.addresses[0][1]))
        finally:
            await runner.cleanup()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await run()

    asyncio.run(bounded())


async def answer(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    got = (await reader.read()).decode()
    writer.close()
    return got


def test_a_bad_request_is_neither_logged_nor_repeated(
    place: ShownPlace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def visit(port: int) -> None:
        for what, request in BAD.items():
            got = await answer(port, request)
            assert got.split()[1] == "400", (what, got)
            assert TOKEN not in got, what
            assert all(f"{name}: {value}" in got for name, value in HEADERS.items()), what

    serve(place, visit)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "request_",
    [
        "",
        "GET / HTTP/1.1\r\n",
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n{AUTHORIZED}Content-Length: 9\r\n\r\nab",
    ],
    ids=["nothing", "head", "body"],
)
def test_an_unfinished_request_is_given_up(place: ShownPlace, request_: str) -> None:
    async def visit(port: int) -> None:
        began = asyncio.get_running_loop().time()
        await answer(port, request_)
        assert asyncio.get_running_loop().time() - began < 5

    serve(place, visit, request_s=0.3)


def test_connections_are_fewer_than_files(place: ShownPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))

    async def visit(port: int) -> None:
        open_ = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        assert await refused(port)
        for _, writer in open_:
            writer.close()
        await asyncio.sleep(0.1)
        got = await answer(
            port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n{AUTHORIZED}Connection: close\r\n\r\n"
        )
        assert got.startswith("HTTP/1.1 200 ")

    async def refused(port: int) -> bool:
        try:
            return not await answer(port, "")
        except ConnectionError:
            return True

    serve(place, visit)


def test_a_closed_page_ends_its_stream_at_once(place: ShownPlace) -> None:
    async def visit(port: int) -> None:
        follow = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n{AUTHORIZED}\r\n"
        for _ in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(follow.encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.01)

    serve(place, visit)
