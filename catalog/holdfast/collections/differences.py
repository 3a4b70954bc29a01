"""What differs at a handover, put into a shard for all who listen through it.

- Whoever makes it gets the same rows, under the same id of a shard: it is made once.
- It is on record with the rendition that took over, in one step with its rows. Whoever dies before that
  leaves a shard that nobody knows of; it is taken up by who makes it then, and ends with what it is for.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from uuid import UUID, uuid5

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.rendition_transitions import record_difference
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.collections.record.transitions import Origin
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.collections.uppers import View
from holdfast.errors import AsOfTooEarly, ShardFinalized
from holdfast.persist import PersistClient
from holdfast.persist.ids import shard_id

_PURPOSE: Final = "difference"


def difference_shard_id(location_id: UUID, collection_id: str, rendition_id: str) -> str:
    """The shard for what differs between a rendition and the one before it."""
    return shard_id(uuid5(location_id, f"difference {collection_id} {rendition_id}"))


def difference_shards(
    client: PersistClient, info: CollectionInfo, renditions: Iterable[RenditionInfo]
) -> list[str]:
    """The shards that there are for what differs at the handovers to these, on record or not."""
    ids = (difference_shard_id(client.location_id, info.collection_id, each.id) for each in renditions)
    return [each for each in ids if client.exists(each)]


def make_difference(
    client: PersistClient,
    log: ControllerLog,
    view: View,
    describe: Callable[[], CollectionInfo],
    origin: Origin,
) -> str | None:
    """As `Renditions.make_difference`, from a look at the collection."""
    info, new = view.info, view.info.holding
    old = info.held_before(new)
    if (
        new.difference_shard
        or old is None
        or new.copies(old)
        or min(view.uppers[each.id] for each in (old, new)) < new.held_from
    ):
        return new.difference_shard or None
    try:
        changed = _made(client, log, info, (old, new), describe, origin)
    except (AsOfTooEarly, ShardFinalized):
        return None  # Nobody holds the times before the handover any more.
    return changed.rendition(new.id).difference_shard or None


def _made(
    client: PersistClient,
    log: ControllerLog,
    info: CollectionInfo,
    handover: tuple[RenditionInfo, RenditionInfo],
    describe: Callable[[], CollectionInfo],
    origin: Origin,
) -> CollectionInfo:
    """The collection's record, with the shard where nobody else was faster."""
    old, new = handover
    shard = difference_shard_id(client.location_id, info.collection_id, new.id)
    with CollectionReader(client, info, describe, purpose=_PURPOSE) as reader:
        difference = reader.handed_over(old, new)
        pieces = iter(difference)
        # The schema is known with the first.
        first = next(pieces, None)
        if client.exists(shard):
            # Left by one who died before it was on record, maybe before the collection evolved.
            log.write([client.prepare_evolve(shard, difference.schema)])
        writer = client.writer(shard, difference.schema, purpose=_PURPOSE)
        with writer.batch_builder() as builder:
            builder.add(first)
            builder.add(pieces)
            hold = client.prepare_critical(shard, purpose=RETENTION_PURPOSE)
            # Uploaded before the commit, in which no other command of this process goes on.
            append = builder.prepare_append(0, new.held_from + 1).keep()
            command = partial(
                record_difference,
                collection_id=info.collection_id,
                rendition_id=new.id,
                shard=shard,
                origin=origin,
            )
            return log.commit(command, lambda _: [append, hold])
