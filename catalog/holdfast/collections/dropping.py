"""Drops a collection: waits for its readers for a limited time, or cuts them off by force.

A process that ended without close leaves a hold that ends when its lease does. No other process may be there
to notice that. So the drop watches the leases itself, from its beginning. The readers of tables have leases
of a minute, so such a process blocks a drop for no longer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.collections.controller import StorageController
from holdfast.collections.record.jobs import JobState
from holdfast.collections.record.spec import CollectionInfo, CollectionState
from holdfast.errors import CollectionInUse, CollectionNotFound

WAIT_S: Final = 75.0
"""How long a drop waits for readers, in seconds: for the lease of a table's reader, and a little more."""

_LOOK_EVERY_S: Final = 0.5

OnWait = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A collection that was dropped, and the holds and jobs that the drop cut off, as text."""

    info: CollectionInfo
    cut_off: tuple[str, ...] = ()


def to_drop(controller: StorageController, id_or_name: str) -> tuple[CollectionInfo, ...]:
    """The collection with this id or name, or the dropped ones that still have data. Writes nothing.

    Raises `CollectionNotFound` if there is neither.
    """
    try:
        return (controller.describe(id_or_name),)
    except CollectionNotFound:
        # A drop that was interrupted may have left data.
        left = controller.unerased(id_or_name)
        if not left:
            raise
        return left


def users(controller: StorageController, info: CollectionInfo) -> tuple[str, ...]:
    """Who uses a collection, as text: its holds, except for its own, and its running jobs."""
    if info.state is CollectionState.DROPPED:
        return ()
    held = {str(hold) for hold in controller.holds(info.collection_id) if not hold.own}
    jobs = [each for each in controller.jobs(info.collection_id) if each.state is JobState.RUNNING]
    return (*sorted(held), *map(str, jobs))


def refuse_durable_holds(controller: StorageController, info: CollectionInfo) -> None:
    """Raise `CollectionInUse` if somebody holds the collection who does not end by itself."""
    if info.dropped:
        return
    keepers = {str(hold) for hold in controller.holds(info.collection_id) if hold.durable and not hold.own}
    if keepers:
        raise CollectionInUse(
            f"collection {info.name} is still held by {', '.join(sorted(keepers))}; nothing was changed",
            hint="end these holds ('holdfast collection release'), or drop it by force, with --force",
        )


def drop(
    controller: StorageController,
    info: CollectionInfo,
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    on_wait: OnWait = lambda _: None,
    on_cut_off: OnWait = lambda _: None,
) -> Dropped:
    """Drop a collection and delete its data now.

    Waits up to `wait_s` seconds for its readers, and calls `on_wait` with those that it waits for. With
    `force`, it cuts them off, and calls `on_cut_off` with each one before that. An interrupted drop continues
    if you call this again. Raises `CollectionInUse` for a hold that outlives its process (nothing is changed
    then), and if somebody still uses the collection after the wait (nobody can open it any more then).
    """
    id_ = info.collection_id
    cut_off: tuple[str, ...] = ()
    if force:
        cut_off = users(controller, info)
        for each in cut_off:
            on_cut_off(each)
        controller.drop_collection(id_, force=True)
    else:
        refuse_durable_holds(controller, info)
        _drop_when_free(controller, info, wait_s, on_wait)
    controller.erase_collection(id_)
    return Dropped(info, cut_off)


def _drop_when_free(
    controller: StorageController, info: CollectionInfo, wait_s: float, on_wait: OnWait
) -> None:
    client = controller.client
    until = client.clock.monotonic() + wait_s
    while True:
        try:
            controller.drop_collection(info.collection_id)
            return
        except CollectionInUse:
            waits_for = users(controller, info)
            if client.clock.monotonic() >= until:
                raise
        on_wait(", ".join(waits_for))
        for shard in (info.metadata_shard, *info.data_shards):
            client.end_silent_leases(shard)
        client.clock.sleep(_LOOK_EVERY_S)
