"""A stand-in for a network that loses responses: a TCP proxy in front of an HTTP server.

It passes every byte through, except the responses that it is set to lose. The server has carried out such a
request, and the client does not learn the result.
"""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Literal, Self

Loss = Literal["close", "silence"]
_CHUNK: Final = 1 << 16
_REQUEST: Final = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) \S+ HTTP/1\.1\r\n")
_CONTINUE: Final = b"HTTP/1.1 100 "


class DroppingProxy:
    """Listens on a loopback port of its own; as a context manager it ends with all its connections."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream: Final = ("127.0.0.1", upstream_port)
        self._lock: Final = threading.Lock()
        self._lost: list[tuple[re.Pattern[bytes], Loss]] = []
        self._sockets: Final[set[socket.socket]] = set()
        self._threads: Final[list[threading.Thread]] = []
        self.dropped = 0
        """Number of responses that were lost."""
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose(self, request: str, how: Loss = "close") -> None:
        """Lose the next answer to a request: close the connection, or say nothing for ever.

        `request` is a regular expression for the beginning of its first line, `PUT /path HTTP/1.1`.
        """
        with self._lock:
            self._lost.append((re.compile(request.encode()), how))

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            ends = [self._listener, *self._sockets]
        for end in ends:
            _end(end)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._sockets.update((client, server))
            request: list[bytes] = []
            self._start(self._requests, client, server, request)
            self._start(self._answers, client, server, request)

    def _requests(self, client: socket.socket, server: socket.socket, request: list[bytes]) -> None:
        for chunk in _chunks(client):
            found = _REQUEST.match(chunk)
            if found:
                request[:] = [found[0]]
            if not _send(server, chunk):
                break
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket, request: list[bytes]) -> None:
        for chunk in _chunks(server):
            how = None if chunk.startswith(_CONTINUE) else self._take(request)
            if how == "silence":
                for _ in _chunks(server):
                    pass  # until the client gives up
            if how is not None or not _send(client, chunk):
                break
        _end(client)
        _end(server)

    def _take(self, request: list[bytes]) -> Loss | None:
        with self._lock:
            for index, (wanted, how) in enumerate(self._lost):
                if any(map(wanted.match, request)):
                    del self._lost[index]
                    self.dropped += 1
                    return how
        return None

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _chunks(end: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            chunk = end.recv(_CHUNK)
        except OSError:
            return
        if not chunk:
            return
        yield chunk


def _send(end: socket.socket, chunk: bytes) -> bool:
    try:
        end.sendall(chunk)
    except OSError:
        return False
    return True


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
