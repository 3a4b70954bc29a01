"""Whether two stores hold the same contents, told from one number for each object type.

Invariants
- What is counted is what is moved (see `replacing.is_content`): not the fence token, nor what a store says of
  itself.
- A digest doesn't depend on the order in which rows come, and two contents that differ in any stored byte, or
  in how often a row is there, have different ones: it is the sum of 256-bit hashes of the rows.
- Rows are read as a stream: memory doesn't grow with them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from holdfast.durable.codec import TAG_BYTES, Row
from holdfast.durable.registry import COLLECTIONS
from holdfast.durable.replacing import is_content
from holdfast.durable.store import CatalogStore
from holdfast.durable.upgrade.report import Size
from holdfast.errors import ContentsDiffer

_HASH_BYTES = 32
_MODULUS = 1 << 8 * _HASH_BYTES


@dataclass(frozen=True)
class Digest:
    """How much there is of an object type, and the sum of the hashes of its rows."""

    size: Size = field(default_factory=Size)
    sum: int = 0

    def __str__(self) -> str:
        return f"{self.size.rows} rows of {self.size.bytes} bytes with digest {self.short}"

    @property
    def short(self) -> str:
        """The first of its hexadecimal digits."""
        return self.sum.to_bytes(_HASH_BYTES, "big").hex()[:12]


def contents_of(store: CatalogStore, upper: int) -> Iterable[Row]:
    """The contents of a store at `upper - 1`, as stored; nothing where `upper` is 0."""
    return filter(is_content, store.rows(upper - 1) if upper else ())


def digests_of(rows: Iterable[Row]) -> Mapping[str, Digest]:
    """The digest of every object type by its name; `CorruptBlob` for a row of a kind that isn't known."""
    rows_of: dict[bytes, int] = {}
    bytes_of: dict[bytes, int] = {}
    sums: dict[bytes, int] = {}
    for key, value in rows:
        tag = key[:TAG_BYTES]
        size = len(key)
        framed = size.to_bytes(8, "big") + key + value
        hashed = int.from_bytes(blake2b(framed, digest_size=_HASH_BYTES).digest(), "big")
        rows_of[tag] = rows_of.get(tag, 0) + 1
        bytes_of[tag] = bytes_of.get(tag, 0) + size + len(value)
        sums[tag] = sums.get(tag, 0) + hashed
    found = dict.fromkeys((collection.name for collection in COLLECTIONS.values()), Digest())
    for tag, sum_ in sums.items():
        name = COLLECTIONS[Row(tag, b"").kind].name
        found[name] = Digest(Size(rows_of[tag], bytes_of[tag]), sum_ % _MODULUS)
    return found


def sizes_of(digests: Mapping[str, Digest]) -> Mapping[str, Size]:
    """The sizes among digests."""
    return {name: digest.size for name, digest in digests.items()}


def compare(source: Mapping[str, Digest], target: Mapping[str, Digest], *, places: tuple[str, str]) -> None:
    """Raise `ContentsDiffer` unless the digests of the stores in `places`, source and target, are equal."""
    differing = [name for name in source if source[name] != target[name]]
    if differing:
        name = differing[0]
        raise ContentsDiffer(
            differing,
            *(f"{place} has {side[name]}" for place, side in zip(places, (source, target), strict=True)),
        )
