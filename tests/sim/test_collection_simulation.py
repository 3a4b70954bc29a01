"""A collection keeps its promises through handovers, process deaths and faults of its stores."""

import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from sim.collectionworld import CollectionWorld
from sim.kinds import COLLECTIONS
from sim.worlds import check_repeatable, check_worlds, spans

WANTED = {
    "handovers to COPY",
    "handovers to SOURCE",
    "handovers listened through",
    "other contents listened through",
    "handovers that wait for a source",
    "renditions aborted",
    "renditions dropped",
    "restores",
    "restores gone on with",
    "fed while HYDRATING",
    "fed while HOLDING",
    "fed while RETIRED",
    "sources that began late",
    "pipelines that another one was ahead of",
    "pipelines that went on after a death",
    "pipelines told of a handover",
    "writers turned away",
    "durable holds taken",
    "durable holds found after a death",
    "durable holds moved",
    "durable holds released",
    "snapshots under a durable hold",
    "capabilities to write taken",
    "differences made or found",
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
@pytest.mark.parametrize("seeds", spans(COLLECTIONS, 9))
def test_every_world_keeps_the_promises(seeds: range, request: pytest.FixtureRequest) -> None:
    check_worlds(COLLECTIONS, seeds, request.config, WANTED, enough=90)


def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(COLLECTIONS, 0, 1)


def test_a_run_depends_on_no_other_thread_of_its_process() -> None:
    alone, beside = CollectionWorld(0), CollectionWorld(0)
    alone.run()
    ended = threading.Event()

    def other() -> None:
        while not ended.wait(0.001):
            uuid.uuid4()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        beside.run()
    finally:
        ended.set()
        thread.join()
    assert alone.scheduler.trace == beside.scheduler.trace


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """So that what fails can be replayed: no order depends on how that process hashes names."""
    here = CollectionWorld(5)
    here.scheduler.telling = True
    here.run()
    child = subprocess.run(
        [sys.executable, "-m", "sim", "5", "--kind", COLLECTIONS],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.startswith("\n".join(here.scheduler.trace))
