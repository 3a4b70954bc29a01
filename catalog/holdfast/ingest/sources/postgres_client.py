"""Connections to the Postgres server of a source: what they need of a spec, and what their errors mean.

- Values are text in one form, whatever the server, the database and the role are set to.
- A connection that was lost is opened again, and the statement is repeated. The server may be gone for
  `PATIENCE_S`. Only the first contact is not repeated, so that a wrong address is shown at once.
- A wait never blocks for longer than a bound, and ends if the pipeline is to end
  (`holdfast.ingest.sources.postgres_waiting`). So does the wait for a server that lets nobody in.
"""

import re
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import capabilities, errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus

from holdfast.errors import HoldfastError, StoreUnreachable
from holdfast.ingest.credentials import SecretRef
from holdfast.ingest.sources.postgres_stream import ChangeStream
from holdfast.ingest.sources.postgres_waiting import (
    ANSWER_S,
    LONG_ANSWER_S,
    SOON_S,
    WatchedConnection,
    await_result,
)
from holdfast.ingest.spec import PostgresSpec
from holdfast.ingest.waits import Stopped, Waits
from holdfast.pg_session import Connection, PostgresAddress, connect, end_in_children, reason_of

PATIENCE_S: Final = 60.0
"""How long a server may be gone after the first contact, and how long it may take to make a slot."""
PAUSE_S: Final = 0.2
_LEAVES_S: Final = 2.0
_CHUNK: Final = 32
"""How many rows of a stream are in memory at once, if libpq can return several."""
_SETTINGS: Final[Mapping[str, str]] = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "search_path": "pg_catalog",
    # A policy must not hide rows. The statement fails instead.
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}

_REFUSED: Final = re.compile(
    "authentication failed|not permitted|permission denied|pg_hba.conf|replication role"
)
"""What a server says that lets nobody in with this URL. libpq gives no code for it, only the text."""

_T = TypeVar("_T")


