"""From what a store holds to what another one holds: the changes of one commit.

Invariants
- Only contents are touched, and by their stored bytes: nothing is decoded but config, so that what an older
  or a newer Holdfast wrote is replaced too.
- Rows are read as streams, and what is equal in both is not written. To tell it takes two readings of each
  side and about 60 bytes of memory for a row, whatever its size; nothing where the target is empty.
- A row that both have may be retracted and added all the same, never one of the two.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from holdfast.durable.codec import Row, Update
from holdfast.durable.store import BATCH_ROWS

_HASH = np.dtype([("first", "<u8"), ("second", "<u8")])

Hashes = NDArray[np.void]
"""Of rows, 128 bits each, as two numbers."""


def changes(stored: Callable[[], Iterable[Row]], wanted: Callable[[], Iterable[Row]]) -> Iterator[Update]:
    """The changes from the rows of `stored` to those of `wanted`, each of which is read up to two times."""
    before = iter(stored())
    first = next(before, None)
    if first is None:
        for row in wanted():
            yield Update(row, 1)
        return
    both = Common(_hashes(chain([first], before)), _hashes(wanted()))
    for row in both.without(stored()):
        yield Update(row, -1)
    for row in both.without(wanted()):
        yield Update(row, 1)


class Common:
    """Rows that two sides have, by their hashes; some of them may be missing here, none is here wrongly."""

    def __init__(self, one: Hashes, other: Hashes) -> None:
        # Of hashes with the same first half only one is found: the others count as different, on both sides.
        self._sorted = _sorted(other)
        self._sorted = _sorted(one[self._has(one)])

    def without(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that aren't among them."""
        rest = iter(rows)
        while some := list(islice(rest, BATCH_ROWS)):
            known = self._has(_hashes(some))
            yield from (row for row, is_known in zip(some, known.tolist(), strict=True) if not is_known)

    def _has(self, hashes: Hashes) -> NDArray[np.bool_]:
        if not len(self._sorted):
            return np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._sorted["first"], hashes["first"])
        found = self._sorted[np.minimum(places, len(self._sorted) - 1)]
        return np.asarray(
            (found["first"] == hashes["first"]) & (found["second"] == hashes["second"]), np.bool_
        )


def _hashes(rows: Iterable[Row]) -> Hashes:
    found = bytearray()
    for key, value in rows:
        found += blake2b(len(key).to_bytes(8, "big") + key + value, digest_size=_HASH.itemsize).digest()
    return np.frombuffer(bytes(found), _HASH)


def _sorted(hashes: Hashes) -> Hashes:
    return hashes[np.argsort(hashes["first"])]
