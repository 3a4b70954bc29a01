"""The simulation finds each planted bug of `mutants/`. A checker that cannot fail proves nothing.

The worlds are those of the tests of the simulation. Code without the bugs passes them. A hunt
begins at the seed that the table in `docs/explanation/simulation.md` names. If that seed no longer finds the
bug, the hunt goes on with all other seeds. `make test` hunts one bug of each kind of worlds, `make test-all`
hunts all. The report shows the seed that found each bug. `python -m sim mutants --table` makes the table.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from sim import mutated, mutation
from sim.kinds import PERSIST, TESTED, world
from sim.mutation import Found, Mutant, hunt, last_found, load, mutated_files, refresh, worlds_preloaded
from sim.patches import DoesNotApply, parse
from sim.report import tell
from testbed.preloaded import Preloaded

MUTANTS = load()


KNOWN = last_found()


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    with worlds_preloaded() as preloaded:
        yield preloaded


@pytest.fixture(scope="module")
def hunts(request: pytest.FixtureRequest, preloaded: Preloaded) -> Iterator[dict[str, Future[Found]]]:
    """The hunts that this run wants, two at a time, by mutant."""
    wanted = {
        item.callspec.params["mutant"].name
        for item in request.session.items
        if getattr(item, "callspec", None) and "mutant" in item.callspec.params
    }
    with ThreadPoolExecutor(2) as pool:
        hunts = {
            each.name: pool.submit(hunt, each, preloaded, likely=KNOWN.get(each.name, 0))
            for each in MUTANTS
            if each.name in wanted
        }
        yield hunts
    tell(
        request.config,
        ["mutants: the seed where a hunt began, and the seed that found it", *map(_row, hunts.items())],
    )


def _row(item: tuple[str, Future[Found]]) -> str:
    name, hunted = item
    seed = "error" if hunted.exception() else hunted.result().seed
    return f"  {name:56} {KNOWN.get(name, 0):5} {'not found' if seed is None else seed:>9}"


QUICK = {each.kind: each.name for each in reversed(MUTANTS)}
"""The mutant of each kind of worlds that `make test` hunts. `make test-all` hunts all of them."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[] if each.name in QUICK.values() else pytest.mark.long)
        for each in MUTANTS
    ],
)
@pytest.mark.timeout(3600)
def test_the_simulation_finds(mutant: Mutant, hunts: dict[str, Future[Found]]) -> None:
    found = hunts[mutant.name].result()
    assert found.seed is not None, f"{mutant.seeds} seeds did not notice: {mutant.story}"
    if found.seed >= TESTED[mutant.kind]:
        # The tests of the simulation run all seeds below on code without the bug.
        world(mutant.kind, found.seed).run()


def test_code_without_a_bug_is_not_found_guilty(preloaded: Preloaded) -> None:
    assert hunt(Mutant("none", "No bug at all.", ()), preloaded, 12) == Found(None, "")


def test_a_hunt_begins_where_the_last_one_ended_and_leaves_no_seed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    monkeypatch.setattr(mutated, "world", lambda _, seed: tried.append(seed) or Failing(seed))
    assert mutated.first_failure(PERSIST, 9, likely=7) == (7, "ZeroDivisionError: division by zero")
    assert mutated.first_failure(PERSIST, 7, likely=6) == (None, "")
    assert tried == [7, 6, 0, 1, 2, 3, 4, 5]
    added = {mutant.name for mutant in MUTANTS} ^ KNOWN.keys()
    assert not added, "run `python -m sim mutants NAME --table` in tests/, and update the table of the docs"


class Failing:
    """A world of seed 7 that fails, or another."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def run(self) -> None:
        if self._seed == 7:
            raise ZeroDivisionError("division by zero")


def test_a_bug_that_everybody_sees_is_no_mutant(preloaded: Preloaded) -> None:
    patch = """Appends nothing at all.
--- a/catalog/holdfast/persist/parts/part_store.py
+++ b/catalog/holdfast/persist/parts/part_store.py
@@ -1,2 +1,2 @@
-        if bounds is None:
+        if True:
             return ()
"""
    with pytest.raises(AssertionError, match=r"in smoke"):
        hunt(Mutant("none", *parse(patch)), preloaded, 5)


def test_a_patch_with_an_unknown_name_is_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mistaken:
        def run(self) -> None:
            raise NameError("name 'Row' is not defined")

    monkeypatch.setattr(mutated, "world", lambda _kind, _seed: Mistaken())
    with pytest.raises(NameError, match="Row"):
        mutated.first_failure(PERSIST, 1)


CODE = "\n".join([*(f"line {number}" for number in range(12)), ""])
PATCH = """One becomes another.
--- a/catalog/holdfast/one.py
+++ b/catalog/holdfast/one.py
@@ -4,7 +4,7 @@
 line 3
 line 4
 line 5
-line 6
+line six
 line 7
 line 8
 line 9
"""


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    """A mutant of code in a folder of its own."""
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    monkeypatch.setattr(mutation, "PATCHES", tmp_path)
    (tmp_path / "catalog/holdfast").mkdir(parents=True)
    (tmp_path / "catalog/holdfast/one.py").write_text(CODE)
    (tmp_path / "one.patch").write_text(PATCH)
    return load()[0]


def test_a_patch_applies_where_its_lines_are(patched: Mutant, tmp_path: Path) -> None:
    file = tmp_path / "catalog/holdfast/one.py"
    for code in (CODE, "new\n" * 30 + CODE, CODE.replace("line 4\n", "").replace("line 9\n", "line nine\n")):
        file.write_text(code)
        changed = mutated_files(patched)
        assert changed == {"catalog/holdfast/one.py": code.replace("line 6", "line six")}


def test_a_patch_that_does_not_apply_says_what_to_do(patched: Mutant, tmp_path: Path) -> None:
    (tmp_path / "catalog/holdfast/one.py").write_text(CODE.replace("line 6", "line sechs"))
    with pytest.raises(DoesNotApply, match=r"one\.patch does not apply: .*'line 6'.*--refresh"):
        mutated_files(patched)
    (tmp_path / "catalog/holdfast/one.py").unlink()
    with pytest.raises(DoesNotApply, match=r"there is no file"):
        mutated_files(patched)


def test_a_patch_follows_code_that_moved(patched: Mutant, tmp_path: Path) -> None:
    (tmp_path / "catalog/holdfast/one.py").rename(tmp_path / "catalog/holdfast/two.py")
    (tmp_path / "catalog/holdfast/one.py").write_text("line 0\n")
    moved = refresh(patched)
    assert [hunk.path for hunk in moved.hunks] == ["catalog/holdfast/two.py"]
    assert mutated_files(moved)["catalog/holdfast/two.py"] == CODE.replace("line 6", "line six")
    assert refresh(moved) == moved


def test_a_patch_needs_a_story() -> None:
    for text in ("", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"):
        with pytest.raises(ValueError, match=r"first line"):
            parse(text)
    with pytest.raises(ValueError, match=r"no hunk"):
        parse("A story.\n")
