# ruff: noqa: D102 - the trait documents its methods
"""Consensus in one schema of a Postgres database, for any number of hosts.

There are two tables: `entries` (key, seqno, data) with a row per entry, and `keys` with a row per key that is
never deleted.

Invariants, all under READ COMMITTED:

- An append locks the rows of its keys in `keys` FOR NO KEY UPDATE. A condition locks the row of its key FOR
  SHARE, and a truncation FOR UPDATE. So a condition that held when it was checked still holds at the commit.
  The keys of one step are locked in their order.
- The statement that inserts also selects the predecessor's row and locks it FOR KEY SHARE. It never
  overwrites a row. A row lock follows the row to its newest version. So a writer that slept finds its
  predecessor deleted, or its own place taken, even if its snapshot is old.
- If the writer knows the digest of the predecessor, the same statement compares it. Conditions are compared
  in the same way. After a failover to a server that lags, the same sequence number may stand for other bytes.
- A first entry has no predecessor. The statement that inserts it begins after its key's row was locked, and
  inserts only if it sees no entry of the key. The head is never truncated, so a key always has an entry from
  then on.
- If a statement inserts fewer rows than it should, it is rolled back.
- Every insert names the primary key that it relies on. While a dump is being restored, a table has its rows
  before its primary key, and the server refuses the insert.
- An append to one key, unless it is the first entry, is one statement in its own transaction: one round trip.
  If the connection is lost during it, the append is indeterminate. For several keys, COMMIT is sent
  separately, after all rows are known to be inserted. If the connection is lost before the COMMIT, the append
  is determinate.
- A turn is an advisory lock in a transaction of a connection of its own. Only speed depends on it. The server
  ends the turn of a client that dies, or that freezes for 10 seconds. Others wait for at most one.
"""

import logging
import random
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, sql

from holdfast.errors import (
    Determinate,
    HoldfastError,
    Indeterminate,
    NoLocation,
    NotWritable,
    StorageError,
    StoreUnreachable,
)
from holdfast.persist.stores.formats import check_format
from holdfast.persist.stores.pg_hints import CommitHints
from holdfast.persist.stores.traits import (
    MAX_SEQNO,
    NOTHING_KNOWN,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    Put,
    check_commands,
    check_key,
    check_scan,
)
from holdfast.persist.stores.watch import Watch, Watches
from holdfast.pg_session import Connection, PostgresAddress, Sessions, open_hint, refused, told

T = TypeVar("T")
log = logging.getLogger(__name__)

FORMAT_VERSION = 1
POOL_SIZE: Final = 8
_LOCK_CLASS: Final = 0x48464353  # "HFCS", the class of the advisory lock for creating a schema
_TURN_CLASS: Final = 0x48465455  # "HFTU", the class of the advisory locks for turns
_TURN: Final = b"SELECT pg_advisory_xact_lock(%s, hashtext(%s))"
_LONGEST_WAIT: Final = b"SET LOCAL lock_timeout = '1s'"
_MAX_ATTEMPTS: Final = 20
_LONGEST_REPLY_S: Final = 1.0
_SETTINGS: Final = {
    # A client that freezes between its insert and its commit would block all writers of its shards.
    "idle_in_transaction_session_timeout": "10s",
    # Each statement finds its rows by primary keys, so plans that were made once stay good.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_CREATE: Final = (
    'CREATE TABLE {schema}.keys (key text COLLATE "C" PRIMARY KEY)',
    """CREATE TABLE {schema}.entries (
      key text COLLATE "C" NOT NULL, seqno bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, seqno))""",
    "ALTER TABLE {schema}.entries ALTER COLUMN data SET STORAGE EXTERNAL",  # the data is compressed already
    "CREATE TABLE {schema}.format (version integer NOT NULL)",
)
# The name includes the database: a dump restored into another database of the server is another line.
_LINE: Final = """SELECT 'server-' || system_identifier || '-database-' || oid || '-timeline-'
    || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
  FROM pg_control_system(), pg_database WHERE datname = current_database()"""
_HEADS: Final = """SELECT wanted.key, head.seqno, head.data,
    octet_length(known.data), substring(known.data FROM 9 FOR 4),
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint
  FROM unnest(%s::text[], %s::bigint[]) AS wanted(key, known)
  CROSS JOIN LATERAL (SELECT seqno, data FROM {schema}.entries AS e WHERE e.key = wanted.key
    ORDER BY seqno DESC LIMIT 1) AS head
  LEFT JOIN {schema}.entries AS known ON known.key = wanted.key AND known.seqno = wanted.known"""
