"""A stand-in for a foreign S3 service whose responses are far too long, or slow. It counts what is read."""

import contextlib
import time
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Final, Self

from testbed.serving import Serving

PROMISED: Final = 100
_PIECE: Final = bytes(1 << 16)
_EMPTY: Final = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"


class FloodingS3:
    """Listens on a loopback port of its own until the end of the context.

    Answers to `GET` have `size` bytes and the status `status`; the listing of a bucket too, if `listings`. To
    `HEAD` it says that an object has `PROMISED` bytes. With `drips`, such an answer comes byte by byte,
    twenty in a second. With `drips_head`, its headers come in this way, and so do those of an answer to
    `PUT`.
    """

    def __init__(
        self,
        size: int,
        *,
        status: int = 200,
        listings: bool = False,
        drips: bool = False,
        drips_head: bool = False,
    ) -> None:
        self.sent = 0
        """Number of bytes sent in such responses: those read, those in buffers, and the next piece."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(200, PROMISED)

            def do_GET(self) -> None:
                if "list-type" in self.path and not listings:
                    self.answer(200, len(_EMPTY))
                    self.wfile.write(_EMPTY)
                    return
                if drips_head:
                    self.drip_head()
                    return
                self.answer(status, size)
                left = size
                with contextlib.suppress(OSError):
                    while left:
                        piece = _PIECE[: 1 if drips else left]
                        if drips:
                            time.sleep(0.05)
                        left -= len(piece)
                        # Before the write: the client may have read it all before this thread goes on.
                        service.sent = max(service.sent, size - left)
                        self.wfile.write(piece)

            def do_PUT(self) -> None:
                self.drip_head()

            def drip_head(self) -> None:
                with contextlib.suppress(OSError):
                    for byte in f"HTTP/1.1 200 OK\r\nServer: {'x' * size}":
                        service.sent += 1
                        self.wfile.write(byte.encode())
                        time.sleep(0.05)
                self.close_connection = True

            def handle_expect_100(self) -> bool:
                self.drip_head()
                return False

            def answer(self, code: int, length: int) -> None:
                self.send_response(code)
                self.send_header("ETag", '"flood"')
                self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
                self.send_header("Content-Length", str(length))
                self.end_headers()

        self._server: Final = Serving(Handler)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
