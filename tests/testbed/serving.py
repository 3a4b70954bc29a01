"""Serves a handler of HTTP requests from a thread of the test."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final


class Serving:
    """Listens on a loopback port of its own, without TLS, until it is closed; it logs no requests."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
        self._server: Final = ThreadingHTTPServer(("127.0.0.1", 0), quiet)
        # What a client left open keeps nobody.
        self._server.daemon_threads = True
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
