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
from holdfast.persist import PersistClient, Prepared, Schema, Updates
from holdfast.persist.canonical import empty_updates
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.schema import TIME
from holdfast.storage.evolved import seen_through
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
            appends = _appends(stack, client, reader, rendition, describe, lower, upper)
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


def net_changes(
    reader: CollectionReader, describe: Callable[[], CollectionInfo], lower: int, upper: int
) -> tuple[Schema, pa.RecordBatch]:
    """The sum of the collection's changes in `[lower, upper)`, `lower > 0`, all at `upper - 1`.

    With the collection's schema now.
    """
    changes = reader.listen(lower - 1)
    tables: list[pa.Table] = []
    while changes.frontier < upper:
        tables += [event.table for event in changes.next() if isinstance(event, Updates)]
    schema = describe().schema
    if not tables:
        return schema, empty_updates(schema)
    table = pa.concat_tables(seen_through(table, schema) for table in tables)
    table = table.filter(pc.less(table[TIME], pa.scalar(upper, pa.uint64())))
    batches = consolidate_updates(schema, [table], upper - 1).combine_chunks().to_batches()
    return schema, batches[0] if batches else empty_updates(schema)


def _appends(
    stack: ExitStack,
    client: PersistClient,
    reader: CollectionReader,
    rendition: RenditionInfo,
    describe: Callable[[], CollectionInfo],
    lower: int,
    upper: int,
) -> list[Prepared]:
    """What takes each shard of the rendition from `lower` to `upper`."""
    purpose = rendition_hold(rendition.id)
    if lower > 0:
        schema, changes = net_changes(reader, describe, lower, upper)
        return [
            client.writer(shard, schema, purpose=purpose).prepare_batch(
                part if part.num_rows else None, lower, upper
            )
            for shard, part in zip(rendition.shards, split_rows(rendition, changes), strict=True)
        ]
    snapshot = reader.snapshot(upper - 1)
    # After the snapshot, so that this leads on from its schemas.
    schema = describe().schema
    writers = [client.writer(shard, schema, purpose=purpose) for shard in rendition.shards]
    memory = _MEMORY_BYTES // len(writers)
    builders = [stack.enter_context(writer.batch_builder(memory_bytes=memory)) for writer in writers]
    for contents in snapshot:
        batch = contents.append_column(TIME, pa.repeat(pa.scalar(upper - 1, pa.uint64()), len(contents)))
        rows = seen_through(batch, schema)
        for builder, part in zip(builders, split_rows(rendition, rows), strict=True):
            if part.num_rows:
                builder.add(part)
    return [builder.prepare_append(0, upper) for builder in builders]
