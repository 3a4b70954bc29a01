# ruff: noqa: D102 - the trait documents its methods
"""Consensus in one schema of a Postgres database, for any number of hosts.

Tables: `entries` (key, seqno, data), a row per entry, and `keys`, a row per key that is never deleted.

Invariants, all under READ COMMITTED:

- An append locks its keys' rows in `keys` FOR NO KEY UPDATE, a condition locks its key's FOR SHARE, a
  truncation FOR UPDATE: so a condition that held when it was checked holds at the commit. The keys of one
  step are locked in their order.
- An append selects its predecessor's row, locked FOR KEY SHARE, in the statement that inserts, and inserts
  nothing over what is there. A row lock follows the row to its newest version: a writer that slept finds its
  predecessor deleted, or its own place taken, however old its snapshot is.
- A predecessor that the writer knows is compared by its digest in that statement too, and so is a condition:
  after a failover to a server that lags, the same sequence number may stand for other bytes.
- A first entry has no predecessor. It is inserted by a statement that began when its key's row was locked,
  and only if it sees no entry of the key; the head is never truncated, so there is one ever after.
- Whatever inserted fewer rows than it was asked for is rolled back.
- Every insert names the primary key that it relies on. While a dump is being restored, a table has its rows
  before its key: then the server refuses the insert.
- An append to one key, its first apart, is one statement and its own transaction: one round trip. A
  connection that is lost meanwhile leaves it indeterminate. Of several keys, COMMIT is sent apart, once all
  rows are known to be in: what is lost before is determinate.
"""

import logging
import random
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from holdfast.persist.stores.pghints import CommitHints
from holdfast.persist.stores.traits import (
    MAX_SEQNO,
    NOTHING_KNOWN,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    Put,
    Row,
    check_commands,
    check_key,
    check_scan,
)
from holdfast.persist.stores.watch import Watch, Watches
from holdfast.pgsession import Connection, PostgresAddress, Sessions, told, without_key

T = TypeVar("T")
log = logging.getLogger(__name__)

FORMAT_VERSION = 1
POOL_SIZE: Final = 8
_LOCK_CLASS: Final = 0x48464353  # "HFCS", of the advisory lock under which a schema is made
_MAX_ATTEMPTS: Final = 20
_LONGEST_REPLY_S: Final = 1.0
_SETTINGS: Final = {
    # A client that freezes between its insert and its commit would hold up all writers of its shards.
    "idle_in_transaction_session_timeout": "10s",
    # Each statement goes to its rows by the primary keys; plans made once can't be wrong about that.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_CREATE: Final = (
    'CREATE TABLE {schema}.keys (key text COLLATE "C" PRIMARY KEY)',
    """CREATE TABLE {schema}.entries (
      key text COLLATE "C" NOT NULL, seqno bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, seqno))""",
    "ALTER TABLE {schema}.entries ALTER COLUMN data SET STORAGE EXTERNAL",  # it does not compress again
    "CREATE TABLE {schema}.format (version integer NOT NULL)",
)
# With the database: a dump that is restored into another one of the same server is another line too.
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
# The key's row is locked before any entry. The greatest seqno may be an old one: that deletes less.
_TRUNCATE: Final = """WITH locked AS MATERIALIZED (
    SELECT key FROM {schema}.keys WHERE key = %(key)s::text FOR UPDATE)
  DELETE FROM {schema}.entries AS e USING locked WHERE e.key = locked.key AND e.seqno < %(seqno)s::bigint
    AND e.seqno < (SELECT max(seqno) FROM {schema}.entries WHERE key = %(key)s::text)
    AND (%(size)s::integer IS NULL OR EXISTS (SELECT FROM {schema}.entries AS a
      WHERE a.key = %(key)s::text AND a.seqno = %(known)s::bigint
      AND octet_length(a.data) = %(size)s::integer
      AND substring(a.data FROM 9 FOR 4) = %(crc)s::bytea))"""
