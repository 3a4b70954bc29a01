"""Pipelines and restores in a simulated collection. They fill renditions from sources outside of it."""

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.collections import Recipe, RenditionState, RenditionWriter
from holdfast.errors import (
    BadInput,
    HandedOver,
    HandleExpired,
    HandoverInProgress,
    Indeterminate,
    NotCaughtUp,
    UpperMismatch,
)
from sim.audit import Violation
from sim.collectionsource import Snapshot, aligned, source_updates
from sim.collectionwitness import NAME
from sim.rows import table

if TYPE_CHECKING:
    from sim.collectionprocess import Incarnation

STEPS = (1, 3, 2_000, 15_000)
"""How far a pipeline goes at once, where it does not go as far as the collection is."""


def make_source(me: "Incarnation") -> None:
    if me.hydrating(Recipe.SOURCE) is None or me.random.random() < 0.1:
        me.controller.renditions.create(NAME, shards=me.random.randint(1, 3), recipe=Recipe.SOURCE)


def feed(me: "Incarnation") -> None:
    live = me.controller.describe(NAME).live
    if not (fed := [each.id for each in live if each.recipe is Recipe.SOURCE]):
        return
    rendition = me.random.choice(fed)
    try:
        pipeline = _pipeline(me, rendition)
        # Mostly where it is; now and then where it was when this process last heard of it.
        asks = rendition not in me.believed or me.random.random() < 0.7
        upper = pipeline.upper() if asks else me.believed[rendition]
    except BadInput as error:
        _refuse_unless_gone(me, rendition, error)
        return
    lower = upper or me.random.choice([0, 0, max(me.world.upper - 3, 0), aligned(0, me.random)])
    ends = [lower + step for step in STEPS]
    ends.append(max(me.world.upper + me.random.choice([0, 1, 5]), lower + 1))
    _fed(me, pipeline, lower, me.random.choice(ends), begins=upper == 0)


def _pipeline(me: "Incarnation", rendition: str) -> RenditionWriter:
    """The one that this process has, or another one, of which some compare what they lost."""
    if rendition not in me.pipelines:
        # Those that compare what they lost have to begin where all do.
        auditor = me.world.auditor
        begun = any(auditor.state(shard).upper for shard in auditor.record.rendition(rendition).shards)
        replicated = begun and me.random.random() < 0.2
        pipeline = me.controller.rendition_writer(NAME, rendition, purpose=me.who, replicated=replicated)
        me.pipelines[rendition] = pipeline
        if me.process.incarnations > 1 and pipeline.upper() > 0:
            me.meet("pipelines that went on after a death", rendition)
    return me.pipelines[rendition]


def _fed(me: "Incarnation", pipeline: RenditionWriter, lower: int, upper: int, *, begins: bool) -> None:
    rendition = pipeline.rendition
    updates = tuple(source_updates(rendition.id, lower, upper))
    try:
        pipeline.append(table(updates, pipeline.schema) if updates else None, lower, upper)
    except UpperMismatch as mismatch:
        if mismatch.actual == lower:
            raise Violation(f"{mismatch} is no mismatch") from mismatch
        me.believed[rendition.id] = mismatch.actual
        me.meet("pipelines that another one was ahead of", rendition.id)
    except HandedOver as over:
        me.meet("pipelines told of a handover", rendition.id)
        if over.at >= upper:
            raise Violation(f"{me.who}: {over} is no reason to refuse [{lower}, {upper})") from over
        if lower < over.at:
            _fed(me, pipeline, lower, over.at, begins=begins)
    except BadInput as error:
        _refuse_unless_gone(me, rendition.id, error)
    except (Indeterminate, HandleExpired):
        me.pipelines.pop(rendition.id, None)
        me.believed.pop(rendition.id, None)
    else:
        me.believed[rendition.id] = upper
        state = me.world.auditor.record.rendition(rendition.id).state
        me.meet(f"fed while {state.name}", f"{rendition.id} to {upper}")
        if begins and lower:
            me.meet("sources that began late", f"{rendition.id} at {lower}")


def restore(me: "Incarnation") -> None:
    process, world = me.process, me.world
    if process.restoring is None:
        if not world.snapshots or me.random.random() < 0.7:
            reads = me.history.reads
            found = me.random.choice(reads).contents if reads else Counter()
            name = f"snapshot {len(world.snapshots)}"
            world.snapshots.append(Snapshot.of(name, found, world.scheduler.pause))
        process.named += 1
        process.restoring = (me.random.choice(world.snapshots), f"{process.name} restores {process.named}")
    else:
        me.meet("restores gone on with")
    source, command_id = process.restoring
    try:
        made = me.controller.restore_collection(NAME, source, command_id=command_id)
    except HandoverInProgress:
        me.meet("handovers that wait for a source")
    except BadInput as error:
        if not any(each.state is RenditionState.ABORTED for each in world.auditor.record.renditions):
            raise Violation(f"{me.who}: refused: {error}") from error
        process.restoring = None
    except NotCaughtUp:
        # It was given up while it was filled.
        pass
    else:
        process.restoring = None
        me.meet("restores", f"{made.id} at {made.held_from}")


def _refuse_unless_gone(me: "Incarnation", rendition: str, error: BadInput) -> None:
    """A rendition may be gone; else its pipeline is wrongly refused."""
    me.pipelines.pop(rendition, None)
    if not me.controller.describe(NAME).rendition(rendition).dropped:
        raise Violation(f"{me.who}: refused: {error}") from error
