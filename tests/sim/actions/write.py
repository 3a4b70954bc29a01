"""Writing in mode WRITE_SEAL, under the write lock: writes, seals, and both at once on several shards."""

from typing import TYPE_CHECKING

from holdfast.errors import Determinate, Fenced, HandleExpired, Indeterminate, UpperMismatch
from sim.actions.append import new_updates
from sim.history import Fate
from sim.rows import table

if TYPE_CHECKING:
    from sim.process import Incarnation


def write(me: "Incarnation", shard: str) -> None:
    _write(me, [shard], seal=False)


def write_to_all(me: "Incarnation", shard: str) -> None:
    _write(me, me.world.shards, seal=me.random.random() < 0.5)


def write_and_seal(me: "Incarnation", shard: str) -> None:
    _write(me, [shard], seal=True)


def seal_over(me: "Incarnation", shard: str) -> None:
    if not me.locked():
        return
    try:
        me.writer(shard).seal(me.writer(shard).cached_upper + me.random.randint(0, 4))
    except (HandleExpired, Indeterminate):
        me.writers.pop(shard, None)


def give_up_lock(me: "Incarnation", shard: str) -> None:
    if me.lock is not None:
        me.lock.close()
        me.lock = None


def _write(me: "Incarnation", shards: list[str], *, seal: bool) -> None:
    if not me.locked():
        return
    uppers = {shard: me.writer(shard).cached_upper for shard in shards}
    guess = me.random.randint(-3, 0) if me.random.random() < 0.1 else me.random.randint(0, 3)
    lower = max(0, max(uppers.values()) + guess)
    upper = lower + me.random.randint(1, 6)
    before = {shard: me.auditor.state(shard).upper for shard in shards}
    updates = new_updates(me, shards, lower, upper)
    write = me.history.begin(shards, lower, upper, updates, appended=False)
    try:
        commands = [
            me.writer(shard).prepare_write(table(write.updates, me.writer(shard).schema)) for shard in shards
        ]
        for shard in shards if seal else []:
            known = uppers[shard]
            commands.append(me.writer(shard).prepare_seal(known, known + me.random.randint(1, 6)))
        me.client.multi_write(commands)
    except UpperMismatch as mismatch:
        me.history.end(write, Fate.REJECTED)
        me.check_upper(mismatch.shard_id, before[mismatch.shard_id], mismatch.actual)
    except (Indeterminate, HandleExpired):
        for shard in shards:
            me.writers.pop(shard, None)
    except (Determinate, Fenced):
        me.history.end(write, Fate.REJECTED)
        raise
    else:
        me.history.end(write, Fate.DONE)
