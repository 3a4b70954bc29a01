"""The log in an object store keeps its promises in every order of requests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.kinds import LOG
from sim.kinds import SEEDS as CI_SEEDS
from sim.logworld import LogWorld

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", CI_SEEDS[LOG]))
SHORT = 100
"""`make test` runs this number of worlds, and `make test-all` runs the others."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=pytest.mark.long if first >= SHORT else ()) for first in range(0, SEEDS, 100)],
)
def test_every_order_of_requests_keeps_the_promises(first: int) -> None:
    for seed in range(first, min(first + 100, SEEDS)):
        try:
            LogWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """So you can replay a failure, and the known seed of a mutant still finds it."""
    here = LogWorld(5)
    here.scheduler.telling = True
    here.run()
    child = subprocess.run(
        [sys.executable, "-m", "sim", "5", "--kind", LOG],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.startswith("\n".join(here.scheduler.trace))


def test_the_worlds_of_the_log_meet_what_they_are_made_for() -> None:
    traces = []
    # A log with two histories, whose reads are corrupt, is in one world of 30.
    for seed in range(200, 320):
        world = LogWorld(seed)
        world.run()
        traces += world.scheduler.trace
    text = "\n".join(traces)
    assert text.count("the bucket was restored") > 5
    assert text.count("in memory objects is corrupt") > 20
    assert text.count(" slow create log") > 20
    assert text.count(" died") > 5
    assert text.count("replace floor -> True") > 100
    assert text.count("replace floor -> False") > 5
    assert text.count("-> False") > 100
