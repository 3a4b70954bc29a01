"""The contents of a catalog at one time, from its store or as they will be after an upgrade.

Read repeatedly.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.cache import APPEND_ONLY, Cache
from holdfast.catalog.objects.codec import TAG_BYTES, Row, kind_of
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind
from holdfast.catalog.stores.preamble import Preamble
from holdfast.catalog.stores.store import BATCH_ROWS, CatalogStore, batch_of
from holdfast.catalog.upgrade_report import Size


class Contents(ABC):
    """The rows of a catalog at one time. They are streamed, in no particular order."""

    @abstractmethod
    def rows(self, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """The rows of these kinds. All rows if none are given."""

    def batches(self, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        """The rows except those of some kinds: columns `key` and `value` (binary)."""
        rest = self.rows(kind for kind in Kind if kind not in but)
        return map(batch_of, iter(lambda: list(islice(rest, BATCH_ROWS)), []))

    def count(self, kinds: Iterable[Kind]) -> Counter[Kind]:
        """The number of rows of each of these kinds."""
        return Counter(row.kind for row in self.rows(kinds))


class StoredContents(Contents):
    """The contents of a store at `upper - 1`. Empty if `upper` is 0. Raises like `CatalogStore.rows`."""

    def __init__(self, store: CatalogStore, upper: int) -> None:
        self._store = store
        self._upper = upper

    def rows(self, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """See `Contents`."""
        return self._store.rows(self._upper - 1, kinds) if self._upper else iter(())

    def batches(self, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        """See `Contents`."""
        return self._store.batches(self._upper - 1, but=but) if self._upper else iter(())

    def count(self, kinds: Iterable[Kind]) -> Counter[Kind]:
        """See `Contents`."""
        return self._store.count(self._upper - 1, kinds) if self._upper else Counter()


def cached(contents: Contents, seen: Preamble, place: str) -> Cache:
    """Load the contents without append-only rows. Raises `OtherHistory` if `seen` is not their preamble."""
    if not seen.upper:
        # An empty catalog also has no append-only rows, so their counts are known.
        return Cache()
    cache = Cache.load(contents.batches(but=APPEND_ONLY))
    seen.check_history(cache.fence_row, place)
    return cache


def sizes_of(batches: Iterable[pa.RecordBatch]) -> Mapping[str, Size]:
    """The numbers of rows and bytes by object type name. `batches` have the columns `key` and `value`."""
    found = dict.fromkeys(OBJECT_TYPES, Size())
    for batch in batches:
        key, value = batch.column("key"), batch.column("value")
        sizes = pa.table(
            {
                "tag": pc.binary_slice(key, 0, TAG_BYTES),
                "bytes": pc.add(pc.binary_length(key), pc.binary_length(value)),
            }
        )
        for group in sizes.group_by("tag").aggregate([("bytes", "count"), ("bytes", "sum")]).to_pylist():
            kind = kind_of(group["tag"])
            old = found[kind]
            found[kind] = Size(old.rows + group["bytes_count"], old.bytes + group["bytes_sum"])
    return {OBJECT_TYPES[kind].name: size for kind, size in found.items()}
