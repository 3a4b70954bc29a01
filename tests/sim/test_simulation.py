"""Persist keeps its promises to processes that die, on stores that fail, are slow, or leave them in doubt.

`HOLDFAST_SIM_SEEDS` says how many worlds are run (default 2000), `HOLDFAST_SIM_FIRST_SEED` where to begin. A
failure names its seed; `make sim SEED=...` runs it again and prints every step.
"""

import logging
import os

import pytest

from sim.campaign import run_all, run_block
from sim.coverage import never_met, table
from sim.kinds import PERSIST
from sim.kinds import SEEDS as CI_SEEDS
from sim.report import tell
from sim.world import World

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", CI_SEEDS[PERSIST]))
ENOUGH = 400
"""So many worlds, and none may have been spared a fault."""
FIRST = int(os.environ.get("HOLDFAST_SIM_FIRST_SEED", "0"))


@pytest.mark.timeout(3600)
def test_every_world_keeps_the_promises(request: pytest.FixtureRequest) -> None:
    outcome = run_all(FIRST, SEEDS)
    assert not outcome.failures, outcome.told()
    assert outcome.worlds == SEEDS
    tell(request.config, table(outcome))
    if SEEDS >= ENOUGH:
        assert never_met(outcome) == set()


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in range(8):
        first, second = World(seed), World(seed)
        first.run()
        second.run()
        assert first.scheduler.trace == second.scheduler.trace
        assert len(first.scheduler.trace) > 50


def test_a_failure_names_its_seed_and_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "run", lambda self: 1 / 0)
    level = logging.getLogger("holdfast").level
    told = run_block(7, 5).told()
    assert told == "seed 7: ZeroDivisionError: division by zero\n  replay: make sim SEED=7"
    # Other tests of this process read the warnings of the library.
    assert logging.getLogger("holdfast").level == level