# Rows are locked in the order of the FOR clauses: the key first, as everybody does.
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
    """The logs in one schema of a Postgres database (13 or newer), made where `create` is set.

    `url` is what `PostgresAddress.parse` takes, `pool_size` the most connections that the store opens. Raises
    `BadInput` for a URL without meaning, `StoreUnreachable` for a server that can't be reached or a
    schema that is missing, `VersionTooNew` or `Deprecated` for one of another format. With `read_only`
    nothing is written.
    """

    def __init__(
        self, url: str, *, create: bool = True, read_only: bool = False, pool_size: int = POOL_SIZE
    ) -> None:
        self._address: Final = PostgresAddress.parse(url)
        self._read_only: Final = read_only
        schema = sql.Identifier(self._address.schema)
        self._sql: Final = _Statements(schema)
        self._found: Final = _Line()
        self._clock: Final = _ServerClock()
        self._sessions: Final = Sessions(
            self._address, size=pool_size, settings=_SETTINGS, connected=self._found.look
        )
        try:
            with self._sessions.apart() as connection:
                _prepare(connection, self._address, create=create and not read_only)
        except psycopg.Error as error:
            raise StoreUnreachable(
                f"can't open {self._address.description}: {told(error)}",
                hint="check host, port, database, user and password, and that the server runs as a primary",
            ) from None
        self._watches: Final = Watches()
        self._hints: Final = CommitHints(self._address, self._watches)
        # A store that nobody has any more is as good as closed.
        weakref.finalize(self, self._hints.close).atexit = False

    def __repr__(self) -> str:
        # `__init__` may have failed before it parsed the URL; debuggers and logs still show the object.
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

    def truncate(self, key: str, seqno: int, known: Row | None = None) -> int:
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
        # Two steps: what is left below after a crash is truncated by the next upkeep.
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
        self._sessions.close()

    def _read(self, statement: bytes, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._sessions.connection() as connection:
            try:
                return connection.execute(statement, values, binary=True).fetchall()
            except psycopg.Error as error:
                raise self._failed(error, Determinate) from None

    def _write(self, action: Callable[[Connection], T]) -> T:
        """Do `action` until the server has not broken it off to end a deadlock."""
        if self._read_only:
            raise NotWritable(f"{self.description} was opened for reading only")
        for attempt in range(_MAX_ATTEMPTS):
            with self._sessions.connection() as connection:
                try:
                    return action(connection)
                except (errors.DeadlockDetected, errors.SerializationFailure):
                    pass
            time.sleep(random.uniform(0.0, 0.002 * (attempt + 1)))  # noqa: S311 - jitter is no secret
        raise Determinate(
            f"{self.description}: {_MAX_ATTEMPTS} attempts ended in deadlocks with other writers"
        )

    def _autocommit(self, connection: Connection, statement: bytes, values: Any) -> int:
        """Run one statement as its own transaction; how many rows it changed."""
        waits = self._sessions.standby_waits
        try:
            changed = connection.execute(statement, values).rowcount
        except (errors.DeadlockDetected, errors.SerializationFailure):
            raise
        except psycopg.Error as error:
            if connection.closed:
                waits.note()
            # An error that the session survives is the server's word that it rolled back.
            raise self._failed(error, Indeterminate if connection.closed else Determinate) from None
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
            raise self._failed(error, Determinate) from None
        if not done:
            _roll_back(connection)
            return False
        self._autocommit(connection, b"COMMIT", ())
        return True

    def _insert_all(self, connection: Connection, puts: Sequence[Put], expect: Sequence[Expect]) -> bool:
        """Begin a transaction and insert all rows in one round trip; whether every one was."""
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

    def _failed(self, error: psycopg.Error, kind: type[StorageError]) -> HoldfastError:
        return without_key(error, self.description) or kind(f"{self.description}: {told(error)}")


class _Line:
    """On which server and timeline the newest connection is. It holds no connection and no store."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._is_denied = False

    def look(self, connection: Connection) -> None:
        """Read it on a new connection."""
        try:
            row = connection.execute(_LINE).fetchone()
        except errors.InsufficientPrivilege as error:
            self.name = None
            if not self._is_denied:
                log.warning(
                    "the timeline of the Postgres server can't be read (%s): garbage collection can't tell an"
                    " old primary from the new one; grant EXECUTE on pg_control_system, pg_walfile_name and"
                    " pg_current_wal_insert_lsn",
                    told(error),
                )
            self._is_denied = True
            return
        self.name = None if row is None else str(row[0])


class _ServerClock:
    """The server's time: what a reply said, and the monotonic time of this host since it was asked for."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def heard(self, told_ms: int, asked_s: float) -> None:
        """Take note of the server's time, unless the reply took so long that it says little."""
        if time.monotonic() - asked_s <= _LONGEST_REPLY_S:
            self._offset_ms = told_ms - asked_s * 1000

    def now_ms(self) -> int | None:
        """Milliseconds since the epoch; never earlier than the server's clock, later by a reply at most."""
        offset_ms = self._offset_ms
        return None if offset_ms is None else int(time.monotonic() * 1000 + offset_ms)


class _Statements:
    """The statements with the schema's name pasted in, quoted; values are never pasted."""

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
    """All keys ascending, in runs of one strength: (whether they are put, the keys)."""
    strength = {condition.key: False for condition in expect} | {put.key: True for put in puts}
    ordered = sorted(strength.items())
    return [(to_put, [key for key, _ in run]) for to_put, run in groupby(ordered, lambda item: item[1])]


def _columns(rows: Iterable[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))


def _roll_back(connection: Connection) -> None:
    """End the transaction; where that fails the session ends, and its transaction with it."""
    try:
        connection.execute(b"ROLLBACK")
    except psycopg.Error:
        connection.close()


def _prepare(connection: Connection, address: PostgresAddress, *, create: bool) -> None:
    """Check the schema's format, and make the schema where it is missing and `create` is set."""
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
            if _version(connection, address) is None:  # else another process was faster
                _create(connection, address)
        version = _version(connection, address)
    if version is None:
        raise NoLocation(
            f"{address.description} holds no consensus tables",
            hint="check the URL; they are made by the first client that writes",
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
    """The format of the tables, None where there are none."""
    found = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'format'"
    if not connection.execute(found, (address.schema,)).fetchall():
        return None
    schema = sql.Identifier(address.schema)
    rows = connection.execute(sql.SQL("SELECT version FROM {schema}.format").format(schema=schema)).fetchall()
    return int(rows[0][0]) if rows else None
