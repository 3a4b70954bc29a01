"""The proof finds each planted bug of `mutants/` where its patch says. Otherwise it proves nothing."""

import pytest

from moves.mutation import MoveMutant, found, load

MUTANTS = load()


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[] if each is MUTANTS[0] else pytest.mark.long)
        for each in MUTANTS
    ],
)
@pytest.mark.timeout(3600)
def test_the_proof_finds(mutant: MoveMutant) -> None:
    assert found(mutant), f"not noticed: {mutant.story}"


@pytest.mark.parametrize(
    "where", ["[crashes: open to Stash, one, from new]", "[meet: link || link, one, new]"]
)
@pytest.mark.long
def test_code_without_a_bug_is_not_found_guilty(where: str) -> None:
    assert found(MoveMutant("none", f"No bug at all. {where}", ())) == ""
