"""The proof finds each planted bug of `mutants/` where its patch says. Otherwise it proves nothing."""

from collections.abc import Iterator

import pytest

from moves.mutation import MoveMutant, found, load, proof_preloaded
from testbed.preloaded import Preloaded

MUTANTS = load()


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    with proof_preloaded() as preloaded:
        yield preloaded


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[] if each is MUTANTS[0] else pytest.mark.long)
        for each in MUTANTS
    ],
)
@pytest.mark.timeout(3600)
def test_the_proof_finds(mutant: MoveMutant, preloaded: Preloaded) -> None:
    assert found(mutant, preloaded), f"not noticed: {mutant.story}"


@pytest.mark.parametrize(
    "where", ["[crashes: open to Stash, one, from new]", "[meet: link || link, one, new]"]
)
@pytest.mark.long
def test_code_without_a_bug_is_not_found_guilty(where: str, preloaded: Preloaded) -> None:
    assert found(MoveMutant("none", f"No bug at all. {where}", ()), preloaded) == ""
