"""Reading: the newest upper, and snapshots with and without a lease."""

from typing import TYPE_CHECKING

from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly
from holdfast.persist import ReadHandle
from holdfast.persist.state.state import ShardState
from sim.rows import contents

if TYPE_CHECKING:
    from sim.process import Incarnation


def peek(me: "Incarnation", shard: str) -> None:
    before = me.auditor.state(shard)
    me.check_upper(shard, before.upper, me.client.recent_upper(shard))


def snapshot(me: "Incarnation", shard: str) -> None:
    if me.exists(shard):
        _snapshot(me, shard, me.reader(shard))


def observe(me: "Incarnation", shard: str) -> None:
    """Read without a lease: what is being read may go."""
    if me.exists(shard):
        known = me.observer.session.machine(shard).state
        _snapshot(me, shard, me.observing(shard), known if known.exists else None)


def _snapshot(me: "Incarnation", shard: str, reader: ReadHandle, known: ShardState | None = None) -> None:
    state = known or me.auditor.state(shard)
    as_of = me.random.randint(state.since, max(state.upper - 1, state.since))
    begun = me.history.now()
    try:
        found = contents(reader.snapshot(as_of).to_table())
    except AsOfNotYetAvailable:
        if as_of < state.upper:
            raise
    except AsOfTooEarly:
        me.check_too_early(shard, as_of, reader)
    else:
        me.history.read(me.who, shard, as_of, found, begun)
