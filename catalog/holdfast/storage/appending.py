"""One append to all shards of a rendition: prepared once, tried until it is decided.

A try that lost because of something else in its step (the promise moved, another command was committed)
leaves the shards as they were. So what was uploaded is kept for the next try, and goes with the block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from holdfast.errors import ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared, Schema, WriteHandle
from holdfast.persist.evolution import upgraded
from holdfast.storage.routing import split_rows
from holdfast.storage.spec import RenditionInfo


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
        self._rendition_id = ""
        self._appends: list[Prepared] = []

    def prepare(self, route: Route, *, shard_upper: int | None = None) -> list[Prepared]:
        """What appends to the shards, for one multi-write or for several tries of it.

        `shard_upper` is where the shards begin, if not at `expected_upper`.
        """
        if self._rendition_id != route.rendition.id or not all(each.usable for each in self._appends):
            self._abandon()
            lower = self.expected_upper if shard_upper is None else shard_upper
            batch = upgraded(self._batch, self._schema, route.schema)
            for shard, part in zip(route.shards, split_rows(route.rendition, batch), strict=True):
                rows = part if part.num_rows else None
                self._appends.append(shard.prepare_batch(rows, lower, self.new_upper).keep())
            self._rendition_id = route.rendition.id
        return self._appends

    def tried(self, route: Route, conditions: Sequence[Prepared]) -> bool:
        """Append together with `conditions`: whether that took place; if not, nothing happened."""
        try:
            self._client.multi_write([*self.prepare(route), *conditions])
        except (UpperMismatch, ShardFinalized):
            return False
        return True

    def _abandon(self) -> None:
        appends, self._appends, self._rendition_id = self._appends, [], ""
        for each in appends:
            each.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()
