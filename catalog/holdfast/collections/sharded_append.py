"""One append to all shards of a rendition: prepared once, and tried until its outcome is decided.

- A try can fail because of another part of its multi-write: the promise moved, or another command was
  committed. Then the shards are unchanged. So uploads are kept for the next try, and deleted at the end of
  the block.
- Many rows are sorted once for all shards. The parts of the shards are encoded and uploaded in parallel, by
  threads that end with the upload. If the configuration allows no threads, the caller's thread does it.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from holdfast.collections.frontiers import promise_for
from holdfast.collections.record.spec import RenditionInfo
from holdfast.collections.routing import split_rows, split_sorted
from holdfast.errors import ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared, Schema, Upload, WriteHandle
from holdfast.persist.checks import check_forward
from holdfast.persist.rows.canonical import check_times, empty_updates, prepare_updates
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.part import Encoding, choose_encoding
from holdfast.text import naming

# For fewer rows, the work takes less time than starting threads.
_MANY_ROWS: Final = 4096
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Route:
    """Where rows at times below `promised` go, and also rows at later times if no handover comes between.

    `promised` was read before the record from which `rendition` is. `schema` is the schema of `shards`: the
    collection's schema when they were opened. It is the writer's schema or a later one. `kept` are the shards
    of the rendition's pipeline, which every append moves too.
    """

    rendition: RenditionInfo
    schema: Schema
    shards: tuple[WriteHandle, ...]
    promised: int
    kept: tuple[WriteHandle, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """The upper at which the next append to a collection begins, and the rendition that is current there.

    Before `held_from` another rendition holds the contents.
    """

    upper: int
    route: Route

    @property
    def held_from(self) -> int:
        """The first time at which the rendition that gets the append is current."""
        return self.route.rendition.held_from

    @property
    def shards(self) -> tuple[WriteHandle, ...]:
        """The shards that an append moves together."""
        return (*self.route.shards, *self.route.kept)


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """An append as steps of a multi-write, perhaps together with those of other appends.

    `after` is the position after the append. The append fails if the collection was written or handed over
    since its position was read.
    """

    steps: tuple[Prepared, ...]
    after: Position


def checked_updates(
    collection: str, schema: Schema, updates: object, expected_upper: int, new_upper: int
) -> pa.RecordBatch:
    """Check and convert the updates of an append to a collection from `expected_upper` to `new_upper`.

    Raises `BadInput` if the upper would not move forward, or if the updates don't fit the schema or these
    times.
    """
    with naming(f"collection {collection}"):
        check_forward(expected_upper, new_upper)
        batch = prepare_updates(schema, updates, default_time=expected_upper)
        check_times(batch, expected_upper, new_upper)
        return batch


def checked_times(
    collection: str, schema: Schema, updates: object, expected_upper: int, new_upper: int
) -> pa.RecordBatch:
    """Like `checked_updates`, for a table of updates whose values were checked before, or None."""
    if not isinstance(updates, pa.Table) or not updates.schema.equals(schema.arrow_updates):
        return checked_updates(collection, schema, updates, expected_upper, new_upper)
    with naming(f"collection {collection}"):
        check_forward(expected_upper, new_upper)
        batches = updates.combine_chunks().to_batches()
        has_nulls = any(not each.nullable and updates.column(each.name).null_count for each in schema.columns)
        if len(batches) > 1 or has_nulls:
            # More text than an array can hold, or a null where none may be.
            return checked_updates(collection, schema, updates, expected_upper, new_upper)
        batch = batches[0] if batches else empty_updates(schema)
        check_times(batch, expected_upper, new_upper)
        return batch


def promise_moved(metadata: WriteHandle, route: Route, new_upper: int) -> tuple[list[Prepared], Route]:
    """The step that moves the promise along with an append that reaches beyond it, and the new route."""
    promise = promise_for(new_upper, route.promised)
    if promise is None:
        return [], route
    return [metadata.prepare_seal(route.promised, promise)], replace(route, promised=promise)


class ShardedAppend:
    """An append of updates that were prepared with `schema`, or of `uploads` of other processes.

    What the pipeline keeps is `kept`, or `kept_uploads`: for each of its shards, maybe without any.
    Use it in a `with` block. Not thread-safe.
    """

    def __init__(
        self,
        client: PersistClient,
        schema: Schema,
        batch: pa.RecordBatch,
        expected_upper: int,
        new_upper: int,
        kept: Sequence[pa.RecordBatch] = (),
        uploads: Sequence[Sequence[Upload]] = (),
        purpose: str = "",
        kept_uploads: Sequence[Sequence[Upload]] = (),
    ) -> None:
        assert not (uploads and batch.num_rows), "uploads and updates in one append"
        self.expected_upper = expected_upper
        self.new_upper = new_upper
        self._client = client
        self._schema = schema
        self._batch = batch
        self._kept = kept
        self._uploads = uploads
        self._kept_uploads = kept_uploads
        # Recorded with the append instead of the writers' own purpose.
        self._purpose = purpose
        self._prepared_for: tuple[str, int] | None = None
        self._appends: list[Prepared] = []

    def prepare(self, route: Route, *, shard_upper: int | None = None) -> list[Prepared]:
        """The steps that append to the shards, for one multi-write or several tries of it.

        `shard_upper` is the upper of the shards, if it is not `expected_upper`.
        """
        lower = self.expected_upper if shard_upper is None else shard_upper
        wanted = (route.rendition.id, lower)
        if (self._uploads or any(self._kept_uploads)) and self._prepared_for not in (None, wanted):
            # The uploads can't be made again, and they fit below any upper that is not past their time.
            for each in self._appends:
                each.expect(lower)
            self._prepared_for = wanted
        if self._prepared_for != wanted or not all(each.usable for each in self._appends):
            self._abandon()
            try:
                self._prepare(route, lower)
            except BaseException:
                self._abandon()
                raise
            self._prepared_for = wanted
        return self._appends

    def tried(self, route: Route, conditions: Sequence[Prepared]) -> bool:
        """Append together with `conditions`. Returns False if that failed and nothing changed."""
        try:
            self._client.multi_write([*self.prepare(route), *conditions])
        except (UpperMismatch, ShardFinalized):
            return False
        return True

    def _prepare(self, route: Route, lower: int) -> None:
        for number, shard in enumerate(route.kept):
            if self._kept_uploads and (uploads := self._kept_uploads[number]):
                self._appends.append(shard.prepare_uploads(uploads, lower, self.new_upper).keep())
                continue
            rows = self._kept[number] if self._kept and self._kept[number].num_rows else None
            self._appends.append(shard.prepare_batch(rows, lower, self.new_upper).keep())
        if self._uploads:
            for shard, uploads in zip(route.shards, zip(*self._uploads, strict=True), strict=True):
                self._appends.append(shard.prepare_uploads(uploads, lower, self.new_upper).keep())
            return
        config = self._client.config
        batch = upgraded(self._batch, self._schema, route.schema)
        encoding: Encoding | None = None
        inline_bytes = len(route.shards) * config.inline_max_bytes
        if len(route.shards) > 1 and batch.num_rows >= _MANY_ROWS and batch.nbytes > inline_bytes:
            parts = split_sorted(route.rendition, route.schema, batch)
            encoding = choose_encoding(route.schema, max(parts, key=len))
        else:
            parts = split_rows(route.rendition, batch)

        def prepared(shard: WriteHandle, part: pa.RecordBatch) -> Prepared:
            rows = part if part.num_rows else None
            return shard.prepare_batch(
                rows, lower, self.new_upper, ordered=encoding, purpose=self._purpose
            ).keep()

        if encoding is None or not config.builder_threads:
            for shard, part in zip(route.shards, parts, strict=True):
                self._appends.append(prepared(shard, part))
            return
        futures: list[Future[Prepared]] = []
        try:
            with ThreadPoolExecutor(min(_THREADS, len(parts)), "holdfast-parts") as pool:
                for shard, part in zip(route.shards, parts, strict=True):
                    futures.append(pool.submit(prepared, shard, part))
                for late in wait(futures, return_when=FIRST_EXCEPTION).not_done:
                    late.cancel()
        finally:
            # Also those that succeeded while another one failed: they must be abandoned.
            done = (each for each in futures if each.done() and not each.cancelled())
            self._appends += [each.result() for each in done if each.exception() is None]
        for each in futures:
            each.result()

    def _abandon(self) -> None:
        appends, self._appends, self._prepared_for = self._appends, [], None
        for each in appends:
            each.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()
