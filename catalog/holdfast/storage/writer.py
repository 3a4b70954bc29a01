"""Writing a collection: an append takes all shards of the rendition that holds to one new upper, in one step.

- A write below the promise that this writer knows needs nothing of the metadata shard: no other rendition
  takes over there. A write that reaches beyond moves the promise along, expecting it where it was, so that a
  handover in between makes it fail; then it goes to the rendition that holds now.
- The promise is read before the record that tells which rendition holds; a newer promise says nothing of an
  older record.
- A rendition that has taken over gets what was written before that first. Who finds it missing brings it.
- An append that lost changes nothing anywhere; it tells the collection's own upper.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import pyarrow as pa

from holdfast.errors import CLOSED, BadInput, CollectionNotFound, ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared, Schema, WriteHandle
from holdfast.persist.canonical import check_times, prepare_updates
from holdfast.persist.evolution import upgraded
from holdfast.storage.bringing import bring_tail
from holdfast.storage.frontiers import promise_for
from holdfast.storage.metadata import METADATA_SCHEMA
from holdfast.storage.routing import split_rows
from holdfast.storage.spec import CollectionInfo, RenditionInfo
from holdfast.storage.uppers import View, look


@dataclass(frozen=True, slots=True)
class _Route:
    """Where rows go at times below `promised` and, if that is expected where it is, beyond.

    `schema` is that of `shards`: the collection's when they were opened, which follows the writer's own.
    """

    rendition: RenditionInfo
    schema: Schema
    shards: tuple[WriteHandle, ...]
    promised: int


class CollectionWriter:
    """Appends to one collection. Thread-safe; made by `StorageController.writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        *,
        purpose: str,
    ) -> None:
        self._client = client
        self._describe = describe
        self._purpose = purpose
        self._lock = threading.Lock()
        self._metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=purpose)
        self.info = info
        self._route: _Route | None = None
        with self._lock:
            self._find()

    @property
    def schema(self) -> Schema:
        """The collection's schema when this was opened; later ones follow it, and it may go on."""
        return self.info.schema

    def upper(self) -> int:
        """The collection's upper, linearized: where the next append begins.

        Raises `TornRendition` where somebody wrote to a shard past the collection, `CollectionNotFound`
        where the collection was dropped meanwhile.
        """
        return self._look().upper

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is a table, a data frame, dicts or None, with the columns of the schema, `_time` (ms since
        the epoch where collections should align; default `expected_upper`) in
        `[expected_upper, new_upper)` and `_diff` (default +1).

        Raises `UpperMismatch` with the collection's upper where it is another, `BadInput` where the updates
        don't fit, `CollectionNotFound` where the collection was dropped, `HandoverInProgress` where a source
        is still to write what the rendition that took over begins with: nothing happened. `Indeterminate`
        where it could not be found out whether it happened: open a new writer and look at the upper.
        """
        if not 0 <= expected_upper < new_upper <= CLOSED:
            raise BadInput(f"an append must move the upper forward, not from {expected_upper} to {new_upper}")
        batch = prepare_updates(self.schema, updates, default_time=expected_upper)
        check_times(batch, expected_upper, new_upper)
        with self._lock:
            route = self._route or self._find()[0]
            while not self._appended(route, batch, expected_upper, new_upper):
                # The promise moved, or a handover came between: go on where the collection is unmoved.
                route, upper = self._find()
                if upper != expected_upper:
                    raise UpperMismatch(expected_upper, upper, shard_id=f"collection {self.info.name}")

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper` with no updates; nothing to do where it is there already."""
        while (upper := self.upper()) < new_upper:
            try:
                self.append(None, upper, new_upper)
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def _appended(self, route: _Route, batch: pa.RecordBatch, expected_upper: int, new_upper: int) -> bool:
        """Whether the append took place on this route."""
        if expected_upper < route.rendition.held_from:
            return False
        batch = upgraded(batch, self.schema, route.schema)
        promise = promise_for(new_upper, route.promised)
        try:
            self._client.multi_write(self._prepare(route, batch, expected_upper, new_upper, promise))
        except (UpperMismatch, ShardFinalized):
            return False
        if promise is not None:
            self._route = replace(route, promised=promise)
        return True

    def _prepare(
        self, route: _Route, batch: pa.RecordBatch, expected_upper: int, new_upper: int, promise: int | None
    ) -> list[Prepared]:
        steps = [
            shard.prepare_batch(part if part.num_rows else None, expected_upper, new_upper)
            for shard, part in zip(route.shards, split_rows(route.rendition, batch), strict=True)
        ]
        if promise is not None:
            steps.append(self._metadata.prepare_seal(route.promised, promise))
        return steps

    def _find(self) -> tuple[_Route, int]:
        """Where rows go now, complete up to where it took over, and the collection's upper."""
        view = self._look()
        while view.uppers[view.info.holding.id] < view.info.holding.held_from:
            bring_tail(self._client, view, self._describe)
            view = self._look()
        rendition = view.info.holding
        if self._route is not None and self._route.rendition.id == rendition.id:
            schema, shards = self._route.schema, self._route.shards
        else:
            # What was made after the collection evolved knows nothing of the writer's own.
            schema = view.info.schema
            shards = tuple(
                self._client.writer(shard, schema, purpose=self._purpose) for shard in rendition.shards
            )
        self._route = _Route(rendition, schema, shards, view.promised)
        return self._route, view.upper

    def _look(self) -> View:
        view = look(self._describe, self._metadata.upper, self._client.recent_upper)
        if view.info.dropped or (
            view.upper == CLOSED and self._client.inspect(self.info.metadata_shard).finalized
        ):
            self._refuse_dropped()
        return view

    def _refuse_dropped(self) -> NoReturn:
        raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")
