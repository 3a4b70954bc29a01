"""Following a shard: listens, and subscriptions, which begin with a snapshot."""

from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly
from holdfast.persist import Progress, Updates
from sim.audit import Violation
from sim.history import Followed
from sim.rows import contents

if TYPE_CHECKING:
    from sim.process import Incarnation


def start_following(me: "Incarnation", shard: str) -> None:
    if not me.exists(shard):
        return
    reader = me.reader(shard)
    begun = me.history.now()
    state = me.auditor.state(shard)
    as_of = me.random.randint(state.since, max(state.upper - 1, state.since))
    try:
        listen = me.random.choice([reader.listen, reader.subscribe])(as_of)
    except AsOfTooEarly:
        me.check_too_early(shard, as_of)
        return
    except AsOfNotYetAvailable:
        return
    followed = Followed(me.who, shard, as_of + 1, as_of + 1, begun)
    me.history.followed.append(followed)
    me.listens[shard] = (listen, followed)


def follow(me: "Incarnation", shard: str) -> None:
    if shard not in me.listens:
        return
    listen, followed = me.listens[shard]
    try:
        events = listen.next(timeout=0)
    except AsOfTooEarly:
        del me.listens[shard]
        me.check_too_early(shard, followed.frontier - 1)
        return
    for event in events:
        match event:
            case Updates(found):
                times = found.column("_time").to_pylist()
                if times and min(times) < followed.lower:
                    _take_snapshot(me, shard, followed, found)
                    continue
                if times and min(times) < followed.frontier:
                    raise Violation(f"{me.who}: updates at {min(times)} after {followed.frontier}")
                columns = [found.column(name).to_pylist() for name in ("k", "v", "_time", "_diff")]
                for key, value, time, diff in zip(*columns, strict=True):
                    followed.updates[key, value, time] += diff
            case Progress(frontier):
                if frontier < followed.frontier:
                    raise Violation(f"{me.who}: progress went from {followed.frontier} to {frontier}")
                followed.frontier = frontier


def _take_snapshot(me: "Incarnation", shard: str, followed: Followed, found: pa.Table) -> None:
    """The first updates of a subscription are the contents at its beginning."""
    as_of = followed.lower - 1
    if set(found.column("_time").to_pylist()) != {as_of}:
        raise Violation(f"{me.who}: a subscription at {as_of} begins with other times")
    me.history.read(me.who, shard, as_of, contents(found.drop_columns(["_time"])), followed.begun)
