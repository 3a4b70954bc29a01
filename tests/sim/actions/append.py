"""Writing: appends to one shard or several at once, and seals."""

from typing import TYPE_CHECKING

from holdfast.errors import Determinate, Fenced, HandleExpired, Indeterminate, UpperMismatch
from sim.audit import Violation
from sim.history import MARKER, Fate, Update
from sim.rows import table

if TYPE_CHECKING:
    from sim.process import Incarnation


def append(me: "Incarnation", shard: str) -> None:
    _append(me, [shard])


def append_to_all(me: "Incarnation", shard: str) -> None:
    _append(me, me.world.shards)


def seal(me: "Incarnation", shard: str) -> None:
    _seal(me, shard, me.writer(shard).cached_upper + me.random.randint(0, 2))


def _append(me: "Incarnation", shards: list[str]) -> None:
    uppers = [_expected_upper(me, shard) for shard in shards]
    if len(set(uppers)) > 1:
        _seal(me, min(zip(uppers, shards, strict=True))[1], max(uppers))
    lower = max(uppers)
    upper = lower + me.random.randint(1, 3)
    before = {shard: me.auditor.state(shard).upper for shard in shards}
    write = me.history.begin(shards, lower, upper, new_updates(me, shards, lower, upper))
    try:
        writers = [me.writer(shard) for shard in shards]
        commands = [each.prepare_append(table(write.updates, each.schema), lower, upper) for each in writers]
        for shard, purpose in list(me.holds):
            if shard in shards and me.random.random() < 0.3:
                since = me.random.randint(0, lower + 1)
                me.auditor.may_move(shard, purpose, since)
                commands.append(me.holds[shard, purpose][0].prepare_downgrade(since))
        me.client.multi_write(commands)
    except UpperMismatch as mismatch:
        me.history.end(write, Fate.REJECTED)
        me.check_upper(mismatch.shard_id, before[mismatch.shard_id], mismatch.actual)
        if mismatch.actual == mismatch.expected:
            raise Violation(f"{mismatch} is no mismatch") from mismatch
    except (Indeterminate, HandleExpired):
        for shard in shards:
            me.writers.pop(shard, None)
    except Fenced:
        # By one of the holds: nothing of it happened.
        me.history.end(write, Fate.REJECTED)
        for shard in shards:
            me.holds = {place: hold for place, hold in me.holds.items() if place[0] != shard}
    except Determinate:
        me.history.end(write, Fate.REJECTED)
        raise
    else:
        me.history.end(write, Fate.DONE)
        for shard in shards:
            me.check_upper(shard, upper, me.auditor.state(shard).upper)


def _expected_upper(me: "Incarnation", shard: str) -> int:
    """Mostly what the process believes; now and then a guess."""
    writer = me.writer(shard)
    known = writer.upper() if me.world.shares_writers else writer.cached_upper
    return known if me.random.random() < 0.9 else max(0, known + me.random.randint(-3, 3))


def new_updates(me: "Incarnation", shards: list[str], lower: int, upper: int) -> list[Update]:
    """Some new rows, and retractions of old ones."""
    name = f"{len(me.history.writes)}"
    times = range(lower, upper)
    added = [
        (me.random.randint(0, 4), name, me.random.choice(times), me.random.choice([1, 1, 2]))
        for _ in range(me.random.randint(0, 3))
    ]
    done = [w for w in me.history.writes.values() if w.fate is Fate.DONE and set(shards) <= {*w.shards}]
    for earlier in me.random.sample(done, min(len(done), me.random.randint(0, 2))):
        key, value, _, diff = me.random.choice(earlier.updates)
        if key != MARKER:
            added.append((key, value, me.random.choice(times), -diff))
    return added


def _seal(me: "Incarnation", shard: str, upper: int) -> None:
    try:
        me.writer(shard).seal(upper)
    except (HandleExpired, Indeterminate):
        me.writers.pop(shard, None)
