"""Renditions follow each other and take over, and each message counts exactly once, whatever fails."""

import os

import pytest

from sim.campaign import run_all
from sim.coverage import table
from sim.followworld import FollowWorld
from sim.kinds import FOLLOW
from sim.kinds import SEEDS as CI_SEEDS
from sim.report import tell

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", CI_SEEDS[FOLLOW]))
SHORT = min(5, SEEDS)
"""`make test` runs this number of worlds, and `make test-all` runs the others."""
ENOUGH = 55
"""This number of worlds must meet everything that is wanted."""
SPANS = [
    pytest.param(range(SHORT), id="short"),
    pytest.param(range(SHORT, SEEDS), id="rest", marks=pytest.mark.long),
]
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
@pytest.mark.parametrize("seeds", SPANS)
def test_each_message_counts_once_through_handovers(seeds: range, request: pytest.FixtureRequest) -> None:
    outcome = run_all(seeds.start, len(seeds), kind=FOLLOW)
    assert not outcome.failures, outcome.told()
    assert outcome.worlds == len(seeds)
    tell(request.config, ["follow", *table(outcome)])
    if len(seeds) >= ENOUGH:
        assert {what for what in WANTED if not outcome.met[what]} == set()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = FollowWorld(4), FollowWorld(4)
    first.run()
    second.run()
    assert first.scheduler.trace == second.scheduler.trace
    assert len(first.scheduler.trace) > 50
