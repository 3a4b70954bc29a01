"""The difference at a handover, stored in a shard for all who listen through it.

- Every process that makes it gets the same rows and the same shard id, so it is made once.
- The record of the new rendition names it, in the same commit as its rows. A process that dies before that
  leaves an empty shard that no record names. The next process that makes the difference reuses it, and it is
  finalized with its rendition or collection.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final
from uuid import UUID, uuid5

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.frontiers import CollectionView
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.rendition_transitions import record_difference
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.collections.record.transitions import Origin
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.errors import AsOfTooEarly, ShardFinalized
from holdfast.persist import PersistClient
from holdfast.persist.ids import shard_id

_PURPOSE: Final = "difference"


def difference_shard_id(location_id: UUID, collection_id: str, rendition_id: str) -> str:
    """The shard for the difference between a rendition and the one before it."""
    return shard_id(uuid5(location_id, f"difference {collection_id} {rendition_id}"))


def difference_shards(
    client: PersistClient, info: CollectionInfo, renditions: Iterable[RenditionInfo]
) -> list[str]:
    """The existing difference shards of these renditions, recorded or not."""
    ids = (difference_shard_id(client.location_id, info.collection_id, each.id) for each in renditions)
    return [each for each in ids if client.exists(each)]


def make_difference(
    client: PersistClient,
    log: ControllerLog,
    view: CollectionView,
    describe: Callable[[], CollectionInfo],
    origin: Origin,
) -> str | None:
    """See `Renditions.make_difference`. `view` is the current state of the collection."""
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
        return None  # The times before the handover are not held any more.
    return changed.rendition(new.id).difference_shard or None


def _made(
    client: PersistClient,
    log: ControllerLog,
    info: CollectionInfo,
    handover: tuple[RenditionInfo, RenditionInfo],
    describe: Callable[[], CollectionInfo],
    origin: Origin,
) -> CollectionInfo:
    """Make the difference. Returns the collection's record with its shard."""
    old, new = handover
    shard = difference_shard_id(client.location_id, info.collection_id, new.id)
    with CollectionReader(client, info, describe, purpose=_PURPOSE, stored=True) as reader:
        difference = reader.handed_over(old, new)
        pieces = iter(difference)
        # The schema is known once the first piece is read.
        first = next(pieces, None)
        if client.exists(shard):
            # A process died before the difference was recorded, maybe before the collection evolved.
            log.write([client.prepare_evolve(shard, difference.schema)])
        writer = client.writer(shard, difference.schema, purpose=_PURPOSE)
        with writer.batch_builder() as builder:
            builder.add(first)
            builder.add(pieces)
            hold = client.prepare_critical(shard, purpose=RETENTION_PURPOSE)
            # Upload before the commit: no other command of this process runs during it.
            append = builder.prepare_append(0, new.held_from + 1).keep()
            command = partial(
                record_difference,
                collection_id=info.collection_id,
                rendition_id=new.id,
                shard=shard,
                origin=origin,
            )
            return log.commit(command, lambda _: [append, hold])
