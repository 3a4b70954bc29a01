"""A stand-in for a bad network to an API server: a seeded proxy that loses, delays, repeats and refuses.

Invariants
- The proxy passes requests on unchanged, with the rights of the cluster's own client.
- A request has at most one fault. The seed chooses it, in the order in which requests arrive. This order
  depends on the machine, so the same seed gives the same faults, but not the same run.
- `calm` ends the faults for all later requests. Open watches continue as they were.
- Only the operator uses the proxy. Tests call the API server directly.
"""

import contextlib
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from testbed.kube import ControlPlane
from testbed.serving import Serving

_PASSED: Final = ("Accept", "Content-Type", "User-Agent")
_ANSWER_S: Final = 30.0
_LONGEST_DELAY_S: Final = 1.0
_LONGEST_WATCH_S: Final = 2.0
_REFUSALS: Final = {
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_FAULTS: Final = ("drop", "lose", "delay", "repeat", *(str(each) for each in _REFUSALS if each != 403))
_LIST_FAULTS: Final = ("drop", "lose", "delay", "429", "500", "503", "504") * 3 + ("410", "422")
"""Of what is asked to know what to watch: what there is no answer to is rarer, as it begins all anew."""
_WATCH_FAULTS: Final = ("cut", "cut", "cut", "expire", "expire", "drop", "429", "500", "503", "410")
_EXPIRED: Final = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}


