"""What the tests of all kinds of worlds check alike."""

import gc
import multiprocessing
import os
from collections.abc import Set as AbstractSet
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

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


def check_repeatable(kind: str, *seeds: int) -> None:
    """Run the world of each seed twice, and compare what happened.

    The process runs nothing else, and collects no garbage. What is closed as garbage, of other tests or of
    the first world, would take draws away from the world.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for seed, (first, second) in zip(seeds, pool.map(_traces, repeat(kind), seeds), strict=True):
            for number, (one, other) in enumerate(zip(first, second, strict=False)):
                assert one == other, f"seed {seed} differs after {number} lines"
            assert len(first) == len(second) > 50, seed


def _traces(kind: str, seed: int) -> tuple[list[str], list[str]]:
    gc.disable()
    worlds = world(kind, seed), world(kind, seed)
    for each in worlds:
        each.run()
    first, second = (each.scheduler.trace for each in worlds)
    return first, second
