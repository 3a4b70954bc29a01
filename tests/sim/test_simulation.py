"""Persist keeps its promises to processes that die, on stores that fail, are slow, or give no answer.

`$HOLDFAST_SIM_SEEDS` is the number of worlds (default 900), and `$HOLDFAST_SIM_FIRST_SEED` the first seed. A
failure names its seed. `make sim SEED=...` runs that world again and prints every step.
"""

import logging
import os

import pytest

from sim.campaign import run_all, run_block
from sim.coverage import never_met, table
from sim.kinds import PERSIST, TESTED
from sim.report import tell
from sim.world import World
from sim.worlds import check_repeatable

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", TESTED[PERSIST]))
FIRST = int(os.environ.get("HOLDFAST_SIM_FIRST_SEED", "0"))
SHORT = min(60, SEEDS)
"""`make test` runs this number of worlds, and `make test-all` runs the others."""
ENOUGH = 300
"""This number of worlds must meet every fault at least once."""
SPANS = [
    pytest.param(range(FIRST, FIRST + SHORT), id="short"),
    pytest.param(range(FIRST + SHORT, FIRST + SEEDS), id="rest", marks=pytest.mark.long),
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", SPANS)
def test_every_world_keeps_the_promises(seeds: range, request: pytest.FixtureRequest) -> None:
    outcome = run_all(seeds.start, len(seeds))
    assert not outcome.failures, outcome.told()
    assert outcome.worlds == len(seeds)
    tell(request.config, table(outcome))
    if len(seeds) >= ENOUGH:
        assert never_met(outcome) == set()


def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(PERSIST, *range(8))


def test_a_failure_names_its_seed_and_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "run", lambda self: 1 / 0)
    level = logging.getLogger("holdfast").level
    told = run_block(7, 5).told()
    assert told == "seed 7: ZeroDivisionError: division by zero\n  replay: make sim SEED=7"
    # Other tests of this process read the warnings of the library.
    assert logging.getLogger("holdfast").level == level