_SCAN: Final = """SELECT seqno, data FROM {schema}.entries
  WHERE key = %s::text AND seqno >= %s::bigint ORDER BY seqno LIMIT %s::bigint"""
_DIGESTS: Final = """SELECT seqno, octet_length(data), substring(data FROM 9 FOR 4) FROM {schema}.entries
  WHERE key = %s::text AND seqno >= %s::bigint ORDER BY seqno LIMIT %s::bigint"""
_LIST_KEYS: Final = """SELECT key FROM {schema}.keys AS k
  WHERE EXISTS (SELECT FROM {schema}.entries AS e WHERE e.key = k.key) ORDER BY key"""
# The key's row is locked before any entry. If the greatest seqno is outdated, fewer rows are deleted.
_TRUNCATE: Final = """WITH locked AS MATERIALIZED (
    SELECT key FROM {schema}.keys WHERE key = %(key)s::text FOR UPDATE)
  DELETE FROM {schema}.entries AS e USING locked WHERE e.key = locked.key AND e.seqno < %(seqno)s::bigint
    AND e.seqno < (SELECT max(seqno) FROM {schema}.entries WHERE key = %(key)s::text)
    AND (%(size)s::integer IS NULL OR EXISTS (SELECT FROM {schema}.entries AS a
      WHERE a.key = %(key)s::text AND a.seqno = %(known)s::bigint
      AND octet_length(a.data) = %(size)s::integer
      AND substring(a.data FROM 9 FOR 4) = %(crc)s::bytea))"""
# Rows are locked in the order of the FOR clauses: first the key, as in all other statements.
_APPEND_ONE: Final = """INSERT INTO {schema}.entries (key, seqno, data)
  SELECT k.key, %s::bigint, %s::bytea
  FROM {schema}.keys AS k JOIN {schema}.entries AS prev ON prev.key = k.key
  WHERE k.key = %s::text AND prev.seqno = %s::bigint
    AND octet_length(prev.data) = coalesce(%s::integer, octet_length(prev.data))
    AND substring(prev.data FROM 9 FOR 4) = coalesce(%s::bytea, substring(prev.data FROM 9 FOR 4))
  FOR NO KEY UPDATE OF k FOR KEY SHARE OF prev
  ON CONFLICT (key, seqno) DO NOTHING"""
_MAKE_KEYS: Final = """INSERT INTO {schema}.keys
  SELECT key FROM unnest(%s::text[]) AS new(key) ORDER BY key COLLATE "C" ON CONFLICT (key) DO NOTHING"""
_LOCK_TO_PUT: Final = """SELECT FROM {schema}.keys WHERE key = ANY(%s::text[])
  ORDER BY key FOR NO KEY UPDATE"""
_LOCK_TO_EXPECT: Final = "SELECT FROM {schema}.keys WHERE key = ANY(%s::text[]) ORDER BY key FOR SHARE"
_COUNT_HOLDING: Final = """SELECT count(*)
  FROM unnest(%s::text[], %s::bigint[], %s::integer[], %s::bytea[]) AS wanted(key, head, size, crc)
  WHERE head = coalesce((SELECT max(seqno) FROM {schema}.entries AS e WHERE e.key = wanted.key), 0)
    AND (size IS NULL OR EXISTS (SELECT FROM {schema}.entries AS e
      WHERE e.key = wanted.key AND e.seqno = wanted.head
      AND octet_length(e.data) = size AND substring(e.data FROM 9 FOR 4) = crc))"""
_APPEND_NEXT: Final = """INSERT INTO {schema}.entries (key, seqno, data)
  SELECT p.key, p.seqno, p.data
  FROM unnest(%s::text[], %s::bigint[], %s::bytea[], %s::integer[], %s::bytea[])
    AS p(key, seqno, data, size, crc)
  JOIN {schema}.entries AS prev ON prev.key = p.key AND prev.seqno = p.seqno - 1
    AND octet_length(prev.data) = coalesce(p.size, octet_length(prev.data))
    AND substring(prev.data FROM 9 FOR 4) = coalesce(p.crc, substring(prev.data FROM 9 FOR 4))
  FOR KEY SHARE OF prev
  ON CONFLICT (key, seqno) DO NOTHING"""
_APPEND_FIRST: Final = """INSERT INTO {schema}.entries (key, seqno, data)
  SELECT p.key, 1, p.data FROM unnest(%s::text[], %s::bytea[]) AS p(key, data)
  WHERE NOT EXISTS (SELECT FROM {schema}.entries AS e WHERE e.key = p.key)
  ON CONFLICT (key, seqno) DO NOTHING"""
