"""Upkeep of a shard, changes of its schema, and time that passes without work."""

from typing import TYPE_CHECKING

from holdfast.persist.admin.sweep import sweep
from sim.rows import LATER

if TYPE_CHECKING:
    from sim.process import Incarnation


def maintain(me: "Incarnation", shard: str) -> None:
    if shard in me.readers:
        me.readers[shard][0].heartbeat()
    me.client.maintain(shard)
    _sweep(me)


def evolve(me: "Incarnation", shard: str) -> None:
    if not me.exists(shard):
        return
    me.client.evolve(shard, LATER)
    # The next writer may have either schema.
    if shard in me.writers:
        me.writers.pop(shard).close()


def time_passes(me: "Incarnation", shard: str) -> None:
    me.exposure.jump(me.random.choice([-5.0, 5.0]))
    me.world.scheduler.sleep(me.random.choice([0.01, 0.1, 0.5]))
    _sweep(me)


def _sweep(me: "Incarnation") -> None:
    if me.world.sweeps:
        for swept in sweep(me.client, older_than_s=me.world.longest_upload_s, delete=True):
            me.world.scheduler.note(f"swept {len(swept.orphans)} of {swept.shard_id[:5]}")
