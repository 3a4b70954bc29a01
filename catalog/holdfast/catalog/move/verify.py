"""Compares the contents of two stores by one digest for each object type.

Invariants
- A digest is the sum of the 256-bit hashes of the rows. So it doesn't depend on their order. Contents that
  differ in any stored byte, or in the count of a row, have different digests.
- Rows are streams, so memory doesn't grow with their number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.move.hashed import HASH_BYTES, HashedRows, hashed
from holdfast.catalog.objects.codec import kind_of
from holdfast.catalog.objects.registry import OBJECT_TYPES
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import ContentsDiffer

_MODULUS = 1 << 8 * HASH_BYTES
_WORD = np.dtype(">u4")


@dataclass(frozen=True)
class RowsDigest:
    """The size of an object type, and the sum of the hashes of its rows."""

    size: Size = field(default_factory=Size)
    sum: int = 0

    def __str__(self) -> str:
        return f"{self.size.rows} rows of {self.size.bytes} bytes with digest {self.short}"

    @property
    def short(self) -> str:
        """The first hexadecimal digits of the sum."""
        return self.sum.to_bytes(HASH_BYTES, "big").hex()[:12]

    def __add__(self, other: Self) -> "RowsDigest":
        """The digest of the rows of both."""
        size = Size(self.size.rows + other.size.rows, self.size.bytes + other.size.bytes)
        return RowsDigest(size, (self.sum + other.sum) % _MODULUS)

    def __sub__(self, other: Self) -> "RowsDigest":
        """The digest of the rows without the other ones, which must be among them."""
        size = Size(self.size.rows - other.size.rows, self.size.bytes - other.size.bytes)
        return RowsDigest(size, (self.sum - other.sum) % _MODULUS)


class Digests:
    """The digest of every object type over the rows that were added."""

    def __init__(self) -> None:
        self._by_tag: dict[bytes, RowsDigest] = {}

    def add(self, some: HashedRows) -> None:
        """Add rows."""
        lengths = (pc.binary_length(some.rows.column(name)) for name in ("key", "value"))
        sizes = pc.add(*lengths).to_numpy(zero_copy_only=False).astype(np.int64)
        words = some.hashes.view(_WORD)
        for tag, places in some.by_tag.items():
            # Sums of this many 32-bit numbers are exact in 64 bits.
            sums = words[places].sum(axis=0, dtype=np.uint64).tolist()
            total = sum(word << 8 * _WORD.itemsize * place for place, word in enumerate(reversed(sums)))
            more = RowsDigest(Size(int(places.sum()), int(sizes[places].sum())), total % _MODULUS)
            self._by_tag[tag] = self._by_tag.get(tag, RowsDigest()) + more

    def by_name(self) -> dict[str, RowsDigest]:
        """The digests by object type name. Raises `CorruptBlob` if a row had an unknown kind."""
        found = dict.fromkeys((collection.name for collection in OBJECT_TYPES.values()), RowsDigest())
        return found | {OBJECT_TYPES[kind_of(tag)].name: digest for tag, digest in self._by_tag.items()}


def digests_of(batches: Iterable[pa.RecordBatch]) -> Mapping[str, RowsDigest]:
    """The digest of every object type by name, of columns `key` and `value`.

    Raises `CorruptBlob` if a row has an unknown kind.
    """
    found = Digests()
    for some in map(hashed, batches):
        found.add(some)
    return found.by_name()


def sizes_of(digests: Mapping[str, RowsDigest]) -> Mapping[str, Size]:
    """The sizes in digests."""
    return {name: digest.size for name, digest in digests.items()}


def compare(
    source: Mapping[str, RowsDigest], target: Mapping[str, RowsDigest], *, places: tuple[str, str]
) -> None:
    """Raise `ContentsDiffer` unless the digests of the stores in `places`, source and target, are equal."""
    differing = [name for name in source if source[name] != target[name]]
    if differing:
        name = differing[0]
        raise ContentsDiffer(
            differing,
            *(f"{place} has {side[name]}" for place, side in zip(places, (source, target), strict=True)),
        )
