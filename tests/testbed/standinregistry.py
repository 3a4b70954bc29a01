"""A stand-in for a schema registry: its REST API for schemas over HTTP on loopback, and its bad days.

It is not Confluent's registry. It keeps what a test says, and has no compatibility and no store.
"""

import base64
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

UNKNOWN: Final = b'{"error_code":40403,"message":"Schema not found"}'
_NO_VERSION: Final = b'{"error_code":40402,"message":"Version not found."}'
_NO_SUBJECT: Final = b'{"error_code":40401,"message":"Subject not found."}'


class StandInRegistry:
    """As a context manager it is stopped at the end.

    `responses` replace the normal ones while they last, and `always` replaces all. With `cut`, responses lack
    their last byte.
    """

    def __init__(self, user: str = "", password: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[int, dict[str, Any]]] = {}
        self.responses: list[tuple[int, bytes]] = []
        self.always: tuple[int, bytes] | None = None
        self.delay_s = 0.0
        self.cut = False
        self.asked: Counter[int] = Counter()
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._wanted = f"Basic {token}" if user else None
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where it listens, also while it is stopped."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def register(self, id_: int, schema: object, **fields: Any) -> int:
        """Give an id this schema, whatever it had before."""
        self.schemas[id_] = {"schema": json.dumps(schema), **fields}
        return id_

    def register_version(self, subject: str, version: int, schema: object, **fields: Any) -> None:
        """Give a version of a subject this schema, whatever it had before."""
        self.subjects.setdefault(subject, {})[version] = {
            "subject": subject,
            "version": version,
            "schema": json.dumps(schema),
            **fields,
        }

    def serve(self) -> None:
        """Listen, on the same port as before."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), self._handler())
        self._port = self._server.server_address[1]
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _response(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        time.sleep(self.delay_s)
        if self.responses:
            return self.responses.pop(0)
        if self.always is not None:
            return self.always
        if self._wanted is not None and headers.get("Authorization") != self._wanted:
            return 401, b'{"error_code":40101,"message":"Unauthorized"}'
        path, _, options = path.partition("?")
        folder, _, last = path.rpartition("/")
        if folder.startswith("/subjects/") and folder.endswith("/versions") and options == "deleted=true":
            subject = unquote(folder.removeprefix("/subjects/").removesuffix("/versions"))
            if subject not in self.subjects:
                return 404, _NO_SUBJECT
            version = self.subjects[subject].get(int(last))
            return (404, _NO_VERSION) if version is None else (200, json.dumps(version).encode())
        if folder != "/schemas/ids":
            return 404, b"<html>not found</html>"
        self.asked[int(last)] += 1
        found = self.schemas.get(int(last))
        return (404, UNKNOWN) if found is None else (200, json.dumps(found).encode())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = registry._response(self.path, dict(self.headers))
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body[:-1] if registry.cut else body)
                except OSError:
                    pass

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        self.serve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
