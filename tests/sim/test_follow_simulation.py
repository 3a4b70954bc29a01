"""Renditions follow each other and take over, and each message counts exactly once, whatever fails."""

import pytest

from sim.kinds import FOLLOW
from sim.worlds import check_repeatable, check_worlds, spans

WANTED = {
    "steps committed",
    "steps handed over",
    "handovers",
    "followers given up",
    "steps lost",
    "steps idle",
    "bad records",
    "times judged",
    "looks judged",
    "went on after a restore",
    "fault: slow",
    "fault: death before",
    "fault: death after",
    "fault: indeterminate after",
    "fault: asleep before the effect",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", spans(FOLLOW, 3))
def test_each_message_counts_once_through_handovers(seeds: range, request: pytest.FixtureRequest) -> None:
    check_worlds(FOLLOW, seeds, request.config, WANTED, enough=55)


def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(FOLLOW, 4)
