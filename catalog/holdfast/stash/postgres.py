# ruff: noqa: D102 - the base class documents its methods
"""A stash in one schema of a Postgres database (13 or newer), for any number of hosts.

`pg_schema` describes the tables. `sinces` and `uppers` have one row each. All transactions that write use
READ COMMITTED and a durable commit.

Why it is safe
- A commit inserts its rows and then runs `UPDATE uppers ... WHERE upper = <the expected upper>`. If several
  commits run at once, the lock on that row lets one of them continue. The others wait, read the row again,
  find another upper, and are rolled back with all their rows. So each upper gets one commit. The row is
  locked only from this statement to COMMIT, so a process that takes over a catalog never waits for a long
  commit. The other conditions of a commit are read after this statement, under the same lock.
- The rows of a time and the upper above it become visible in one step. A read takes frontiers and rows from
  one snapshot (REPEATABLE READ).
- A consolidation is one statement: it deletes rows and inserts one row with the sum of exactly the rows that
  it deleted. So sums stay the same, even if other transactions run. Commits write at times above `since`,
  and a consolidation reads none of these.
- An error before COMMIT is determinate, because the server rolls back the transaction of a lost connection.
  If the connection is lost during COMMIT, the outcome is indeterminate. If the connection survives an error
  of COMMIT, the server has rolled back.
- After a failover, a different commit may have an upper that somebody has already seen, under the same fence
  row. So a call compares the digest of the last commit with the digest that the caller knows. The digest is
  computed from the rows, so the commits of every client have one. A session stays with one server, so it
  compares again only after the upper has moved.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors, sql

from holdfast.errors import (
    Determinate,
    DiffOverflow,
    HoldfastError,
    Indeterminate,
    NotWritable,
    StorageError,
    StoreUnreachable,
)
from holdfast.pg_session import Connection, PostgresAddress, Sessions, open_hint, refused, told
from holdfast.stash.pg_schema import prepare
from holdfast.stash.stash import (
    CONSOLIDATION_ROWS,
    ROW_OVERHEAD_BYTES,
    STATEMENT_BYTES,
    Columns,
    KnownPast,
    Past,
    Stash,
    StashFrontiers,
    StashUpdate,
    check_as_of,
    check_commit_time,
    check_held,
    check_lower,
    check_past,
    check_reached,
    check_since,
    check_sole,
    check_upper,
    in_batches,
    in_statements,
    name_of,
)

POOL_SIZE: Final = 8
FETCHED_ROWS: Final = 4000
"""The most rows that one fetch reads. Together they have at most `STATEMENT_BYTES`."""
LEAST_FETCHED_ROWS: Final = 50
"""If rows are so large that a fetch would read fewer, they are streamed one by one with COPY instead.

