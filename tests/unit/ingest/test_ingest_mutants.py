"""Tests of ingestion find each planted bug of `mutants/`, where its patch says. Otherwise they prove nothing.

The simulation has more of them (`tests/sim/mutants`), for the loop that all sources share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from moves.mutation import MoveMutant, found, proof_preloaded
from sim.patches import parse
from testbed.preloaded import Preloaded

PATCHES: Final = Path(__file__).parent / "mutants"


@dataclass(frozen=True, slots=True)
class IngestMutant(MoveMutant):
    """A patch of the code that feeds collections, by its name."""

    @property
    def file(self) -> Path:
        """Where the patch is kept."""
        return PATCHES / f"{self.name}.patch"


MUTANTS: Final = [
    IngestMutant(each.stem, *parse(each.read_text())) for each in sorted(PATCHES.glob("*.patch"))
]


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    with proof_preloaded() as preloaded:
        yield preloaded


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.postgres] if "_postgres" in each.where[1] else [])
        for each in MUTANTS
    ],
)
@pytest.mark.long
def test_a_test_finds(mutant: IngestMutant, preloaded: Preloaded) -> None:
    assert found(mutant, preloaded), f"not noticed: {mutant.story}"