_RESTART: Final = """WITH locked AS MATERIALIZED (
    SELECT key FROM {schema}.keys WHERE key = %(key)s::text FOR UPDATE)
  INSERT INTO {schema}.entries (key, seqno, data)
  SELECT locked.key, %(seqno)s::bigint, %(data)s::bytea FROM locked
  WHERE coalesce((SELECT max(seqno) FROM {schema}.entries WHERE key = %(key)s::text), 0) < %(seqno)s::bigint
  ON CONFLICT (key, seqno) DO NOTHING"""


class PostgresConsensus(Consensus):
    """The logs in one schema of a Postgres database (13 or newer). With `create`, the schema is made.

    `url` is a URL for `PostgresAddress.parse`, and `credentials` are its keys. `pool_size` is the most
    connections that the store opens. Raises `BadInput` if the URL is invalid, `StoreUnreachable` if the
    server can't be reached or the schema is missing, and `VersionTooNew` or `Deprecated` if the schema has
    another format. With `read_only` nothing is written.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        read_only: bool = False,
        pool_size: int = POOL_SIZE,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self._address: Final = PostgresAddress.parse(url, keys=credentials)
        self._read_only: Final = read_only
        schema = sql.Identifier(self._address.schema)
        self._sql: Final = _Statements(schema)
        self._found: Final = _Line()
        self._clock: Final = _ServerClock()
        self._sessions: Final = Sessions(
            self._address, size=pool_size, settings=_SETTINGS, connected=self._found.look
        )
        # Its connection waits for turns, and never for one of the others.
        self._turns: Final = Sessions(self._address, size=1, settings=_SETTINGS)
        try:
            with self._sessions.apart() as connection:
                _prepare(connection, self._address, create=create and not read_only)
        except psycopg.Error as error:
            raise StoreUnreachable(
                f"can't open {self._address.description}: {told(error)}",
                hint=open_hint(error),
            ) from None
        self._watches: Final = Watches()
        self._hints: Final = CommitHints(self._address, self._watches)
        # A store without references is as good as closed.
        weakref.finalize(self, self._hints.close).atexit = False

    def __repr__(self) -> str:
        # `__init__` may have failed before it parsed the URL. Debuggers and logs still show the object.
        address = getattr(self, "_address", None)
        return f"<PostgresConsensus {address.description if address is not None else 'that was not opened'}>"

    @property
    def description(self) -> str:
        return f"consensus in {self._address.description}"

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        for key in keys:
            check_key(key)
        asked_s = time.monotonic()
        rows = self._read(self._sql.heads, (list(keys), [known.get(key, 0) for key in keys]))
        if rows:
            self._clock.heard(rows[0][-1], asked_s)
        return {
            key: Head(seqno, data, None if size is None else Digest(size, crc))
            for key, seqno, data, size, crc, _ in rows
        }

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        check_scan(key, limit)
        if from_seqno > MAX_SEQNO:
            return []
        rows = self._read(self._sql.scan, (key, max(0, from_seqno), min(limit, MAX_SEQNO)))
        return [Entry(seqno, data) for seqno, data in rows]

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        check_scan(key, limit)
        values = (key, max(0, min(from_seqno, MAX_SEQNO)), min(limit, MAX_SEQNO))
        return [(seqno, Digest(size, crc)) for seqno, size, crc in self._read(self._sql.digests, values)]

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        check_commands(puts, expect)
        if len(puts) > 1 or expect or puts[0].seqno == 1:
            done = self._write(lambda connection: self._append_many(connection, puts, expect))
        else:
            ((key, seqno, data, after),) = puts
            row = (seqno, data, key, seqno - 1, *(after or (None, None)))
            done = (
                self._write(lambda connection: self._autocommit(connection, self._sql.append_one, row)) == 1
            )
        if done:
            keys = [put.key for put in puts]
            self._watches.ring(keys)
            self._hints.appended(keys)
        return done

    @contextmanager
    def turn(self, keys: Sequence[str]) -> Iterator[None]:
        with ExitStack() as end:
            # Without a turn, an append may lose a race.
            with suppress(psycopg.Error, HoldfastError):
                connection = end.enter_context(self._turns.connection())
                end.callback(_roll_back, connection)
                with connection.pipeline():
                    connection.execute(b"BEGIN")
                    connection.execute(_LONGEST_WAIT)
                    connection.execute(_TURN, (_TURN_CLASS, keys[0]))
            yield

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        check_key(key)
        at, (size, crc) = known or (None, (None, None))
        values = {"key": key, "seqno": max(0, min(seqno, MAX_SEQNO)), "known": at, "size": size, "crc": crc}
        return self._write(lambda connection: self._autocommit(connection, self._sql.truncate, values))

    def line(self) -> str | None:
        return self._found.name

    def clock_ms(self) -> int | None:
        return self._clock.now_ms()

    def check_restart(self) -> None:
        pass

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        check_commands([Put(key, seqno, data)], ())
        values = {"key": key, "seqno": seqno, "data": bytes(data)}
        self._write(lambda connection: self._autocommit(connection, self._sql.make_keys, ([key],)))
        # Two steps. After a crash between them, the next upkeep truncates the old entries.
        if not self._write(lambda connection: self._autocommit(connection, self._sql.restart, values)):
            return False
        self.truncate(key, seqno)
        return True

    def list_keys(self) -> list[str]:
        return [key for (key,) in self._read(self._sql.list_keys, ())]

    def watch(self, key: str) -> Watch:
        watch = self._watches.add(check_key(key))
        self._hints.listen()
        return watch

    def close(self) -> None:
        self._hints.close()
        self._turns.close()
        self._sessions.close()

    def _read(self, statement: bytes, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._sessions.connection() as connection:
            try:
                return connection.execute(statement, values, binary=True).fetchall()
            except psycopg.Error as error:
                raise self._failed(error, connection, Determinate) from None

    def _write(self, action: Callable[[Connection], T]) -> T:
        """Do `action`, and repeat it if the server aborted it to end a deadlock."""
        if self._read_only:
            raise NotWritable(f"can't write to {self.description}: it was opened for reading only")
        for attempt in range(_MAX_ATTEMPTS):
            with self._sessions.connection() as connection:
                try:
                    return action(connection)
                except (errors.DeadlockDetected, errors.SerializationFailure):
                    pass
            time.sleep(random.uniform(0.0, 0.002 * (attempt + 1)))  # noqa: S311 - jitter is no secret
        raise Determinate(
            f"can't write to {self.description}: {_MAX_ATTEMPTS} attempts ended in deadlocks with other"
            " writers",
            hint="nothing was written; try again",
        )

    def _autocommit(self, connection: Connection, statement: bytes, values: Any) -> int:
        """Run one statement as its own transaction. Return how many rows it changed."""
        waits = self._sessions.standby_waits
        try:
            changed = connection.execute(statement, values).rowcount
        except (errors.DeadlockDetected, errors.SerializationFailure):
            raise
        except psycopg.Error as error:
            if connection.closed:
                waits.note()
            # If the session survives the error, the server has rolled back.
            kind = Indeterminate if connection.closed else Determinate
            raise self._failed(error, connection, kind) from None
        waits.check(self.description)
        return changed

    def _append_many(self, connection: Connection, puts: Sequence[Put], expect: Sequence[Expect]) -> bool:
        try:
            done = self._insert_all(connection, puts, expect)
        except (errors.DeadlockDetected, errors.SerializationFailure):
            _roll_back(connection)
            raise
        except psycopg.Error as error:
            _roll_back(connection)
            raise self._failed(error, connection, Determinate) from None
        if not done:
            _roll_back(connection)
            return False
        self._autocommit(connection, b"COMMIT", ())
        return True

    def _insert_all(self, connection: Connection, puts: Sequence[Put], expect: Sequence[Expect]) -> bool:
        """Begin a transaction and insert all rows in one round trip. Return whether all were inserted."""
        first = [put for put in puts if put.seqno == 1]
        others = [put for put in puts if put.seqno > 1]
        new = [put.key for put in first] + [condition.key for condition in expect if condition.head == 0]
        inserts = []
        holding = None
        with connection.pipeline():
            connection.execute(b"BEGIN")
            if new:
                connection.execute(self._sql.make_keys, (new,))
            for to_put, keys in _lock_order(puts, expect):
                connection.execute(self._sql.lock_to_put if to_put else self._sql.lock_to_expect, (keys,))
            if expect:
                wanted = [(each.key, each.head, *(each.digest or (None, None))) for each in expect]
                holding = connection.execute(self._sql.count_holding, _columns(wanted))
            if others:
                rows = [(*put[:3], *(put.after or (None, None))) for put in others]
                inserts.append(connection.execute(self._sql.append_next, _columns(rows)))
            if first:
                keys, _, data = _columns(put[:3] for put in first)
                inserts.append(connection.execute(self._sql.append_first, (keys, data)))
        if holding is not None and holding.fetchone() != (len(expect),):
            return False
        return sum(cursor.rowcount for cursor in inserts) == len(puts)

    def _failed(
        self, error: psycopg.Error, connection: Connection, kind: type[StorageError]
    ) -> HoldfastError:
        return refused(error, connection, self.description) or kind(f"{self.description}: {told(error)}")


class _Line:
    """The server and timeline of the newest connection. It keeps no connection and no store alive."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._is_denied = False

    def look(self, connection: Connection) -> None:
        """Read the line on a new connection."""
        try:
            row = connection.execute(_LINE).fetchone()
        except errors.InsufficientPrivilege as error:
            self.name = None
            if not self._is_denied:
                log.warning(
                    "the timeline of the Postgres server can't be read (%s): garbage collection can't"
                    " recognize an old primary; grant EXECUTE on pg_control_system, pg_walfile_name and"
                    " pg_current_wal_insert_lsn",
                    told(error),
                )
            self._is_denied = True
            return
        self.name = None if row is None else str(row[0])


