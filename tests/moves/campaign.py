"""The parts of the proof that the tests run, and the larger ones of `make soak`."""

from collections.abc import Iterator
from itertools import product

from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import Backend, Strategy
from moves.acts import ENDS_LINK, GIVES_UP, STARTS, Act, given_up
from moves.crashes import Visited
from moves.decisions import Decisions
from moves.explorer import Explored
from moves.interleavings import Meeting, meetings

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES


def all_acts() -> Iterator[Act]:
    """Everything that is broken off: moves, ways back, giving up either; first opens, ends of links."""
    for strategy, target, verify in product(Strategy, Backend, Verify):
        for start in ("linked", "older", "unlinked", "older, unlinked"):
            yield Act("migrate", strategy, target, start, verify)
        for start in ("linked", "older"):
            yield Act("roll back", strategy, target, start, verify)
    for strategy, target in product(Strategy, Backend):
        for start in STARTS:
            yield Act("open", strategy, target, start)
        for kind in GIVES_UP:
            yield from given_up(kind, strategy, target)
    for strategy, kind, start in product(Strategy, ENDS_LINK, ("linked", "moved")):
        yield Act(kind, strategy, Backend.STASH, start)


def is_quick(act: Act) -> bool:
    """Whether the act is one of those of every run: the others differ from them in the upgrade alone."""
    if act.kind == "open":
        return act.start in ("new", "unlinked") or act == Act("open", ONE, Backend.STASH, "older, unlinked")
    if act.kind in GIVES_UP:
        return act.start != "step 1" or act.kind == "abandon"
    if act.kind in ENDS_LINK:
        return True
    if act.start == "linked":
        # A shadow differs by where it moves to.
        return act.verify is not Verify.SHADOW or (act.kind == "migrate" and act.strategy is ONE)
    if act.kind == "migrate" and act.verify is Verify.NONE:
        return act.start == "unlinked" or (act.start == "older" and act.strategy is ONE)
    return False


def crashes(acts: Iterator[Act]) -> Visited:
    """Break acts everywhere; raises when a promise is broken."""
    visited = Visited()
    for act in acts:
        visited.visit(act)
    visited.check_all()
    return visited


def told(visited: Visited) -> list[str]:
    """The counts of the crash model."""
    points = len(visited.recorded)
    ways = len(visited.broken)
    broken = f"crash model: {points} durable operations, each broken in {ways} ways"
    return [f"{broken}; {visited.stories} stories told from what was left, {visited.ends} ends looked at"]


def told_of_decisions(decisions: Decisions) -> list[str]:
    """The counts of the crash model of decisions."""
    broken = f"{len(decisions.recorded)} durable operations, each broken in {len(decisions.broken)} ways"
    return [f"decisions: {broken}; {decisions.stories} stories told from what was left"]


QUICK = {
    "open || open, one, linked, in Stash": Explored(350, 180, 65),
    "open + write || migrate, late, one, linked, in Stash": Explored(1360, 620, 445),
    "migrate || rollback, two, linked, in Stash": Explored(2990, 665, 335),
    "migrate || migrate, other id, one, linked, in Persist": Explored(2780, 480, 260),
    "sync || migrate + write, one, linked, in Persist": Explored(2290, 150, 65),
    "subscribe || migrate + write, two, linked, in Stash": Explored(2030, 180, 90),
    "emergency || migrate, one, linked, in Stash": Explored(740, 140, 80),
    "emergency || migrate, two, linked, in Stash": Explored(1190, 130, 55),
    "link || link, one, unlinked, in Persist": Explored(490, 295, 155),
}
"""The meetings of every run, and the least of each: schedules, runs, and runs with both preemptions."""


def is_quick_meeting(meeting: Meeting) -> bool:
    """Whether the meeting is explored in every run: others are dearer, or much like these."""
    return str(meeting) in QUICK


__all__ = [
    "QUICK",
    "all_acts",
    "crashes",
    "is_quick",
    "is_quick_meeting",
    "meetings",
    "told",
    "told_of_decisions",
]
