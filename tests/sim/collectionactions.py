"""The actions of a simulated process on a collection: it writes, reads, follows, hands over and cleans up."""

from typing import TYPE_CHECKING

from holdfast.collections import CollectionWriter, Recipe
from holdfast.collections.frontiers import PROMISE_MS
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    Determinate,
    Fenced,
    HandleExpired,
    HandoverInProgress,
    Indeterminate,
    NotCaughtUp,
    UpperMismatch,
)
from sim.audit import Violation
from sim.collectionfollower import Follower
from sim.collectionsource import aligned
from sim.collectionwitness import NAME, contents
from sim.history import MARKER, Fate, Update
from sim.rows import LATER, table

if TYPE_CHECKING:
    from sim.collectionprocess import Incarnation

STEPS = (1, 1, 3, 3, 4_000, 11_000)
"""How far a write goes; the promise is 10,000 ahead of one that moves it."""


def write(me: "Incarnation") -> None:
    if (writer := _writer(me)) is None:
        return
    before = me.world.upper
    # Mostly what is true; now and then what was believed, or a guess.
    if me.random.random() < 0.7:
        lower = writer.upper()
        me.told_upper(before, lower)
    else:
        lower = max(0, before + me.random.choice([-1, 0, 0, 1]))
    upper = lower + me.random.choice(STEPS)
    updates = new_updates(me, lower, upper)
    done = me.history.begin([NAME], lower, upper, updates)
    before = me.world.upper
    fed = _Fed(me)
    try:
        writer.append(table(done.updates, writer.schema), lower, upper)
    except UpperMismatch as mismatch:
        me.history.end(done, Fate.REJECTED)
        me.told_upper(before, mismatch.actual)
        if mismatch.actual == lower:
            raise Violation(f"{mismatch} is no mismatch") from mismatch
    except (Indeterminate, HandleExpired):
        me.writer = None
    except BadInput as error:
        me.history.end(done, Fate.REJECTED)
        fed.refuse_unless_so(error)
        me.writer = None
    except Determinate:
        me.history.end(done, Fate.REJECTED)
        raise
    else:
        me.history.end(done, Fate.DONE)
        me.told_upper(before, upper)


def _writer(me: "Incarnation") -> CollectionWriter | None:
    """What writes the collection; nothing where only a pipeline does."""
    fed = _Fed(me)
    try:
        me.writer = me.writer or me.controller.writer(NAME, purpose=me.who)
    except BadInput as error:
        fed.refuse_unless_so(error)
    return me.writer


class _Fed:
    """Whether the collection is fed by a source at any time from now on."""

    def __init__(self, me: "Incarnation") -> None:
        self._me = me
        self._was = self._is()
        self._turns = me.world.auditor.turns

    def _is(self) -> bool:
        return self._me.world.auditor.record.holding.recipe is Recipe.SOURCE

    def refuse_unless_so(self, error: Exception) -> None:
        """Refuse that a writer was turned away from a collection that anybody may write."""
        self._me.meet("writers turned away")
        if not (self._was or self._is() or self._turns < self._me.world.auditor.turns):
            raise Violation(f"{self._me.who}: refused: {error}") from error


def new_updates(me: "Incarnation", lower: int, upper: int) -> list[Update]:
    """Some new rows, at the first and the last times above all, and retractions of old ones."""
    name = f"{len(me.history.writes)}"
    times = [lower, lower, upper - 1, me.random.randrange(lower, upper)]
    added = [
        (me.random.randint(0, 4), name, me.random.choice(times), me.random.choice([1, 1, 2]))
        for _ in range(me.random.randint(0, 3))
    ]
    earlier = [each for each in me.history.writes.values() if each.fate is Fate.DONE]
    if earlier:
        key, value, _, diff = me.random.choice(me.random.choice(earlier).updates)
        if key != MARKER:
            added.append((key, value, me.random.choice(times), -diff))
    return added


def read(me: "Incarnation") -> None:
    reader, held = me.reader()
    before, begun = me.world.upper, me.history.now()
    upper = reader.upper()
    me.told_upper(before, upper)
    if upper <= held:
        return
    newest = me.random.random() < 0.5
    as_of = upper - 1 if newest else me.random.randint(held, upper - 1)
    try:
        as_of, found = contents(reader, None if newest else as_of)
        if newest and as_of + 1 < upper:
            raise Violation(f"{me.who}: the newest is {as_of}, and the upper was {upper}")
    except AsOfTooEarly:
        me.refuse_too_early(as_of, held)
    else:
        me.history.read(me.who, NAME, as_of, found, begun, newest=newest)
    if not me.world.follows:
        me.readers.remove((reader, held))
        reader.close()