class _ServerClock:
    """The server's time: the time in a reply, and this host's monotonic time when the request was sent."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def heard(self, told_ms: int, asked_s: float) -> None:
        """Remember the server's time, unless the reply took so long that it is inaccurate."""
        if time.monotonic() - asked_s <= _LONGEST_REPLY_S:
            self._offset_ms = told_ms - asked_s * 1000

    def now_ms(self) -> int | None:
        """Milliseconds since the epoch: never behind the server's clock, ahead by at most one reply."""
        offset_ms = self._offset_ms
        return None if offset_ms is None else int(time.monotonic() * 1000 + offset_ms)


class _Statements:
    """The statements with the quoted name of the schema inserted. Values are always parameters."""

    def __init__(self, schema: sql.Identifier) -> None:
        def of(text: str) -> bytes:
            return sql.SQL(text).format(schema=schema).as_bytes(None)

        self.heads = of(_HEADS)
        self.scan = of(_SCAN)
        self.digests = of(_DIGESTS)
        self.list_keys = of(_LIST_KEYS)
        self.truncate = of(_TRUNCATE)
        self.append_one = of(_APPEND_ONE)
        self.restart = of(_RESTART)
        self.make_keys = of(_MAKE_KEYS)
        self.lock_to_put = of(_LOCK_TO_PUT)
        self.lock_to_expect = of(_LOCK_TO_EXPECT)
        self.count_holding = of(_COUNT_HOLDING)
        self.append_next = of(_APPEND_NEXT)
        self.append_first = of(_APPEND_FIRST)


