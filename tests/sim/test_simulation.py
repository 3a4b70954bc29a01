"""Persist keeps its promises to processes that die, on stores that fail, are slow, or leave them in doubt.

`HOLDFAST_SIM_SEEDS` says how many worlds are run (default 400), `HOLDFAST_SIM_FIRST_SEED` where to begin. A
failure names its seed; `cd tests && python -m sim SEED` runs it again and prints every step.
"""

import logging
import os
from collections import Counter

import pytest

from sim.history import Fate
from sim.world import World

SEEDS = int(os.environ.get("HOLDFAST_SIM_SEEDS", "400"))
FIRST = int(os.environ.get("HOLDFAST_SIM_FIRST_SEED", "0"))
BLOCK = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BLOCK))
def test_every_world_keeps_the_promises(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "holdfast")  # failed upkeep is warned of, and part of the weather
    for seed in range(first, min(first + BLOCK, FIRST + SEEDS)):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}\nreplay: cd tests && python -m sim {seed}") from error


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in range(8):
        first, second = World(seed), World(seed)
        first.run()
        second.run()
        assert first.scheduler.trace == second.scheduler.trace
        assert len(first.scheduler.trace) > 50


def test_the_worlds_meet_what_they_are_made_for() -> None:
    met: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed)
        world.run()
        trace = "\n".join(world.scheduler.trace)
        met["deaths"] += trace.count(": died")
        met["slow writes that landed late"] += trace.count(": slow cas")
        met["snapshots"] += len(world.history.reads)
        met["changes followed"] += sum(len(listen.updates) for listen in world.history.followed)
        met["merges"] += sum(b.level for s in world.shards for b in world.auditor.state(s).batches)
        for write in world.history.writes.values():
            met[f"writes {write.fate.value}"] += 1
            met["writes to several shards"] += len(write.shards) > 1
        met["cut logs"] += sum(
            entry.seqno > 1 for s in world.shards for entry in world.consensus.scan(s, 1, 1)
        )
    wanted = {f"writes {fate.value}" for fate in Fate} | {
        "deaths",
        "slow writes that landed late",
        "snapshots",
        "changes followed",
        "merges",
        "writes to several shards",
        "cut logs",
    }
    assert {what for what in wanted if met[what] < 10} == set()
