"""Decides what is due next for a collection, and what the rest waits for. Any process may then do it.

- All that is due follows from stored state: the record, the uppers of the shards, and the holds. So any
  process may do it repeatedly, and continue what another process left half-done.
- Nothing is due that a user must request: no rendition is created, handed over to, or given up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from holdfast.collections.capabilities import CollectionHold
from holdfast.collections.record.jobs import JobRecord
from holdfast.collections.record.spec import (
    CollectionInfo,
    CollectionState,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.errors import CollectionInUse


class StepKind(Enum):
    """The kinds of work that may be due."""

    TAIL = "copy what was written before it took over"
    RELEASE = "release the hold for filling it"
    DROP_RENDITION = "drop it"
    DROP_COLLECTION = "drop the collection"
    DIFFERENCE = "store the differences at its handover, for those who listen through it"


@dataclass(frozen=True, slots=True)
class AdvanceStep:
    """Work that is due for the collection or for one of its renditions."""

    kind: StepKind
    rendition: str = ""

    def __str__(self) -> str:
        return f"{self.rendition}: {self.kind.value}" if self.rendition else self.kind.value


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rendition, or the collection if `rendition` is empty, waits for, as text."""

    rendition: str
    why: str

    def __str__(self) -> str:
        return f"{self.rendition}: {self.why}" if self.rendition else self.why


@dataclass(frozen=True, slots=True)
class Due:
    """The work that is due (as a result of `advance`: the work done), and what the rest waits for."""

    steps: tuple[AdvanceStep, ...]
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the decision depends on.

    `uppers` are those of the live renditions. `since` and `upper` are the collection's. `jobs` are the
    running jobs of a collection that is being dropped.
    """

    info: CollectionInfo
    uppers: Mapping[str, int]
    since: int
    upper: int
    holds: tuple[CollectionHold, ...]
    jobs: tuple[JobRecord, ...] = ()


def due(now: Situation) -> Due:
    """Return what is due, in the order in which it can be done, and what the rest waits for."""
    info = now.info
    match info.state:
        case CollectionState.CREATING | CollectionState.DROPPED:
            return Due((), ())
        case CollectionState.DROPPING:
            held = [f"held by {_keeper(hold)}" for hold in now.holds if not hold.own]
            used = [f"in use by {job}" for job in now.jobs]
            if not (held or used):
                return Due((AdvanceStep(StepKind.DROP_COLLECTION),), ())
            return Due((), tuple(Wait("", why) for why in (*held, *used)))
        case CollectionState.ACTIVE:
            each = [_due_of(now, rendition) for rendition in info.live]
            return Due(
                tuple(sorted((step for one in each for step in one.steps), key=_order)),
                tuple(wait for one in each for wait in one.waits),
            )
        case _:
            assert_never(info.state)


def _order(step: AdvanceStep) -> int:
    return list(StepKind).index(step.kind)


def _due_of(now: Situation, rendition: RenditionInfo) -> Due:
    match rendition.state:
        case RenditionState.HYDRATING:
            return Due((), (Wait(rendition.id, _missing(now, rendition)),))
        case RenditionState.HOLDING:
            return _due_of_holding(now, rendition)
        case RenditionState.RETIRED:
            return _due_of_retired(now, rendition)
        case RenditionState.DROPPED | RenditionState.ABORTED:
            return Due((), ())
        case _:
            assert_never(rendition.state)


def _missing(now: Situation, rendition: RenditionInfo) -> str:
    upper = now.uppers[rendition.id]
    if rendition.suspect:
        return f"suspect: {rendition.suspect}; abort it"
    match rendition.recipe:
        case Recipe.COPY:
            return f"filled up to {upper}, and the collection up to {now.upper}; hand over to it, or abort it"
        case Recipe.SOURCE:
            return (
                f"its source has written up to {upper}, and the collection is complete up to {now.upper};"
                " hand over to it, or abort it"
            )
        case Recipe.RESTORED:
            return "filled; run the restore again, or abort it" if upper else "not filled: restore again"
        case _:
            assert_never(rendition.recipe)


def _due_of_holding(now: Situation, rendition: RenditionInfo) -> Due:
    upper = now.uppers[rendition.id]
    if upper >= rendition.held_from:
        return Due((*_release(now, rendition), *_difference(now, rendition)), ())
    if rendition.recipe is not Recipe.SOURCE:
        return Due((AdvanceStep(StepKind.TAIL, rendition.id),), ())
    why = f"took over at {rendition.held_from}, but its source has written only up to {upper}"
    return Due((), (Wait(rendition.id, why),))


def _due_of_retired(now: Situation, rendition: RenditionInfo) -> Due:
    steps = _release(now, rendition)
    written = now.uppers[rendition.id]
    if written < rendition.held_to:
        why = f"was current up to {rendition.held_to}, but its source has written only up to {written}"
        return Due(steps, (Wait(rendition.id, why),))
    if now.since >= rendition.held_to:
        return Due((*steps, AdvanceStep(StepKind.DROP_RENDITION, rendition.id)), ())
    keepers = [hold for hold in now.holds if rendition.id in hold.keeps]
    waits = tuple(Wait(rendition.id, f"kept by {_keeper(hold)}") for hold in keepers)
    # If nobody moves the since, it stays at the last hold, even after that hold ended.
    why = f"its times are readable until the since of the collection, {now.since}, is {rendition.held_to}"
    return Due(steps, waits or (Wait(rendition.id, why),))


def _release(now: Situation, rendition: RenditionInfo) -> tuple[AdvanceStep, ...]:
    # Only the critical hold. The lease of a process that fills it, or that died, ends by itself.
    purpose = rendition_hold(rendition.id)
    held = any(hold.own and hold.durable and hold.purpose == purpose for hold in now.holds)
    return (AdvanceStep(StepKind.RELEASE, rendition.id),) if held else ()


def _difference(now: Situation, rendition: RenditionInfo) -> tuple[AdvanceStep, ...]:
    # The conditions of `Renditions.make_difference`: both are complete before the handover, which is
    # readable.
    before = now.info.held_before(rendition)
    if rendition.difference_shard or before is None or before.state is not RenditionState.RETIRED:
        return ()
    if rendition.copies(before):
        return ()
    written = min(now.uppers[each.id] for each in (before, rendition))
    if now.since < rendition.held_from <= written:
        return (AdvanceStep(StepKind.DIFFERENCE, rendition.id),)
    return ()


def _keeper(hold: CollectionHold) -> str:
    text = str(hold)
    if hold.who:
        text += f" by {hold.who}"
    if hold.since is not None:
        text += f" at {hold.since}"
    if hold.age_ms is not None:
        text += f", for {hold.age_ms // 1000} s"
    return text


def advance(look: Callable[[], Situation], do: Callable[[AdvanceStep], None]) -> Due:
    """Do what is due until nothing is. Returns what was done and what the rest waits for.

    Nothing is done twice. If the same work is due again, another process made it so, and the next call does
    it.
    """
    done: list[AdvanceStep] = []
    while True:
        now = due(look())
        fresh = [step for step in now.steps if step not in done]
        if not fresh:
            return Due(tuple(done), now.waits)
        for step in fresh:
            try:
                do(step)
            except CollectionInUse:
                # Somebody took a hold since the decision.
                continue
            done.append(step)