Each fetch waits for the server.
"""
_SETTINGS: Final = {
    # An idle reader holds no lock, but VACUUM can't remove old rows of any table until it ends.
    "idle_in_transaction_session_timeout": "1h",
}

_FRONTIERS: Final = "SELECT since, upper FROM {schema}.sinces, {schema}.uppers"
# The server's own hash takes a fifth of the time of a cryptographic one. It is kept only in memory. If
# another major version hashes differently, a reader only reads everything again without need.
_PAST: Final = """SELECT last.time, (
    SELECT concat(count(*), ' ', sum(
      hash_array_extended(ARRAY[key, value], (collection_id::bigint << 32) # diff)))
    FROM {schema}.data AS d WHERE d.time = last.time)
  FROM (SELECT coalesce(max(time), -1) AS time FROM {schema}.data WHERE time < %s::bigint) AS last"""
_PUT: Final = "COPY {schema}.data (collection_id, key, value, time, diff) FROM STDIN (FORMAT binary)"
_PUT_TYPES: Final = ("int4", "bytea", "bytea", "int8", "int8")
_NAME: Final = """INSERT INTO {schema}.collections
  SELECT id, name FROM unnest(%s::int[], %s::text[]) AS new(id, name) ORDER BY id
  ON CONFLICT (id) DO NOTHING"""
_MOVE_UPPER: Final = "UPDATE {schema}.uppers SET upper = %s::bigint WHERE upper = %s::bigint"
# After this statement the upper's row is locked, and a client that freezes would block all others.
_HURRY: Final = b"SET LOCAL idle_in_transaction_session_timeout = '10s'"
# A separate statement before the one that reads the holds, so that the latter sees all holds set until then.
_LOCK_SINCE: Final = "SELECT since FROM {schema}.sinces FOR UPDATE"
_MOVE_SINCE: Final = """UPDATE {schema}.sinces
  SET since = greatest(since, least(%s::bigint, (SELECT min(time) FROM {schema}.holds)))"""
_HOLD: Final = """INSERT INTO {schema}.holds VALUES (%s, %s)
  ON CONFLICT (name) DO UPDATE SET time = excluded.time"""
_HOLDS: Final = "SELECT name, time FROM {schema}.holds"
_RELEASE: Final = "DELETE FROM {schema}.holds WHERE name = %s"
_ROWS: Final = """SELECT collection_id, key, value, sum(diff)::bigint FROM {schema}.data
  WHERE time <= {as_of} AND {wanted} AND {other} GROUP BY collection_id, key, value HAVING sum(diff) <> 0"""
_LARGEST: Final = "SELECT max(octet_length(key) + octet_length(value)) FROM {schema}.data"
# The cursor reads all rows, so the planner should not favor the first ones. Summing 100,000 rows in memory
# takes half the time of sorting them on disk.
_TO_THE_END: Final = b"""SELECT set_config('cursor_tuple_fraction', '1', true), set_config(
  'work_mem', greatest(pg_size_bytes(current_setting('work_mem')), 64 << 20) / 1024 || 'kB', true)"""
_BEFORE: Final = """SELECT collection_id, key, value, sum(diff)::bigint FROM {schema}.data
  WHERE collection_id = %s::int AND time < %s::bigint
  GROUP BY collection_id, key, value HAVING sum(diff) <> 0"""
_TRUE: Final = sql.SQL("true")
_SIZES: Final = """SELECT collection_id, sum(diff)::bigint FROM {schema}.data WHERE time <= %s::bigint
  GROUP BY collection_id"""
_CHANGES: Final = """COPY (SELECT time, collection_id, key, value, sum(diff)::bigint FROM {schema}.data
  WHERE time >= {lower} AND time < {upper} GROUP BY time, collection_id, key, value HAVING sum(diff) <> 0
  ORDER BY time) TO STDOUT (FORMAT binary)"""
_RETRACTIONS: Final = """COPY (SELECT collection_id, key, value, diff FROM {schema}.data
  WHERE diff < 0 AND time <= {since} ORDER BY time) TO STDOUT (FORMAT binary)"""
_ROW_TYPES: Final = ("int4", "bytea", "bytea", "int8")
_CHANGE_TYPES: Final = ("int8", "int4", "bytea", "bytea", "int8")
_CLAIM_CONSOLIDATION: Final = "SELECT since FROM {schema}.sinces FOR UPDATE SKIP LOCKED"
# Bytes are sent in binary (%b): as text they are twice as large.
_CONSOLIDATE: Final = """WITH
  wanted AS (SELECT * FROM unnest(%s::int[], %b::bytea[], %b::bytea[]) AS w(id, key, value)),
  gone AS (DELETE FROM {schema}.data AS d USING wanted AS w
    WHERE d.collection_id = w.id AND substring(d.key, 1, 1024) = substring(w.key, 1, 1024)
      AND d.key = w.key AND d.value = w.value AND d.time <= %s::bigint RETURNING d.*)
  INSERT INTO {schema}.data SELECT collection_id, key, value, max(time), sum(diff) FROM gone
    GROUP BY collection_id, key, value HAVING sum(diff) <> 0"""
# The planner doesn't know the size of a batch, and knows little about a table that was just filled.
_BY_INDEX: Final = b"""SELECT set_config(name, 'off', true)
  FROM unnest(ARRAY['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin']) AS each(name)"""


_WHAT: Final = "this stash"


class PostgresStash(Stash):
    """The stash at `address`. If `create` is set, creates a missing schema and its tables.

    See `open_stash`.
    """

    def __init__(
        self, address: PostgresAddress, *, create: bool, read_only: bool, names: Mapping[int, str]
    ) -> None:
        super().__init__()
        self._address: Final = address
        self._read_only: Final = read_only
        self._names: Final = names
        self._sessions: Final = Sessions(address, size=POOL_SIZE, settings=_SETTINGS)
        try:
            with self._sessions.apart() as connection:
                prepare(connection, address, create=create)
        except psycopg.Error as error:
            raise StoreUnreachable(
                f"can't open the stash in {address.description}: {told(error)}",
                hint=open_hint(error),
            ) from None
        self._compared: Final[WeakKeyDictionary[Connection, Past]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<PostgresStash {self._address.description}>"

    @property
    def description(self) -> str:
        return f"stash in {self._address.description}"

    def frontiers(self, *, history: KnownPast | None = None) -> StashFrontiers:
        with self._connection() as connection:
            try:
                found = self._frontiers(connection)
                # Contents below the upper don't change, so this needs no snapshot.
                self._compare(connection, history, found.upper)
            except psycopg.Error as error:
                raise self._failed(error, connection) from None
            return found

    def append(
        self,
        updates: Iterable[StashUpdate],
        at: int,
        *,
        sole: StashUpdate | None = None,
        upper: int | None = None,
        history: KnownPast | None = None,
    ) -> None:
        self._check_writable()
        after = check_commit_time(at, upper)
        with self._connection() as connection:
            with self._rolled_back(connection):
                past = self._put_in(connection, updates, at, after, sole, history)
            self._commit(connection)
            if history is not None and past is not None:
                history.past = self._compared[connection] = past

    def _put_in(
        self,
        connection: Connection,
        updates: Iterable[StashUpdate],
        at: int,
        after: int,
        sole: StashUpdate | None,
        history: KnownPast | None,
    ) -> Past | None:
        """Do everything of a commit except COMMIT. With `history`, returns the past after the commit."""
        known = self._uncompared(connection, history, at)
        past = made = None
        with connection.pipeline():
            connection.execute(b"BEGIN")
            seen = connection.execute(self._sql(_FRONTIERS))
            if known is not None:
                past = connection.execute(self._sql(_PAST), (known.upper,))
        self._check_upper(seen, at)
        if known is not None and past is not None:
            check_past(known, _past_of(past, known.upper), self.description)
        used: set[int] = set()
        for batch in in_statements(updates, self._names):
            with connection.cursor() as cursor, cursor.copy(self._sql(_PUT)) as copy:
                copy.set_types(_PUT_TYPES)
                for collection, key, value, diff in batch:
                    copy.write_row((collection, key, value, at, diff))
            used.update(update.collection for update in batch)
        ids = sorted(used)
        with connection.pipeline():
            if history is not None:
                made = connection.execute(self._sql(_PAST), (after,))
            connection.execute(_HURRY)
            connection.execute(self._sql(_NAME), (ids, [name_of(id_, self._names) for id_ in ids]))
            moved = connection.execute(self._sql(_MOVE_UPPER), (after, at))
            found = self._before(connection, sole, at)
        if moved.rowcount != 1:
            # A new statement sees the commit that the UPDATE waited for.
            self._check_upper(connection.execute(self._sql(_FRONTIERS)), at)
            raise Determinate(
                f"{self.description} did not move its upper from {at} to {after}, so nothing was written",
                hint="try again; if this repeats, look for triggers and rules on its tables, and drop them",
            )
        if sole is not None:
            check_sole(found.fetchall(), sole, self.description)
        return None if made is None else _past_of(made, after)

    def _uncompared(self, connection: Connection, history: KnownPast | None, upper: int) -> Past | None:
        """The past that this session must still compare at `upper`. None if there is nothing to compare."""
        known = None if history is None else history.past
        if known is None or (upper == known.upper and self._compared.get(connection) == known):
            return None
        return known

    def _compare(self, connection: Connection, history: KnownPast | None, upper: int) -> None:
        known = self._uncompared(connection, history, upper)
        if known is None:
            return
        check_past(
            known, self._past(connection, known.upper) if known.upper <= upper else None, self.description
        )
        self._compared[connection] = known

    def _learn(self, connection: Connection, history: KnownPast | None, upper: int) -> None:
        """Set `history` to the past up to `upper`."""
        if history is not None and (history.past is None or history.past.upper != upper):
            history.past = self._compared[connection] = self._past(connection, upper)

    def _past(self, connection: Connection, upper: int) -> Past:
        return _past_of(connection.execute(self._sql(_PAST), (upper,)), upper)

    def _before(
        self, connection: Connection, sole: StashUpdate | None, before: int
    ) -> "psycopg.Cursor[tuple[Any, ...]]":
        """The rows that the collection of `sole` had before a time."""
        id_ = None if sole is None else sole.collection
        return connection.execute(self._sql(_BEFORE), (id_, before))

    def _check_upper(self, frontiers: "psycopg.Cursor[tuple[int, int]]", at: int) -> None:
        check_upper(at, _frontiers_of(frontiers, self.description).upper, self.description)

    def _commit(self, connection: Connection) -> None:
        waits = self._sessions.standby_waits
        try:
            status = connection.execute(b"COMMIT").statusmessage
        except psycopg.Error as error:
            if connection.closed:
                waits.note()
            kind = Indeterminate if connection.closed else Determinate
            raise kind(f"{self.description}: {told(error)}") from None
        if status != "COMMIT":
            raise Determinate(f"{self.description}: the server answered {status} to COMMIT")
        waits.check(self.description)

    def rows(
        self,
        as_of: int,
        collections: Collection[int] = (),
        *,
        but: Collection[int] = (),
        history: KnownPast | None = None,
    ) -> Iterator[StashUpdate]:
        if not collections:
            for some in self._fetched(as_of, but, history):
                yield from map(StashUpdate._make, some)
            return
        with self._snapshot() as connection:
            self._begin(connection, as_of, history)
            connection.execute(_BY_INDEX)
            statement = b"COPY (%s) TO STDOUT (FORMAT binary)" % self._rows(as_of, collections, but)
            yield from map(StashUpdate._make, self._stream(connection, statement, _ROW_TYPES))

    def columns(
        self, as_of: int, *, but: Collection[int] = (), history: KnownPast | None = None
    ) -> Iterator[Columns]:
        return (Columns(*zip(*some, strict=True)) for some in self._fetched(as_of, but, history))

    def _begin(self, connection: Connection, as_of: int, history: KnownPast | None) -> None:
        """Check in a snapshot that `as_of` can be read. Compare the known past, or set it if it is None."""
        frontiers = self._frontiers(connection)
        check_as_of(as_of, frontiers)
        self._compare(connection, history, frontiers.upper)
        if history is not None and history.past is None:
            self._learn(connection, history, as_of + 1)

    def _rows(self, as_of: int, collections: Collection[int], but: Collection[int]) -> bytes:
        wanted = sql.SQL("collection_id = ANY({})").format(list(collections)) if collections else _TRUE
        other = sql.SQL("collection_id <> ALL({})").format(list(but)) if but else _TRUE
        return self._sql(_ROWS, as_of=sql.Literal(as_of), wanted=wanted, other=other)

    def _fetched(
        self, as_of: int, but: Collection[int], history: KnownPast | None
    ) -> Iterator[list[tuple[int, bytes, bytes, int]]]:
        """The rows at `as_of`, in pieces. This takes a quarter of the CPU time of a COPY."""
        statement = self._rows(as_of, (), but)
        with self._snapshot() as connection:
            self._begin(connection, as_of, history)
            ((largest,),) = connection.execute(self._sql(_LARGEST)).fetchall()
            at_once = min(FETCHED_ROWS, STATEMENT_BYTES // ((largest or 0) + ROW_OVERHEAD_BYTES))
            if at_once < LEAST_FETCHED_ROWS:
                copied = b"COPY (%s) TO STDOUT (FORMAT binary)" % statement
                for row in self._stream(connection, copied, _ROW_TYPES):
                    yield [row]
                return
            connection.execute(_TO_THE_END)
            with connection.cursor("rows", binary=True) as cursor:
                cursor.execute(statement)
                while rows := cursor.fetchmany(at_once):
                    yield rows
                    self._owner.check(_WHAT)

    def sizes(self, as_of: int) -> dict[int, int]:
        with self._snapshot() as connection:
            check_as_of(as_of, self._frontiers(connection))
            return dict(connection.execute(self._sql(_SIZES), (as_of,)).fetchall())

    def changes(
        self,
        lower: int,
        upper: int | None = None,
        *,
        sole: StashUpdate | None = None,
        history: KnownPast | None = None,
    ) -> Iterator[tuple[int, StashUpdate]]:
        with self._snapshot() as connection:
            frontiers = self._frontiers(connection)
            if sole is not None:
                check_reached(max(lower, upper or 0), frontiers, self.description)
            check_lower(lower, frontiers)
            if sole is not None:
                check_sole(self._before(connection, sole, lower).fetchall(), sole, self.description)
            self._compare(connection, history, frontiers.upper)
            until = frontiers.upper if upper is None else min(upper, frontiers.upper)
            self._learn(connection, history, until)
            statement = self._sql(_CHANGES, lower=sql.Literal(lower), upper=sql.Literal(until))
            for time, *row in self._stream(connection, statement, _CHANGE_TYPES):
                yield time, StashUpdate(*row)

    def allow_compaction(self, since: int) -> None:
        with self._transaction() as connection:
            check_since(since, self._frontiers(connection))
            connection.execute(self._sql(_LOCK_SINCE))
            connection.execute(self._sql(_MOVE_SINCE), (since,))

    def hold(self, name: str, time: int) -> None:
        with self._transaction() as connection:
            ((since,),) = connection.execute(self._sql(_LOCK_SINCE)).fetchall()
            check_held(time, since)
            connection.execute(self._sql(_HOLD), (name, time))

    def holds(self) -> dict[str, int]:
        with self._snapshot() as connection:
            return dict(connection.execute(self._sql(_HOLDS)).fetchall())

    def release(self, name: str) -> None:
        with self._transaction() as connection:
            connection.execute(self._sql(_RELEASE), (name,))

    def consolidate(self, *, max_batches: int | None = None) -> bool:
        self._check_writable()
        for number, batch in enumerate(in_batches(self._retractions(), CONSOLIDATION_ROWS)):
            if number == max_batches or not self._consolidate(batch):
                return False
        return True

    def _retractions(self) -> Iterator[StashUpdate]:
        with self._snapshot() as connection:
            since = self._frontiers(connection).since
            statement = self._sql(_RETRACTIONS, since=sql.Literal(since))
            for row in self._stream(connection, statement, _ROW_TYPES):
                yield StashUpdate(*row)

    def _consolidate(self, rows: Sequence[StashUpdate]) -> bool:
        """Replace the copies of each row by one with their sum, or by none if it is 0.

        Returns False if another process consolidates.
        """
        with self._transaction() as connection:
            claimed = connection.execute(self._sql(_CLAIM_CONSOLIDATION)).fetchall()
            if claimed:
                connection.execute(_BY_INDEX)
                ids, keys, values, _ = (list(column) for column in zip(*rows, strict=True))
                connection.execute(self._sql(_CONSOLIDATE), (ids, keys, values, claimed[0][0]))
        return bool(claimed)

    def close(self) -> None:
        if self._owner.is_here:
            self._sessions.close()

    def _check_writable(self) -> None:
        self._owner.check(_WHAT)
        if self._read_only:
            raise NotWritable(f"{self.description} was opened for reading only")

    def _sql(self, statement: str, **parts: sql.Composable) -> bytes:
        """The statement with the quoted schema name, and with literals because COPY takes no parameters."""
        schema = sql.Identifier(self._address.schema)
        return sql.SQL(statement).format(schema=schema, **parts).as_bytes(None)

    def _frontiers(self, connection: Connection) -> StashFrontiers:
        return _frontiers_of(connection.execute(self._sql(_FRONTIERS)), self.description)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        self._owner.check(_WHAT)
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self._sessions.connection())
            except Determinate as error:
                raise StoreUnreachable(str(error), hint=error.hint) from None
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A connection in a transaction that commits at the end of the block."""
        self._check_writable()
        with self._connection() as connection:
            with self._rolled_back(connection):
                connection.execute(b"BEGIN")
                yield connection
            self._commit(connection)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """A connection with a snapshot of the database as it is now."""
        with self._connection() as connection, self._rolled_back(connection):
            connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection
            connection.execute(b"COMMIT")

    @contextmanager
    def _rolled_back(self, connection: Connection) -> Iterator[None]:
        """Roll back if the block fails. Raises an error of the server as `_failed` converts it."""
        try:
            yield
        except psycopg.Error as error:
            failure = self._failed(error, connection)
            _roll_back(connection)
            raise failure from None
        except BaseException:
            # In a forked child the transaction is the parent's.
            if self._owner.is_here:
                _roll_back(connection)
            raise

    def _stream(
        self, connection: Connection, statement: bytes, types: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        """Stream the rows of a COPY. Only one row is in memory at a time."""
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in copy.rows():
                yield row
                self._owner.check(_WHAT)

    def _failed(self, error: psycopg.Error, connection: Connection) -> HoldfastError:
        """The error to raise for a failure that changed nothing."""
        if isinstance(error, errors.NumericValueOutOfRange):
            return DiffOverflow(f"one of the {self.description}")
        if refusal := refused(error, connection, self.description):
            return refusal
        kind: type[StorageError] = StoreUnreachable if connection.closed else Determinate
        return kind(f"{self.description}: {told(error)}")


def _frontiers_of(cursor: "psycopg.Cursor[tuple[int, int]]", description: str) -> StashFrontiers:
    rows = cursor.fetchall()
    if len(rows) != 1:
        raise Determinate(
            f"{description} is damaged: its tables sinces and uppers must have one row each",
            hint="stop all clients, and restore the stash from a backup",
        )
    return StashFrontiers(*rows[0])


def _past_of(cursor: "psycopg.Cursor[tuple[Any, ...]]", upper: int) -> Past:
    ((time, digest),) = cursor.fetchall()
    return Past(upper, time, str(digest))


def _roll_back(connection: Connection) -> None:
    """End the transaction. If that fails, close the session, which also ends the transaction."""
    try:
        connection.execute(b"ROLLBACK")
    except psycopg.Error:
        connection.close()
