"""The contents of a store in columns, with a hash of every row.

Invariants
- The rows are those that a move copies (see `replacement.is_content`): without the fence token, and without
  what a store records about itself. Only config is decoded.
- The hash depends on where the key ends, so different rows have different hashes.
- Only some rows are in memory at a time.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.catalog.objects.codec import TAG_BYTES
from holdfast.catalog.objects.packed import rows_of
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.replacement import is_content
from holdfast.catalog.stores.store import CatalogStore

HASH_BYTES = 32
SHORT_BYTES = 16
"""How many bytes of a hash are kept for each row, to find the rows that two stores have in common."""

_SHORT = np.dtype([("first", "<u8"), ("second", "<u8")])
assert _SHORT.itemsize == SHORT_BYTES
_LENGTH = np.dtype(">u8")

Shorts = NDArray[np.void]
"""For each row, 128 bits of its hash, as two numbers."""


@dataclass(frozen=True)
class HashedRows:
    """Rows (columns `key` and `value`), and for each a hash of `HASH_BYTES`."""

    rows: pa.RecordBatch
    hashes: NDArray[np.uint8]

    @property
    def shorts(self) -> Shorts:
        """The first `SHORT_BYTES` of each hash."""
        return np.ascontiguousarray(self.hashes[:, :SHORT_BYTES]).view(_SHORT).reshape(-1)

    @cached_property
    def by_tag(self) -> dict[bytes, NDArray[np.bool_]]:
        """For each tag that occurs, which rows begin with it."""
        tags = pc.binary_slice(self.rows.column("key"), 0, TAG_BYTES).dictionary_encode()
        codes = tags.indices.to_numpy()
        return {tag: codes == code for code, tag in enumerate(tags.dictionary.to_pylist())}


def no_shorts() -> Shorts:
    """The empty array of short hashes."""
    return np.empty(0, _SHORT)


def contents_of(store: CatalogStore, upper: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
    """The contents of a store at `upper - 1` as stored, except some kinds. Empty if `upper` is 0.

    Raises like `CatalogStore.batches` and `contents_in`.
    """
    return map(contents_in, store.batches(upper - 1, but=but) if upper else ())


def contents_in(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are contents. Raises `CorruptBlob` for config that can't be decoded."""
    tags = pc.binary_slice(batch.column("key"), 0, TAG_BYTES)
    of_store = pa.array([Kind.FENCE_TOKEN.tag, Kind.CONFIG.tag], pa.binary())
    places = np.flatnonzero(pc.is_in(tags, value_set=of_store).to_numpy(zero_copy_only=False))
    if not len(places):
        return batch
    keeps = np.ones(batch.num_rows, np.bool_)
    keeps[places] = [is_content(row) for row in rows_of(batch.take(pa.array(places)))]
    return batch.filter(pa.array(keeps))


def hashed(rows: pa.RecordBatch) -> HashedRows:
    """Rows with their hashes."""
    key, value = rows.column("key"), rows.column("value")
    lengths = pc.binary_length(key).to_numpy(zero_copy_only=False).astype(_LENGTH)
    buffers = [None, pa.py_buffer(lengths.tobytes())]
    length = pa.Array.from_buffers(pa.binary(_LENGTH.itemsize), len(lengths), buffers).cast(pa.binary())
    joined = pc.binary_join_element_wise(length, key, value, pa.scalar(b"", pa.binary()))
    found = b"".join([blake2b(row, digest_size=HASH_BYTES).digest() for row in joined.to_pylist()])
    return HashedRows(rows, np.frombuffer(found, np.uint8).reshape(-1, HASH_BYTES))
