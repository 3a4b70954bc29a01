"""Bringing a rendition what the collection has: all of it at first, then what is new, and the tail at last.

- What is brought from `[lower, upper)` is the sum of the collection's changes at these times, all of them at
  `upper - 1`. Whoever does it gets the same rows, and one append of it succeeds.
- A rendition that is being filled holds the collection's since, at the metadata shard, at the last time that
  it has. The hold moves with what is brought, in one step, and ends with the tail.
"""

from collections.abc import Callable
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HandleExpired, HandoverInProgress, ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient, Prepared, Updates
from holdfast.persist.canonical import empty_updates
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.schema import TIME
from holdfast.storage.reader import CollectionReader
from holdfast.storage.routing import split_rows
from holdfast.storage.spec import CollectionInfo, Recipe, RenditionInfo
from holdfast.storage.uppers import View, common_upper

_MEMORY_BYTES = 256 << 20


def rendition_hold(rendition_id: str) -> str:
    """The purpose of the critical hold, on the metadata shard, of a rendition that is being filled."""
    return f"rendition {rendition_id}"


def bring_tail(client: PersistClient, view: View, describe: Callable[[], CollectionInfo]) -> None:
    """Bring the rendition that took over what was written before that and after what it has.

    Raises `HandoverInProgress` where only its source can.
    """
    holding = view.info.holding
    if holding.recipe is Recipe.SOURCE:
        raise HandoverInProgress(
            f"rendition {holding.id} of collection {view.info.name} took over at {holding.held_from} and is"
            f" written up to {view.uppers[holding.id]}"
        )
    bring(client, view.info, holding, holding.held_from, describe)


def bring(
    client: PersistClient,
    info: CollectionInfo,
    rendition: RenditionInfo,
    upper: int,
    describe: Callable[[], CollectionInfo],
) -> int:
    """Take a rendition to `upper`, at most the collection's; answers the upper that it has then.

    Nothing is brought where it is there already, or somebody else is faster.
    """
    purpose = rendition_hold(rendition.id)
    lower = common_upper(info, rendition, client.recent_upper)
    if lower >= upper:
        return lower
    with ExitStack() as stack:
        if rendition.recipe is Recipe.RESTORED:
            appends = [
                client.writer(shard, info.schema, purpose=purpose).prepare_seal(lower, upper)
                for shard in rendition.shards
            ]
        else:
            reader = stack.enter_context(CollectionReader(client, info, describe, purpose=purpose))
            appends = _appends(stack, client, reader, rendition, lower, upper)
        if rendition.held_from <= upper:
            hold = client.prepare_release_critical(info.metadata_shard, purpose=purpose)
        else:
            hold = client.prepare_downgrade_critical(info.metadata_shard, upper - 1, purpose=purpose)
        try:
            client.multi_write([*appends, hold])
        except (UpperMismatch, HandleExpired, ShardFinalized):
            reached = common_upper(info, rendition, client.recent_upper)
            if reached <= lower:
                raise
            return reached
    return upper


def net_changes(reader: CollectionReader, lower: int, upper: int) -> pa.RecordBatch:
    """The sum of the collection's changes in `[lower, upper)`, `lower > 0`, all at `upper - 1`."""
    changes = reader.listen(lower - 1)
    tables: list[pa.Table] = []
    while changes.frontier < upper:
        tables += [event.table for event in changes.next() if isinstance(event, Updates)]
    if not tables:
        return empty_updates(reader.schema)
    table = pa.concat_tables(tables)
    table = table.filter(pc.less(table[TIME], pa.scalar(upper, pa.uint64())))
    batches = consolidate_updates(reader.schema, [table], upper - 1).combine_chunks().to_batches()
    return batches[0] if batches else empty_updates(reader.schema)


def _appends(
    stack: ExitStack,
    client: PersistClient,
    reader: CollectionReader,
    rendition: RenditionInfo,
    lower: int,
    upper: int,
) -> list[Prepared]:
    """What takes each shard of the rendition from `lower` to `upper`."""
    purpose = rendition_hold(rendition.id)
    writers = [client.writer(shard, reader.schema, purpose=purpose) for shard in rendition.shards]
    if lower > 0:
        parts = split_rows(rendition, net_changes(reader, lower, upper))
        return [
            writer.prepare_batch(part if part.num_rows else None, lower, upper)
            for writer, part in zip(writers, parts, strict=True)
        ]
    memory = _MEMORY_BYTES // len(writers)
    builders = [stack.enter_context(writer.batch_builder(memory_bytes=memory)) for writer in writers]
    for contents in reader.snapshot(upper - 1):
        batch = contents.append_column(TIME, pa.repeat(pa.scalar(upper - 1, pa.uint64()), len(contents)))
        for builder, part in zip(builders, split_rows(rendition, batch), strict=True):
            if part.num_rows:
                builder.add(part)
    return [builder.prepare_append(0, upper) for builder in builders]
