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
from holdfast.durable.registry import COLLECTIONS, Kind
from holdfast.durable.replacing import is_content
from holdfast.durable.store import CatalogStore
from holdfast.durable.upgrade.report import Size
from holdfast.errors import ContentsDiffer

HASH_BYTES = 32
SHORT_BYTES = 16
"""How many of them are kept for each row, to find what two stores have in common."""
_MODULUS = 1 << 8 * HASH_BYTES


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
        return self.sum.to_bytes(HASH_BYTES, "big").hex()[:12]


def contents_of(store: CatalogStore, upper: int, kinds: Iterable[Kind] = ()) -> Iterable[Row]:
    """The contents of a store at `upper - 1` as stored, of these kinds or all; none where `upper` is 0."""
    return filter(is_content, store.rows(upper - 1, kinds) if upper else ())


def hash_of(row: Row) -> bytes:
    """`HASH_BYTES` that tell a row from any other, where its key ends included."""
    key, value = row
    return blake2b(len(key).to_bytes(8, "big") + key + value, digest_size=HASH_BYTES).digest()


def digests_of(rows: Iterable[Row], shorts: bytearray | None = None) -> Mapping[str, Digest]:
    """The digest of every object type by its name; `CorruptBlob` for a row of a kind that isn't known.

    The first `SHORT_BYTES` of the hash of every row are added to `shorts`.
    """
    rows_of: dict[bytes, int] = {}
    bytes_of: dict[bytes, int] = {}
    sums: dict[bytes, int] = {}
    for row in rows:
        key, value = row
        tag = key[:TAG_BYTES]
        hashed = hash_of(row)
        if shorts is not None:
            shorts += hashed[:SHORT_BYTES]
        rows_of[tag] = rows_of.get(tag, 0) + 1
        bytes_of[tag] = bytes_of.get(tag, 0) + len(key) + len(value)
        sums[tag] = sums.get(tag, 0) + int.from_bytes(hashed, "big")
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
