"""Transactions: read the newest state of some shards, then write to some if none of them has changed since.

If a shard is only read, its upper is a condition of the multi-write. So reads and writes belong to one
moment, even if other processes write in between.
"""

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.errors import AsOfTooEarly, Determinate, HandleExpired, Indeterminate, UpperMismatch
from holdfast.persist.multi_write import Prepared
from sim.history import Fate, Row
from sim.rows import contents, table

if TYPE_CHECKING:
    from sim.process import Incarnation


def read_newest(me: "Incarnation", shard: str) -> None:
    """What a reader finds who asks for the upper first contains all that ended before."""
    begun = me.history.now()
    found = _newest(me, shard)
    if found is not None:
        upper, rows = found
        me.history.read(me.who, shard, upper - 1, rows, begun, newest=True)


def transact(me: "Incarnation", shard: str) -> None:
    """Read one or more shards; write to some of them, or to others too."""
    others = [other for other in me.world.shards if other != shard]
    read = [shard, *(other for other in others if me.random.random() < 0.5)]
    written = [each for each in me.world.shards if me.random.random() < (0.4 if each in read else 0.6)]
    begun = me.history.now()
    uppers = {}
    found: dict[str, Counter[Row]] = {}
    for each in read:
        newest = _newest(me, each)
        if newest is None:
            return
        uppers[each], found[each] = newest
    for each in written:
        uppers.setdefault(each, me.writer(each).cached_upper)
    lower = max(uppers[each] for each in written) if written else 0
    write = me.history.begin(written, lower, lower + 1, (), begun=begun, found=found)
    try:
        commands: list[Prepared] = []
        for each in uppers:
            if each in written:
                writer = me.writer(each)
                rows = table(write.updates, writer.schema)
                prepared = writer.prepare_append(rows, uppers[each], lower + 1)
            else:
                prepared = me.client.prepare_expect_upper(each, uppers[each])
            commands.append(prepared)
        me.client.multi_write(commands)
    except UpperMismatch:
        me.history.end(write, Fate.REJECTED)
    except (Indeterminate, HandleExpired):
        for each in written:
            me.writers.pop(each, None)
    except Determinate:
        me.history.end(write, Fate.REJECTED)
        raise
    else:
        me.history.end(write, Fate.DONE)


def _newest(me: "Incarnation", shard: str) -> tuple[int, Counter[Row]] | None:
    """The upper of a shard and its contents just before it; None where there are none any more."""
    upper = me.client.recent_upper(shard)
    if upper == 0:
        return None
    try:
        return upper, contents(me.reader(shard).snapshot(upper - 1).to_table())
    except AsOfTooEarly:
        me.check_too_early(shard, upper - 1)
        return None
