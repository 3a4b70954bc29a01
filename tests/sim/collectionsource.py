"""Sources of a rendition's contents other than the collection: the sources of pipelines, and snapshots.

A source is a pure function of the rendition and the time. So every pipeline reads the same from it, no matter
where it begins and stops. A snapshot has some rows that were read before, and one of its own.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.collections import RestoreSource
from holdfast.collections.snapshots.folder import LocalFolder
from holdfast.collections.snapshots.manifest import SnapshotFile, SnapshotManifest, checksum_of
from sim.history import MARKER, Row, Update
from sim.rows import SCHEMA

PERIOD = 1024
"""Around the multiples of this the sources have something, and else nothing."""
_MOST_ROWS = 20


def source_updates(rendition: str, lower: int, upper: int) -> list[Update]:
    """What the source of a rendition has at times in `[lower, upper)`; some is gone at once."""
    updates: list[Update] = []
    for start in range(lower - lower % PERIOD, upper, PERIOD):
        own = [
            (start, (start % 5, f"{rendition} at {start}", start, 1)),
            (start + 1, (start % 5, f"{rendition} at {start}", start + 1, -1)),
            (start + 1, (start % 3, f"{rendition} after {start}", start + 1, 1)),
            (start + PERIOD - 1, (start % 5, f"{rendition} before {start + PERIOD}", start + PERIOD - 1, 1)),
        ]
        updates += [update for time, update in own if lower <= time < upper]
    return updates


def aligned(time: int, chance: random.Random) -> int:
    """A time not before this one, at which sources have something, or have just had."""
    return time - time % -PERIOD + chance.choice([0, 0, 1, 2])


@dataclass(frozen=True, slots=True)
class Snapshot(RestoreSource):
    """A snapshot whose files are in memory; each time that it is read, others run meanwhile."""

    rows: tuple[Row, ...]
    pause: Callable[[], None]

    @classmethod
    def of(cls, name: str, found: Counter[Row], pause: Callable[[], None]) -> "Snapshot":
        """Some of what was found, as far as it may be in a table, and one more row."""
        kept = [row for row, count in sorted(found.items()) if row[0] != MARKER for _ in range(count)]
        rows = ((0, name), *kept[:_MOST_ROWS])
        file = SnapshotFile(name="part", rows=len(rows), bytes=1, checksum=checksum_of(_table(rows), SCHEMA))
        manifest = SnapshotManifest(
            location_id="",
            collection_id="",
            collection="",
            as_of=0,
            job_id="",
            attempt=1,
            schema=SCHEMA,
            files=(file,),
            created_ms=0,
        )
        return cls(LocalFolder(Path(name)), manifest, rows, pause)

    @property
    def contents(self) -> Counter[Row]:
        """What is in it."""
        return Counter(self.rows)

    def verify(self) -> None:
        """Its files can't be damaged."""
        self.pause()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        for batch in _table(self.rows).to_batches(max_chunksize=7):
            self.pause()
            yield batch


def _table(rows: tuple[Row, ...]) -> pa.Table:
    keys, values = zip(*rows, strict=True)
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.string())}
    return pa.table(columns, schema=SCHEMA.arrow)
