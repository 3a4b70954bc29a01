"""A stand-in for a foreign Postgres server. It asks every client for its password in clear text.

It records each password, and then refuses the client. A real server that asks for a password records none.
"""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Final, Self

_ENCRYPTION: Final = {80877103, 80877104}
"""Requests for TLS and for GSSAPI, which it has none of."""
_CLEAR_TEXT: Final = b"R" + struct.pack("!II", 8, 3)
_REFUSAL: Final = b"SFATAL\0C28P01\0Mthat isn't it\0\0"


class AskingPostgres:
    """Listens on a loopback port of its own until the end of the context."""

    def __init__(self) -> None:
        self.asked = 0
        """How many clients it asked."""
        self.told: Final[list[str]] = []
        """The passwords that it received."""
        self._listener: Final = socket.create_server(("127.0.0.1", 0))
        self._thread: Final = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def url(self, database: str = "shop") -> str:
        """The address of a database, without a user."""
        return f"postgresql://127.0.0.1:{self._listener.getsockname()[1]}/{database}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError, struct.error):
                client.settimeout(5)
                self._ask(client)

    def _ask(self, client: socket.socket) -> None:
        while struct.unpack("!I", _message(client)[:4])[0] in _ENCRYPTION:
            client.sendall(b"N")
        self.asked += 1
        client.sendall(_CLEAR_TEXT)
        if client.recv(1) == b"p":
            self.told.append(_message(client).rstrip(b"\0").decode())
            client.sendall(b"E" + struct.pack("!I", len(_REFUSAL) + 4) + _REFUSAL)


def _message(client: socket.socket) -> bytes:
    """What follows its own length."""
    (length,) = struct.unpack("!I", client.recv(4, socket.MSG_WAITALL))
    return client.recv(length - 4, socket.MSG_WAITALL)
