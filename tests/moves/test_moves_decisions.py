"""A decision by hand ends at any durable operation, or meets others. Nothing forks, and it is repeated.

`python -m moves decisions [PART]` in tests/ repeats some of them.
"""

import pytest

from moves.campaign import told_of_decisions
from moves.decisions import MEETINGS, Choice, Decisions, choices, meet
from sim.report import tell

QUICK = "decide || open + write, told"


@pytest.fixture(scope="module")
def visited(request: pytest.FixtureRequest):
    """What all of them have seen; the counts are printed at the end."""
    seen = Decisions()
    yield seen
    tell(request.config, told_of_decisions(seen))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("choice", choices(), ids=str)
@pytest.mark.long
def test_wherever_a_decision_ends_it_is_made_again(choice: Choice, visited: Decisions) -> None:
    visited.visit(choice)
    visited.check_all()
    found = [call for name, _, call in visited.recorded if name == str(choice)]
    # Alone: moved on, and all the rest at once.
    assert len(found) >= (2 if choice.is_alone else 5)


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_whoever_meets_a_decision_writes_to_the_catalog_or_not_at_all() -> None:
    explored = meet(QUICK)
    assert QUICK in MEETINGS
    assert explored.runs > 300
    assert explored.twice > 150
