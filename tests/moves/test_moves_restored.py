"""One of two linked stores goes back to an older state. It is refused, or nothing is lost."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from holdfast.catalog.move.migration import Verify
from holdfast.catalog.move.truth import Strategy
from moves.restored import ACTS, Found, Story, stories
from moves.restored_live import moved_live, written_live
from moves.restored_modes import pairwise, visited
from moves.restored_readers import followed
from sim.report import tell


def cases(every: Iterable[Story]) -> list[Any]:
    """Return stories as parameters. Short are those with a shadow and one tombstone, or with neither."""
    return [
        pytest.param(
            story,
            id=str(story),
            marks=()
            if (story.verify, story.strategy)
            in ((Verify.SHADOW, Strategy.ONE_TOMBSTONE), (Verify.NONE, Strategy.TWO_TOMBSTONES))
            else pytest.mark.long,
        )
        for story in every
    ]


@pytest.fixture(scope="module")
def total(request: pytest.FixtureRequest) -> Iterator[Found]:
    """What became of the pairs of all stories; the counts are printed at the end."""
    found = Found()
    yield found
    tell(request.config, found.told())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", cases(stories()))
@pytest.mark.long
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", cases(stories()))
@pytest.mark.long
def test_who_has_it_open_or_moves_it_finds_out(story: Story, total: Found) -> None:
    found = Found()
    written_live(story, found)
    # Whoever opened it last writes as before, once for each time that it was opened.
    assert found.counts["moments"] == 4
    assert found.counts["refused"] > 300
    moved_live(story, found)
    total.add(found)
    assert found.wrong == []
    assert found.refused == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", cases(stories()))
def test_readers_and_subscribers_get_what_was_committed_or_an_error(story: Story, total: Found) -> None:
    found = Found()
    followed(story, found)
    total.add(found)
    assert found.wrong == []
    assert found.refused == []
    assert found.counts["moments"] > 200
    assert found.counts["refused"] > 200


MODES = [story for writers in ("plain", "shadow", "emergency") for story in pairwise(writers)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", cases(MODES))
@pytest.mark.long
def test_shadows_and_emergencies_lose_nothing_without_an_error(story: Story, total: Found) -> None:
    found = Found()
    visited(story, found)
    total.add(found)
    assert found.wrong == []
    assert found.refused == []
    assert found.counts["refused"] > 50
    assert found.counts["moments"] > 100 or story.writers == "plain"


OLDER = {
    *(frozenset({number}) for number in range(ACTS)),
    *(frozenset(range(number)) for number in range(2, ACTS + 1)),
    *(frozenset(range(number, ACTS)) for number in range(ACTS)),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("story", cases(each for each in stories() if each.verify is not Verify.SHADOW))
@pytest.mark.long
def test_an_older_client_beside_is_no_conflict(story: Story, total: Found) -> None:
    found = Found()
    for older in OLDER:
        found.visit_moments(story, older=older)
    total.add(found)
    assert found.refused == []
    assert found.counts["moments"] > 1000