def _lock_order(puts: Iterable[Put], expect: Iterable[Expect]) -> list[tuple[bool, list[str]]]:
    """Return all keys ascending, in runs with the same lock: (whether they are put, the keys)."""
    strength = {condition.key: False for condition in expect} | {put.key: True for put in puts}
    ordered = sorted(strength.items())
    return [(to_put, [key for key, _ in run]) for to_put, run in groupby(ordered, lambda item: item[1])]


def _columns(rows: Iterable[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _roll_back(connection: Connection) -> None:
    """End the transaction. If that fails, close the session, which ends its transaction too."""
    try:
        connection.execute(b"ROLLBACK")
    except psycopg.Error:
        connection.close()


def _prepare(connection: Connection, address: PostgresAddress, *, create: bool) -> None:
    """Check the schema's format. With `create`, make the schema if it is missing."""
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise StoreUnreachable(
            f"the database of {address.description} is not encoded in UTF8",
            hint="create a database with ENCODING 'UTF8'",
        )
    version = _version(connection, address)
    if version is None and create:
        with connection.transaction():
            name = zlib.crc32(address.schema.encode()) - (1 << 31)
            connection.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", (_LOCK_CLASS, name))
            if _version(connection, address) is None:  # otherwise another process was faster
                _create(connection, address)
        version = _version(connection, address)
    if version is None:
        raise NoLocation(
            f"{address.description} has no consensus tables",
            hint="check the URL; the first client that writes makes the tables",
        )
    check_format(version, FORMAT_VERSION, where=address.description)


def _create(connection: Connection, address: PostgresAddress) -> None:
    schema = sql.Identifier(address.schema)
    if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchall():
        connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(schema=schema))
    for statement in _CREATE:
        connection.execute(sql.SQL(statement).format(schema=schema))
    insert = sql.SQL("INSERT INTO {schema}.format VALUES (%s)").format(schema=schema)
    connection.execute(insert, (FORMAT_VERSION,))


def _version(connection: Connection, address: PostgresAddress) -> int | None:
    """Return the format of the tables; None if there are no tables."""
    found = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'format'"
    if not connection.execute(found, (address.schema,)).fetchall():
        return None
    schema = sql.Identifier(address.schema)
    rows = connection.execute(sql.SQL("SELECT version FROM {schema}.format").format(schema=schema)).fetchall()
    return int(rows[0][0]) if rows else None
