"""From what a store holds to what another one holds: the changes of one commit.

Invariants
- Only contents are touched, and by their stored bytes: nothing is decoded but config, so that what an older
  or a newer Holdfast wrote is replaced too.
- Rows are read as streams, each side once, and what is equal in both is not written. To tell it takes the
  hashes of the rows that are wanted, and about 60 bytes of memory for a row, whatever its size.
- A row that both have may be retracted and added all the same, never one of the two.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.catalog.move.hashed import HashedRows, Shorts, contents_in, hashed, no_shorts
from holdfast.catalog.move.verify import Digests, RowsDigest
from holdfast.catalog.objects.codec import Row, Update
from holdfast.catalog.objects.packed import rows_of
from holdfast.catalog.objects.registry import COLLECTIONS, Kind
from holdfast.catalog.replacing import is_content
from holdfast.catalog.stores.store import batch_of

Rows = Callable[[Collection[Kind]], Iterable[pa.RecordBatch]]
"""Gives rows, but for those of some kinds."""


@dataclass(frozen=True)
class Wanted:
    """What a store is to hold: digests by the name of the object type, and the hashes of the rows."""

    digests: dict[str, RowsDigest]
    hashes: Shorts

    def after(self, updates: Iterable[Update]) -> "Wanted | None":
        """The same after changes of rows; None where they don't fit what there was.

        Raises `CorruptBlob` for a row of a kind that isn't known.
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
    """That of rows (columns `key` and `value`), each of which is there once. Raises as `digests_of`."""
    reading = PassingRows()
    for _ in reading.passing(batches):
        pass
    return reading.wanted()


class PassingRows:
    """Takes rows in while somebody else reads them too."""

    def __init__(self) -> None:
        self._digests = Digests()
        self._hashes: list[Shorts] = []

    def passing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, of which the contents are taken in."""
        for batch in batches:
            some = hashed(contents_in(batch))
            self._digests.add(some)
            self._hashes.append(some.shorts)
            yield batch

    def wanted(self) -> Wanted:
        """What was taken in. Raises as `digests_of`."""
        return Wanted(self._digests.by_name(), np.concatenate([no_shorts(), *self._hashes]))


def changes(stored: Iterable[pa.RecordBatch], wanted: Wanted, rows: Rows) -> Iterator[Update]:
    """The changes from the rows of `stored` to those that are wanted, which `rows` gives again."""
    known = _Known(wanted.hashes)
    kept: list[Shorts] = []
    sizes: Counter[bytes] = Counter()
    for some in map(hashed, stored):
        shorts = some.shorts
        keeps = known.has(shorts)
        kept.append(shorts[keeps])
        sizes.update({tag: int((keeps & places).sum()) for tag, places in some.by_tag.items()})
        yield from (Update(row, -1) for row in _those(some, ~keeps))
    there = {kind: wanted.digests[COLLECTIONS[kind].name].size.rows for kind in Kind}
    complete = [kind for kind, count in there.items() if sizes[kind.tag] == count]
    if len(complete) == len(there):
        return
    if not sum(sizes.values()):
        yield from (Update(row, 1) for batch in rows(complete) for row in rows_of(batch))
        return
    # Of hashes with the same first half only one was found, so that here all are found.
    known = _Known(np.concatenate([no_shorts(), *kept]))
    for some in map(hashed, rows(complete)):
        yield from (Update(row, 1) for row in _those(some, ~known.has(some.shorts)))


def _those(some: HashedRows, places: NDArray[np.bool_]) -> Iterable[Row]:
    return rows_of(some.rows.filter(pa.array(places))) if places.any() else ()


class _Known:
    """Hashes to be found. Of those with the same first half only one is; none is found wrongly."""

    def __init__(self, hashes: Shorts) -> None:
        self._sorted = hashes[np.argsort(hashes["first"])]

    def has(self, hashes: Shorts) -> NDArray[np.bool_]:
        """Which of these are among them."""
        if not len(self._sorted):
            return np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._sorted["first"], hashes["first"])
        found = self._sorted[np.minimum(places, len(self._sorted) - 1)]
        return np.asarray(
            (found["first"] == hashes["first"]) & (found["second"] == hashes["second"]), np.bool_
        )
