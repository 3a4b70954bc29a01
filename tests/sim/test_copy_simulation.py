"""A collection that is fed from another one has its rows at each time, whatever fails."""

import pytest

from sim.kinds import COPY
from sim.worlds import check_repeatable, check_worlds, spans

WANTED = {
    "steps committed",
    "steps lost",
    "steps idle",
    "times of the copy judged",
    "looks at the copy judged",
    "went on after a restore",
    "fault: slow",
    "fault: death before",
    "fault: death after",
    "fault: indeterminate after",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", spans(COPY, 1))
def test_the_copy_has_the_same_rows_in_every_world(seeds: range, request: pytest.FixtureRequest) -> None:
    check_worlds(COPY, seeds, request.config, WANTED, enough=35)


@pytest.mark.long
def test_the_same_seed_gives_the_same_run() -> None:
    check_repeatable(COPY, 4)
