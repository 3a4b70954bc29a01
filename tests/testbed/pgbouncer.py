"""PgBouncer in front of a Postgres server, on loopback."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from testbed import debian
from testbed.errors import PostgresError, Unavailable
from testbed.postgres import USER, PostgresServer, as_user, free_port
from testbed.process import Child

_BOOT_S = 20.0


def _binary() -> str | None:
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")


def provide() -> str:
    """The program, installed from Debian's package where it is missing. Raises `Unavailable`."""
    said = debian.install(("pgbouncer",), installed=lambda: _binary() is not None)
    found = _binary()
    if found is None:
        raise Unavailable(f"pgbouncer is missing: install Debian's package pgbouncer ({said})")
    return found


@contextmanager
def pooled(
    server: PostgresServer,
    mode: Literal["session", "transaction", "statement"],
    *,
    sessions: int = 20,
    round_robin: bool = False,
) -> Iterator[str]:
    """The address of a pooler in front of `server`; append `/` and the name of a database."""
    binary = provide()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
    port = free_port(server.address)
    try:
        (folder / "users").write_text(f'"{USER}" "{server.password}"\n')
        settings = {
            "listen_addr": server.address,
            "listen_port": port,
            "auth_type": "scram-sha-256",
            "auth_file": folder / "users",
            "pool_mode": mode,
            "default_pool_size": sessions,
            "server_round_robin": int(round_robin),
            "unix_socket_dir": "",
        }
        lines = [f"* = host={server.address} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (folder / "pgbouncer.ini").write_text("\n".join(["[databases]", *lines, ""]))
        command: list[str | Path] = [*as_user("--pdeathsig", "KILL"), binary, folder / "pgbouncer.ini"]
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
            for file in folder.iterdir():
                shutil.chown(file, USER)
        child = Child("pgbouncer", command, log=folder / "log", cwd=folder)
        try:
            _wait(child, server.address, port)
            yield f"postgresql://{USER}:{server.password}@{server.address}:{port}"
        finally:
            child.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(child: Child, address: str, port: int) -> None:
    ends = time.monotonic() + _BOOT_S
    while True:
        try:
            socket.create_connection((address, port), timeout=1.0).close()
            return
        except OSError:
            if child.poll() is not None or time.monotonic() > ends:
                raise PostgresError(f"pgbouncer did not start; its log ends:\n{child.tail(10)}") from None
            time.sleep(0.02)
