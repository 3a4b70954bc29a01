"""Commands on collections end at any durable operation. Nothing is lost, and nothing is left over."""

from collections import Counter
from pathlib import Path

import pytest

from sim.report import tell
from unit.collections.crashacts import acts
from unit.collections.crashmodel import HOWS, Visited
from unit.collections.snapshots import snapshot
from unit.collections.stores import Row

SNAPSHOT: list[Row] = [(number, "then") for number in range(9)]
COMMANDS = {"create", "evolve", "comment", "drop", "suspect", "move retention"}
FILLED = {
    "create rendition",
    "catch up with all",
    "catch up with more",
    "hydrate",
    "restore",
    "abort",
    "retain",
}
HOLDS = {"hold", "release", "hold to write", "release to write"}
HANDOVERS = {
    "hand over to a copy",
    "hand over to a source",
    "hand over to another source",
    "hand over from a source",
    "bring the tail",
    "bring the tail of what is restored",
    "make a difference",
    "drop what retired",
}
PIPELINES = {"begin with a source", "feed what is filled", "feed what holds", "feed what has retired"}
REPLICAS = {"write the same as another", "feed the same as another", "write otherwise than another"}
ALL = COMMANDS | FILLED | HOLDS | HANDOVERS | PIPELINES | REPLICAS


@pytest.mark.timeout(3600)
@pytest.mark.long
def test_commands_on_collections_end_anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    visited = Visited()
    for act in acts(snapshot(tmp_path, SNAPSHOT), Counter(SNAPSHOT)):
        visited.visit(act)
    visited.check_all()
    by_act = Counter(act for act, _, _ in visited.recorded)
    told = ", ".join(f"{act} {count}" for act, count in by_act.items())
    line = f"collections: {len(visited.recorded)} durable operations of {len(by_act)} commands broken in"
    tell(request.config, [f"{line} {len(HOWS)} ways, gone on from {visited.stories} times ({told})"])
    assert by_act.keys() == ALL
    assert len(visited.recorded) > 80
    assert visited.stories > 200


def test_an_operation_that_was_not_broken_is_told() -> None:
    visited = Visited()
    operation = ("an act", 0, ("blob.put", 1))
    visited.recorded.add(operation)
    for how in list(HOWS)[:-1]:
        visited.broken[how].add(operation)
    with pytest.raises(AssertionError, match=r"never in doubt, happened: .*an act"):
        visited.check_all()
