"""Connections to a Postgres server, for all stores in Postgres: the address, a bounded pool, error messages.

Invariants:

- The password is only in the connection string and in the keys of the address. It is not in `description`, in
  a message or in a `repr`. Keys in files are read again for each connection.
  Errors of connecting are raised without their cause, because its frames contain that string.
- Every session runs READ COMMITTED with a durable commit, even if the defaults of server, database or role
  differ.
- A server session belongs to one connection. A pooler that shares sessions is refused when the store is
  opened.
- If an idle connection has died, for example because the server restarted, a check of its socket finds this
  and the connection is replaced before use. So a restart affects only the calls in progress.
- If a session ends during a call, all that are older are replaced before use.
- No connection is used on both sides of a fork. A child opens its own. Nothing that a child closes or
  collects reaches the server through a connection of its parent: no ROLLBACK, no end of a session, and no
  request to cancel a stream's statement.
- Failures of the pool's own connections and threads show in the errors of calls. They never go to the stderr
  of a program without logging. Forgetting `close` loses nothing.
"""

import contextlib
import logging
import os
import re
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from holdfast.errors import BadInput, Determinate, Indeterminate, StoreUnreachable
from holdfast.forks import fork_count
from holdfast.store_keys import postgres_options

Connection = psycopg.Connection[TupleRow]

DEFAULT_SCHEMA: Final = "holdfast"
WAIT_FOR_CONNECTION_S: Final = 5.0
_ASK_AGAIN_S: Final = 1.0
_LOOKS: Final = 8
_LOOK_S: Final = 5.0
RIGHTS_HINT: Final = (
    "grant the role of the URL USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on its tables; a"
    " client that is open for reading needs SELECT only"
)
_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_PORTS: Final = re.compile(r"[0-9,]*")

