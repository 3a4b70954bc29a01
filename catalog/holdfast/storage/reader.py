"""Reading a collection: one capability, held at the metadata shard, and the shards behind it.

- The metadata tells which rendition holds at a time; nothing is read beyond its upper.
- A collection's since is the metadata shard's. Data shards are moved after it and never past it, so whoever
  holds the metadata holds the data.
- Of a dropped collection nothing is told but that: its shards' last frontiers mean nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    CollectionNotFound,
    HandleExpired,
    ShardFinalized,
    VersionTooNew,
)
from holdfast.persist import PersistClient, ReadHandle, Schema
from holdfast.storage.frontiers import check_as_of, collection_upper, latest, retained_since
from holdfast.storage.listen import CollectionListen
from holdfast.storage.metadata import holder
from holdfast.storage.snapshot import CollectionPart, CollectionSnapshot, group_parts
from holdfast.storage.spec import CollectionInfo, RenditionInfo


class CollectionReader:
    """Reads one collection, holding its since under a lease. Thread-safe; made by `StorageController.reader`.

    With a client of mode "read" nothing is held, and what is compacted meanwhile may not be read any more.
    """

    def __init__(self, client: PersistClient, info: CollectionInfo, *, purpose: str) -> None:
        if len(info.renditions) != 1:
            raise VersionTooNew(f"collection {info.name} has {len(info.renditions)} renditions")
        self.info = info
        self._client = client
        # The metadata first: from then on no data shard can be compacted past this reader's since.
        self._metadata = client.reader(info.metadata_shard, purpose=purpose)
        self._shards = {shard: client.reader(shard, purpose=purpose) for shard in info.data_shards}

    @property
    def schema(self) -> Schema:
        """The collection's schema."""
        return self.info.schema

    def since(self) -> int:
        """The earliest time that can be read, linearized. `CollectionNotFound` once it is dropped, as all."""
        with self._there():
            return self._known(self._metadata.since())

    def upper(self) -> int:
        """The upper, linearized: the latest time that can be read is the one before."""
        with self._there():
            uppers = [shard.upper() for shard in self._shards.values()]
            return self._known(collection_upper(uppers, self._metadata.upper()))

    def snapshot(self, as_of: int | None = None) -> CollectionSnapshot:
        """The contents at `as_of`, the latest complete time where it is not given.

        Raises `AsOfTooEarly` where `as_of < since`, `AsOfNotYetAvailable` where `as_of >= upper`.
        """
        with self._there():
            as_of = self._check(as_of)
            shards = [shard.snapshot(as_of) for shard in self._holding(as_of)]
            return CollectionSnapshot(self.schema, as_of, shards, self._there)

    def snapshot_parts(self, as_of: int | None = None, max_parts: int | None = None) -> list[CollectionPart]:
        """At most `max_parts` picklable pieces of a snapshot, for `read_collection_part`. Raises as it does.

        The reader's hold, or another, must stay until they are read.
        """
        with self._there():
            as_of = self._check(as_of)
            shards = self._holding(as_of)
            # As many of each shard as together suffice.
            most = None if max_parts is None else max(1, max_parts // len(shards))
            parts = [part for shard in shards for part in shard.snapshot_parts(as_of, most)]
        return group_parts(self.info.collection_id, as_of, parts, max_parts)

    def listen(self, as_of: int) -> CollectionListen:
        """All changes at times after `as_of`. Raises `AsOfTooEarly` where `as_of < since`."""
        with self._there():
            since = self.since()
            if as_of < since:
                raise AsOfTooEarly(as_of, since)
            shards = [shard.listen(as_of) for shard in self._shards.values()]
            return CollectionListen(self.info, shards, self._metadata.listen(as_of), as_of + 1)

    def subscribe(self, as_of: int | None = None) -> CollectionListen:
        """The contents at `as_of` as updates at that time, then all changes after. Raises as `snapshot`."""
        with self._there():
            as_of = self._check(as_of)
            shards = [shard.subscribe(as_of) for shard in self._holding(as_of)]
            return CollectionListen(self.info, shards, self._metadata.listen(as_of), as_of)

    def allow_compaction(self, since: int) -> None:
        """Give up the distinction between times before `since`, as far as this reader is concerned.

        What lies beyond the latest complete time is cut to it.
        """
        with self._there():
            since = min(since, max(self.upper() - 1, 0))
            self._metadata.allow_compaction(since)
            kept = self._metadata.since()
            for rendition in self.info.renditions:
                for shard in rendition.shards:
                    self._shards[shard].allow_compaction(retained_since(since, kept, rendition.start))

    def close(self) -> None:
        """Give up the capability."""
        for shard in self._shards.values():
            shard.close()
        self._metadata.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Tell what goes wrong because the collection was dropped meanwhile as just that."""
        try:
            yield
        except (AsOfTooEarly, HandleExpired, ShardFinalized):
            self._refuse_dropped()
            raise

    def _known(self, frontier: int) -> int:
        """A frontier of the collection; the end of time may be that of its shards only."""
        if frontier == CLOSED:
            self._refuse_dropped()
        return frontier

    def _refuse_dropped(self) -> None:
        if self._client.inspect(self.info.metadata_shard).finalized:
            raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")

    def _check(self, as_of: int | None) -> int:
        upper = self.upper()
        if as_of is None:
            as_of = latest(upper)
        check_as_of(as_of, self.since(), upper)
        return as_of

    def _holding(self, as_of: int) -> Sequence[ReadHandle]:
        """The shards of the rendition that holds at `as_of`."""
        rendition: RenditionInfo = holder(self.info, self._metadata.snapshot(as_of).to_table())
        return [self._shards[shard] for shard in rendition.shards]
