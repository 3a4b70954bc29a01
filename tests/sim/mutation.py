"""Mutants: copies of the real code with one bug each, which the simulation must notice.

A mutant is a patch in `mutants/`, or in a subfolder that is named after another kind of worlds. Its first
line describes the bug. Then comes a unified diff of files below `catalog/`. It is applied to a copy of the
code, which runs in a separate process (`sim.mutated`). That process imports the copy and does one smoke test,
which the mutant must pass. Then it runs worlds from the first seed of the CI range, until one of them fails.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sim.kinds import MODULES, PERSIST, SEEDS
from sim.patches import DoesNotApply, Hunk, apply_hunks, locate, parse, render
from testbed.preloaded import Preloaded

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent / "mutants"
TABLE = ROOT / "docs" / "explanation" / "simulation.md"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch by its name."""

    name: str
    story: str
    hunks: tuple[Hunk, ...]

    @property
    def kind(self) -> str:
        """The kind of worlds that are to find it."""
        return self.name.rpartition("/")[0] or PERSIST

    @property
    def seeds(self) -> int:
        """How many worlds CI has that may find it: none of them fails without it."""
        return SEEDS[self.kind]

    @property
    def file(self) -> Path:
        """Where the patch is kept."""
        return PATCHES / f"{self.name}.patch"


@dataclass(frozen=True, slots=True)
class Found:
    """The first seed whose world failed with a mutant, and how; None where all passed."""

    seed: int | None
    error: str


def load(names: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of these names, or all of them."""
    files = [PATCHES / f"{name}.patch" for name in names] or sorted(PATCHES.rglob("*.patch"))
    mutants = []
    for file in files:
        try:
            mutants.append(Mutant(str(file.relative_to(PATCHES).with_suffix("")), *parse(file.read_text())))
        except (ValueError, FileNotFoundError) as error:
            raise SystemExit(f"{_shown(file)}: {error}") from error
    return mutants


def last_found() -> dict[str, int]:
    """The first seed that found a mutant, by its name, when the table of the docs was made."""
    rows = re.findall(r"^\|.*\| `(.+)` \| (\d+) \|$", TABLE.read_text(), re.MULTILINE)
    return {name: int(seed) for name, seed in rows}


def mutated_files(mutant: Mutant) -> dict[str, str]:
    """The files that the mutant changes, as it has them. Raises `DoesNotApply` with what to do."""
    try:
        return apply_hunks(lambda path: (ROOT / path).read_text(), mutant.hunks)
    except DoesNotApply as error:
        raise DoesNotApply(
            f"{_shown(mutant.file)} does not apply: {error}. Where the code only moved, run "
            "`python -m sim mutants --refresh` in tests/; else plant the same bug in the code as it is now, "
            "put `git diff catalog` into the patch below its first line, and undo the change"
        ) from None


def hunt(mutant: Mutant, preloaded: Preloaded, seeds: int | None = None, likely: int = 0) -> Found:
    """Run worlds with the mutant in the place of the code, the `likely` one first, until one fails.

    Raises:
        DoesNotApply: the code has changed.
        AssertionError: the mutant fails to import, or in the smoke test: that is no subtle bug.
    """
    child = run_copy(mutant, preloaded, "hunt", str(seeds or mutant.seeds), str(likely))
    if child.returncode:
        raise AssertionError(f"{mutant.name}: {child.stderr.strip()[-2000:]}")
    return Found(**json.loads(child.stdout.splitlines()[-1]))


def worlds_preloaded() -> Preloaded:
    """What runs commands on copies of the code."""
    return Preloaded("sim.mutated", "sim.replay", *MODULES)


def run_copy(mutant: Mutant, preloaded: Preloaded, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `sim.mutated` on a copy of the code that has the mutant's bug."""
    changed = mutated_files(mutant)
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as folder:
        copy = copy_with(changed, Path(folder))
        return preloaded.run("sim.mutated", str(copy), mutant.kind, *command)


def copy_with(changed: Mapping[str, str], folder: Path) -> Path:
    """A copy of the code in a folder, with some files changed; its path.

    What was compiled comes along, as all would be compiled anew each time: it is known by the times of the
    sources, which are kept. Only of what is changed nothing compiled must be found.
    """
    copy = folder / "catalog"
    shutil.copytree(ROOT / "catalog", copy)
    for path, text in changed.items():
        for compiled in (folder / path).parent.glob(f"__pycache__/{Path(path).stem}.*"):
            compiled.unlink()
        (folder / path).write_text(text)
    return copy


def refresh(mutant: Mutant) -> Mutant:
    """The mutant with the line numbers and files of today. Raises `DoesNotApply` where its lines are gone."""
    hunks = tuple(_moved(hunk) for hunk in mutant.hunks)
    # A patch tells its files in order, each with its hunks in order.
    mutant = replace(mutant, hunks=tuple(sorted(hunks, key=lambda hunk: (hunk.path, hunk.line))))
    after = mutated_files(mutant)
    before = {path: (ROOT / path).read_text() for path in after}
    mutant.file.write_text(render(mutant.story, before, after))
    return Mutant(mutant.name, *parse(mutant.file.read_text()))


def _moved(hunk: Hunk) -> Hunk:
    """The hunk in the file that its lines are in now, if that is another and the only one."""
    file = ROOT / hunk.path
    if file.exists() and locate(file.read_text().splitlines(), hunk)[1]:
        return hunk
    moved = []
    for other in sorted((ROOT / "catalog" / "holdfast").rglob("*.py")):
        part, places = locate(other.read_text().splitlines(), hunk)
        moved += [replace(part, path=str(other.relative_to(ROOT)), line=place + 1) for place in places]
    return moved[0] if len(moved) == 1 else hunk


def _shown(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
