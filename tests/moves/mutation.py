"""Mutants of the code that moves catalogs: copies with one bug each, which the proof must notice.

A mutant is a patch in `mutants/`. Its first line describes the bug and, in brackets, the part that finds it:
`[crashes: PART]` and `[meet: PART]` are the acts and meetings with PART in their names, and
`[test: PATH::NAME]` is a test. Only that part runs on a copy of the code with the bug, in a separate process.
"""

import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sim.mutation import Mutant, copy_with, mutated_files, refresh
from sim.patches import DoesNotApply, parse
from testbed.preloaded import Preloaded

PATCHES = Path(__file__).parent / "mutants"
FOUND = 1
"""How a run ends that has found a bug; any other code is an error of the run itself."""

_WHERE = re.compile(r"\[(crashes|meet|test): ([^\]]+)\]$")


@dataclass(frozen=True, slots=True)
class MoveMutant(Mutant):
    """A patch of the code that moves catalogs, by its name."""

    @property
    def file(self) -> Path:
        """Where the patch is kept."""
        return PATCHES / f"{self.name}.patch"

    @property
    def where(self) -> tuple[str, str]:
        """What finds it: the kind of proof, and which part of it."""
        found = _WHERE.search(self.story)
        assert found is not None, f"{self.file.name}: its first line must end with where it is found"
        return found[1], found[2]


def load(names: Sequence[str] = ()) -> list[MoveMutant]:
    """The mutants of these names, or all of them."""
    files = [PATCHES / f"{name}.patch" for name in names] or sorted(PATCHES.glob("*.patch"))
    return [MoveMutant(file.stem, *parse(file.read_text())) for file in files]


def proof_preloaded() -> Preloaded:
    """What runs parts of the proof on copies of the code."""
    return Preloaded("moves.mutated", "moves.campaign", "hypothesis", "testbed.pytest_plugin")


def found(mutant: MoveMutant, preloaded: Preloaded) -> str:
    """How the mutant is noticed; empty where it isn't.

    Raises:
        DoesNotApply: the code has changed.
        AssertionError: the run itself went wrong.
    """
    changed = mutated_files(mutant)
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        copy = copy_with(changed, Path(folder))
        child = preloaded.run("moves.mutated", str(copy), *mutant.where)
    told = [line.removeprefix("FOUND ") for line in child.stdout.splitlines() if line.startswith("FOUND ")]
    if child.returncode == FOUND and told:
        return told[-1]
    assert child.returncode == 0, f"{mutant.name}: {child.stdout[-1000:]}{child.stderr.strip()[-2000:]}"
    return ""


def hunt_all(names: Sequence[str], *, refreshing: bool) -> int:
    """Hunt the mutants, or write their patches again with the lines of today."""
    mutants = load(names)
    if refreshing:
        for mutant in mutants:
            refresh(mutant)
        return 0
    with proof_preloaded() as preloaded, ThreadPoolExecutor(2) as pool:
        return max(pool.map(partial(_hunted, preloaded=preloaded), mutants), default=0)


def _hunted(mutant: MoveMutant, preloaded: Preloaded) -> int:
    try:
        how = found(mutant, preloaded)
    except (DoesNotApply, AssertionError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{mutant.name:56} {how[:200] or 'NOT FOUND'}", flush=True)
    return not how
