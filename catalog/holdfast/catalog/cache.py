"""The catalog in memory: for each cached object type its rows by key, and by what must be unique.

Invariants
- A row is kept as its stored bytes, under the canonical encoding of its key: many are packed when they are
  loaded, and what changed since stands beside them.
- A change that doesn't fit (a retraction of what isn't there, a second row of one key) is an error and
  means that cache and store have parted; it never changes the cache in silence.
- Of append-only types only the number of rows is kept, and only once somebody has counted them: a load does
  not read them. The debug tool, and nothing else, may retract one.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog import config
from holdfast.catalog.objects.codec import (
    TAG_BYTES,
    Object,
    Row,
    Update,
    canonical_key,
    decode,
    decode_value,
    encode_key,
    kind_of,
    known,
    known_value,
)
from holdfast.catalog.objects.packed import Keys, nothing, pack, rows_of, shared
from holdfast.catalog.objects.registry import COLLECTIONS, CONFIGS, FENCE_TOKENS, Collection, K, Kind, V
from holdfast.errors import CatalogOutOfSync, CorruptBlob

APPEND_ONLY = tuple(row.kind for row in COLLECTIONS.values() if not row.cached)
# So many are Python objects: to take one out of columns costs more than all else that is done with it.
_FEW_ROWS = 1024
_FENCE_KEY = encode_key(FENCE_TOKENS, FENCE_TOKENS.key())


class CachedTable:
    """The rows of one object type."""

    def __init__(self, collection: Collection[Any, Any]) -> None:
        self._collection = collection
        self._loaded = nothing(collection)
        # None stands for a loaded row that is gone.
        self._changed: dict[bytes, Row | None] = {}
        self._changed_keys = Keys()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[bytes, Row]]:
        """The rows as they are when asked for, by canonical key, whatever changes meanwhile."""
        changed = dict(self._changed)
        return chain(
            ((row.key, row) for row in self._loaded if row.key not in changed),
            ((key, row) for key, row in changed.items() if row is not None),
        )

    def get(self, key: bytes) -> Row | None:
        """The row of a canonical key."""
        return self._changed[key] if key in self._changed else self._loaded.get(key)

    def holder(self, unique: Hashable) -> bytes | None:
        """The key of the row that has what is unique to the type."""
        unique_by = self._collection.unique_by
        assert unique_by is not None
        for key in self._changed_keys.of(unique):
            row = self._changed[key]
            if row is not None and unique_by(known_value(self._collection, row.value)) == unique:
                return key
        found = self._loaded.holder(unique)
        return None if found in self._changed else found

    def load(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Take rows into the empty table. Raises as `add`."""
        odd: Iterable[Row] = chain.from_iterable(map(rows_of, batches))
        # Each row of config is looked at for what it says.
        if self._collection is not CONFIGS and sum(batch.num_rows for batch in batches) > _FEW_ROWS:
            self._loaded, odd = pack(self._collection, batches)
            self._count = len(self._loaded)
        for row in odd:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take a row.

        Raises `CorruptBlob` for bytes that aren't an object of this version, or share what is unique, and
        `CatalogOutOfSync` when there is one of its key.
        """
        collection = self._collection
        if collection is CONFIGS:
            object_ = decode(CONFIGS, row)
            config.check_stored(object_.key.key, object_.value.value)
            if object_.key.key == config.USER_VERSION:
                config.check_current(object_.value.value)
        key = canonical_key(collection, row.key)
        value = decode_value(collection, row.value)
        if self.get(key) is not None:
            raise CatalogOutOfSync(f"a row of {collection} is added whose key is there already")
        if collection.unique_by is not None:
            unique = collection.unique_by(value)
            if self.holder(unique) is not None:
                raise shared(collection, unique)
            self._changed_keys.add(unique, key)
        self._changed[key] = row
        self._count += 1

    def remove(self, row: Row) -> None:
        """Drop a row; `CatalogOutOfSync` when it isn't there with these bytes."""
        collection = self._collection
        key = row.key
        if self.get(key) != row:
            key = canonical_key(collection, row.key)
            if self.get(key) != row:
                raise CatalogOutOfSync(f"a row of {collection} is retracted that this process does not have")
        if self._changed.get(key) is not None and collection.unique_by is not None:
            self._changed_keys.remove(collection.unique_by(known_value(collection, row.value)), key)
        if self._loaded.get(key) is None:
            del self._changed[key]
        else:
            self._changed[key] = None
        self._count -= 1


