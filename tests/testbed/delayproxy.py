"""A proxy that makes an HTTP server far away: each round trip takes a chosen time. It counts what passes.

It runs in a process of its own, so that a busy client delays nothing.
"""

import asyncio
import multiprocessing
import re
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE")
_REQUEST: Final = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) /")
_CHUNK: Final = 1 << 18
_LOOPBACK: Final = "127.0.0.1"


class DelayProxy:
    """Delays what passes between clients and `port` of this machine.

    A new connection costs one round trip, and each request another one, as over TCP without encryption. The
    bandwidth has no limit. `delay` is the time of a round trip in seconds. It can be changed at any time.
    """

    def __init__(self, port: int, delay: float = 0) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._delay: Any = spawn.Value("d", delay)
        self._counts: Any = spawn.Array("q", len(METHODS))
        self._moved: Any = spawn.Array("q", 2)
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(port, self._delay, self._counts, self._moved, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self.port: int = ours.recv()

    @property
    def endpoint(self) -> str:
        """The URL of the proxy."""
        return f"http://{_LOOPBACK}:{self.port}"

    @property
    def delay(self) -> float:
        """The seconds of a round trip."""
        return float(self._delay.value)

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._delay.value = seconds

    def requests(self) -> dict[str, int]:
        """The number of requests since the start, by method."""
        return dict(zip(METHODS, self._counts[:], strict=True))

    def moved(self) -> tuple[int, int]:
        """The bytes since the start, to the server and from it, with headers."""
        sent, received = self._moved[:]
        return sent, received

    def close(self) -> None:
        """End the process and its connections."""
        self._process.terminate()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(port: int, delay: Any, counts: Any, moved: Any, ready: Any) -> None:
    asyncio.run(_listen(port, delay, counts, moved, ready))


async def _listen(port: int, delay: Any, counts: Any, moved: Any, ready: Any) -> None:
    async def connected(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(_LOOPBACK, port, limit=_CHUNK)
        idle = True

        def asked(chunk: bytes) -> None:
            nonlocal idle
            moved[0] += len(chunk)
            # In a body, such bytes are no request.
            if idle and (found := _REQUEST.match(chunk)):
                counts[METHODS.index(found[1].decode())] += 1
                idle = False

        def answered(chunk: bytes) -> None:
            nonlocal idle
            moved[1] += len(chunk)
            idle = True

        await asyncio.gather(
            _pass_on(client, to_server, delay, first=3, seen=asked),
            _pass_on(server, to_client, delay, first=1, seen=answered),
        )

    listener = await asyncio.start_server(connected, _LOOPBACK, 0, limit=_CHUNK)
    ready.send(listener.sockets[0].getsockname()[1])
    async with listener:
        await listener.serve_forever()


async def _pass_on(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter,
    delay: Any,
    first: int,
    seen: Callable[[bytes], None],
) -> None:
    """Deliver each chunk half a round trip after it came, and the first one after `first` halves."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

    async def deliver() -> None:
        with suppress(OSError):
            while True:
                due, chunk = await waiting.get()
                await asyncio.sleep(due - loop.time())
                if not chunk:
                    break
                target.write(chunk)
                await target.drain()
        target.close()

    delivering = asyncio.create_task(deliver())
    halves = first
    with suppress(OSError):
        while chunk := await source.read(_CHUNK):
            seen(chunk)
            await waiting.put((loop.time() + halves * delay.value / 2, chunk))
            halves = 1
    await waiting.put((loop.time() + delay.value / 2, b""))
    await delivering