class PostgresClient:
    """A connection that asks, and others for those who need their own."""

    def __init__(self, spec: PostgresSpec, waits: Waits) -> None:
        self._waits = waits
        self._kind = WatchedConnection.of(waits)
        address = PostgresAddress.parse(spec.url)
        # The password is only in the connection strings, which no message shows.
        conninfo = address.conninfo
        if spec.password is not None:
            conninfo = make_conninfo(conninfo, password=spec.password.read("the password of source.postgres"))
        given = conninfo_to_dict(address.conninfo)
        if spec.secret is not None:
            conninfo = make_conninfo(conninfo, **_of_secret(spec.secret, given))
        self.where = f"{given.get('host', 'localhost')}:{given.get('port', 5432)}/{given.get('dbname', '')}"
        self._address = PostgresAddress(conninfo, address.schema, self.where)
        self._kept: WatchedConnection | None = None
        self._locks: set[str] = set()
        self.refusal = ""
        """Why the server let in no receiver of changes."""
        self.opened = 0
        """How often the connection that asks was opened. Each time the server may be in another state."""
        self._connection(check_pooler=True)

    def _connection(self, *, long: bool = False, check_pooler: bool = False) -> WatchedConnection:
        """The connection that asks, for a statement that may be a `long` one."""
        if self._kept is None or self._kept.closed:
            self._kept = self.new(check_pooler=check_pooler)
            self.opened += 1
            for each in self._locks:
                _lock(self._kept, each)
        self._kept.most_s = LONG_ANSWER_S if long else ANSWER_S
        return self._kept

    def new(self, *, check_pooler: bool = False) -> WatchedConnection:
        """Open a connection. Raises `StoreUnreachable`."""
        try:
            opened = connect(self._address, settings=_SETTINGS, check_pooler=check_pooler, kind=self._kind)
        except psycopg.Error as error:
            # Its frames have the password.
            raise self.failure("connect", error) from None
        assert isinstance(opened, WatchedConnection)
        return opened

    @property
    def is_lost(self) -> bool:
        """Whether the connection that asks was lost."""
        return self._kept is None or self._kept.closed

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()

    def rows(self, query: LiteralString, parameters: Mapping[str, object] | None = None) -> list[Any]:
        """The rows of a query. Raises like `retried`."""
        return self.retried(lambda connection: connection.execute(query, parameters).fetchall())

    def rows_soon(self, query: LiteralString, parameters: Mapping[str, object]) -> list[Any] | None:
        """The rows of a query. None if the server does not respond within `SOON_S`."""
        try:
            connection = self._connection()
            connection.most_s = SOON_S
            return connection.execute(query, parameters).fetchall()
        except (psycopg.Error, StoreUnreachable):
            return None

    def once(self, opened: int, query: LiteralString, parameters: Mapping[str, object]) -> bool:
        """Run a statement if the connection is still the one that was `opened` as this one.

        False if it is not, or was lost meanwhile. Raises `psycopg.Error` for anything else.
        """
        if self.opened != opened or self._kept is None or self._kept.closed:
            return False
        try:
            self._connection(long=True).execute(query, parameters)
        except psycopg.Error as error:
            if is_lost(error) or self.is_lost:
                return False
            raise
        return True

    def retried(self, call: Callable[[Connection], _T], *, long: bool = False) -> _T:
        """The result of a call, which is repeated while the server is gone.

        Its statements may be `long` ones. Raises `StoreUnreachable` if the server is gone for too long,
        `Stopped` if the pipeline is to end before it is back, and `psycopg.Error` for anything else.
        """
        began_s = time.monotonic()
        server = f"Postgres at {self.where}"
        while True:
            is_over = time.monotonic() > began_s + PATIENCE_S
            try:
                result = call(self._connection(long=long))
            except StoreUnreachable as error:
                if is_over:
                    self._waits.pause(0)
                    raise
                self._waits.away(server, str(error), began_s)
            except psycopg.Error as error:
                if not is_lost(error) and not self.is_lost:
                    raise
                if is_over:
                    self._waits.pause(0)
                    raise self.failure("go on", error) from None
                self._waits.away(server, reason_of(error), began_s)
            else:
                self._waits.back(server)
                return result
            self._waits.pause(PAUSE_S)

    def lock(self, name: str) -> bool:
        """Show others that this instance works with a name, as long as its connection lives."""
        if not self.retried(lambda connection: _lock(connection, name)):
            return False
        self._locks.add(name)
        return True

    def unlock(self, name: str) -> None:
        """The end of `lock`."""
        self._locks.discard(name)
        self.rows("SELECT pg_advisory_unlock(%(class)s, hashtext(%(name)s))", _lock_of(name))

    @contextmanager
    def stream(self, query: LiteralString, parameters: Mapping[str, object]) -> Iterator[Any]:
        """The rows of a query while the server sends them. A value of type bytea is bytes."""
        with self._connection(long=True).cursor(binary=True) as cursor:
            size = _CHUNK if capabilities.has_stream_chunked() else 1
            rows = cursor.stream(query, parameters, size=size)
            try:
                yield rows
            finally:
                # It is a generator. Its end cancels the query.
                rows.close()  # type: ignore[attr-defined]

    def replication(self) -> "Replication":
        """Open a connection for commands of replication. Raises `psycopg.Error`."""
        options = make_conninfo(self._address.conninfo, replication="database")
        return Replication(self._kind.connect(options, autocommit=True), self._waits)

    def changes(self, slot: str, publication: str) -> ChangeStream | None:
        """Open a stream of the changes of a slot. None if the server lets in no receiver, but maybe others.

        Raises `psycopg.Error` for anything else.
        """
        options = make_conninfo(self._address.conninfo, replication="database", application_name=slot)
        try:
            connection = self._kind.connect(options, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            # Its frames have the password.
            self.refusal = reason_of(error)
            return None
        end_in_children(connection)
        try:
            # Such a connection takes no parameters.
            for name, value in _SETTINGS.items():
                setting = sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                connection.execute(setting)
            return ChangeStream(connection, slot, quoted([publication]), self._waits)
        except BaseException:
            connection.close()
            raise

    def await_free(self, slot: str, process: int) -> None:
        """Wait until a process of the server, which we have left, no longer uses a slot. At most a moment."""
        used = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %(slot)s AND active_pid = %(process)s"
        deadline = time.monotonic() + _LEAVES_S
        with suppress(psycopg.Error, Stopped):
            while not self.is_lost and time.monotonic() < deadline:
                if not self._connection().execute(used, {"slot": slot, "process": process}).fetchall():
                    return
                self._waits.pause(0.01)

    def failure(self, what: str, error: psycopg.Error) -> HoldfastError:
        """The error that says what failed, in one line."""
        reason = reason_of(error)
        hint = "check source.postgres.url, user and password, and that the server runs as a primary"
        if isinstance(error, errors.InsufficientPrivilege) or "replication role" in reason:
            hint = "the role needs REPLICATION, USAGE on the schema, and SELECT on the table"
        if isinstance(error, errors.ConfigurationLimitExceeded):
            hint = "drop slots that nobody uses (see pg_replication_slots), or raise max_replication_slots"
        if "max_wal_senders" in reason:
            # An error of connecting has no code.
            hint = "end receivers that nobody needs (see pg_stat_replication), or raise max_wal_senders"
        return StoreUnreachable(f"can't {what}: Postgres at {self.where}: {reason}", hint=hint)


class Replication:
    """A connection for commands of replication, which a cursor can't send.

    `process` is the server's process that runs them.
    """

    def __init__(self, connection: Connection, waits: Waits) -> None:
        self._connection = connection
        self._waits = waits
        self._row: list[bytes | None] = []
        self.process = connection.pgconn.backend_pid

    def ask(self, command: str, most_s: float) -> list[bytes | None] | None:
        """Send a command, and return its `row`."""
        self.send(command)
        return self.row(most_s)

    def send(self, command: str) -> None:
        """Send a command."""
        self._row = []
        self._connection.pgconn.send_query(command.encode())

    def row(self, most_s: float) -> list[bytes | None] | None:
        """The values of the one row of the command that was sent. None if it takes longer than `most_s`.

        Then it can be called again. Raises `psycopg.Error` and `Stopped`.
        """
        pgconn = self._connection.pgconn
        while await_result(pgconn, self._waits, most_s):
            if (result := pgconn.get_result()) is None:
                return self._row
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                raise errors.error_from_result(result)
            if result.ntuples:
                self._row = [result.get_value(0, each) for each in range(result.nfields)]
        return None

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended the connection. Only a server that ends it sends something."""
        if self._connection.closed:
            return False
        poll = select.poll()
        poll.register(self._connection.pgconn.socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """End it, also during a command. A snapshot that it exported ends with it."""
        self._connection.close()


_LOCK_CLASS: Final = 0x48464947  # "HFIG", the class of the advisory locks of attempts


def _of_secret(secret: SecretRef, given: Mapping[str, object]) -> dict[str, str]:
    """The options that a Secret has. Those of the URL go first."""
    files = secret.files()
    found = {"password": secret.value("password", files["password"])}
    if "username" in files and "user" not in given:
        found["user"] = secret.value("username", files["username"])
    if "ca.crt" in files and "sslrootcert" not in given:
        found["sslrootcert"] = str(files["ca.crt"])
    return found


def _lock_of(name: str) -> Mapping[str, object]:
    return {"class": _LOCK_CLASS, "name": name}


def _lock(connection: Connection, name: str) -> bool:
    query = "SELECT pg_try_advisory_lock(%(class)s, hashtext(%(name)s))"
    row = connection.execute(query, _lock_of(name)).fetchone()
    return row is not None and bool(row[0])


def is_lost(error: psycopg.Error) -> bool:
    """Whether an error means that the connection was lost, or the server is gone for a while."""
    ended = (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow)
    if isinstance(error, ended):
        return True
    is_ours = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return is_ours and not _REFUSED.search(str(error))


def quoted(names: Sequence[str]) -> str:
    """Identifiers, for a list in an option of pgoutput."""
    return ",".join('"' + each.replace('"', '""') + '"' for each in names)
