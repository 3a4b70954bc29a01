"""Two processes that meet over a linked catalog, in all schedules with up to two preemptions.

The counts are printed at the end of the run. A failure tells its schedule and each call that was made;
`python -m moves meet NAME` in tests/ explores one meeting again.
"""

import pytest

from moves.campaign import QUICK, is_quick_meeting, meetings
from moves.explorer import Explored
from moves.interleavings import Meeting
from sim.report import tell

MEETINGS = [meeting for meeting in meetings() if is_quick_meeting(meeting)]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest):
    """The counts, printed when all is explored."""
    counts: dict[str, Explored] = {}
    yield counts
    total = sum(counts.values(), Explored())
    rows = [f"  {name:64} {each.schedules:6,} {each.runs:6,}" for name, each in counts.items()]
    head = (
        f"interleavings: {total.schedules:,} schedules of {len(counts)} meetings, {total.runs:,} of them run"
    )
    tell(request.config, [head, *rows])


def test_each_meeting_of_every_run_is_there() -> None:
    assert {str(meeting) for meeting in MEETINGS} == QUICK


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("meeting", MEETINGS, ids=str)
def test_whoever_meets_nothing_is_lost(meeting: Meeting, table: dict[str, Explored]) -> None:
    explored = table[str(meeting)] = meeting.explore()
    assert explored.runs <= explored.schedules