class Cache:
    """What the catalog holds at one time."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._tables = {row.kind: CachedTable(row) for row in COLLECTIONS.values() if row.cached}
        self._appended: dict[Kind, int] | None = dict.fromkeys(APPEND_ONLY, 0)
        self.apply(Update(row, 1) for row in rows)

    @classmethod
    def load(cls, batches: Iterable[pa.RecordBatch]) -> "Cache":
        """All rows of cached types: columns `key` and `value`, in any order. Raises as `apply`."""
        found: dict[Kind, list[pa.RecordBatch]] = {}
        for batch in batches:
            for kind, rows in _by_kind(batch):
                found.setdefault(kind, []).append(rows)
        cache = cls()
        cache._appended = None
        for kind in sorted(found):
            cache._tables[kind].load(found.pop(kind))
        # Reading took several times what is kept, which the pool would hold on to.
        pa.default_memory_pool().release_unused()
        return cache

    @property
    def has_counts(self) -> bool:
        """Whether it knows how many rows the append-only types have."""
        return self._appended is not None

    def set_counts(self, appended: Mapping[Kind, int]) -> None:
        """Say how many rows the append-only types have now."""
        self._appended = {kind: appended.get(kind, 0) for kind in APPEND_ONLY}

    def table(self, kind: Kind) -> CachedTable:
        """The rows of a cached kind."""
        return self._tables[kind]

    @property
    def fence_row(self) -> Row | None:
        """The row of the fence token."""
        return self._tables[Kind.FENCE_TOKEN].get(_FENCE_KEY)

    def get(self, collection: Collection[K, V], key: K) -> V | None:
        """The value of a key."""
        row = self._tables[collection.kind].get(encode_key(collection, key))
        return None if row is None else known_value(collection, row.value)

    def objects(self, collection: Collection[K, V]) -> Iterator[Object[K, V]]:
        """All objects of a cached type, decoded anew."""
        return (known(collection, row) for _, row in self._tables[collection.kind].items())

    def rows(self) -> Iterator[Row]:
        """All cached rows."""
        return (row for table in self._tables.values() for _, row in table.items())

    def counts(self) -> dict[str, int]:
        """The number of objects by the name of their type; those of append-only types must be known."""
        assert self._appended is not None
        sizes = {kind: len(table) for kind, table in self._tables.items()} | self._appended
        return {row.name: sizes[row.kind] for row in COLLECTIONS.values()}

    def apply(self, updates: Iterable[Update]) -> None:
        """Apply the changes of one time: fence token, then config, then the rest, retractions first.

        Raises `CorruptBlob`, `VersionTooNew`, `Deprecated` or `UpgradeNeeded` for what this version can't
        hold, and `CatalogOutOfSync` for what doesn't fit. Config is decoded before anything that is
        migratable.
        """
        by_tag: dict[bytes, tuple[list[Row], list[Row]]] = {}
        for row, diff in updates:
            if diff not in (1, -1):
                raise CorruptBlob(f"a row of {COLLECTIONS[row.kind]}", "one copy", f"a change by {diff}")
            by_tag.setdefault(row.key[:TAG_BYTES], ([], []))[diff == 1].append(row)
        for tag, (removed, added) in sorted(by_tag.items(), key=lambda item: item[0]):
            kind = kind_of(tag)
            if not COLLECTIONS[kind].cached:
                if self._appended is not None:
                    self._appended[kind] += len(added) - len(removed)
                continue
            table = self._tables[kind]
            for row in removed:
                table.remove(row)
            for row in added:
                table.add(row)


def _by_kind(batch: pa.RecordBatch) -> Iterator[tuple[Kind, pa.RecordBatch]]:
    """The rows of each cached kind."""
    tags = pc.binary_slice(batch.column("key"), 0, TAG_BYTES)
    different = pc.unique(tags).to_pylist()
    for tag in different:
        kind = kind_of(tag)
        if COLLECTIONS[kind].cached:
            yield kind, batch if len(different) == 1 else batch.filter(pc.equal(tags, tag))
