"""Another collection as a source. Its contents have times already, and what it feeds keeps them.

- A position is a time. The collection that is fed has exactly what this one contains at a time, decoded, at
  the same time.
- The name of the source has the location and the id of the collection. A collection with the same name that
  was created later is another source.
- A hold keeps the last time that the reader has, so that what comes after it can be read. It outlives the
  process (`holdfast.collections.feeds`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from holdfast.collections import CollectionInfo, DurableHold, StorageController
from holdfast.collections.feeds import FedRendition
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    HandleExpired,
    SourceStalled,
    StorageError,
)
from holdfast.ingest.following import newest_rows
from holdfast.ingest.formats.rows import RowsByName
from holdfast.ingest.source import MESSAGES, Binding, Piece, Range
from holdfast.ingest.spec import PARTS, START, CollectionSourceSpec, IngestSpec
from holdfast.persist import PersistClient, PersistConfig, Progress, Updates
from holdfast.persist.stores import Location
from holdfast.store_keys import OF_S3, StoreKeys

PARTITION: Final = "0"
"""The one partition of the source."""
HASHED: Final = "hash"
"""The partition of a bad record whose row has no partition. Its position is a hash of the row."""
_PURPOSE: Final = "ingestion"
_SCHEME: Final = "collection://"
_TYPES: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    "value": (pa.binary(), pa.string()),
    "key": (pa.binary(), pa.string()),
    "partition": (pa.string(),),
    "position": (pa.int64(),),
    "timestamp": (pa.int64(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
}
_MESSAGE: Final = pa.schema([*MESSAGES, pa.field("partition", pa.string())])
_ADDRESS_MASK: Final = (1 << 63) - 1


def is_collection(source: str) -> bool:
    """Whether this is the name of a source that is a collection."""
    return source.startswith(_SCHEME)


class MessageColumns:
    """Finds the parts of messages in the columns of a collection."""

    def __init__(self, spec: IngestSpec, collection: str, source: pa.Schema) -> None:
        assert isinstance(spec.source, CollectionSourceSpec)
        self._columns: dict[str, str] = {}
        for part in PARTS:
            name = spec.source.columns.get(part, part)
            there = name in source.names and source.field(name).type in _TYPES[part]
            if there:
                self._columns[part] = name
            elif part == "value" or part in spec.source.columns or part in spec.include:
                types = " or ".join(map(str, _TYPES[part]))
                has = f"type {source.field(name).type}" if name in source.names else "no such column"
                raise BadInput(
                    f"the {part} of a message must be in a column '{name}' of type {types} of collection"
                    f" {collection}, found {has}",
                    hint=f"name the column in source.collection.columns.{part}",
                )

    def messages(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The messages in rows: those of `MESSAGES` and the partition. A missing part is null or 0."""
        arrays = []
        for each in _MESSAGE:
            if each.name in self._columns:
                array = rows[self._columns[each.name]]
                if pa.types.is_timestamp(array.type):
                    array = pc.cast(array, pa.timestamp("ms"), safe=False).cast(pa.int64())
                array = array.cast(each.type)
                arrays.append(array if each.nullable else pc.fill_null(array, 0))
            else:
                arrays.append(
                    pa.nulls(len(rows), each.type)
                    if each.nullable
                    else pa.array(np.zeros(len(rows), np.int64))
                )
        return pa.RecordBatch.from_arrays(arrays, schema=_MESSAGE)

    def address(self, message: Mapping[str, Any]) -> tuple[str, int]:
        """The partition and position of a message, or a hash of all of it if its row has none."""
        if message["partition"] is not None and "position" in self._columns:
            return message["partition"], message["position"]
        digest = xxhash.xxh3_64()
        for part in PARTS:
            part_bytes = repr(message[part]).encode()
            digest.update(len(part_bytes).to_bytes(8, "little") + part_bytes)
        return HASHED, digest.intdigest() & _ADDRESS_MASK


