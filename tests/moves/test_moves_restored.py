"""One of two linked stores returns to an older state: it is refused, or nothing is lost."""

from collections.abc import Iterator

import pytest

from moves.restored import Found, Story, stories
from sim.report import tell


@pytest.fixture(scope="module")
def total(request: pytest.FixtureRequest) -> Iterator[Found]:
    """What became of the pairs of all stories; the counts are printed at the end."""
    found = Found()
    yield found
    tell(request.config, found.told())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", list(stories()), ids=str)
def test_no_pair_of_stores_loses_what_was_committed_without_an_error(story: Story, total: Found) -> None:
    found = Found()
    found.visit(story)
    total.add(found)
    assert found.wrong == []
    assert found.refused == []
    # Every moment has older copies of both stores, most of which somebody has to decide about.
    assert found.counts["refused"] > 2000
    assert found.counts["right"] > 100
    assert found.counts["moments"] > 100
