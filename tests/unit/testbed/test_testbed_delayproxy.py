"""The proxy of `testbed.delayproxy` delays as it says, counts requests, and passes all bytes on."""

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from testbed.delayproxy import DelayProxy

BODY = bytes(range(256)) * 40_000


class Handler(BaseHTTPRequestHandler):
    """Returns what was sent, or a body of 10 MB."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.reply(BODY)

    def do_PUT(self) -> None:
        self.reply(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy() -> Iterator[DelayProxy]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with DelayProxy(server.server_port) as found:
            yield found
        server.shutdown()


def asked(connection: http.client.HTTPConnection, method: str, body: bytes = b"") -> tuple[float, bytes]:
    start = time.monotonic()
    connection.request(method, "/", body)
    found = connection.getresponse().read()
    return time.monotonic() - start, found


def test_bytes_pass_in_both_directions_and_requests_are_counted(proxy: DelayProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    assert asked(connection, "GET")[1] == BODY
    assert asked(connection, "PUT", BODY)[1] == BODY
    # A body that looks like a request is not one.
    assert asked(connection, "PUT", b"x" * (1 << 20) + b"GET / HTTP/1.1")[1].endswith(b"GET / HTTP/1.1")
    connection.close()
    assert proxy.requests() == {"GET": 1, "HEAD": 0, "PUT": 2, "POST": 0, "DELETE": 0}
    sent, received = proxy.moved()
    headers = 2000
    assert 0 < sent - len(BODY) - (1 << 20) < headers
    assert 0 < received - 2 * len(BODY) - (1 << 20) < headers


def test_a_new_connection_costs_a_round_trip_and_each_request_another_one(proxy: DelayProxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    proxy.delay = 0.5
    assert asked(connection, "PUT", b"a")[0] >= 1
    assert asked(connection, "PUT", b"a")[0] >= 0.5
    connection.close()