class CollectionSource:
    """The source, for the rendition that `feed` names. With `latest` it begins at the latest complete time.

    `controller` is that of the collection that is fed. Raises `BadInput` if there is no such collection or
    if it does not fit the spec.
    """

    def __init__(
        self, controller: StorageController, spec: IngestSpec, feed: FedRendition, fed: str, *, latest: bool
    ) -> None:
        assert isinstance(spec.source, CollectionSourceSpec)
        self._spec = spec.source
        self._begins_latest = latest or self._spec.start == START[1]
        self._feed, self._fed = feed, fed
        self._hold: DurableHold | None = None
        with ExitStack() as stack:
            self._controller = controller
            if self._spec.url:
                self._controller = stack.enter_context(self._opened(self._spec))
            self._client = self._controller.client
            with self._named():
                self.info = self._controller.describe(self._spec.collection)
                self._check_no_cycle()
                self._reader = self._controller.reader(self.info.collection_id, purpose=_PURPOSE)
            stack.callback(self._reader.close)
            self.schema = self._reader.schema.arrow
            self.columns = (
                None if spec.format == "rows" else MessageColumns(spec, self.info.name, self.schema)
            )
            self._stack = stack.pop_all()

    @contextmanager
    def _opened(self, spec: CollectionSourceSpec) -> Iterator[StorageController]:
        url, blob = (None, spec.url) if spec.consensus else (spec.url, None)
        config = PersistConfig()
        try:
            # It must be there: a mistyped URL makes no location.
            location = Location.open(
                url,
                blob=blob,
                consensus=spec.consensus or None,
                create=False,
                retry_s=config.retry_deadline_s,
                # The password of one Postgres server is not for another one.
                credentials=StoreKeys.of_process(OF_S3),
            )
            client = PersistClient(location, config=config)
        except (StorageError, BadInput) as error:
            error.args = (f"can't open source.collection.url: {error}",)
            raise
        with client, StorageController(client, who="holdfast.ingest") as controller:
            yield controller

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CollectionNotFound as error:
            raise BadInput(
                f"the source of collection {self._fed}, collection {self._spec.collection}, can't be used:"
                f" {error}",
                hint="correct source.collection",
            ) from None

    def _check_no_cycle(self) -> None:
        """Raise `BadInput` if the source is the collection that it feeds, or is fed from it."""
        here = self._client.location_id
        if here != self._feed.location_id:
            return
        known: set[str] = set()
        ahead = [self.info]
        while ahead:
            info = ahead.pop()
            if info.collection_id == self._feed.collection_id:
                through = "itself" if info is self.info else f"{self.info.name}, which is fed from it"
                raise BadInput(
                    f"collection {self._fed} can't be fed from {through}", hint="correct source.collection"
                )
            known.add(info.collection_id)
            ahead += [each for each in self._sources_of(info) if each.collection_id not in known]

    def _sources_of(self, info: CollectionInfo) -> Iterator[CollectionInfo]:
        """The collections of the same location that a collection is fed from."""
        prefix = f"{_SCHEME}{self._client.location_id}/"
        for each in info.live if not info.dropped else ():
            if each.pipeline is None:
                continue
            with self._client.reader(each.pipeline.remap, purpose=_PURPOSE) as remap:
                names = {row["source"] for row in newest_rows(remap)}
            for name in names:
                if name.startswith(prefix):
                    yield self._controller.describe(name.removeprefix(prefix))

    def check(self, form: object) -> None:
        """Raise `BadInput` if the columns of the collection don't fit a format."""
        if isinstance(form, RowsByName):
            form.check_source(self.info.name, self.schema)

    @property
    def name(self) -> str:
        """The location and the id of the collection."""
        return f"{_SCHEME}{self._client.location_id}/{self.info.collection_id}"

    @contextmanager
    def _there(self, after: int) -> Iterator[None]:
        """Raise `SourceStalled` if the collection is dropped, or if times after `after` are gone."""
        try:
            yield
        except CollectionNotFound as error:
            raise SourceStalled(
                f"the source of collection {self._fed} is gone: {error}",
                hint=f"collection {self._fed} keeps what it has; feed another collection from another source",
            ) from None
        except AsOfTooEarly as error:
            raise SourceStalled(
                f"collection {self.info.name}, the source of {self._fed}, has lost the changes at times"
                f" {after + 1} to {error.since}: it is readable from {error.since} on",
                hint=f"feed another collection from {self.info.name}; don't release the hold of a collection"
                " that is still fed",
            ) from None

    def upper(self, reached: int) -> int:
        """The upper of the collection. Raises `SourceStalled` if it is less than what was `reached` before.

        Like all methods, raises `SourceStalled` if the collection was dropped.
        """
        with self._there(reached - 1):
            upper = self._reader.upper()
        if upper < reached:
            raise SourceStalled(
                f"collection {self.info.name}, the source of {self._fed}, is complete up to {upper} only, and"
                f" {self._fed} has its contents up to {reached}: the location of the source is in an earlier"
                " state",
                hint="restore a newer state of the source; or feed another collection from it",
            )
        return upper

    def first_time(self, now_ms: int) -> int | None:
        """Take the hold, and return the time to begin at. None if no time is complete yet."""
        held = self._held().since
        upper = self.upper(0)
        if upper <= held:
            return None
        return max(held, min(upper - 1, now_ms)) if self._begins_latest else held

    def held_since(self) -> int:
        """The first time at which the collection is held."""
        with self._there(0):
            return self._held().since

    def keep(self, since: int) -> None:
        """Hold the collection from this time on, and no earlier times."""
        with self._there(since):
            for _ in range(2):
                try:
                    self._held().downgrade(since)
                except HandleExpired:
                    # Somebody released it. If what is needed is gone, the next read says so.
                    self._hold = None
                else:
                    break
            self._reader.allow_compaction(since)

    def move(self, since: int) -> None:
        """Move the hold to this time. Does nothing if it was released."""
        if self._hold is not None:
            with self._there(since), suppress(HandleExpired):
                self._hold.downgrade(since)

    def _held(self) -> DurableHold:
        if self._hold is None:
            with self._there(0):
                self._hold = self._controller.hold(self.info.collection_id, self._feed.purpose(self._fed))
            # With the hold, columns keep their names.
            if self._controller.describe(self.info.collection_id).names != self.info.names:
                raise SourceStalled(f"columns of collection {self.info.name} were renamed just now")
        return self._hold

    def contents(self, at: int) -> Iterator[pa.RecordBatch]:
        """The contents at a time, in pieces."""
        with self._there(at - 1):
            yield from self._reader.snapshot(at)

    def changed(self, after: int, until: int) -> Iterator[pa.RecordBatch]:
        """The sum of the changes after a time and up to another, in pieces."""
        with self._there(after):
            yield from self._reader.changes(after, until)

    def bounded(self, after: int, until: int, rows: int) -> tuple[int, bool]:
        """How far to read after `after`, for so many changes. True if one time has more than that."""
        with self._there(after):
            counts = self._reader.change_counts(after)
            if sum(count for _, count in counts) <= rows:
                return until, False
            until = self._reader.changed_within(after, until, rows)
            return until, self._reader.changes_at(until, rows) > rows

    def changes(self, after: int, until: int) -> Iterator[pa.Table | int]:
        """The changes after a time and up to another: tables, and each time up to which they are complete."""
        with self._there(after):
            for event in self._reader.listen(after, until):
                match event:
                    case Updates(table):
                        yield table
                    case Progress(frontier):
                        yield frontier - 1

    def probe(self, bound: Mapping[str, Binding]) -> Sequence[Range]:
        """Return the times that are not bound yet."""
        begin = bound[PARTITION].position if PARTITION in bound else 0
        upper = self.upper(begin)
        return [Range(PARTITION, begin, upper)] if upper > begin else []

    def read(self, wanted: Range) -> Iterator[Piece]:
        """A collection is not read as messages, because it has changes: see `changes`."""
        raise NotImplementedError(f"read {wanted} of a collection")

    def acknowledge(self, bound: Mapping[str, Binding]) -> None:
        """`keep` is enough."""

    def forget(self) -> None:
        """Release the hold."""
        self._hold = None
        with self._there(0):
            self._controller.release_hold(self.info.collection_id, self._feed.purpose(self._fed))

    def close(self) -> None:
        """Close the reader, and the client of another location. The hold stays."""
        self._stack.close()
