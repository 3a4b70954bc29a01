"""Moves the holds that a collection has on itself for its retention."""

from collections.abc import Callable
from typing import Final

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.frontiers import retained_since
from holdfast.collections.record.spec import CollectionInfo
from holdfast.errors import ShardFinalized
from holdfast.persist import PersistClient, Prepared

RETENTION_PURPOSE: Final = "retention"
"""The purpose of the critical holds that a collection has on its own shards."""


def retention_since(info: CollectionInfo, since: int, upper: int) -> int | None:
    """Where the since of a collection should move by its own policy. None if it should stay.

    It stays if it would move by less than a hundredth of what the collection keeps, because each move costs
    commits. It also stays until the collection is older than that, so that reads before its creation go on.
    """
    if info.retain_ms is None:
        return None
    target = max(upper - 1, 0) - info.retain_ms
    worthwhile = target - since >= max(info.retain_ms // 100, 1)
    return target if worthwhile and target >= info.created_ms else None


def move_retention(
    client: PersistClient,
    log: ControllerLog,
    info: CollectionInfo,
    since: int,
    describe: Callable[[], CollectionInfo],
) -> int:
    """Move the retention holds of a collection to `since`. Returns the collection's since afterwards.

    If the collection is dropped during the call, raises what `describe` raises.
    """
    # The metadata first: how far the data shards may move depends on its since.
    try:
        log.write(_moved(client, info.metadata_shard, since))
    except ShardFinalized:
        describe()
        raise
    kept = client.inspect(info.metadata_shard).since
    while True:
        moves = [
            _moved(client, shard, retained_since(since, kept, rendition.start))
            for rendition in info.held
            for shard in rendition.written_shards
        ]
        try:
            log.write([step for move in moves for step in move])
        except ShardFinalized:
            # A retired rendition was dropped meanwhile. Move the holds of the others.
            before, info = info, describe()
            if info.held == before.held:
                raise
        else:
            return kept


def _moved(client: PersistClient, shard: str, since: int) -> list[Prepared]:
    return [
        client.prepare_critical(shard, purpose=RETENTION_PURPOSE),
        client.prepare_downgrade_critical(shard, since, purpose=RETENTION_PURPOSE),
    ]
