"""Counts what a client of Postgres sends over the network."""

import socket
import threading


class WireTap:
    """Passes a client's bytes on to a server, and adds up what each statement takes on the wire."""

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.statements: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            threading.Thread(target=self._tell, args=(client, server), daemon=True).start()
            threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()

    def _tell(self, client: socket.socket, server: socket.socket) -> None:
        """Messages are a type and a length; the first one, of the greeting, has no type."""
        size = 0
        with client, server, client.makefile("rb") as incoming:
            type_ = b""
            while head := incoming.read(4):
                body = incoming.read(int.from_bytes(head, "big") - 4)
                server.sendall(type_ + head + body)
                size += len(type_) + len(head) + len(body)
                if type_ in (b"Q", b"E", b"c"):  # a query, an execution, the end of what is copied in
                    self.statements.append(size)
                    size = 0
                type_ = incoming.read(1)
                if not type_:
                    return


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    except OSError:
        pass
    finally:
        target.close()
