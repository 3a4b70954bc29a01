"""Ends a move, its way back or a first open at any durable operation. Nothing is lost or forked."""

import pytest

from moves import campaign
from moves.acts import ENDS_LINK, GIVES_UP
from moves.crashes import HOWS, Visited
from moves.watched import Call
from sim.report import tell


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_nothing_is_lost_wherever_a_move_ends(request: pytest.FixtureRequest) -> None:
    visited = campaign.crashes(filter(campaign.is_quick, campaign.all_acts()))
    tell(request.config, campaign.told(visited))
    # Four tables of steps, each verification, what is given up, and the links before and after them.
    assert len(visited.recorded) > 300
    assert visited.stories > 1000
    for kind in ("migrate", "roll back", "open", *GIVES_UP, *ENDS_LINK):
        assert any(act.startswith(kind) for act, _, _ in visited.recorded)
    # What a shadow was written, in both stores.
    written = {call.store for act, _, call in visited.recorded if "Shadow" in act and "role" in call.what}
    assert written == {"stash", "persist"}


def test_an_operation_that_was_not_broken_off_is_told() -> None:
    visited = Visited()
    operation = ("an act", 0, Call("stash", "append", durable=True))
    visited.recorded.add(operation)
    for how in HOWS[:-1]:
        visited.broken[how].add(operation)
    with pytest.raises(AssertionError, match=r"never in doubt, happened: .*an act"):
        visited.check_all()