def follow(me: "Incarnation") -> None:
    if not me.followers or me.random.random() < 0.2:
        reader, held = me.reader()
        as_of = max(held, me.random.choice([held, me.world.upper - 1, me.world.upper + 1]))
        try:
            me.followers.append(Follower(reader.listen(as_of), me.who, as_of + 1, me.history))
        except AsOfTooEarly:
            me.refuse_too_early(as_of, held)
        return
    follower = me.random.choice(me.followers)
    me.followers.remove(follower)  # One that failed has lost its place.
    try:
        while follower.follow(0):
            pass
    except AsOfTooEarly:
        if not me.world.leases_end:
            raise
        return
    me.followers.append(follower)


def let_go(me: "Incarnation") -> None:
    if not me.readers:
        return
    reader, held = me.readers.pop(me.random.randrange(len(me.readers)))
    since = me.random.choice([held, me.world.upper, me.world.upper])
    # What was asked for may be done although the answer was lost.
    if all(each.followed.frontier > since for each in me.followers):
        reader.allow_compaction(since)
        me.readers.append((reader, max(held, since)))
    else:
        me.readers.append((reader, held))


def close(me: "Incarnation") -> None:
    if me.readers and not me.followers:
        me.readers.pop()[0].close()


def stop_following(me: "Incarnation") -> None:
    me.followers.clear()


def retain(me: "Incarnation") -> None:
    upper = me.world.upper
    me.controller.set_retention_hold(NAME, me.random.choice([upper, upper, upper // 2]))
    drop_retired(me)


def make_rendition(me: "Incarnation") -> None:
    if me.hydrating(Recipe.COPY) is None or me.random.random() < 0.2:
        me.controller.renditions.create(NAME, shards=me.random.randint(1, 3))


def catch_up(me: "Incarnation") -> None:
    if rendition := me.hydrating(Recipe.COPY):
        try:
            if me.random.random() < 0.4:
                me.controller.hydrate(NAME, rendition)
            else:
                me.controller.renditions.catch_up(NAME, rendition)
        except Fenced:
            me.meet("hydrations fenced")
        except BadInput as error:
            me.refuse_unless_changed(rendition, error)


def hand_over(me: "Incarnation") -> None:
    if (rendition := me.hydrating()) is None:
        return
    recipe = me.controller.describe(NAME).rendition(rendition).recipe
    before = me.world.upper
    at = me.random.choice([None, None, before + 5])
    if Recipe.SOURCE in {recipe, me.world.auditor.record.holding.recipe}:
        # Beyond the promise, where something comes or has just come.
        at = aligned(before + PROMISE_MS, me.random)
    try:
        if recipe is Recipe.COPY and me.random.random() < 0.5:
            me.controller.renditions.catch_up(NAME, rendition)
        held = me.controller.renditions.hand_over(NAME, rendition, at=at, max_lag_ms=20_000)
    except NotCaughtUp:
        return
    except HandoverInProgress:
        me.meet("handovers that wait for a source")
        return
    except BadInput as error:
        me.refuse_unless_changed(rendition, error)
        return
    me.meet(f"handovers to {recipe.name}", f"to {rendition} at {held.held_from}")
    if recipe is not Recipe.SOURCE:
        me.told_upper(min(before, held.held_from), held.held_from)


def abort(me: "Incarnation") -> None:
    if rendition := me.hydrating():
        try:
            me.controller.renditions.abort(NAME, rendition)
        except BadInput as error:
            me.refuse_unless_changed(rendition, error)
        else:
            me.meet("renditions aborted")


def make_difference(me: "Incarnation") -> None:
    if me.controller.renditions.make_difference(NAME) is not None:
        me.meet("differences made or found")


def evolve(me: "Incarnation") -> None:
    me.controller.evolve_collection(NAME, LATER)


def advance(me: "Incarnation") -> None:
    for step in me.controller.advance(NAME).steps:
        me.meet(f"advanced: {step.kind.value}")


def drop_retired(me: "Incarnation") -> None:
    for rendition in me.controller.renditions.drop_retired(NAME):
        me.meet("renditions dropped", rendition)


def maintain(me: "Incarnation") -> None:
    info = me.controller.describe(NAME)
    shard = me.random.choice([info.metadata_shard, me.controller.shard_id, *info.data_shards])
    if not me.world.auditor.state(shard).finalized:
        me.client.maintain(shard)
