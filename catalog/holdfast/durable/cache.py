"""The catalog in memory: for each cached object type its rows by key, and by what must be unique.

Invariants
- A row is kept as its stored bytes, under the canonical encoding of its key.
- A change that doesn't fit (a retraction of what isn't there, a second row of one key) is an error and
  means that cache and store have parted; it never changes the cache in silence.
- Of append-only types only the number of rows is kept.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.durable import config
from holdfast.durable.codec import Object, Row, Update, decode, encode_key
from holdfast.durable.registry import COLLECTIONS, CONFIGS, Collection, K, Kind, V
from holdfast.errors import CatalogOutOfSync, CorruptBlob


@dataclass
class Table:
    """The rows of one object type."""

    rows: dict[bytes, Row] = field(default_factory=dict)
    unique: dict[Hashable, bytes] = field(default_factory=dict)


class Cache:
    """What the catalog holds at one time."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._tables = {row.kind: Table() for row in COLLECTIONS.values() if row.cached}
        self._appended = {row.kind: 0 for row in COLLECTIONS.values() if not row.cached}
        self.apply(Update(row, 1) for row in rows)

    def table(self, kind: Kind) -> Table:
        """The rows of a cached kind."""
        return self._tables[kind]

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        """The value of a key."""
        row = self._tables[collection.kind].rows.get(encode_key(collection, key))
        return None if row is None else decode(collection, row).value

    def objects(self, collection: Collection[K, V]) -> Iterator[Object[K, V]]:
        """All objects of a cached type, decoded anew."""
        return (decode(collection, row) for row in self._tables[collection.kind].rows.values())

    def rows(self) -> Iterator[Row]:
        """All cached rows."""
        for table in self._tables.values():
            yield from table.rows.values()

    def counts(self) -> dict[str, int]:
        """The number of objects by the name of their type."""
        sizes = {kind: len(table.rows) for kind, table in self._tables.items()} | self._appended
        return {row.name: sizes[row.kind] for row in COLLECTIONS.values()}

    def apply(self, updates: Iterable[Update]) -> None:
        """Apply the changes of one time: fence token, then config, then the rest, retractions first.

        Raises `CorruptBlob`, `VersionTooNew` or `Deprecated` for what this version can't hold, and
        `CatalogOutOfSync` for what doesn't fit. Config is decoded before anything of a migratable type is.
        """
        for update in sorted(updates, key=lambda update: (update.row.key[:2], update.diff)):
            kind = update.row.kind
            collection = COLLECTIONS[kind]
            if collection.cached:
                self._apply(collection, self._tables[kind], update)
            elif update.diff == 1:
                self._appended[kind] += 1
            else:
                raise CorruptBlob(f"{collection} of the catalog", "only additions", "a retraction")

    def _apply(self, collection: Collection[Any, Any], table: Table, update: Update) -> None:
        row = update.row
        if update.diff == -1:
            key = self._stored_key(collection, table, row)
            if key is None:
                raise CatalogOutOfSync(f"a row of {collection} is retracted that this process does not have")
            _index(collection, table, decode(collection, table.rows.pop(key)).value, key, remove=True)
            return
        if update.diff != 1:
            raise CorruptBlob(f"a row of {collection}", "one copy", f"a change by {update.diff}")
        object_ = decode(collection, row)
        if collection is CONFIGS:
            config.check_stored(object_.key.key, object_.value.value)
        key = encode_key(collection, object_.key)
        if key in table.rows:
            raise CatalogOutOfSync(f"a row of {collection} is added whose key is there already")
        table.rows[key] = row
        _index(collection, table, object_.value, key, remove=False)

    @staticmethod
    def _stored_key(collection: Collection[Any, Any], table: Table, row: Row) -> bytes | None:
        if table.rows.get(row.key) == row:
            return row.key
        key = encode_key(collection, decode(collection, row).key)
        return key if table.rows.get(key) == row else None


def _index(collection: Collection[Any, Any], table: Table, value: Any, key: bytes, *, remove: bool) -> None:
    if collection.unique_by is None:
        return
    unique = collection.unique_by(value)
    if remove:
        if table.unique.get(unique) == key:
            del table.unique[unique]
    elif table.unique.setdefault(unique, key) != key:
        raise CorruptBlob(f"a row of {collection}", "a unique name", f"one that another has: {unique!r}")
