"""A temporary database of this process that holds a catalog during the steps of an upgrade.

Each row is stored once, with the numbers of the step that added it and of the step that retracted it. So the
state between any two steps can be read, and the changes of each step can be read again for its commit.

Invariants
- Memory does not grow with the size of the catalog. Rows that don't fit are in a temporary file without a
  name, in the folder TMPDIR. The file disappears when the process ends, even if it crashes.
- A step sees the state before it until it ends, although its own changes are already being written.
- After each step every key occurs once. A step that retracts a missing row is refused.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count, islice, repeat
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate, kind_of
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import BadInput, Determinate

_CACHE_KIB: Final = 32 * 1024
_CHUNK: Final = 4096
# Ids contain the kind, so each kind is one range of the table. New rows get ids at the end of the range.
_IDS_OF_KIND: Final = 1 << 48
# As wide as the number of a step, which replaces it later. So the row keeps its size.
_FOREVER: Final = 127
_MIGRATABLE: Final = tuple(kind for kind, row in OBJECT_TYPES.items() if row.migratable)

_SCHEMA: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    f"PRAGMA cache_size = -{_CACHE_KIB}",
    """
    CREATE TABLE rows (
        id INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB NOT NULL,
        added INTEGER NOT NULL, retracted INTEGER NOT NULL
    )""",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, name BLOB NOT NULL)",
    "BEGIN",
)
_ADD: Final = "INSERT INTO rows VALUES (?, ?, ?, ?, 127)"
_RETRACT: Final = """
    UPDATE rows SET retracted = ?1 WHERE key = ?2 AND value = ?3 AND added < ?1 AND retracted = 127"""
_AT_STATE: Final = """
    SELECT key, value FROM rows WHERE id >= ?1 AND id < ?2 AND added <= ?3 AND retracted > ?3"""
_RETRACTED: Final = "SELECT key, value FROM rows WHERE id >= ?1 AND id < ?2 AND retracted = ?3"
_ADDED: Final = """
    SELECT key, value FROM rows WHERE id >= ?1 AND id < ?2 AND added = ?3 AND retracted > ?3"""
_ADDED_BEYOND: Final = f"{_ADDED} AND length(key) + length(value) > ?4 LIMIT 1"
_LEFT: Final = """
    SELECT id, key, value FROM rows WHERE id >= ?1 AND id < ?2 AND added = ?3 AND retracted = 127"""
_SIZES: Final = """
    SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM rows
    WHERE id >= ?1 AND id < ?2 AND retracted = 127"""
_KEY_TWICE: Final = """
    SELECT key FROM rows WHERE id >= ?1 AND id < ?2 AND retracted = 127
    GROUP BY key HAVING count(*) > 1 LIMIT 1"""
_NAME: Final = "INSERT OR REPLACE INTO names VALUES (?, ?)"
_NAME_TWICE: Final = """
    SELECT name FROM names JOIN rows USING (id) WHERE id >= ?1 AND id < ?2 AND retracted = 127
    GROUP BY name HAVING count(*) > 1 LIMIT 1"""
_OF_NAME: Final = """
    SELECT key, value FROM names JOIN rows USING (id)
    WHERE id >= ?1 AND id < ?2 AND retracted = 127 AND name = ?3 ORDER BY key LIMIT 2"""


# Like `Row(*columns)`, but many times faster.
_row: Final[Callable[[tuple[bytes, bytes]], Row]] = partial(tuple.__new__, Row)


class Scratch:
    """The migratable rows of a catalog: state 0 as they were loaded, and the states after steps 1, 2, ..."""

    def __init__(self) -> None:
        # Nothing is ever rolled back, because a scratch that fails is discarded.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._next_id = {kind: kind * _IDS_OF_KIND for kind in _MIGRATABLE}
        self._touched: list[frozenset[Kind]] = [frozenset(_MIGRATABLE)]
        self.state = 0
        for statement in _SCHEMA:
            self._execute(statement)

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Load the rows of state 0: columns `key` and `value`, all of migratable kinds."""
        for batch in batches:
            tags = pc.binary_slice(batch.column("key"), 0, TAG_BYTES)
            for tag in pc.unique(tags).to_pylist():
                rows = batch.filter(pc.equal(tags, tag))
                columns = (rows.column(name).to_pylist() for name in ("key", "value"))
                self._add(kind_of(tag), list(map(_row, zip(*columns, strict=True))), 0)
        self._execute("CREATE INDEX keys ON rows (key)")

    def rows(self, kind: Kind) -> Iterator[Row]:
        """The rows of a migratable kind in the state that is the last one at the call, in any order."""
        return map(_row, self._select(_AT_STATE, *_ids(kind), self.state))

    def apply(self, updates: Iterable[RowUpdate], *, source: int) -> frozenset[Kind]:
        """Apply the changes of the next step, from version `source`, in any order. Returns the changed kinds.

        Raises `CorruptBlob` if the changes don't fit the rows. You can't use the scratch after that.
        """
        step = self.state + 1
        touched: set[Kind] = set()
        for kind, diff, rows in _grouped(updates, source):
            touched.add(kind)
            if diff == 1:
                self._add(kind, rows, step)
            elif self._execute_many(_RETRACT, zip(repeat(step), *zip(*rows, strict=True))) != len(rows):
                raise corrupt(
                    f"the upgrade of {OBJECT_TYPES[kind]} from version {source}",
                    "retractions of rows that are there, each once",
                    "others",
                )
        self.state = step
        self._touched.append(frozenset(touched))
        for kind in touched if step > 1 else _MIGRATABLE:
            for (key,) in self._execute(_KEY_TWICE, *_ids(kind)):
                raise corrupt(
                    f"the upgrade of {OBJECT_TYPES[kind]} from version {source}",
                    "each key once",
                    f"{key[:32].hex()} twice",
                )
        return self._touched[step]

    def updates(self, step: int) -> Iterator[RowUpdate]:
        """The changes of a step, in any order. Each retraction has the bytes that were loaded or added."""
        for kind in self._touched[step]:
            for query, diff in ((_RETRACTED, -1), (_ADDED, 1)):
                rows = map(_row, self._select(query, *_ids(kind), step))
                yield from map(RowUpdate, rows, repeat(diff))

    def added_beyond(self, kind: Kind, step: int, limit: int) -> Row | None:
        """A row of a kind that a step adds with more than `limit` bytes. None if there is none."""
        found = self._execute(_ADDED_BEYOND, *_ids(kind), step, limit)
        return Row(*found[0]) if found else None

    def added(self, kind: Kind, state: int) -> Iterator[tuple[int, Row]]:
        """The rows of a kind that a state added and that still exist in the last one, each with its id."""
        for number, key, value in self._select(_LEFT, *_ids(kind), state):
            yield number, Row(key, value)

    def sizes(self) -> Mapping[Kind, Size]:
        """The sizes, in the last state, of the migratable kinds that the last step touched."""
        return {kind: Size(*self._execute(_SIZES, *_ids(kind))[0]) for kind in self._touched[self.state]}

    def note_names(self, names: Iterable[tuple[int, bytes]]) -> None:
        """Store the unique fields of rows as digests of equal length, by the ids of the rows."""
        rest = iter(names)
        while chunk := list(islice(rest, _CHUNK)):
            self._execute_many(_NAME, chunk)

    def shared_name(self, kind: Kind) -> tuple[Row, Row] | None:
        """Two rows of a kind in the last state with equal digests. None if all differ."""
        twice = self._execute(_NAME_TWICE, *_ids(kind))
        if not twice:
            return None
        first, second = self._execute(_OF_NAME, *_ids(kind), *twice[0])
        return Row(*first), Row(*second)

    def close(self) -> None:
        """Close the database and free its space."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, kind: Kind, rows: list[Row], step: int) -> None:
        first = self._next_id[kind]
        self._next_id[kind] = first + len(rows)
        if rows:
            self._execute_many(_ADD, zip(count(first), *zip(*rows, strict=True), repeat(step)))

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, _enough_room():
            return self._db.execute(statement, values).fetchall()

    def _execute_many(self, statement: str, values: Iterable[tuple[Any, ...]]) -> int:
        with self._lock, _enough_room():
            return self._db.executemany(statement, values).rowcount

    def _select(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        with self._lock, _enough_room():
            cursor = self._db.execute(query, values)
        while True:
            with self._lock, _enough_room():
                chunk = cursor.fetchmany(_CHUNK)
            if not chunk:
                return
            yield from chunk


def _ids(kind: Kind) -> tuple[int, int]:
    return kind * _IDS_OF_KIND, (kind + 1) * _IDS_OF_KIND


def _grouped(updates: Iterable[RowUpdate], source: int) -> Iterator[tuple[Kind, int, list[Row]]]:
    """Group changes into chunks with one kind and diff. Raises `CorruptBlob` for kinds no step may change."""
    waiting: dict[tuple[Kind, int], list[Row]] = {}
    for row, diff in updates:
        kind = kind_of(row.key)
        of_kind = waiting.get((kind, diff))
        if of_kind is None:
            if kind not in _MIGRATABLE or diff not in (1, -1):
                raise corrupt(
                    f"the upgrade from version {source}",
                    "single rows of what can be upgraded",
                    f"a change of {OBJECT_TYPES[kind]} by {diff}",
                )
            of_kind = waiting[kind, diff] = []
        of_kind.append(row)
        if len(of_kind) >= _CHUNK:
            yield kind, diff, of_kind
            of_kind.clear()
    for (kind, diff), of_kind in waiting.items():
        yield kind, diff, of_kind


@contextmanager
def _enough_room() -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as error:
        # A savepoint reads rows here until another thread closes it.
        raise BadInput(
            "the catalog was closed by another thread during this call", hint="open it again"
        ) from error
    except sqlite3.OperationalError as error:
        raise Determinate(
            f"can't use a temporary file for the upgrade: {error}",
            hint="free some space, or set TMPDIR to a folder that has more",
        ) from error
