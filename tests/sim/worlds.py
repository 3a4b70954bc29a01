"""What the tests of all kinds of worlds check alike."""

import os
from collections.abc import Set as AbstractSet

import pytest

from sim.campaign import run_all
from sim.coverage import table
from sim.kinds import TESTED, world
from sim.report import tell


def spans(kind: str, short: int) -> list[object]:
    """The seeds of a kind for `parametrize`: `make test` runs `short` worlds, and `make test-all` the others.

    `$HOLDFAST_SIM_SEEDS` is the number of all.
    """
    seeds = int(os.environ.get("HOLDFAST_SIM_SEEDS", TESTED[kind]))
    short = min(short, seeds)
    return [
        pytest.param(range(short), id="short"),
        pytest.param(range(short, seeds), id="rest", marks=pytest.mark.long),
    ]


def check_worlds(
    kind: str, seeds: range, config: pytest.Config, wanted: AbstractSet[str], *, enough: int
) -> None:
    """Run the worlds of these seeds. `enough` of them must meet everything that is wanted."""
    outcome = run_all(seeds.start, len(seeds), kind=kind)
    assert not outcome.failures, outcome.told()
    assert outcome.worlds == len(seeds)
    tell(config, [kind, *table(outcome)])
    if len(seeds) >= enough:
        missed = {what for what in wanted if not outcome.met[what]}
        assert missed == set(), missed


def check_repeatable(kind: str, seed: int) -> None:
    """Run the world of a seed twice, and compare what happened."""
    first, second = world(kind, seed), world(kind, seed)
    first.run()
    second.run()
    assert first.scheduler.trace == second.scheduler.trace
    assert len(first.scheduler.trace) > 50
