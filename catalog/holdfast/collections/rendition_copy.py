"""Copies into a rendition what the collection has: first everything, then what is new, and at last the tail.

- What is copied from `[lower, upper)` is the sum of the collection's changes at these times, all at
  `upper - 1`. Every process that copies it gets the same rows, and exactly one append of them succeeds.
- Memory is bounded, whatever the amount of data: 256 MiB for sorting, plus the memory of a snapshot's
  iteration. Rows that don't fit go to temporary files.
- A rendition that is being filled holds the since of the collection, at the metadata shard, at the last time
  that it has. The hold moves in the same commit as the copied rows, and ends with the tail.
- A copy that a pipeline continues also gets what the pipeline of the current rendition keeps at `upper - 1`,
  in the same commits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.frontiers import CollectionView, common_upper
from holdfast.collections.pipeline import PIPELINE_SCHEMAS, written_shards
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.spec import CollectionInfo, Recipe, RenditionInfo
from holdfast.collections.routing import split_rows
from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    HandoverInProgress,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist import (
    BatchBuilder,
    PersistClient,
    Prepared,
    Schema,
    WriteHandle,
)
from holdfast.persist.rows.evolution import seen_through
from holdfast.persist.rows.schema import DIFF, TIME

_MEMORY_BYTES: Final = 256 << 20

OnProgress = Callable[[int, int], object]
"""Called with the number of finished rows and the total. These are stored rows, and some may cancel out."""


def rendition_hold(rendition_id: str) -> str:
    """The purpose of the critical hold on the metadata shard of a rendition that is being filled."""
    return f"rendition {rendition_id}"


def copy_tail(client: PersistClient, view: CollectionView, describe: Callable[[], CollectionInfo]) -> None:
    """Copy the tail to the current rendition: what was written before the handover and is not yet in it.

    Raises `HandoverInProgress` if only the source of the rendition can write that.
    """
    holding = view.info.holding
    if holding.recipe is Recipe.SOURCE:
        first = holding.held_from
        lacking = next(each for each in view.info.held if view.uppers[each.id] < min(each.held_to, first))
        raise HandoverInProgress(
            f"rendition {holding.id} of collection {view.info.name} took over at {first}, and"
            f" {lacking.id} is written up to {view.uppers[lacking.id]}"
        )
    copy_until(client, view.info, holding, tail_end(holding), describe)


def tail_end(rendition: RenditionInfo) -> int:
    """The upper of a rendition that has taken over and has its tail."""
    # A restored rendition has different contents from its handover on. That time must become complete.
    beyond = 1 if rendition.recipe is Recipe.RESTORED else 0
    return rendition.held_from + beyond


def check_continues(info: CollectionInfo, copy: RenditionInfo, current: RenditionInfo) -> None:
    """Raise `BadInput` if a pipeline is to continue a copy, and could not continue from `current`."""
    if copy.recipe is not Recipe.COPY or copy.pipeline is None:
        return
    if current.pipeline is None or current.made_from != copy.made_from:
        raise BadInput(
            f"rendition {copy.id} of collection {info.name} was created as a copy that the pipeline of its"
            f" current rendition continues, but now {current.id} is current, which has"
            f" {'no pipeline' if current.pipeline is None else 'another one'}",
            hint="abort it and create another one",
        )


def copy_until(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    upper: int,
    describe: Callable[[], CollectionInfo],
    progress: OnProgress | None = None,
) -> tuple[int, int]:
    """Copy to a rendition up to `upper`, at most the collection's upper. Returns its uppers before and after.

    Copies nothing if the rendition has reached it already, or if another process is faster.
    """
    lower = common_upper(info, rendition, client.recent_uppers)
    if lower >= upper:
        return lower, lower
    try:
        with prepared_copy(client, info, rendition, lower, upper, describe, progress=progress) as steps:
            client.multi_write(steps())
    except (UpperMismatch, AsOfTooEarly, HandleExpired, ShardFinalized):
        # Another process may have been faster some time ago, and the since may have passed our times.
        reached = common_upper(info, rendition, client.recent_uppers)
        if not lower < reached < CLOSED:
            raise
        return lower, reached
    return lower, upper


@contextmanager
def prepared_copy(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    lower: int,
    upper: int,
    describe: Callable[[], CollectionInfo],
    *,
    progress: OnProgress | None = None,
) -> Iterator[Callable[[], list[Prepared]]]:
    """The steps that take a rendition from `lower` to `upper`, at most the collection's upper, with its hold.

    In the block, a call returns the steps of one multi-write. Uploads are kept for another try unless they
    were the reason why the multi-write failed. The end of the block deletes them.
    """
    purpose = rendition_hold(rendition.id)
    hold = hold_moved(client, info, rendition, upper)
    with ExitStack() as stack:
        if rendition.recipe is Recipe.RESTORED:
            writers = [
                client.writer(shard, schema, purpose=purpose)
                for shard, schema in written_shards(rendition, info.stored_schema)
            ]
            yield lambda: [*(writer.prepare_seal(lower, upper) for writer in writers), hold]
            return
        reader = stack.enter_context(CollectionReader(client, info, describe, purpose=purpose, stored=True))
        schema, changes = _changes(client, reader, describe, lower, upper, progress)
        writers = [client.writer(shard, schema, purpose=purpose) for shard in rendition.shards]
        builders = [
            *builders_of(stack, rendition, writers, changes, memory_bytes=_MEMORY_BYTES),
            *kept_builders(stack, client, info, rendition, lower, upper),
        ]
        appends: list[Prepared] = []

        def steps() -> list[Prepared]:
            if not appends or not all(append.usable for append in appends):
                appends[:] = [builder.prepare_append(lower, upper).keep() for builder in builders]
            return [*appends, hold]

        # Upload now: a commit that asks for the steps later holds up other commits meanwhile.
        steps()
        yield steps


def kept_builders(
    stack: ExitStack,
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    lower: int,
    upper: int,
) -> list[BatchBuilder]:
    """Batch builders for what a pipeline keeps, filled with the changes in `[lower, upper)`, at `upper - 1`.

    None if no pipeline continues the rendition. Raises `BadInput` if it could not.
    """
    if rendition.pipeline is None:
        return []
    at, purpose = upper - 1, rendition_hold(rendition.id)
    (current,) = (each for each in info.held if each.holds_at(at))
    check_continues(info, rendition, current)
    assert current.pipeline is not None
    builders = []
    shards = zip(current.pipeline.all, rendition.pipeline.all, PIPELINE_SCHEMAS, strict=True)
    for theirs, mine, schema in shards:
        builder = stack.enter_context(client.writer(mine, schema, purpose=purpose).batch_builder())
        with client.reader(theirs, purpose=purpose) as reader:
            builder.add(at_time(reader.snapshot(at), at))
        if lower:
            with client.reader(mine, purpose=purpose) as reader:
                builder.add(at_time(map(_negated, reader.snapshot(lower - 1)), at))
        builders.append(builder)
    return builders


def _negated(contents: pa.RecordBatch) -> pa.RecordBatch:
    last = contents.num_columns - 1
    return contents.set_column(last, contents.schema.field(last), pc.negate(contents[DIFF]))


def hold_moved(client: PersistClient, info: CollectionInfo, rendition: RenditionInfo, upper: int) -> Prepared:
    """The step that moves the hold of a rendition when it reaches `upper`, or that ends the hold."""
    purpose = rendition_hold(rendition.id)
    if rendition.held_from <= upper:
        return client.prepare_release_critical(info.metadata_shard, purpose=purpose)
    return client.prepare_downgrade_critical(info.metadata_shard, upper - 1, purpose=purpose)


def builders_of(
    stack: ExitStack,
    rendition: RenditionInfo,
    writers: Sequence[WriteHandle],
    updates: Iterable[pa.RecordBatch],
    *,
    memory_bytes: int,
) -> list[BatchBuilder]:
    """Batch builders for the shards of a rendition, in order, filled with the updates of each shard.

    The schema of the writers must be the updates' schema or a later one. Uses about `memory_bytes` in total.
    """
    share = memory_bytes // len(writers)
    builders = [stack.enter_context(writer.batch_builder(memory_bytes=share)) for writer in writers]
    for batch in updates:
        rows = seen_through(batch, writers[0].schema)
        for builder, part in zip(builders, split_rows(rendition, rows), strict=True):
            if part.num_rows:
                builder.add(part)
    return builders


def _changes(
    client: PersistClient,
    reader: CollectionReader,
    describe: Callable[[], CollectionInfo],
    lower: int,
    upper: int,
    progress: OnProgress | None,
) -> tuple[Schema, Iterable[pa.RecordBatch]]:
    """Updates at `upper - 1` that add up to the collection's changes in `[lower, upper)`, and a schema.

    The schema is the collection's, read after the updates were planned. So it is theirs or a later one.
    """
    at = upper - 1
    if lower == 0:
        rows: Iterable[pa.RecordBatch] = reader.snapshot(at)
    else:
        rows = reader.changes(lower - 1, at)
    tell = None if progress is None else _counted(_expected_rows(client, reader, lower), progress)
    # Read the record only after the rows were planned.
    return describe().stored_schema, at_time(rows, at, tell)


def _expected_rows(client: PersistClient, reader: CollectionReader, lower: int) -> int:
    """About how many rows must be copied from `lower` on. Some of them may cancel out."""
    if lower == 0:
        return sum(client.stored(shard).rows for shard in reader.info.holding.shards)
    return sum(number for _, number in reader.change_counts(lower - 1))


def at_time(
    contents: Iterable[pa.RecordBatch], time: int, tell: Callable[[int], None] | None = None
) -> Iterator[pa.RecordBatch]:
    """Contents as updates at one time."""
    for batch in contents:
        yield batch.append_column(TIME, pa.repeat(pa.scalar(time, pa.uint64()), len(batch)))
        if tell is not None:
            tell(len(batch))


def _counted(total: int, progress: OnProgress) -> Callable[[int], None]:
    """A function that adds rows to the progress."""
    done = 0
    progress(0, total)

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, max(done, total))

    return tell
