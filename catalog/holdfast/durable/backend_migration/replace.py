"""From what a store holds to what another one holds: the changes of one commit.

Invariants
- Only contents are touched, and by their stored bytes: nothing is decoded but config, so that what an older
  or a newer Holdfast wrote is replaced too.
- Rows are read as streams, each side once, and what is equal in both is not written. To tell it takes the
  hashes of the rows that are wanted, and about 60 bytes of memory for a row, whatever its size.
- A row that both have may be retracted and added all the same, never one of the two.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from holdfast.durable.backend_migration.verify import SHORT_BYTES, Digest, digests_of, hash_of
from holdfast.durable.codec import TAG_BYTES, Row, Update
from holdfast.durable.registry import COLLECTIONS, Kind
from holdfast.durable.store import BATCH_ROWS

_HASH = np.dtype([("first", "<u8"), ("second", "<u8")])
assert _HASH.itemsize == SHORT_BYTES

Hashes = NDArray[np.void]
"""Of rows, 128 bits each, as two numbers."""


@dataclass(frozen=True)
class Wanted:
    """What a store is to hold: digests by the name of the object type, and the hashes of the rows."""

    digests: dict[str, Digest]
    hashes: Hashes


def wanted_of(rows: Iterable[Row]) -> Wanted:
    """That of rows, each of which is there once. Raises as `digests_of`."""
    shorts = bytearray()
    digests = dict(digests_of(rows, shorts))
    return Wanted(digests, np.frombuffer(bytes(shorts), _HASH))


def changes(
    stored: Iterable[Row], wanted: Wanted, rows: Callable[[Iterable[Kind]], Iterable[Row]]
) -> Iterator[Update]:
    """The changes from the rows of `stored` to those that are wanted.

    `rows` gives these again, of some kinds, or all where it is told none.
    """
    known = _Known(wanted.hashes)
    kept: list[Hashes] = []
    sizes: Counter[bytes] = Counter()
    for some, hashes in _hashed(stored):
        is_known = known.has(hashes)
        kept.append(hashes[is_known])
        for row, keeps in zip(some, is_known.tolist(), strict=True):
            if keeps:
                sizes[row.key[:TAG_BYTES]] += 1
            else:
                yield Update(row, -1)
    there = {kind: wanted.digests[COLLECTIONS[kind].name].size.rows for kind in Kind}
    missing = [kind for kind, count in there.items() if sizes[kind.tag] != count]
    if not missing:
        return
    if 2 * sum(there[kind] for kind in missing) > sum(there.values()):
        # To look most of them up costs more than to read all.
        missing = []
    # Of hashes with the same first half only one was found, so that here all are found.
    known = _Known(np.concatenate([np.empty(0, _HASH), *kept]))
    if not sizes:
        yield from (Update(row, 1) for row in rows(missing))
        return
    for some, hashes in _hashed(rows(missing)):
        for row, is_there in zip(some, known.has(hashes).tolist(), strict=True):
            if not is_there:
                yield Update(row, 1)


class _Known:
    """Hashes to be found. Of those with the same first half only one is; none is found wrongly."""

    def __init__(self, hashes: Hashes) -> None:
        self._sorted = hashes[np.argsort(hashes["first"])]

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Which of these are among them."""
        if not len(self._sorted):
            return np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._sorted["first"], hashes["first"])
        found = self._sorted[np.minimum(places, len(self._sorted) - 1)]
        return np.asarray(
            (found["first"] == hashes["first"]) & (found["second"] == hashes["second"]), np.bool_
        )


def _hashed(rows: Iterable[Row]) -> Iterator[tuple[list[Row], Hashes]]:
    """Rows, some at a time, with their hashes."""
    rest = iter(rows)
    while some := list(islice(rest, BATCH_ROWS)):
        yield some, np.frombuffer(b"".join(hash_of(row)[:SHORT_BYTES] for row in some), _HASH)