class FaultyApi:
    """The proxy; a context manager that ends it with all its connections."""

    def __init__(self, cluster: ControlPlane, *, seed: int, rate: float) -> None:
        """`rate` is the share of requests that meet a fault."""
        self._rng: Final = random.Random(seed)
        self._rate = rate
        self._lock: Final = threading.Lock()
        self._open: Final[set[socket.socket]] = set()
        self._asked: list[tuple[str, str]] = []
        self._always: dict[str, str] = {}
        self._hidden = ""
        self._late_s = 0.0
        self._flows: Final = threading.Event()
        self._flows.set()
        self.faults: Counter[str] = Counter()
        """What was met how often."""
        self.writes: Counter[str] = Counter()
        """What changes were passed on to the API server, by verb and plural; twice where it was repeated."""
        self.reads: Counter[str] = Counter()
        """What was read, by `get`, `list` or `watch` and plural; also what met a fault."""
        with cluster.api() as client:
            found = client.configuration
        server = urlsplit(found.host)
        self._host, self._port = server.hostname or "", server.port or 443
        self._context: Final = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            self._context.load_cert_chain(found.cert_file, found.key_file)
        self._token = found.get_api_key_with_prefix("BearerToken")

        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    proxy._serve(self)
                    return
                self.close_connection = True

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve  # noqa: N815

        self._server: Final = Serving(Handler)

    def cluster(self, folder: Path) -> ControlPlane:
        """The cluster as it is seen through this; its kubeconfig goes to `folder`."""
        server = self._server.url
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "faulty", "cluster": {"server": server}}],
            "users": [{"name": "anybody", "user": {"token": "none"}}],
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "anybody"}}],
            "current-context": "faulty",
        }
        path = folder / "faulty.kubeconfig"
        path.write_text(json.dumps(config))
        return ControlPlane(kubeconfig=path, server=server)

    def meet(self, request: str, fault: str) -> None:
        """Have the next request with this in its first words, `GET /path`, meet a fault: `drop`, `410`."""
        with self._lock:
            self._asked.append((request, fault))

    def refuse(self, request: str, fault: str = "") -> None:
        """Have each request with this in its first words meet a fault; with no fault, none any more."""
        with self._lock:
            if fault:
                self._always[request] = fault
            else:
                self._always.pop(request, None)

    def hide(self, path: str = "") -> None:
        """Respond to paths that begin with `path` as if the server did not serve them."""
        with self._lock:
            self._hidden = path

    def late(self, seconds: float) -> None:
        """Deliver the events of later watches this much later, one after the other."""
        with self._lock:
            self._late_s = seconds

    def stall(self, *, stalled: bool = True) -> None:
        """Keep watches open, but deliver nothing on them, nor any response to new ones, until it ends."""
        if stalled:
            self._flows.clear()
        else:
            self._flows.set()

    def calm(self) -> None:
        """No more faults from now on."""
        with self._lock:
            self._rate = 0.0

    def cut(self) -> None:
        """End all requests that are open, such as watches."""
        with self._lock:
            ends = tuple(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        self.stall(stalled=False)
        self._server.close()
        self.cut()

    def _serve(self, client: BaseHTTPRequestHandler) -> None:
        length = int(client.headers.get("Content-Length") or 0)
        body = client.rfile.read(length) if length else None
        watches = "watch=true" in client.path
        if client.command == "GET":
            with self._lock:
                self.reads[_read(client.path, watches=watches)] += 1
        faults = _LIST_FAULTS if "kopf" in client.headers.get("User-Agent", "") else _FAULTS
        if self._hidden and client.path.startswith(self._hidden):
            return _answer(client, 404, "text/plain", b"404 page not found\n")
        words = f"{client.command} {client.path}"
        fault = self._told(words) or self._draw(_WATCH_FAULTS if watches else faults)
        if fault is not None and fault.isdecimal():
            return _refuse(client, int(fault))
        if fault == "drop":
            raise ConnectionError("dropped")
        if fault == "delay":
            time.sleep(self._share() * _LONGEST_DELAY_S)
        if watches:
            return self._stream(client, fault)
        answer = self._ask(client, body)
        if fault == "lose":
            raise ConnectionError("lost")
        if fault == "repeat":
            again = self._ask(client, body)
            answer = again if self._share() < 0.5 else answer
        return _answer(client, *answer)

    def _told(self, words: str) -> str | None:
        with self._lock:
            for number, (request, fault) in enumerate(self._asked):
                if request in words:
                    del self._asked[number]
                    self.faults[fault] += 1
                    return fault
            for request, fault in self._always.items():
                if request in words:
                    self.faults[fault] += 1
                    return fault
        return None

    def _draw(self, faults: tuple[str, ...]) -> str | None:
        with self._lock:
            if self._rng.random() >= self._rate:
                return None
            fault = self._rng.choice(faults)
            self.faults[fault] += 1
            return fault

    def _share(self) -> float:
        with self._lock:
            return self._rng.random()

    @contextlib.contextmanager
    def _upstream(
        self, client: BaseHTTPRequestHandler, body: bytes | None
    ) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
        if client.command != "GET":
            with self._lock:
                self.writes[f"{client.command} {_plural(client.path)}"] += 1
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_ANSWER_S, context=self._context
        )
        headers = {name: client.headers[name] for name in _PASSED if name in client.headers}
        if self._token:
            headers["Authorization"] = self._token
        try:
            connection.request(client.command, client.path, body=body, headers=headers)
            end = connection.sock
            with self._lock:
                self._open.add(end)
            try:
                yield end, connection.getresponse()
            finally:
                with self._lock:
                    self._open.discard(end)
        finally:
            connection.close()

    def _ask(self, client: BaseHTTPRequestHandler, body: bytes | None) -> tuple[int, str, bytes]:
        with self._upstream(client, body) as (_, answer):
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()

    def _stream(self, client: BaseHTTPRequestHandler, fault: str | None) -> None:
        """Pass a watch on; one with a fault ends soon, in the middle of whatever comes."""
        self._flows.wait()
        with self._upstream(client, None) as (end, answer):
            if answer.status != 200:
                return _answer(client, answer.status, "application/json", answer.read())
            client.send_response(200)
            client.send_header("Content-Type", "application/json")
            client.send_header("Transfer-Encoding", "chunked")
            client.end_headers()
            if fault is None:
                end.settimeout(None)
                while chunk := answer.read1(1 << 16):
                    time.sleep(self._late_s)
                    self._flows.wait()
                    _chunk(client, chunk)
                client.wfile.write(b"0\r\n\r\n")
                return None
            until = time.monotonic() + self._share() * _LONGEST_WATCH_S
            with contextlib.suppress(TimeoutError):
                while (left := until - time.monotonic()) > 0:
                    end.settimeout(left)
                    if not (chunk := answer.read1(1 << 16)):
                        break
                    if fault == "cut" and self._share() < 0.3:
                        _chunk(client, chunk[: len(chunk) // 2])
                        break
                    _chunk(client, chunk)
            if fault == "expire":
                _chunk(client, json.dumps({"type": "ERROR", "object": _EXPIRED}).encode() + b"\n")
                client.wfile.write(b"0\r\n\r\n")
            raise ConnectionError("cut")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plural(path: str) -> str:
    """What a path is about: `catalogs`, `catalogs/status`."""
    parts = urlsplit(path).path.strip("/").split("/")
    parts = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts[:-2] else parts[-1:]
    return "/".join(part for number, part in enumerate(parts) if number != 1)


def _read(path: str, *, watches: bool) -> str:
    """What a GET request reads: `get catalogs`, `list pods`, `watch catalogs`."""
    parts = urlsplit(path).path.strip("/").split("/")
    inside = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts[:-2] else parts[-1:]
    return f"{'watch' if watches else 'get' if len(inside) > 1 else 'list'} {inside[0]}"


def _refuse(client: BaseHTTPRequestHandler, code: int) -> None:
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "refused by the test bed",
        "reason": _REFUSALS[code],
        "code": code,
    }
    _answer(client, code, "application/json", json.dumps(status).encode())


def _answer(client: BaseHTTPRequestHandler, code: int, type_: str, content: bytes) -> None:
    client.send_response(code)
    client.send_header("Content-Type", type_)
    client.send_header("Content-Length", str(len(content)))
    if code in {429, 503}:
        client.send_header("Retry-After", "1")
    client.end_headers()
    client.wfile.write(content)


def _chunk(client: BaseHTTPRequestHandler, content: bytes) -> None:
    client.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
    client.wfile.flush()
