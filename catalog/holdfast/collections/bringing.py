"""Bringing a rendition what the collection has: all of it at first, then what is new, and the tail at last.

- What is brought from `[lower, upper)` is the sum of the collection's changes at these times, all of them at
  `upper - 1`. Whoever does it gets the same rows, and one append of it succeeds.
- Memory is bounded, however much there is: 256 MiB for what is sorted, beside what a snapshot's iteration
  takes; what doesn't fit goes to temporary files.
- A rendition that is being filled holds the collection's since, at the metadata shard, at the last time that
  it has. The hold moves with what is brought, in one step, and ends with the tail.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import pyarrow as pa

from holdfast.collections.evolved import seen_through
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.spec import CollectionInfo, Recipe, RenditionInfo
from holdfast.collections.routing import split_rows
from holdfast.collections.uppers import View, common_upper
from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
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
from holdfast.persist.rows.schema import TIME

_MEMORY_BYTES: Final = 256 << 20

Progress = Callable[[int, int], object]
"""Is told how many rows are done, and of how many: as many as are stored, of which some may cancel out."""


def rendition_hold(rendition_id: str) -> str:
    """The purpose of the critical hold, on the metadata shard, of a rendition that is being filled."""
    return f"rendition {rendition_id}"


def bring_tail(client: PersistClient, view: View, describe: Callable[[], CollectionInfo]) -> None:
    """Bring the rendition that took over what was written before that and after what it has.

    Raises `HandoverInProgress` where only its source can.
    """
    holding = view.info.holding
    if holding.recipe is Recipe.SOURCE:
        first = holding.held_from
        lacking = next(each for each in view.info.held if view.uppers[each.id] < min(each.held_to, first))
        raise HandoverInProgress(
            f"rendition {holding.id} of collection {view.info.name} took over at {first}, and"
            f" {lacking.id} is written up to {view.uppers[lacking.id]}"
        )
    # What is restored differs from then on, so that the latest complete time must be one that has it.
    beyond = 1 if holding.recipe is Recipe.RESTORED else 0
    bring(client, view.info, holding, holding.held_from + beyond, describe)


def bring(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    upper: int,
    describe: Callable[[], CollectionInfo],
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Take a rendition to `upper`, at most the collection's; answers the uppers before that and after.

    Nothing is brought where it is there already, or somebody else is faster.
    """
    lower = common_upper(info, rendition, client.recent_uppers)
    if lower >= upper:
        return lower, lower
    try:
        with brought(client, info, rendition, lower, upper, describe, progress=progress) as steps:
            client.multi_write(steps())
    except (UpperMismatch, AsOfTooEarly, HandleExpired, ShardFinalized):
        # Who was faster may have been long ago: since may have passed what was to be read.
        reached = common_upper(info, rendition, client.recent_uppers)
        if not lower < reached < CLOSED:
            raise
        return lower, reached
    return lower, upper


@contextmanager
def brought(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    lower: int,
    upper: int,
    describe: Callable[[], CollectionInfo],
    *,
    progress: Progress | None = None,
) -> Iterator[Callable[[], list[Prepared]]]:
    """What takes a rendition from `lower` to `upper`, at most the collection's; its hold moves along or ends.

    In the block a call gives the commands for one multi-write. What was uploaded for them is kept for another
    try where nothing of theirs was the reason that one lost, and goes with the block.
    """
    purpose = rendition_hold(rendition.id)
    hold = hold_moved(client, info, rendition, upper)
    with ExitStack() as stack:
        if rendition.recipe is Recipe.RESTORED:
            writers = [client.writer(shard, info.schema, purpose=purpose) for shard in rendition.shards]
            yield lambda: [*(writer.prepare_seal(lower, upper) for writer in writers), hold]
            return
        reader = stack.enter_context(CollectionReader(client, info, describe, purpose=purpose))
        schema, changes = _changes(client, reader, describe, lower, upper, progress)
        writers = [client.writer(shard, schema, purpose=purpose) for shard in rendition.shards]
        builders = builders_of(stack, rendition, writers, changes, memory_bytes=_MEMORY_BYTES)
        appends: list[Prepared] = []

        def steps() -> list[Prepared]:
            if not appends or not all(append.usable for append in appends):
                appends[:] = [builder.prepare_append(lower, upper).keep() for builder in builders]
            return [*appends, hold]

        # Uploaded now: a commit of a record in which they are asked for holds up others.
        steps()
        yield steps


def hold_moved(client: PersistClient, info: CollectionInfo, rendition: RenditionInfo, upper: int) -> Prepared:
    """What moves the hold of a rendition along as it gets to `upper`, or ends it."""
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
    """Builders of the shards of a rendition, in its order, with the updates that go there.

    The writers have a schema that the updates' leads to. All of it takes about `memory_bytes`.
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
    progress: Progress | None,
) -> tuple[Schema, Iterable[pa.RecordBatch]]:
    """Updates at `upper - 1` that add up to the collection's changes in `[lower, upper)`.

    With a schema that leads on from theirs: the collection's after they were there.
    """
    at = upper - 1
    if lower == 0:
        rows: Iterable[pa.RecordBatch] = reader.snapshot(at)
    else:
        rows = reader.changes(lower - 1, at)
    tell = None if progress is None else _counted(_expected_rows(client, reader, lower), progress)
    # The record is read after the rows were planned.
    return describe().schema, at_time(rows, at, tell)


def _expected_rows(client: PersistClient, reader: CollectionReader, lower: int) -> int:
    """About how many rows are to be brought from `lower` on, some of which may cancel out."""
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


def _counted(total: int, progress: Progress) -> Callable[[int], None]:
    """What tells `progress` of more rows."""
    done = 0
    progress(0, total)

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, max(done, total))

    return tell
