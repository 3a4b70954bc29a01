"""Two processes use a linked catalog, in all schedules with up to two preemptions.

The end of the run shows the counts. A failure shows its schedule and each call. `python -m moves meet NAME`
in tests/ explores one meeting again.
"""

import pytest

from moves.campaign import QUICK, is_quick_meeting, meetings
from moves.explorer import SLEPT, Explored, Made, preemptions
from moves.interleavings import Meeting
from moves.watched import Call
from sim.report import tell

MEETINGS = [meeting for meeting in meetings() if is_quick_meeting(meeting)]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest):
    """The counts, printed when all is explored."""
    counts: dict[str, Explored] = {}
    yield counts
    total = sum(counts.values(), Explored())
    rows = [
        f"  {name:64} {each.schedules:6,} {each.runs:6,} {each.twice:6,}" for name, each in counts.items()
    ]
    head = (
        f"interleavings: {total.schedules:,} schedules of {len(counts)} meetings, {total.runs:,} of them run,"
        f" {total.twice:,} with two preemptions"
    )
    tell(request.config, [head, *rows])


def test_each_meeting_of_every_run_is_there() -> None:
    assert {str(meeting) for meeting in MEETINGS} == set(QUICK)
    assert set(QUICK) > DEAR


DEAR = {
    "open + write || migrate, late, one, linked, in Stash",
    "migrate || migrate, other id, one, linked, in Persist",
    "migrate || rollback, two, linked, in Stash",
    "subscribe || migrate + write, two, linked, in Stash",
    "sync || migrate + write, one, linked, in Persist",
}
"""The meetings with the most runs. `make test` explores the others."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "meeting",
    [
        pytest.param(each, id=str(each), marks=pytest.mark.long if str(each) in DEAR else ())
        for each in MEETINGS
    ],
)
@pytest.mark.long
def test_whoever_meets_nothing_is_lost(meeting: Meeting, table: dict[str, Explored]) -> None:
    explored = table[str(meeting)] = meeting.explore()
    assert not explored.falls_short_of(QUICK[str(meeting)]), f"only {explored}"


def test_a_preemption_is_one_of_who_could_go_on() -> None:
    read = Call("stash", "upper")
    # The last turn of each is its own to give.
    made = [(0, read), (1, read), (1, read), (0, read), (1, read)]
    assert preemptions([Made(who, call, changed=False) for who, call in made]) == 2
    made = [(0, SLEPT), (1, read), (0, read)]
    assert preemptions([Made(who, call, changed=False) for who, call in made]) == 0
