"""Attempts of a hydration take over what others have staged, and each row counts once, whatever fails."""

import pytest

from sim.kinds import HYDRATE
from sim.worlds import check_repeatable, check_worlds, spans

WANTED = {
    "tasks",
    "all staged",
    "filled",
    "staged by others",
    "attempts fenced",
    "plans lost",
    "times judged at the end",
    "times judged after a restore",
    "fault: slow",
    "fault: death before",
    "fault: death after",
    "fault: indeterminate after",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", spans(HYDRATE, 3))
def test_each_row_counts_once_whichever_attempt_fills(seeds: range, request: pytest.FixtureRequest) -> None:
    check_worlds(HYDRATE, seeds, request.config, WANTED, enough=60)


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(HYDRATE, 4)
