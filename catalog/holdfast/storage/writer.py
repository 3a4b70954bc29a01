"""Writing a collection: an append takes all shards of the rendition to one new upper, in one step.

- A write below the metadata shard's upper needs nothing of it: that upper is the promise that no other
  rendition takes over there. A write that reaches beyond moves the promise along, expecting it where it was.
- An append that lost changes nothing anywhere; it tells the collection's own upper.
"""

import threading
from typing import NoReturn

import pyarrow as pa

from holdfast.errors import CLOSED, BadInput, CollectionNotFound, ShardFinalized, UpperMismatch, VersionTooNew
from holdfast.persist import PersistClient, Prepared, Schema
from holdfast.persist.canonical import check_times, prepare_updates
from holdfast.storage.frontiers import collection_upper, promise_for
from holdfast.storage.metadata import METADATA_SCHEMA
from holdfast.storage.routing import split_rows
from holdfast.storage.spec import CollectionInfo
from holdfast.storage.uppers import common_upper


class CollectionWriter:
    """Appends to one collection. Thread-safe; made by `StorageController.writer`."""

    def __init__(self, client: PersistClient, info: CollectionInfo, *, purpose: str) -> None:
        if len(info.renditions) != 1:
            raise VersionTooNew(f"collection {info.name} has {len(info.renditions)} renditions")
        (self._rendition,) = info.renditions
        self._client = client
        self._lock = threading.Lock()
        self._shards = [
            client.writer(shard, info.schema, purpose=purpose) for shard in self._rendition.shards
        ]
        self._metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=purpose)
        self.info = info
        self.upper()

    @property
    def schema(self) -> Schema:
        """The collection's schema."""
        return self.info.schema

    def upper(self) -> int:
        """The collection's upper, linearized: where the next append begins.

        Raises `TornRendition` where somebody wrote to a shard past the collection, `CollectionNotFound`
        where the collection was dropped meanwhile.
        """
        written = common_upper(self.info, self._rendition, self._client.recent_upper)
        upper = collection_upper([written], self._metadata.upper())
        if upper == CLOSED and self._client.inspect(self.info.metadata_shard).finalized:
            self._refuse_dropped()
        return upper

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is a table, a data frame, dicts or None, with the columns of the schema, `_time` (ms since
        the epoch where collections should align; default `expected_upper`) in
        `[expected_upper, new_upper)` and `_diff` (default +1).

        Raises `UpperMismatch` with the collection's upper where it is another, `BadInput` where the updates
        don't fit, `CollectionNotFound` where the collection was dropped: nothing happened. `Indeterminate`
        where it could not be found out whether it happened: open a new writer and look at the upper.
        """
        if not 0 <= expected_upper < new_upper <= CLOSED:
            raise BadInput(f"an append must move the upper forward, not from {expected_upper} to {new_upper}")
        batch = prepare_updates(self.schema, updates, default_time=expected_upper)
        check_times(batch, expected_upper, new_upper)
        rows = split_rows(self._rendition, batch)
        with self._lock:
            while True:
                try:
                    self._client.multi_write(self._prepare(rows, expected_upper, new_upper))
                except UpperMismatch as mismatch:
                    if mismatch.shard_id == self._metadata.shard_id:
                        # Only the promise moved. Its new upper is known now: prepare again beside it.
                        self._metadata.upper()
                        continue
                    raise UpperMismatch(
                        expected_upper, self.upper(), shard_id=f"collection {self.info.name}"
                    ) from None
                except ShardFinalized:
                    self._refuse_dropped()
                return

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper` with no updates; nothing to do where it is there already."""
        while (upper := self.upper()) < new_upper:
            try:
                self.append(None, upper, new_upper)
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def _prepare(self, rows: list[pa.RecordBatch], expected_upper: int, new_upper: int) -> list[Prepared]:
        # The data shards come first: where both they and the promise moved, the append has lost.
        steps = [
            shard.prepare_batch(part if part.num_rows else None, expected_upper, new_upper)
            for shard, part in zip(self._shards, rows, strict=True)
        ]
        promised = self._metadata.cached_upper
        promise = promise_for(new_upper, promised)
        if promise is not None:
            steps.append(self._metadata.prepare_seal(promised, promise))
        return steps

    def _refuse_dropped(self) -> NoReturn:
        raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")
