"""Reads what pipelines kept at each time of a collection, whichever rendition was current then.

- At a time, this is what the rendition that was current then keeps. It keeps nothing without a pipeline.
- At a handover the rows change from those of the old rendition to those of the new one, at the time of the
  handover. So the sum of the changes is always what a read at one time returns.
- The caller holds the since of the collection. No shard of a pipeline is compacted past it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.pipeline import PIPELINE_SCHEMAS
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import AsOfTooEarly
from holdfast.persist import PersistClient, ReadHandle, Updates
from holdfast.persist.parts.times import TimeCounts
from holdfast.persist.rows.schema import DIFF, TIME

KEPT: Final = ("bindings", "bad records")
"""What the shards of a pipeline have, in the order of `PipelineShards.all`."""


class PipelineHistory:
    """Reads one kind of what pipelines keep. Not thread-safe.

    `number` is its place in `PipelineShards.all`. `describe` returns the record of the collection as of now.
    """

    def __init__(
        self,
        client: PersistClient,
        describe: Callable[[], CollectionInfo],
        number: int,
        *,
        purpose: str,
        lease_s: float,
    ) -> None:
        self.what = KEPT[number]
        self.schema = PIPELINE_SCHEMAS[number]
        self._client = client
        self._describe = describe
        self._number = number
        self._purpose = purpose
        self._lease_s = lease_s
        self._readers: dict[str, ReadHandle] = {}
        self._stack = ExitStack()

    def at(self, time: int) -> Iterator[pa.Table]:
        """The rows at a time, as updates at that time. Raises like `ReadHandle.snapshot`."""
        for each in self._describe().held:
            if each.holds_at(time):
                yield from self._rows(each, time, time)

    def changes(self, after: int, until: int) -> Iterator[pa.Table]:
        """The updates after a time and up to another. Raises like `ReadHandle.listen`."""
        info = self._describe()
        for each in info.held:
            begin, end = max(after, each.held_from - 1), min(until, each.held_to - 1)
            if begin >= end:
                continue
            if after < each.held_from:
                begin = each.held_from
                before = info.held_before(each)
                if before is None:
                    raise AsOfTooEarly(after, begin)
                yield from map(_negated, self._rows(before, begin - 1, begin))
                yield from self._rows(each, begin, begin)
            reader = self._reader(each)
            if reader is not None and begin < end:
                yield from (each.table for each in reader.listen(begin, end) if isinstance(each, Updates))

    def changed_within(self, after: int, until: int, rows: int) -> int:
        """The last time, up to `until`, such that at most `rows` updates come after `after` and up to it.

        It is at least the first time that has updates. Those at a handover aren't counted.
        """
        counts = TimeCounts(after + 1, until, rows)
        for each in self._describe().held:
            begin, end = max(after, each.held_from - 1), min(counts.last, each.held_to - 1)
            if begin < end and (reader := self._reader(each)) is not None:
                counts.merge(reader.count_changes(begin, end, rows))
        return until if counts.total <= rows else int(counts.times[max(0, counts.within - 1)])

    def _rows(self, rendition: RenditionInfo, as_of: int, time: int) -> Iterator[pa.Table]:
        """What a rendition keeps as of a time, as updates at another one."""
        reader = self._reader(rendition)
        for batch in reader.snapshot(as_of) if reader is not None else ():
            times = pa.repeat(pa.scalar(time, pa.uint64()), batch.num_rows)
            rows = pa.Table.from_batches([batch.append_column(TIME, times)])
            yield rows.select(self.schema.arrow_updates.names).cast(self.schema.arrow_updates)

    def _reader(self, rendition: RenditionInfo) -> ReadHandle | None:
        if rendition.pipeline is None:
            return None
        shard = rendition.pipeline.all[self._number]
        if shard not in self._readers:
            reader = self._client.reader(shard, purpose=self._purpose, lease_s=self._lease_s)
            self._readers[shard] = self._stack.enter_context(reader)
        return self._readers[shard]

    def close(self) -> None:
        """Give up the leases."""
        self._readers.clear()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _negated(rows: pa.Table) -> pa.Table:
    index = rows.schema.get_field_index(DIFF)
    return rows.set_column(index, rows.schema.field(index), pc.negate(rows[DIFF]))
