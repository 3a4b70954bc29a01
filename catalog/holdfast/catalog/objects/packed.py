"""The loaded rows of one object type, packed in columns and found by hashes.

As Python objects in dicts, rows take several times the memory of their bytes. Here they take their bytes, and
12 more for each way to find a row.

Invariants
- Every row was decoded when it was packed, so a row that this version can't hold exactly was refused. Its key
  is canonical; rows with other keys are returned to the caller.
- A hash only shows where to look. The bytes, or the decoded value, decide.
- No two rows have the same key or the same unique value.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import Row, canonical_key, decode_value, known_value
from holdfast.catalog.objects.registry import ObjectType
from holdfast.errors import CatalogOutOfSync, CorruptBlob

# How many rows at a time are Python objects.
_PIECE_ROWS = 4 * 1024
_NAMES = ["key", "value"]
_NO_ROWS = pa.chunked_array([], pa.binary())


class Places:
    """Finds rows by the hash of a value, with the hashes of this process."""

    def __init__(self, of_rows: "array[int]") -> None:
        hashes = np.frombuffer(of_rows, np.int64)
        order = np.argsort(hashes, kind="stable")
        # Bisecting a memory view is faster than a call of NumPy.
        self._rows, self._hashes = order.astype(np.uint32).data, hashes[order].data

    def of(self, value: Hashable) -> Sequence[int]:
        """The rows that may have the value."""
        wanted, hashes = hash(value), self._hashes
        start = end = bisect_left(hashes, wanted)
        while end < len(hashes) and hashes[end] == wanted:
            end += 1
        return self._rows[start:end]

    def twins(self, value_of: Callable[[int], Hashable]) -> Iterator[Hashable]:
        """The values that more than one row has."""
        seen: dict[Hashable, int] = {}
        hashes = np.asarray(self._hashes)
        for at in np.flatnonzero(hashes[1:] == hashes[:-1]):
            for row in self._rows[at : at + 2]:
                if seen.setdefault(value := value_of(row), row) != row:
                    yield value


class Keys:
    """The keys of changed rows, by the hash of their unique value."""

    def __init__(self) -> None:
        # Usually there is one key for a hash. A tuple around it would take more memory than the key.
        self._of: dict[int, bytes | tuple[bytes, ...]] = {}

    def of(self, unique: Hashable) -> tuple[bytes, ...]:
        """The keys of the rows that may have this unique value."""
        found = self._of.get(hash(unique), ())
        return (found,) if isinstance(found, bytes) else found

    def add(self, unique: Hashable, key: bytes) -> None:
        """Record that the row with this key has the unique value."""
        if key not in (keys := self.of(unique)):
            self._of[hash(unique)] = (*keys, key) if keys else key

    def remove(self, unique: Hashable, key: bytes) -> None:
        """Record that the row with this key no longer has the unique value."""
        keys = tuple(other for other in self.of(unique) if other != key)
        if keys:
            self._of[hash(unique)] = keys
        else:
            self._of.pop(hash(unique), None)


_NOWHERE = Places(array("q"))


class PackedRows:
    """Immutable rows of one object type."""

    def __init__(
        self,
        collection: ObjectType[Any, Any],
        keys: pa.ChunkedArray,
        values: pa.ChunkedArray,
        by_key: Places,
        by_unique: Places,
    ) -> None:
        self._collection = collection
        self._keys, self._values = keys, values
        self._by_key, self._by_unique = by_key, by_unique

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Row]:
        for columns in zip(self._keys.chunks, self._values.chunks, strict=True):
            yield from rows_of(pa.RecordBatch.from_arrays([*columns], _NAMES))

    def get(self, key: bytes) -> Row | None:
        """The row with this canonical key, or None."""
        for place in self._by_key.of(key):
            if self._key(place) == key:
                return Row(key, self._values[place].as_py())
        return None

    def holder(self, unique: Hashable) -> bytes | None:
        """The key of the row with this unique value, or None."""
        for place in self._by_unique.of(unique):
            if self._unique(place) == unique:
                return self._key(place)
        return None

    def check(self) -> None:
        """Raise `CatalogOutOfSync` for two rows with one key, `CorruptBlob` for two with one unique value."""
        for _ in self._by_key.twins(self._key):
            raise CatalogOutOfSync(f"a row of {self._collection} is added, but its key already exists")
        for unique in self._by_unique.twins(self._unique):
            raise shared(self._collection, unique)

    def _key(self, place: int) -> bytes:
        key: bytes = self._keys[place].as_py()
        return key

    def _unique(self, place: int) -> Hashable:
        assert self._collection.unique_by is not None
        return self._collection.unique_by(known_value(self._collection, self._values[place].as_py()))


def nothing(collection: ObjectType[Any, Any]) -> PackedRows:
    """The empty rows of a type."""
    return PackedRows(collection, _NO_ROWS, _NO_ROWS, _NOWHERE, _NOWHERE)


def pack(collection: ObjectType[Any, Any], batches: Iterable[pa.RecordBatch]) -> tuple[PackedRows, list[Row]]:
    """Pack rows of the type (columns `key` and `value`). Also returns the rows whose keys aren't canonical.

    Raises `CorruptBlob` for rows that this version can't hold, and like `PackedRows.check`.
    """
    kept: list[pa.RecordBatch] = []
    odd: list[Row] = []
    by_key, by_unique = array("q"), array("q")
    unique_by = collection.unique_by
    for batch in batches:
        others: list[int] = []
        for place, row in enumerate(rows_of(batch)):
            value = decode_value(collection, row.value)
            if canonical_key(collection, row.key) != row.key:
                others.append(place)
                odd.append(row)
                continue
            by_key.append(hash(row.key))
            if unique_by is not None:
                by_unique.append(hash(unique_by(value)))
        if others:
            canonical = np.ones(batch.num_rows, np.bool_)
            canonical[others] = False
            batch = batch.filter(pa.array(canonical))
        kept.append(batch)
    keys, values = (pa.chunked_array([batch.column(name) for batch in kept], pa.binary()) for name in _NAMES)
    packed = PackedRows(collection, keys, values, Places(by_key), Places(by_unique))
    packed.check()
    return packed, odd


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of columns `key` and `value`. Only a few at a time are Python objects."""
    for start in range(0, batch.num_rows, _PIECE_ROWS):
        keys, values = (batch.column(name).slice(start, _PIECE_ROWS).to_pylist() for name in _NAMES)
        yield from map(Row, keys, values)


def shared(collection: ObjectType[Any, Any], unique: Hashable) -> CorruptBlob:
    """The error for a stored row with the same unique value as another one."""
    return corrupt(f"a row of {collection}", "a unique name", f"one that another has: {unique!r}")
