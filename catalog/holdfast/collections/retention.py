"""How a collection's own hold keeps what was until `retention` lets it go."""

from collections.abc import Callable
from typing import Final

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.frontiers import retained_since
from holdfast.collections.record.spec import CollectionInfo
from holdfast.errors import ShardFinalized
from holdfast.persist import PersistClient, Prepared

RETENTION_PURPOSE: Final = "retention"
"""The purpose of the critical holds that a collection has on its own shards."""


def move_retention(
    client: PersistClient,
    log: ControllerLog,
    info: CollectionInfo,
    since: int,
    describe: Callable[[], CollectionInfo],
) -> int:
    """Let a collection's own holds follow to `since`; answers the collection's since then.

    Raises what `describe` raises where the collection is dropped meanwhile.
    """
    # The metadata first: how far the data may follow is known when it has moved.
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
            for shard in rendition.shards
        ]
        try:
            log.write([step for move in moves for step in move])
        except ShardFinalized:
            # Somebody dropped a rendition that had retired: the others follow without it.
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
