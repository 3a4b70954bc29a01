"""A collection keeps its promises through handovers, whoever dies on the way, on stores that fail."""

import os

import pytest

from sim.campaign import run_all
from sim.collectionworld import CollectionWorld
from sim.coverage import table
from sim.kinds import COLLECTIONS
from sim.kinds import SEEDS as CI_SEEDS
from sim.report import tell

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", CI_SEEDS[COLLECTIONS]))
WANTED = {
    "handovers",
    "handovers listened through",
    "renditions aborted",
    "renditions dropped",
    "writes done",
    "writes rejected",
    "writes unknown",
    "snapshots of the newest",
    "changes followed",
    "fault: slow",
    "fault: death before",
    "fault: death after",
    "fault: asleep before the effect",
}


@pytest.mark.timeout(3600)
def test_every_world_keeps_the_promises(request: pytest.FixtureRequest) -> None:
    outcome = run_all(0, SEEDS, kind=COLLECTIONS)
    assert not outcome.failures, outcome.told()
    tell(request.config, ["collections", *table(outcome)])
    assert {what for what in WANTED if not outcome.met[what]} == set()


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in range(2):
        first, second = CollectionWorld(seed), CollectionWorld(seed)
        first.run()
        second.run()
        assert first.scheduler.trace == second.scheduler.trace
        assert len(first.scheduler.trace) > 50
