"""One append to all shards of a rendition: prepared once, tried until it is decided.

- A try that lost because of something else in its step (the promise moved, another command was committed)
  leaves the shards as they were. So what was uploaded is kept for the next try, and goes with the block.
- Many rows are sorted once for all shards, and the shards' parts are encoded and uploaded side by side, in
  threads that end with that; in the caller's own where the configuration wants no threads.
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
from holdfast.persist import PersistClient, Prepared, Schema, WriteHandle
from holdfast.persist.checks import check_forward
from holdfast.persist.rows.canonical import check_times, prepare_updates
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.part import Encoding, choose_encoding

# Fewer are sooner done than threads are started.
_MANY_ROWS: Final = 4096
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Route:
    """Where rows go at times below `promised` and, if that is expected where it is, beyond.

    `promised` was read before the record that `rendition` is from. `schema` is that of `shards`: the
    collection's when they were opened, which follows the writer's own.
    """

    rendition: RenditionInfo
    schema: Schema
    shards: tuple[WriteHandle, ...]
    promised: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next append to a collection begins, and where it goes: to what holds at `upper`.

    `held_from` is when that took over: the contents before it are those of another rendition.
    """

    upper: int
    route: Route

    @property
    def held_from(self) -> int:
        """The first time for which the rendition that gets the append is the collection."""
        return self.route.rendition.held_from


@dataclass(frozen=True, slots=True)
class PreparedAppend:
    """An append as steps for one multi-write, perhaps with those of others; `after` is where it leads.

    It fails where the collection was written or handed over since its position was found.
    """

    steps: tuple[Prepared, ...]
    after: Position


def checked_updates(schema: Schema, updates: object, expected_upper: int, new_upper: int) -> pa.RecordBatch:
    """Updates for an append from `expected_upper` to `new_upper`.

    Raises `BadInput` where that moves no upper forward, or they fit neither the schema nor these times.
    """
    check_forward(expected_upper, new_upper)
    batch = prepare_updates(schema, updates, default_time=expected_upper)
    check_times(batch, expected_upper, new_upper)
    return batch


def promise_moved(metadata: WriteHandle, route: Route, new_upper: int) -> tuple[list[Prepared], Route]:
    """What moves the promise along with an append on this route, if it reaches beyond; the route then."""
    promise = promise_for(new_upper, route.promised)
    if promise is None:
        return [], route
    return [metadata.prepare_seal(route.promised, promise)], replace(route, promised=promise)


class ShardedAppend:
    """An append of updates prepared with `schema`. Use it in a `with` block. Not thread-safe."""

    def __init__(
        self,
        client: PersistClient,
        schema: Schema,
        batch: pa.RecordBatch,
        expected_upper: int,
        new_upper: int,
    ) -> None:
        self.expected_upper = expected_upper
        self.new_upper = new_upper
        self._client = client
        self._schema = schema
        self._batch = batch
        self._prepared_for: tuple[str, int] | None = None
        self._appends: list[Prepared] = []

    def prepare(self, route: Route, *, shard_upper: int | None = None) -> list[Prepared]:
        """What appends to the shards, for one multi-write or for several tries of it.

        `shard_upper` is where the shards begin, if not at `expected_upper`.
        """
        lower = self.expected_upper if shard_upper is None else shard_upper
        wanted = (route.rendition.id, lower)
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
        """Append together with `conditions`: whether that took place; if not, nothing happened."""
        try:
            self._client.multi_write([*self.prepare(route), *conditions])
        except (UpperMismatch, ShardFinalized):
            return False
        return True

    def _prepare(self, route: Route, lower: int) -> None:
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
            return shard.prepare_batch(rows, lower, self.new_upper, ordered=encoding).keep()

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
            # Also those beside one that failed: they are to be abandoned.
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
