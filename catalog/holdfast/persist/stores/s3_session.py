"""The connections of a process to one S3 service, and what all kinds of requests have in common.

Invariants:

- The client library's own retries are off. This module and its callers decide what is retried.
- No connection is used on both sides of a fork. A child opens its own.
- A response is read only up to a limit, from any server. For an object, the caller sets the limit.
- A response must begin within `answer_s` seconds. From then on, its headers and its body must arrive with at
  least `SLOWEST` bytes per second, after `answer_s` more seconds of waiting. A request that takes longer than
  a second is not repeated here. So a service that hangs delays a request by `answer_s` seconds. The deadline
  of the caller decides whether there is another one.
- Credentials come from the caller, or else from the environment and the AWS configuration. No message
  contains any. Those in files (`StoreKeys`) are read again for each request.
"""

import base64
import io
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self, TypeVar

import google_crc32c
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials
from botocore.exceptions import PartialCredentialsError, ResponseStreamingError
from botocore.loaders import create_loader
from botocore.session import Session

from holdfast.persist.stores.s3_errors import FAILURES, cause, passing, refused, unreachable
from holdfast.persist.stores.s3_place import S3Place
from holdfast.store_keys import KEY, SECRET_KEY, TOKEN, s3_keys

T = TypeVar("T")

ANSWER_S: Final = 20.0
_THREADS: Final = 4
"""Parallel parts of one upload: enough to use a fast connection, and a bound on memory."""
_CALLERS: Final = 16
"""Parallel calls of `together`. Small objects take about the time for an answer."""
_CONNECTIONS: Final = 32
_CONNECT_S: Final = 5.0
_MOST_OF_ANSWER: Final = 16 << 20
"""Bytes: more than a listing of the longest keys needs, and more than any error message."""
_PIECE: Final = 1 << 18
SLOWEST: Final = 16 << 10
_AT_ONCE: Final = 64 << 10
"""Bytes of a body that is sent together with its headers. A refusal wastes no more than that."""
_WAITS_S: Final = (0.1, 0.4)
"""The longest waits before the second and the third attempt."""
_REPEAT_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Connections:
    """The state of one process: a client with its connections, and threads for parallel requests.

    A call of `callers` may wait for the `threads` of an upload, so they are not the same.
    """

    pid: int
    client: Any
    threads: ThreadPoolExecutor
    callers: ThreadPoolExecutor


