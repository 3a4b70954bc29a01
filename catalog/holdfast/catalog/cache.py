"""The catalog in memory: for each cached object type, its rows by key and by what must be unique.

Invariants
- A row is kept as its stored bytes, under the canonical encoding of its key. A large load is packed into
  columns. Later changes are kept next to it.
- A change that doesn't fit (a retraction of a missing row, a second row with one key) is an error. It means
  that the cache and the store differ, so it never changes the cache silently.
- Of append-only types only the number of rows is kept, and only after they were counted once: a load doesn't
  read them. Only the debug tool may retract such a row.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog import config
from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import (
    TAG_BYTES,
    Object,
    Row,
    RowUpdate,
    canonical_key,
    decode,
    decode_value,
    encode_key,
    kind_of,
    known,
    known_value,
)
from holdfast.catalog.objects.packed import Keys, nothing, pack, rows_of, shared
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, OBJECT_TYPES, K, Kind, ObjectType, V
from holdfast.errors import CatalogOutOfSync

APPEND_ONLY = tuple(row.kind for row in OBJECT_TYPES.values() if not row.cached)
# Below this number, rows are kept as Python objects: reading one from columns costs more than the packing
# saves.
_FEW_ROWS = 1024
_FENCE_KEY = encode_key(FENCE_TOKENS, FENCE_TOKENS.key())


class CachedTable:
    """The rows of one object type."""

    def __init__(self, collection: ObjectType[Any, Any]) -> None:
        self._collection = collection
        self._loaded = nothing(collection)
        # None marks a loaded row that was removed.
        self._changed: dict[bytes, Row | None] = {}
        self._changed_keys = Keys()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[bytes, Row]]:
        """The rows at the time of the call, by canonical key. Later changes don't affect the iterator."""
        changed = dict(self._changed)
        return chain(
            ((row.key, row) for row in self._loaded if row.key not in changed),
            ((key, row) for key, row in changed.items() if row is not None),
        )

    def get(self, key: bytes) -> Row | None:
        """The row with this canonical key."""
        return self._changed[key] if key in self._changed else self._loaded.get(key)

    def holder(self, unique: Hashable) -> bytes | None:
        """The key of the row that has this unique value."""
        unique_by = self._collection.unique_by
        assert unique_by is not None
        for key in self._changed_keys.of(unique):
            row = self._changed[key]
            if row is not None and unique_by(known_value(self._collection, row.value)) == unique:
                return key
        found = self._loaded.holder(unique)
        return None if found in self._changed else found

    def load(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Load rows into the empty table. Raises like `add`."""
        odd: Iterable[Row] = chain.from_iterable(map(rows_of, batches))
        # Each row of config is checked, so config is not packed.
        if self._collection is not CONFIGS and sum(batch.num_rows for batch in batches) > _FEW_ROWS:
            self._loaded, odd = pack(self._collection, batches)
            self._count = len(self._loaded)
        for row in odd:
            self.add(row)

    def add(self, row: Row) -> None:
        """Add a row.

        Raises `CorruptBlob` for bytes that aren't an object of this version, or whose unique value is taken,
        and `CatalogOutOfSync` if there is a row with this key.
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
            raise CatalogOutOfSync(f"a row of {collection} is added, but its key already exists")
        if collection.unique_by is not None:
            unique = collection.unique_by(value)
            if self.holder(unique) is not None:
                raise shared(collection, unique)
            self._changed_keys.add(unique, key)
        self._changed[key] = row
        self._count += 1

    def remove(self, row: Row) -> None:
        """Remove a row. Raises `CatalogOutOfSync` if it doesn't exist with these bytes."""
        collection = self._collection
        key = row.key
        if self.get(key) != row:
            key = canonical_key(collection, row.key)
            if self.get(key) != row:
                raise CatalogOutOfSync(f"a row of {collection} is retracted, but this process lacks it")
        if self._changed.get(key) is not None and collection.unique_by is not None:
            self._changed_keys.remove(collection.unique_by(known_value(collection, row.value)), key)
        if self._loaded.get(key) is None:
            del self._changed[key]
        else:
            self._changed[key] = None
        self._count -= 1


class Cache:
    """The contents of the catalog at one time."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._tables = {row.kind: CachedTable(row) for row in OBJECT_TYPES.values() if row.cached}
        self._appended: dict[Kind, int] | None = dict.fromkeys(APPEND_ONLY, 0)
        self.apply(RowUpdate(row, 1) for row in rows)

    @classmethod
    def load(cls, batches: Iterable[pa.RecordBatch]) -> "Cache":
        """Load all rows of cached types: columns `key` and `value`, in any order. Raises like `apply`."""
        found: dict[Kind, list[pa.RecordBatch]] = {}
        for batch in batches:
            for kind, rows in _by_kind(batch):
                found.setdefault(kind, []).append(rows)
        cache = cls()
        cache._appended = None
        for kind in sorted(found):
            cache._tables[kind].load(found.pop(kind))
        # Reading used several times the memory of what is kept. Without this, the pool would keep it.
        pa.default_memory_pool().release_unused()
        return cache

    @property
    def has_counts(self) -> bool:
        """Whether the numbers of rows of the append-only types are known."""
        return self._appended is not None

    def set_counts(self, appended: Mapping[Kind, int]) -> None:
        """Set the numbers of rows of the append-only types."""
        self._appended = {kind: appended.get(kind, 0) for kind in APPEND_ONLY}

    def table(self, kind: Kind) -> CachedTable:
        """The rows of a cached kind."""
        return self._tables[kind]

    @property
    def fence_row(self) -> Row | None:
        """The row of the fence token."""
        return self._tables[Kind.FENCE_TOKEN].get(_FENCE_KEY)

    def get(self, collection: ObjectType[K, V], key: K) -> V | None:
        """The value of a key, or None."""
        row = self._tables[collection.kind].get(encode_key(collection, key))
        return None if row is None else known_value(collection, row.value)

    def objects(self, collection: ObjectType[K, V]) -> Iterator[Object[K, V]]:
        """All objects of a cached type. Each call decodes them again."""
        return (known(collection, row) for _, row in self._tables[collection.kind].items())

    def rows(self) -> Iterator[Row]:
        """All cached rows."""
        return (row for table in self._tables.values() for _, row in table.items())

    def counts(self) -> dict[str, int]:
        """The number of objects by type name. The numbers of append-only types must be known."""
        assert self._appended is not None
        sizes = {kind: len(table) for kind, table in self._tables.items()} | self._appended
        return {row.name: sizes[row.kind] for row in OBJECT_TYPES.values()}

    def apply(self, updates: Iterable[RowUpdate]) -> None:
        """Apply the changes of one time: fence token first, then config, then the rest, retractions first.

        Raises `CorruptBlob`, `VersionTooNew`, `Deprecated` or `UpgradeNeeded` for objects that this version
        can't hold, and `CatalogOutOfSync` for changes that don't fit. Config is decoded before any migratable
        object.
        """
        by_tag: dict[bytes, tuple[list[Row], list[Row]]] = {}
        for row, diff in updates:
            if diff not in (1, -1):
                raise corrupt(f"a row of {OBJECT_TYPES[row.kind]}", "one copy", f"a change by {diff}")
            by_tag.setdefault(row.key[:TAG_BYTES], ([], []))[diff == 1].append(row)
        for tag, (removed, added) in sorted(by_tag.items(), key=lambda item: item[0]):
            kind = kind_of(tag)
            if not OBJECT_TYPES[kind].cached:
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
        if OBJECT_TYPES[kind].cached:
            yield kind, batch if len(different) == 1 else batch.filter(pc.equal(tags, tag))
