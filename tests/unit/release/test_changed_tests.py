"""`make check` finds the unit tests of what changed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "catalog/holdfast/persist/rows/schema.py": "",
    "catalog/holdfast/persist/rows/casts.py": "",
    "catalog/holdfast/persist/upkeep/__init__.py": "",
    "catalog/holdfast/persist/upkeep/garbage.py": "",
    "catalog/holdfast/persist/upkeep/sweep.py": "",
    "operator/holdfast_operator/engine/queue.py": "",
    "tests/testbed/minio.py": "",
    "tests/unit/persist/rows/strategies.py": "",
    "tests/unit/persist/rows/test_schema.py": "",
    "tests/unit/persist/rows/test_others.py": "",
    "tests/unit/persist/test_persist_garbage.py": "",
    "tests/unit/persist/test_uses.py": "from holdfast.persist.upkeep import garbage, other\n",
    "tests/unit/persist/test_uses_more.py": "from holdfast.persist.upkeep.garbage import collect\n",
    "tests/unit/operator/engine/test_status_writer.py": "",
    "tests/unit/testbed/test_testbed_minio.py": "",
    "tests/unit/release/test_habits.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project like this one, with a branch that has changed nothing yet."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks/changed_tests.py").write_text((ROOT / "checks" / "changed_tests.py").read_text())
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    return tmp_path


def git(project: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True)


def commit(project: Path) -> None:
    git(project, "add", ".")
    git(project, "commit", "--quiet", "--message", "test: change")


def found(project: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "checks/changed_tests.py"], cwd=project, capture_output=True, text=True, check=True
    )
    return [line.removeprefix("tests/unit/") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("catalog/holdfast/persist/rows/schema.py", ["persist/rows/test_schema.py"]),
        ("catalog/holdfast/persist/rows/casts.py", ["persist/rows"]),
        (
            "catalog/holdfast/persist/upkeep/garbage.py",
            ["persist/test_persist_garbage.py", "persist/test_uses.py", "persist/test_uses_more.py"],
        ),
        (
            "catalog/holdfast/persist/upkeep/sweep.py",
            ["persist/test_uses.py", "persist/test_uses_more.py"],
        ),
        ("operator/holdfast_operator/engine/queue.py", ["operator/engine"]),
        ("tests/testbed/minio.py", ["testbed/test_testbed_minio.py"]),
        ("tests/unit/persist/rows/strategies.py", ["persist/rows"]),
        ("tests/unit/persist/rows/test_others.py", ["persist/rows/test_others.py"]),
        ("Makefile", ["release"]),
        ("LICENSE", []),
    ],
)
def test_a_change_stands_for_its_tests(project: Path, changed: str, tests: list[str]) -> None:
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert found(project) == tests


def test_all_changes_since_the_branch_left_main_count(project: Path) -> None:
    assert found(project) == []
    git(project, "checkout", "--quiet", "-b", "branch")
    (project / "catalog/holdfast/persist/rows/schema.py").write_text("committed = 1\n")
    commit(project)
    assert found(project) == ["persist/rows/test_schema.py"]
    (project / "tests/unit/release/test_new.py").write_text("")
    (project / "tests/unit/persist/test_uses.py").unlink()
    assert found(project) == ["persist/rows/test_schema.py", "release/test_new.py"]
    git(project, "checkout", "--quiet", "main")
    assert found(project) == ["release/test_new.py"]
    git(project, "update-ref", "refs/remotes/origin/main", "main")
    commit(project)
    assert found(project) == ["release/test_new.py"]
