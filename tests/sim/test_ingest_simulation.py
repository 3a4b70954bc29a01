"""Each message of a source counts exactly once, whatever fails and however many pipelines run."""

import os

import pytest

from sim.campaign import run_all
from sim.coverage import table
from sim.ingestworld import IngestWorld
from sim.kinds import INGEST
from sim.kinds import SEEDS as CI_SEEDS
from sim.report import tell

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", CI_SEEDS[INGEST]))
SHORT = min(8, SEEDS)
"""`make test` runs this number of worlds, and `make test-all` runs the others."""
ENOUGH = 55
"""This number of worlds must meet everything that is wanted."""
SPANS = [
    pytest.param(range(SHORT), id="short"),
    pytest.param(range(SHORT, SEEDS), id="rest", marks=pytest.mark.long),
]
WANTED = {
    "steps committed",
    "steps lost",
    "steps idle",
    "bad records",
    "times judged",
    "looks judged",
    "stalled after a restore",
    "went on after a restore",
    "fault: slow",
    "fault: death before",
    "fault: death after",
    "fault: indeterminate after",
    "fault: asleep before the effect",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", SPANS)
def test_each_message_counts_once_in_every_world(seeds: range, request: pytest.FixtureRequest) -> None:
    outcome = run_all(seeds.start, len(seeds), kind=INGEST)
    assert not outcome.failures, outcome.told()
    assert outcome.worlds == len(seeds)
    tell(request.config, ["ingest", *table(outcome)])
    if len(seeds) >= ENOUGH:
        assert {what for what in WANTED if not outcome.met[what]} == set()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = IngestWorld(4), IngestWorld(4)
    first.run()
    second.run()
    assert first.scheduler.trace == second.scheduler.trace
    assert len(first.scheduler.trace) > 50
