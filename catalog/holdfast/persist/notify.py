"""Change notifications over a socket: a writing client publishes that a shard has a new version.

They are for readers whose store has no hints of its own, or late ones. The first line contains the location's
id. Then there is one line, `<shard id> <seqno>`, for each new version that the client knows. The lines
contain no secrets. They need not be trusted either, because a reader that receives one reads the log.

Invariants:

- A commit never waits for notifications. It leaves a note, and the thread of the server does the rest.
- A subscriber that reads too slowly, or that sends anything, is disconnected. It polls at its pace until it
  is back.
- Nothing that comes over a socket changes what is read, only when it is read. A peer that is not a Holdfast
  server is disconnected.
"""

import re
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import BadInput, StoreUnreachable

MOST_SUBSCRIBERS: Final = 64
MOST_WAITING_BYTES: Final = 64 * 1024
_FORMS: Final = "unix:/path or tcp://host:port"
_LINE: Final = re.compile(rb"(s[0-9a-f-]{36}) ([0-9]{1,19})")
_MOST_LINE_BYTES: Final = 128
_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 5.0
_CONNECT_S: Final = 5.0


def _greeting(location_id: uuid.UUID) -> bytes:
    return f"holdfast 1 {location_id}\n".encode()


def parse_address(url: str) -> str | tuple[str, int]:
    """Return the path or (host, port) in `unix:/path` or `tcp://host:port`. Raises `BadInput` for others."""
    wrong = BadInput("a change notification address can't be parsed", hint=f"known forms: {_FORMS}")
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
            return parts.path
        if parts.scheme == "tcp" and parts.hostname and parts.port is not None and not parts.path:
            return parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    raise wrong


class ChangeServer:
    """Publishes new versions to subscribers. `address` is the address to follow, with the actual port.

    Raises `BadInput` if the address is invalid, and `StoreUnreachable` if it can't be listened on.
    """

    def __init__(self, url: str, location_id: uuid.UUID) -> None:
        self._place: Final = parse_address(url)
        self._greeting: Final = _greeting(location_id)
        self._lock: Final = threading.Lock()
        self._news: dict[str, int] = {}
        self._closed = False
        try:
            self._listening: Final = _bind(self._place)
        except OSError as error:
            raise StoreUnreachable(
                f"can't publish changes at {url}: {error.strerror or error}",
                hint="choose an address that no other process uses",
            ) from None
        self.address: Final = url if isinstance(self._place, str) else _tcp(self._listening)
        self._waker, self._woken = socket.socketpair()
        for each in (self._listening, self._waker, self._woken):
            each.setblocking(False)
        self._waiting: Final[dict[socket.socket, bytearray]] = {}
        self._selector: Final = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread: Final = threading.Thread(target=self._run, name="holdfast-notify", daemon=True)
        self._thread.start()

    def changed(self, shard_id: str, seqno: int) -> None:
        """Publish that a shard is at a version. Returns at once."""
        with self._lock:
            self._news[shard_id] = seqno
        self._wake()

    def close(self) -> None:
        """Disconnect all subscribers and stop listening."""
        self._closed = True
        self._wake()
        self._thread.join()
        self._waker.close()

    def _wake(self) -> None:
        # If the pipe is full, the thread is being woken already.
        with suppress(OSError):
            self._waker.send(b"!")

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select():
                each = key.fileobj
                assert isinstance(each, socket.socket)
                if each is self._listening:
                    self._accept()
                elif each is self._woken:
                    with suppress(OSError):
                        self._woken.recv(4096)
                    self._tell_all()
                elif each not in self._waiting:
                    continue  # disconnected meanwhile
                elif events & selectors.EVENT_READ:
                    # A subscriber sends nothing. So it has closed the connection, or is something else.
                    self._drop(each)
                else:
                    self._send(each)
        for each in [*self._waiting]:
            self._drop(each)
        self._selector.close()
        self._listening.close()
        self._woken.close()
        if isinstance(self._place, str):
            Path(self._place).unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            peer, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError:
            # There is no free descriptor. Wait, so that this does not loop until there is one.
            time.sleep(_FIRST_RETRY_S)
            return
        if len(self._waiting) >= MOST_SUBSCRIBERS:
            peer.close()
            return
        peer.setblocking(False)
        self._waiting[peer] = bytearray(self._greeting)
        self._selector.register(peer, selectors.EVENT_READ)
        self._send(peer)

    def _tell_all(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        lines = b"".join(f"{shard_id} {seqno}\n".encode() for shard_id, seqno in news.items())
        for peer in [*self._waiting] if lines else ():
            self._waiting[peer] += lines
            self._send(peer)

    def _send(self, peer: socket.socket) -> None:
        waiting = self._waiting[peer]
        try:
            del waiting[: peer.send(waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        if len(waiting) > MOST_WAITING_BYTES:
            self._drop(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
        self._selector.modify(peer, events)

    def _drop(self, peer: socket.socket) -> None:
        del self._waiting[peer]
        self._selector.unregister(peer)
        peer.close()


class ChangeFollower:
    """Follows a `ChangeServer`. Calls `heard` with the id of a changed shard, or with None for all shards.

    Raises `BadInput` if the address is invalid. A server that is down is retried for ever.
    """

    def __init__(self, url: str, location_id: uuid.UUID, heard: Callable[[str | None], None]) -> None:
        self._place: Final = parse_address(url)
        self._greeting: Final = _greeting(location_id)
        self._heard: Final = heard
        self._closed: Final = threading.Event()
        self._lock: Final = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_connected = False
        """Whether a server of this location is connected now."""
        self._thread: Final = threading.Thread(target=self._run, name="holdfast-follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._closed.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            try:
                with _connect(self._place) as server:
                    with self._lock:
                        self._socket = server
                    if not self._closed.is_set() and self._follow(server):
                        retry_s = _FIRST_RETRY_S
            except OSError:
                pass
            with self._lock:
                self._socket = None
            if self.is_connected:
                self.is_connected = False
                # There are no notifications any more, so waiters must poll at their own pace.
                self._heard(None)
            self._closed.wait(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _follow(self, server: socket.socket) -> bool:
        """Read until the connection ends or sends an invalid line. Return whether it greeted as Holdfast."""
        rest = b""
        while data := server.recv(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not self.is_connected:
                    if line + b"\n" != self._greeting:
                        return False
                    self.is_connected = True
                    self._heard(None)
                elif found := _LINE.fullmatch(line):
                    self._heard(found[1].decode())
                else:
                    return False
            if len(rest) > _MOST_LINE_BYTES:
                return False
        return self.is_connected


def _tcp(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _bind(place: str | tuple[str, int]) -> socket.socket:
    if not isinstance(place, str):
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(place, family=family)
    listening = socket.socket(socket.AF_UNIX)
    try:
        try:
            listening.bind(place)
        except OSError:
            if not _is_left_over(place):
                raise
            Path(place).unlink()
            listening.bind(place)
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


def _is_left_over(path: str) -> bool:
    """Whether there is a socket file on which nobody listens any more, because its process has died."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return Path(path).is_socket()
        except OSError:
            return False
    return False


def _connect(place: str | tuple[str, int]) -> socket.socket:
    if not isinstance(place, str):
        server = socket.create_connection(place, timeout=_CONNECT_S)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    else:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(place)
        except BaseException:
            server.close()
            raise
    server.settimeout(None)
    return server
