"""Holds on `since`: leased ones that are moved, kept alive and given up, and critical ones."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.process import Incarnation


def allow_compaction(me: "Incarnation", shard: str) -> None:
    if shard not in me.readers:
        return
    reader, held = me.readers[shard]
    upper = me.auditor.state(shard).upper
    since = me.random.choice([upper + 2, me.random.randint(0, upper)])
    me.readers[shard] = (reader, max(held, since))
    reader.allow_compaction(since)


def move_hold(me: "Incarnation", shard: str) -> None:
    if not me.exists(shard) or not me.world.holds:
        return
    purpose = me.random.choice(me.world.holds)
    hold = me.holds.get((shard, purpose))
    if hold is None:
        hold = me.holds[shard, purpose] = me.client.critical_since(shard, purpose=purpose)
        me.auditor.may_move(shard, purpose, hold.since)
        return
    since = me.random.randint(0, me.auditor.state(shard).upper + 2)
    me.auditor.may_move(shard, purpose, since)
    hold.downgrade(since)


def heartbeat(me: "Incarnation", shard: str) -> None:
    if shard in me.readers:
        me.readers[shard][0].heartbeat()


def close_reader(me: "Incarnation", shard: str) -> None:
    if shard in me.readers:
        me.listens.pop(shard, None)
        me.readers.pop(shard)[0].close()
