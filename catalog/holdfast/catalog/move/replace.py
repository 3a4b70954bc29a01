"""Computes the changes that turn the contents of one store into those of another. Commits nothing.

`catalog.move.attempt` commits them. If the replaced store also gets the last tombstone, one commit does both.

Invariants
- Only contents change, by their stored bytes. Only config is decoded, so objects that an older or newer
  Holdfast wrote are replaced too.
- Rows are streams, and each side is read once. Rows that are equal in both are not written. This needs the
  hashes of the wanted rows, about 60 bytes of memory for each row of any size.
- A row that both have may be both retracted and added, but never only one of the two.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.catalog.move.hashed import HashedRows, Shorts, contents_in, hashed, no_shorts
from holdfast.catalog.move.verify import Digests, RowsDigest
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.packed import rows_of
from holdfast.catalog.objects.registry import OBJECT_TYPES, Kind
from holdfast.catalog.replacement import is_content
from holdfast.catalog.stores.store import batch_of

Rows = Callable[[Collection[Kind]], Iterable[pa.RecordBatch]]
"""Returns the rows, except those of some kinds."""


@dataclass(frozen=True)
class Wanted:
    """What a store is to hold: digests by object type name, and the hashes of the rows."""

    digests: dict[str, RowsDigest]
    hashes: Shorts

    def after(self, updates: Iterable[RowUpdate]) -> "Wanted | None":
        """The same after changes of rows. None if the changes don't fit.

        Raises `CorruptBlob` for a row of an unknown kind.
        """
        net = Counter[Row]()
        for row, diff in updates:
            if is_content(row):
                net[row] += diff
        if not {*net.values()} <= {-1, 0, 1}:
            return None
        added, gone = (wanted_of([batch_of(_rows_with(net, diff))]) for diff in (1, -1))
        goes = _Known(gone.hashes).has(self.hashes)
        if goes.sum() != len(gone.hashes) or _Known(added.hashes).has(self.hashes).any():
            return None
        digests = {name: of + added.digests[name] - gone.digests[name] for name, of in self.digests.items()}
        return Wanted(digests, np.concatenate([self.hashes[~goes], added.hashes]))


def _rows_with(net: Counter[Row], diff: int) -> list[Row]:
    return [row for row, found in net.items() if found == diff]


def wanted_of(batches: Iterable[pa.RecordBatch]) -> Wanted:
    """The digests and hashes of rows (columns `key` and `value`), each occurring once.

    Raises `CorruptBlob` if a row has an unknown kind, or config that can't be decoded.
    """
    reading = PassingRows()
    for _ in reading.passing(batches):
        pass
    return reading.wanted()


class PassingRows:
    """Collects digests and hashes of rows while another consumer reads the same rows."""

    def __init__(self) -> None:
        self._digests = Digests()
        self._hashes: list[Shorts] = []

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the same rows, and collect those that are contents."""
        for batch in batches:
            some = hashed(contents_in(batch))
            self._digests.add(some)
            self._hashes.append(some.shorts)
            yield batch

    def wanted(self) -> Wanted:
        """What was collected. Raises `CorruptBlob` if a row had an unknown kind."""
        return Wanted(self._digests.by_name(), np.concatenate([no_shorts(), *self._hashes]))


def changes(stored: Iterable[pa.RecordBatch], wanted: Wanted, rows: Rows) -> Iterator[RowUpdate]:
    """The changes from the rows of `stored` to the wanted ones. `rows` returns the wanted rows again."""
    known = _Known(wanted.hashes)
    kept: list[Shorts] = []
    sizes: Counter[bytes] = Counter()
    for some in map(hashed, stored):
        shorts = some.shorts
        keeps = known.has(shorts)
        kept.append(shorts[keeps])
        sizes.update({tag: int((keeps & places).sum()) for tag, places in some.by_tag.items()})
        yield from (RowUpdate(row, -1) for row in _those(some, ~keeps))
    there = {kind: wanted.digests[OBJECT_TYPES[kind].name].size.rows for kind in Kind}
    complete = [kind for kind, count in there.items() if sizes[kind.tag] == count]
    if len(complete) == len(there):
        return
    if not sum(sizes.values()):
        yield from (RowUpdate(row, 1) for batch in rows(complete) for row in rows_of(batch))
        return
    # Of hashes with the same first half, `_Known` finds only one. So some rows are retracted and added again.
    known = _Known(np.concatenate([no_shorts(), *kept]))
    for some in map(hashed, rows(complete)):
        yield from (RowUpdate(row, 1) for row in _those(some, ~known.has(some.shorts)))


def _those(some: HashedRows, places: NDArray[np.bool_]) -> Iterable[Row]:
    return rows_of(some.rows.filter(pa.array(places))) if places.any() else ()


class _Known:
    """A set of hashes. Of those with the same first half it finds only one. It never finds a wrong one."""

    def __init__(self, hashes: Shorts) -> None:
        self._sorted = hashes[np.argsort(hashes["first"])]

    def has(self, hashes: Shorts) -> NDArray[np.bool_]:
        """Which of these hashes are in the set."""
        if not len(self._sorted):
            return np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._sorted["first"], hashes["first"])
        found = self._sorted[np.minimum(places, len(self._sorted) - 1)]
        return np.asarray(
            (found["first"] == hashes["first"]) & (found["second"] == hashes["second"]), np.bool_
        )