class S3Session:
    """The service of `place`. `answer_s` is how many seconds a request may wait for any data.

    Raises `StoreUnreachable` if the service does not respond, the bucket is missing, or credentials are
    missing or refused. If the caller only `reads`, the hint asks for no other rights. `credentials` has the
    names of AWS's environment variables.
    """

    def __init__(
        self,
        place: S3Place,
        *,
        answer_s: float,
        reads: bool = False,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self.place: Final = place
        self.base: Final = place.prefix + "/" if place.prefix else ""
        self._answer_s: Final = answer_s
        self._credentials: Final = credentials
        try:
            self._connections = self._connect()
        except FAILURES as error:
            raise unreachable(error, str(place), reads=reads) from cause(error)
        try:
            self.page(self.base, most=1)
        except FAILURES as error:
            self.close()
            raise unreachable(error, str(place), reads=reads) from cause(error)

    @property
    def client(self) -> Any:
        """The client of this process."""
        return self._ready().client

    @property
    def threads(self) -> ThreadPoolExecutor:
        """A few threads of this process, for the parts of uploads."""
        return self._ready().threads

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        """Call the functions in parallel, and return their results. All have ended when it raises."""
        if not asks:
            return []
        callers = self._ready().callers
        sent: list[Future[T]] = []
        calls: list[Callable[[], T]] = []
        # The first function runs in this thread, which would only wait otherwise.
        for ask in asks[1:]:
            try:
                sent.append(callers.submit(ask))
                calls.append(sent[-1].result)
            except RuntimeError:
                # While the interpreter ends, it starts no thread.
                calls.append(ask)
        try:
            return [asks[0](), *(call() for call in calls)]
        finally:
            wait(sent)

    def page(
        self, prefix: str, token: str | None = None, *, after: str = "", most: int = 1000
    ) -> dict[str, Any]:
        """Return one page of the objects whose whole name begins with `prefix`, after one name."""
        begin = {"StartAfter": after} if after else {}
        if token is not None:
            begin = {"ContinuationToken": token}
        page: dict[str, Any] = patiently(
            lambda: self.client.list_objects_v2(
                Bucket=self.place.bucket, Prefix=prefix, MaxKeys=most, **begin
            ),
            passing,
        )
        return page

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        held = self._connections
        if held.pid == os.getpid():
            held.threads.shutdown(wait=False)
            held.callers.shutdown(wait=False)
            held.client.close()
        self._connections = _Connections(0, None, held.threads, held.callers)

    def _ready(self) -> _Connections:
        held = self._connections
        if held.pid != os.getpid():
            # There is no lock, because a fork might copy a held one. If two threads race, one wins.
            self._connections = held = self._connect()
        return held

    def _connect(self) -> _Connections:
        place = self.place
        # Each client has its own session, because a session is not safe to use from several threads.
        session = Session()
        session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
        if s3_keys(self._credentials):
            session.register_component("credential_provider", _Given(self._credentials))
        client = session.create_client(
            "s3",
            endpoint_url=place.endpoint,
            region_name=place.region or (None if place.endpoint is None else "us-east-1"),
            config=Config(
                connect_timeout=_CONNECT_S,
                read_timeout=self._answer_s,
                max_pool_connections=_CONNECTIONS,
                tcp_keepalive=True,
                retries={"mode": "standard", "total_max_attempts": 1},
                # With an endpoint of your own, a bucket is often not a host name.
                s3={"addressing_style": "auto" if place.endpoint is None else "path"},
            ),
        )
        _bound_answers(client)
        client.meta.events.register_last("before-call.s3", _send_at_once)
        threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-s3-parts")
        callers = ThreadPoolExecutor(_CALLERS, thread_name_prefix="holdfast-s3")
        return _Connections(os.getpid(), client, threads, callers)


class _Given(Credentials):  # type: ignore[misc]
    """The caller's credentials, which the client library asks for whenever it signs a request."""

    def __init__(self, given: Mapping[str, str] | None) -> None:
        super().__init__("", "", method="explicit")
        self._given: Final = given

    def load_credentials(self) -> Self:
        return self

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        found = s3_keys(self._given)
        if lacking := [name for name in (KEY, SECRET_KEY) if name not in found]:
            raise PartialCredentialsError(provider=self.method, cred_var=lacking[0])
        return ReadOnlyCredentials(found[KEY], found[SECRET_KEY], found.get(TOKEN))


def _bound_answers(client: Any) -> None:
    """Limit for how long `client` reads a response, and how much of one that is not an object.

    The library reads such responses as a whole before anybody can intervene, and has no setting for a limit.
    """
    http = client._endpoint.http_session  # noqa: SLF001
    # The manager of a proxy, which is made later, gets the same table.
    http._pool_classes_by_scheme.update(http=_PacedPool, https=_PacedPoolWithTls)  # noqa: SLF001
    send = http.send

    def bounded(request: Any) -> Any:
        streams, request.stream_output = request.stream_output, True
        answer = send(request)
        answer.raw = _Bounded(answer.raw)
        if not streams:
            answer.content  # noqa: B018 - as `send` does
        return answer

    http.send = bounded


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    """Don't ask the service whether it wants a small body: that would cost a round trip for each put."""
    body = params.get("body")
    if isinstance(body, io.BytesIO) and body.getbuffer().nbytes <= _AT_ONCE:
        params["headers"].pop("Expect", None)


class _Bounded:
    """The body of a response. It is either read, or `stream`ed as a whole."""

    def __init__(self, body: Any) -> None:
        self._body: Final = body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def read(self, amount: int | None = None) -> bytes:
        """Read this number of bytes, or all, like a file."""
        pieces = []
        left = amount
        while left is None or left > 0:
            piece = self._body.read1(_PIECE if left is None else min(left, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            left = None if left is None else left - len(piece)
        return b"".join(pieces)

    def stream(self) -> Iterator[bytes]:
        left = _MOST_OF_ANSWER
        while piece := self.read(_PIECE):
            left -= len(piece)
            if left < 0:
                self._body.close()
                raise ResponseStreamingError(error=f"it has more than {_MOST_OF_ANSWER} bytes")
            yield piece


class _PacedFile(io.RawIOBase):
    """What a socket receives, which must arrive in time. The allowed wait is the timeout of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Final = sock
        self._file: Final = sock.makefile("rb", 0)
        self._waited_s = 0.0
        self._received = 0

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def readinto(self, buffer: Any, /) -> int:
        began_s = time.monotonic()
        received = self._file.readinto(buffer) or 0
        if self._received:
            # Until the first byte, the timeout of the socket is enough.
            self._waited_s += time.monotonic() - began_s
        self._received += received
        allowed_s = self._sock.gettimeout()
        if allowed_s is not None and self._waited_s > allowed_s + self._received / SLOWEST:
            raise TimeoutError("the response arrives too slowly")
        return received

    def close(self) -> None:
        self._file.close()
        super().close()


class _PacedSocket:
    """A connected socket whose files are `_PacedFile`s. Headers and bodies are read from such files."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock: Final = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, _mode: str, buffering: int = -1) -> io.IOBase:
        file = _PacedFile(self._sock)
        return file if buffering == 0 else io.BufferedReader(file)


class _Paced:
    """A connection of the client library that reads its responses from a `_PacedSocket`."""

    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.sock = _PacedSocket(self.sock)


class _PacedConnection(_Paced, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _PacedConnectionWithTls(_Paced, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _PacedPool(AWSHTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _PacedConnection


class _PacedPoolWithTls(AWSHTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _PacedConnectionWithTls


def read_body(body: Any, most: int | None) -> bytes:
    """Read the body of an object, or its first `most` bytes. The rest is dropped with its connection."""
    if most is None:
        return bytes(body.read())
    data = b""
    with closing(body):
        while len(data) < most and (piece := body.read(most - len(data))):
            data += piece
    return data


@cache
def _descriptions(path: str | None) -> Any:
    """The service descriptions, which never change. Loading them is most of the work of making a client."""
    return create_loader(path)


def patiently(ask: Callable[[], T], again: Callable[[Exception], bool]) -> T:
    """Call `ask`, and retry a few times within a second after failures that allow it."""
    ends = time.monotonic() + _REPEAT_WITHIN_S
    for longest in _WAITS_S:
        try:
            return ask()
        except FAILURES as error:
            if not again(error) or time.monotonic() >= ends:
                raise
        # Wait for a random time, so that clients that were refused together don't return together.
        time.sleep(random.uniform(0, longest))  # noqa: S311 - no secret
    return ask()


def passing_and_refused(error: Exception) -> bool:
    """Whether a write certainly did not happen, and may succeed soon."""
    return passing(error) and refused(error)


def crc32c(data: bytes) -> str:
    """Return the checksum of a body in the service's notation."""
    return told(google_crc32c.value(data))


def told(checksum: int) -> str:
    """Return a CRC-32C in the service's notation."""
    return base64.b64encode(checksum.to_bytes(4, "big")).decode()
