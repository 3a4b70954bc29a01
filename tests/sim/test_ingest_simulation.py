"""Each message of a source counts exactly once, whatever fails and however many pipelines run."""

import pytest

from sim.kinds import INGEST
from sim.worlds import check_repeatable, check_worlds, spans

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
@pytest.mark.parametrize("seeds", spans(INGEST, 5))
def test_each_message_counts_once_in_every_world(seeds: range, request: pytest.FixtureRequest) -> None:
    check_worlds(INGEST, seeds, request.config, WANTED, enough=55)


def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(INGEST, 4)