_DEFAULTS: Final = {
    "application_name": "holdfast",
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",  # ms without an acknowledgement before a vanished server is given up
}
_SETTINGS: Final = {
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "jit": "off",
}
# Without a handler, a program would print each attempt to connect and each error in a pipeline, besides
# the error that it gets.
for _name in ("psycopg", "psycopg.pool"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

# A commit that writes something waits until the standby has everything before it. It changes no table.
_WAIT_FOR_STANDBY: Final = """SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''
    THEN pg_logical_emit_message(true, 'holdfast', '') END"""
_CONFIGURE: Final = """SELECT set_config(name, value, false), pg_is_in_recovery()
  FROM unnest(%s::text[], %s::text[]) AS setting(name, value)
  WHERE name <> 'synchronous_commit' OR current_setting('synchronous_commit') = 'off'"""


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of a store: a server, a database, and a schema in it."""

    conninfo: str = field(repr=False)
    schema: str
    description: str
    """Server, database and schema for messages, without user and password."""
    keys: Mapping[str, str] | None = field(default=None, repr=False)
    """The user and the password, if `conninfo` doesn't have them: `PGUSER` and `PGPASSWORD`."""

    @property
    def conninfo_now(self) -> str:
        """The connection string for a new connection, with the keys as they are now."""
        options = postgres_options(self.keys)
        return make_conninfo(self.conninfo, **options) if options else self.conninfo

    @classmethod
    def parse(
        cls, url: str, *, default_schema: str = DEFAULT_SCHEMA, keys: Mapping[str, str] | None = None
    ) -> Self:
        """Parse `postgresql://[user[:password]@]host[:port]/database[?schema=...&option=...]`.

        `schema` is an option of Holdfast (default: `default_schema`). All other options go to libpq, which
        also uses $PGPASSWORD and the password file, unless `keys` has a user or a password. Raises `BadInput`
        for anything else; the error quotes nothing of the URL.
        """
        base, _, query = url.partition("?")
        options = [option for option in query.split("&") if option]
        schemas = [unquote(option.partition("=")[2]) for option in options if option.startswith("schema=")]
        schema = schemas[-1] if schemas else default_schema
        if not _SCHEMA_NAME.fullmatch(schema):
            raise BadInput(
                "the schema in a postgresql:// URL must be lower-case letters, digits and underscores"
            )
        rest = "&".join(option for option in options if not option.startswith("schema="))
        try:
            given = conninfo_to_dict(f"{base}?{rest}" if rest else base)
        except psycopg.Error:
            given = {}
        host, port, database = (str(given.get(name, "")) for name in ("host", "port", "dbname"))
        # An unescaped "@" or "/" in a password makes a part of the password look like one of these.
        if not given or "@" in host + database or "/" in database or not _PORTS.fullmatch(port):
            raise BadInput(
                "the postgresql:// URL can't be parsed",
                hint="write postgresql://user@host:port/database, with special characters percent-encoded",
            )
        where = f"postgresql://{_hosts(host, port)}/{database} (schema {schema})"
        conninfo = make_conninfo("", **(_DEFAULTS | given | {"client_encoding": "utf8"}))
        return cls(conninfo, schema, where, keys)


def _hosts(host: str, port: str) -> str:
    """Return libpq's lists of hosts and ports as a URL has them. One port is that of all hosts."""
    hosts, ports = host.split(","), port.split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    return ",".join(f"{each}:{its}" if its else each for each, its in zip(hosts, ports, strict=False))


def _configure(
    connection: Connection,
    settings: Mapping[str, str],
    connected: Callable[[Connection], None] | None = None,
    waits: "StandbyWaits | None" = None,
) -> None:
    """Apply the settings that all statements rely on to a new connection. Refuse a standby, which may lag.

    Then `connected` gets the connection, and `waits` watches it.
    """
    _connections.add(connection)
    wanted = {**_SETTINGS, **settings}
    row = connection.execute(_CONFIGURE, (list(wanted), list(wanted.values()))).fetchone()
    if row is not None and row[1]:
        raise psycopg.OperationalError("the server is a standby, which may lag behind its primary")
    if connected is not None:
        connected(connection)
    if waits is not None:
        waits.watch(connection)


def connect(
    address: PostgresAddress,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    connected: Callable[[Connection], None] | None = None,
    waits: "StandbyWaits | None" = None,
    check_pooler: bool = False,
    kind: type[Connection] = psycopg.Connection,
) -> Connection:
    """Open a connection of a `kind` outside any pool, with a store's own `settings`. See `_configure`.

    Raises `psycopg.Error`. With `check_pooler`, raises `StoreUnreachable` if a pooler shares sessions.
    """
    connection = kind.connect(address.conninfo_now, autocommit=True, prepare_threshold=0)
    try:
        if check_pooler:
            # Check this first: in a shared session, the settings would fail with an unclear message.
            _check_own_session(connection, address)
        _configure(connection, settings, connected, waits)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_own_session(connection: Connection, address: PostgresAddress) -> None:
    """Raise `StoreUnreachable` if a pooler gives one server session to several clients.

    Settings, prepared statements and LISTEN belong to a session. A pooler in transaction mode would run our
    statements under the server's settings, and could run the prepared statement of another client.

    The server process id in the greeting is equal to the one that a statement shows, unless there is a pooler
    in between. In that case, a second connection looks for a session that both have. A pooler in session mode
    never has one. A single check may miss the sharing if the pooler is busy.
    """
    mine = _server_process(connection)
    if mine == connection.info.backend_pid:
        return
    with psycopg.connect(address.conninfo_now, autocommit=True, prepare_threshold=None) as other:
        for _ in range(_LOOKS):
            theirs = _server_process(other)
            if theirs is None:
                raise StoreUnreachable(
                    f"the pooler of {address.description} gives no second session within {_LOOK_S:g} s",
                    hint="connect to the server directly, or allow at least 11 sessions for each client",
                )
            if theirs == mine or _server_process(connection) != mine:
                raise StoreUnreachable(
                    f"the pooler of {address.description} shares server sessions between clients",
                    hint="connect to the server directly, or set pool_mode=session for this database",
                )


def _server_process(connection: Connection) -> int | None:
    """Return the id of the server process that runs a statement now; None if none is free for `_LOOK_S`."""
    pgconn = connection.pgconn
    pgconn.send_query(b"SELECT pg_backend_pid()")
    ends = time.monotonic() + _LOOK_S
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while pgconn.is_busy():
        if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
            return None
        pgconn.consume_input()
    results = []
    while result := pgconn.get_result():
        results.append(result)
    value = results[0].get_value(0, 0) if results else None
    if value is None:
        raise psycopg.OperationalError(_refusal(results))
    return int(value)


def _refusal(results: list[Any]) -> str:
    """Return the server's message in place of a row."""
    text = results[0].error_message.decode(errors="replace") if results else ""
    return text.partition("\n")[0] or "the server sent no result"


def told(error: BaseException) -> str:
    """Return the message of the server or libpq, in one line."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return primary or str(error).strip().partition("\n")[0] or type(error).__name__


def reason_of(error: psycopg.Error | BadInput) -> str:
    """Return why an attempt to connect failed, without the address that libpq puts before it."""
    return told(error).rpartition("FATAL: ")[2].strip()


def open_hint(error: psycopg.Error) -> str:
    """What to do about an error while a store is opened."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return RIGHTS_HINT
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "raise statement_timeout for the role or the database, or find out who cancels statements"
    return "check host, port, database, user and password, and that the server runs as a primary"


def refused(error: psycopg.Error, connection: Connection, description: str) -> Determinate | None:
    """Return an error if the server refuses a statement until somebody changes the database; None otherwise.

    The role may lack rights, or may only read. Or an insert found a table without its primary key: such a
    table accepts two rows for one place, and no later error shows it.

    A session that may only read is closed, because it keeps its setting even if the role may write again.
    """
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Determinate(f"{description}: {told(error)}", hint=RIGHTS_HINT).for_good()
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        connection.close()
        # Not lasting: this may be an old primary after a failover.
        return Determinate(
            f"{description}: {told(error)}",
            hint="check that the URL leads to the primary, and that neither the role nor the database has"
            " default_transaction_read_only = on",
        )
    if not isinstance(error, psycopg.errors.InvalidColumnReference):
        return None
    return Determinate(
        f"{description}: a table lacks its primary key: {told(error)}",
        hint="wait until the restore of the dump has ended; if none is running, stop all clients and restore"
        " it again into an empty schema",
    )


class StandbyWaits:
    """The commits of a store that their synchronous standby may lack.

    A session that waits for the standby in COMMIT may be cancelled or terminated. Postgres has committed by
    then. It reports success with a warning, or closes the connection. Others see the commit, and a failover
    may lose it.
    """

    def __init__(self) -> None:
        self._here = threading.local()
        # The number of commits that it may lack, and how many of them it has received since.
        self._noted = 0
        self._settled = 0

    def watch(self, connection: Connection) -> None:
        """Listen to the warnings of a new connection."""
        connection.add_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        # The text of the warning depends on the server's language.
        if notice.source_function == "SyncRepWaitForLSN":
            self._here.was_cancelled = True

    def are_over(self) -> bool:
        """Whether this thread's last commits waited to their end. Remembers it if one did not."""
        if not getattr(self._here, "was_cancelled", False):
            return True
        self._here.was_cancelled = False
        self.note()
        return False

    def check(self, description: str) -> None:
        """Raise `Indeterminate` if this thread's last commit did not wait to its end."""
        if not self.are_over():
            raise Indeterminate(
                f"{description}: the wait for the synchronous standby was cancelled;"
                " the standby may lack the commit"
            )

    def note(self) -> None:
        """Remember that the standby may lack a commit."""
        self._noted += 1

    def settle(self, connection: Connection, description: str) -> None:
        """Wait until the standby has all commits. Raises `Determinate` if it does not get them."""
        noted = self._noted
        if noted == self._settled:
            return
        try:
            connection.execute(_WAIT_FOR_STANDBY)
            self.check(description)
        except (psycopg.Error, Indeterminate) as error:
            reason = told(error) if isinstance(error, psycopg.Error) else "the wait was cancelled"
            raise Determinate(
                f"{description}: a commit was not confirmed by the synchronous standby: {reason}",
                hint="check that the standby runs, and don't cancel sessions that wait for it",
            ) from None
        self._settled = max(self._settled, noted)


_REFUSED: Final = re.compile(
    "password authentication failed|authentication failed for user|is not permitted to log in"
    "|permission denied for database|no pg_hba.conf entry|pg_hba.conf rejects connection"
    "|(?:role|database) .* does not exist"
)
"""What a server says that lets nobody in with this URL. libpq gives no code for it, only the text."""


class _LastFailure:
    """Why the pool's last attempt to connect failed; empty after one that succeeded.

    A refusal counts only for a call that began before the attempt. Otherwise a server that hangs would look
    like one that still refuses the role.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._began_s = 0.0

    def note(self, error: psycopg.Error | BadInput, began_s: float) -> None:
        """Remember the text of an error. The error itself has frames with the password."""
        self._began_s = began_s
        self.reason = reason_of(error)

    def error(self, where: str, since_s: float) -> Determinate:
        """Return the error for a call since `since_s` that got no connection.

        It is lasting if the server let nobody in.
        """
        if self.is_refusal(since_s):
            refusal = Determinate(
                f"{where} refuses the connection: {self.reason}",
                hint="correct user, password or database in the URL, or let the role connect: it needs LOGIN,"
                " and CONNECT on the database",
            )
            return refusal.for_good()
        why = f": {self.reason}" if self.reason and not _REFUSED.search(self.reason) else ""
        return Determinate(
            f"no connection to {where} within {WAIT_FOR_CONNECTION_S:g} s{why}",
            hint="check that the server runs as a primary and accepts more connections",
        )

    def is_refusal(self, since_s: float) -> bool:
        """Whether the server let nobody in, in an attempt since `since_s`."""
        return self._began_s >= since_s and bool(_REFUSED.search(self.reason))


class _Noted(psycopg.Connection[TupleRow]):
    """A connection of a pool that tells a `_LastFailure` why it could not be opened."""

    began_s = 0.0
    """When it began, by the monotonic clock."""

    @classmethod
    def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, address: PostgresAddress, failure: _LastFailure, **options: Any
    ) -> Self:
        """Connect to `address`, like psycopg. The pool has no connection string, because keys may change."""
        began_s = time.monotonic()
        try:
            connection = super().connect(conninfo or address.conninfo_now, **options)
        except (psycopg.Error, BadInput) as error:
            failure.note(error, began_s)
            raise
        failure.reason = ""
        connection.began_s = began_s
        return connection


def _configure_noted(
    connection: _Noted, configure: Callable[[Connection], None], failure: _LastFailure
) -> None:
    try:
        configure(connection)
    except psycopg.Error as error:
        failure.note(error, connection.began_s)
        raise


class Sessions:
    """At most `size` connections to `address`, opened on demand, each with a store's own `settings`."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        size: int,
        settings: Mapping[str, str] = MappingProxyType({}),
        connected: Callable[[Connection], None] | None = None,
    ) -> None:
        self._address: Final = address
        self._settings: Final = settings
        self._connected: Final = connected
        self.standby_waits: Final = StandbyWaits()
        self._failure: Final = _LastFailure()
        self._configure: Final = partial(
            _configure_noted,
            configure=partial(_configure, settings=settings, connected=connected, waits=self.standby_waits),
            failure=self._failure,
        )
        self._size: Final = size
        self._renewed_s = 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._pool: ConnectionPool[_Noted] | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        _live.add(self)

    @contextmanager
    def apart(self) -> Iterator[Connection]:
        """Open a separate connection to prepare the schema, and check whether a pooler shares its session.

        If the standby may lack a commit on it, later calls wait for the standby. Raises like `connect`.
        """
        with connect(
            self._address,
            settings=self._settings,
            connected=self._connected,
            waits=self.standby_waits,
            check_pooler=True,
        ) as connection:
            yield connection
        self.standby_waits.are_over()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Return a connection in autocommit mode for one call.

        Raises `Determinate` if none is free within `WAIT_FOR_CONNECTION_S`, after `close`, or if an earlier
        commit is not yet confirmed by the synchronous standby. It is lasting, and comes within a second, if
        the server refuses the role or the database.
        """
        process = fork_count()
        pool = self._open()
        connection = self._take(pool)
        # Earlier warnings in this thread say nothing about the commit of this call.
        self.standby_waits.are_over()
        try:
            self.standby_waits.settle(connection, self._address.description)
            yield connection
        finally:
            if process == fork_count():
                if connection.closed:
                    # Others may have the same trouble, such as a setting that the role no longer has.
                    self._renewed_s = time.monotonic()
                pool.putconn(connection)

    def close(self) -> None:
        """Close idle connections now, and the others when their calls return."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            if self._finalizer is not None:
                self._finalizer.detach()
        if pool is not None:
            pool.close()

    def _open(self) -> ConnectionPool[_Noted]:
        with self._lock:
            if self._closed:
                raise Determinate.closed(self._address.description)
            if self._pool is None:
                self._pool = ConnectionPool(
                    connection_class=_Noted,
                    kwargs={
                        "autocommit": True,
                        "prepare_threshold": 0,
                        "address": self._address,
                        "failure": self._failure,
                    },
                    configure=self._configure,
                    min_size=1,
                    max_size=self._size,
                    # The pool's own retries back off to minutes. `_take` asks for an attempt each second.
                    reconnect_timeout=0.0,
                    num_workers=1,
                    open=True,
                )
                self._finalizer = weakref.finalize(self, _forgotten, self._pool)
            return self._pool

    def _take(self, pool: ConnectionPool[_Noted]) -> _Noted:
        since_s = time.monotonic()
        deadline = since_s + WAIT_FOR_CONNECTION_S
        while True:
            try:
                connection = pool.getconn(timeout=_ASK_AGAIN_S)
            except PoolTimeout:
                if time.monotonic() >= deadline or self._failure.is_refusal(since_s):
                    raise self._failure.error(self._address.description, since_s) from None
                continue
            except PoolClosed:
                raise Determinate.closed(self._address.description) from None
            # If calls end sessions all the time, an older one is better than none.
            is_new = connection.began_s >= self._renewed_s or time.monotonic() >= deadline
            if is_new and not _is_dead(connection):
                return connection
            connection.close()
            pool.putconn(connection)

    def abandon(self) -> None:
        """Leave the parent's connections alone in a forked child, and open others on demand."""
        self._lock = threading.Lock()
        _abandoned.append(self._pool)
        self._pool = None
        if self._finalizer is not None:
            self._finalizer.detach()


