"""The contents of the source of truth: read once, checked as an open would check them, then followed.

Invariants
- The contents at one time, plus all commits since, are the contents at a later time. If the store can't
  return these commits, or they don't fit, everything is read again.
- A row that the target can't store is found before anything is written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.cache import Cache
from holdfast.catalog.contents import StoredContents
from holdfast.catalog.move.hashed import contents_of
from holdfast.catalog.move.replace import PassingRows, Wanted, wanted_of
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.stores.preamble import Preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.upgrade.plan import Plan, released
from holdfast.errors import AsOfTooEarly, BadInput, HandleExpired, OtherHistory


@dataclass(frozen=True)
class Read:
    """The contents of the source in the state of `seen`."""

    seen: Preamble
    wanted: Wanted


def checked(store: CatalogStore, seen: Preamble, target: CatalogStore) -> Read | None:
    """Read the source as an open would. If it must be upgraded, upgrade it in memory and return None.

    Raises the errors of an open, and `BadInput` for a row that the target can't store.
    """
    seen.check_readable()
    if seen.is_older:
        Plan(store, seen, released()).close()
        return None
    reading = PassingRows()
    batches = StoredContents(store, seen.upper).batches()
    cache = Cache.load(reading.passing(_fitting(batches, target)))
    seen.check_history(cache.fence_row, store.place)
    return Read(seen, reading.wanted())


def read(store: CatalogStore, seen: Preamble) -> Read:
    """Read the contents of the source. Raises `StorageError`, and like `wanted_of`."""
    return Read(seen, wanted_of(contents_of(store, seen.upper)))


def followed(store: CatalogStore, known: Read, seen: Preamble) -> Read:
    """The contents of the source in the state of `seen`, from an earlier state. Raises like `read`."""
    wanted = _after(store, known, seen)
    return read(store, seen) if wanted is None else Read(seen, wanted)


def _after(store: CatalogStore, known: Read, seen: Preamble) -> Wanted | None:
    """The contents after the changes. None if the changes can't be read, or lead to another state."""
    before = known.seen
    if before.upper > seen.upper:
        return None
    try:
        changed = store.changes(before.upper, seen.upper, fence=before.fence_row)
    except (AsOfTooEarly, HandleExpired, OtherHistory):
        return None
    updates: list[RowUpdate] = []
    at = before
    for _, more in changed:
        at = at.after(more)
        updates += more
    return known.wanted.after(updates) if at.tells_as(seen) else None


def _fitting(batches: Iterable[pa.RecordBatch], target: CatalogStore) -> Iterator[pa.RecordBatch]:
    """Return the batches. Raises `BadInput` for a row that the target can't store."""
    limit = target.max_row_bytes
    for batch in batches:
        if limit is not None and batch.num_rows:
            lengths = (pc.binary_length(batch.column(name)) for name in ("key", "value"))
            longest = pc.max(pc.add(*lengths)).as_py()
            if longest > limit:
                raise BadInput(
                    f"an object of the catalog has {longest:,} bytes, but {target.place} allows {limit:,}",
                    hint="make the object smaller",
                )
        yield batch
