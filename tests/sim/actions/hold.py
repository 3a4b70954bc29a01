"""Holds on `since`: leased holds that are moved, renewed and released, and critical holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.errors import Fenced, Indeterminate
from holdfast.persist.state.lock import LockRow

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
    if (shard, purpose) not in me.holds:
        hold = me.client.critical_since(shard, purpose=purpose)
        me.holds[shard, purpose] = (hold, b"")
        me.auditor.may_move(shard, purpose, hold.since)
        return
    hold, _ = me.holds[shard, purpose]
    since = me.random.randint(0, me.auditor.state(shard).upper + 2)
    me.auditor.may_move(shard, purpose, since)
    with fenced_rightly(me, shard, purpose):
        hold.downgrade(since)


def take_over_hold(me: "Incarnation", shard: str) -> None:
    """Put a token of one's own in the place of the one that is stored: who has that is fenced."""
    if not me.exists(shard) or not me.world.holds:
        return
    purpose = me.random.choice(me.world.holds)
    hold = me.client.critical_since(shard, purpose=purpose)
    me.auditor.may_move(shard, purpose, hold.since)
    me.holds[shard, purpose] = (hold, hold.opaque)
    token = me.random.randbytes(4)
    me.auditor.may_take_over(shard, hold.id, hold.opaque, token)
    with fenced_rightly(me, shard, purpose):
        hold.compare_and_downgrade(hold.opaque, token, hold.since)
        me.holds[shard, purpose] = (hold, token)


@contextmanager
def fenced_rightly(me: "Incarnation", shard: str, purpose: str) -> Iterator[None]:
    """Check that the block, which needs the token of a hold, went well or was fenced as the token demands."""
    hold, token = me.holds[shard, purpose]
    seqno = me.auditor.state(shard).seqno
    try:
        yield
    except Fenced as fenced:
        if isinstance(fenced.mine, LockRow):
            # By the write lock of the location: that has nothing to do with the hold.
            raise
        me.world.scheduler.meet("holders fenced", purpose)
        me.holds.pop((shard, purpose), None)
        me.auditor.check_fenced(shard, hold.id, token, seqno)
    except Indeterminate:
        # Whose token is stored now?
        me.holds.pop((shard, purpose), None)
        raise
    else:
        me.auditor.check_token(shard, hold.id, token, seqno)


def heartbeat(me: "Incarnation", shard: str) -> None:
    if shard in me.readers:
        me.readers[shard][0].heartbeat()


def close_reader(me: "Incarnation", shard: str) -> None:
    if shard in me.readers:
        me.listens.pop(shard, None)
        me.readers.pop(shard)[0].close()