def _forgotten(pool: ConnectionPool[_Noted]) -> None:
    """Close a pool that nobody closed, without waiting for its thread, which may be this one."""
    with contextlib.suppress(RuntimeError):
        pool.close(timeout=0.0)


def _is_dead(connection: Connection) -> bool:
    """Whether the server has closed an idle connection. Only a closing server sends data on it."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


# Objects that a forked child inherits are kept for ever: finalizing one would use the parent's sessions.
_live: Final[weakref.WeakSet[Sessions]] = weakref.WeakSet()
_abandoned: Final[list[Any]] = []


_connections: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for sessions in list(_live):
        sessions.abandon()
    open_ = [connection for connection in list(_connections) if not connection.closed]
    if not open_:
        return
    ours, theirs = socket.socketpair()
    theirs.close()
    for connection in open_:
        _hang_up_silently(connection, ours)
    ours.close()


def _hang_up_silently(connection: Connection, nowhere: socket.socket) -> None:
    """End a connection of the parent in this child, without sending anything to the server.

    Its descriptor leads nowhere in this process from now on. If a stream was open at the fork, the child
    closes it when it collects it. psycopg would then cancel its statement through a new connection, unless
    this connection has ended.
    """
    with contextlib.suppress(OSError, psycopg.Error):
        os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)
        connection.pgconn.finish()


def end_in_children(connection: Connection) -> None:
    """End a connection silently in each process that is forked. `connect` does so by itself."""
    _connections.add(connection)


os.register_at_fork(after_in_child=_after_fork_in_child)
