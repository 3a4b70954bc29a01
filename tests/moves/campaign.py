"""What is proved in `make test`, and what `make soak` takes more time for."""

from collections.abc import Iterator
from itertools import product

from holdfast.durable.backend_migration.migration import Verify
from holdfast.durable.backend_migration.truth import Backend, Strategy
from moves.crashes import STARTS, Act, Visited
from moves.interleavings import Meeting, meetings

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES


def all_acts() -> Iterator[Act]:
    """Everything that is broken off: moves and ways back, both ways, and first opens."""
    for strategy, target, verify in product(Strategy, Backend, (Verify.NONE, Verify.COMPARE)):
        for start in ("linked", "older", "unlinked", "older, unlinked"):
            yield Act("migrate", strategy, target, start, verify)
        for start in ("linked", "older"):
            yield Act("roll back", strategy, target, start, verify)
    for strategy, target in product(Strategy, Backend):
        for start in STARTS:
            yield Act("open", strategy, target, start)


def is_quick(act: Act) -> bool:
    """Whether the act is one of those of every run: the others differ from them in the upgrade alone."""
    if act.kind == "open":
        return act.start in ("new", "unlinked") or act == Act("open", ONE, Backend.STASH, "older, unlinked")
    if act.start == "linked":
        return True
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


QUICK = frozenset(
    {
        "open || open, one, linked, in Stash",
        "open + write || migrate, late, one, linked, in Stash",
        "open + write || rollback, late, one, linked, in Persist",
        "migrate || rollback, two, linked, in Stash",
        "migrate || migrate, same id, one, linked, in Persist",
        "migrate || migrate, other id, one, linked, in Persist",
        "sync || migrate + write, one, linked, in Persist",
        "subscribe || migrate + write, two, linked, in Stash",
        "emergency || migrate, one, linked, in Stash",
        "emergency || migrate, two, linked, in Stash",
        "link || link, one, unlinked, in Persist",
    }
)


def is_quick_meeting(meeting: Meeting) -> bool:
    """Whether the meeting is explored in every run: others are of the other strategy, or the other way."""
    return str(meeting) in QUICK


__all__ = ["QUICK", "all_acts", "crashes", "is_quick", "is_quick_meeting", "meetings", "told"]
