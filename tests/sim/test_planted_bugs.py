"""A checker that can't fail proves nothing: each bug that is planted must be found by some early seed."""

import logging

import pytest

from sim.planted import BUGS, Bug, planted
from sim.world import World

SEEDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_simulation_finds(bug: Bug, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "holdfast")
    with planted(bug):
        for seed in range(SEEDS):
            try:
                World(seed).run()
            except Exception:  # noqa: BLE001 - whatever goes wrong is what we look for
                return
    pytest.fail(f"{SEEDS} seeds did not notice that {bug.name}")


def test_a_planted_bug_is_gone_afterwards() -> None:
    for bug in BUGS:
        with planted(bug):
            pass
    World(0).run()
    World(1).run()
