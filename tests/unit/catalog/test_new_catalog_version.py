"""`make new-catalog-version`, tried in a copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.catalog.version import CATALOG_VERSION, RELEASED_VERSION
from testbed.children import plain_path

ROOT = Path(__file__).parents[3]
NEXT = CATALOG_VERSION + 1
STEP = f"catalog/holdfast/catalog/upgrade/v{CATALOG_VERSION}_to_v{NEXT}.py"
GOLDEN = "tests/unit/catalog/golden"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("proto", "catalog/holdfast", "tests/testbed", GOLDEN):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name in (
        "pyproject.toml",
        "tests/fixtures/make_golden.py",
        "tests/unit/catalog/test_proto_versions.py",
        "tests/unit/catalog/test_format_golden.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = plain_path(copy / "catalog", copy / "tests")
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def contents(copy: Path) -> dict[str, bytes]:
    files = [path for path in copy.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(copy).as_posix(): path.read_bytes() for path in files}


def check(copy: Path) -> None:
    """What `make lint` and the tests of versions say, as far as they are about the new one."""
    for command in (
        ("-m", "ruff", "format", "--check", "--no-cache", "catalog", "proto"),
        ("-m", "ruff", "check", "--no-cache", "catalog", "proto"),
        ("proto/generate.py", "--check"),
        (
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"together or pinned or {NEXT}"),
            *("tests/unit/catalog/test_proto_versions.py", "tests/unit/catalog/test_format_golden.py"),
        ),
    ):
        done = run(copy, *command)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_a_new_version_is_whole_and_may_be_made_again_until_it_is_released(copy: Path) -> None:
    before = contents(copy)
    current = copy / "proto/objects.proto"
    text = current.read_text()
    current.write_text(text.replace("string definition = 4;", "string definition = 4;\n  string note = 9;"))
    made = run(copy, "proto/new_version.py")
    assert made.returncode == 0, made.stderr
    assert f"made version {NEXT}: write {STEP}" in made.stdout
    after = contents(copy)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == {
        "proto/objects.proto",
        "proto/hashes.json",
        f"proto/old/objects_v{NEXT}.proto",
        "catalog/holdfast/catalog/version.py",
        STEP,
        *(f"catalog/holdfast/_pb/objects{of}_pb2.py{i}" for of in ("", f"_v{NEXT}") for i in ("", "i")),
        f"{GOLDEN}/v{NEXT}.json",
        f"{GOLDEN}/v{CATALOG_VERSION}_to_v{NEXT}.json",
    }
    # A step that nobody has written is none, nor may another version follow it.
    step = copy / STEP
    for command in (["proto/generate.py", "--check"], ["proto/generate.py"], ["proto/new_version.py"]):
        refused = run(copy, *command)
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert f"{STEP} is still the template: write it" in line
    step.write_text(step.read_text().replace("What changes in the format, and why;", "Items have notes;"))
    assert run(copy, "proto/new_version.py", "--again").returncode == 0
    check(copy)

    step.write_text(
        step.read_text().replace("        yield from", '        new.note = "from before"\n        yield from')
    )
    refused = run(copy, "proto/generate.py", "--check")
    assert refused.returncode == 1
    assert "was changed: restore it" in refused.stderr
    assert "make new-catalog-version AGAIN=1" in refused.stderr
    assert run(copy, "proto/new_version.py", "--again").returncode == 0
    assert "from before" in (copy / f"{GOLDEN}/v{CATALOG_VERSION}_to_v{NEXT}.json").read_text()


def test_a_released_version_is_not_made_again(copy: Path) -> None:
    current = copy / "proto/objects.proto"
    current.write_text(current.read_text() + "message New {}\n")
    library = copy / "catalog/holdfast/catalog/version.py"
    released = f"RELEASED_VERSION = {CATALOG_VERSION}"
    library.write_text(library.read_text().replace(f"RELEASED_VERSION = {RELEASED_VERSION}", released))
    before = contents(copy)
    refused = run(copy, "proto/new_version.py", "--again")
    assert refused.returncode == 1
    assert f"version {CATALOG_VERSION} was released and never changes" in refused.stderr
    assert contents(copy) == before


def test_a_message_that_never_changes_is_refused_without_a_trace(copy: Path) -> None:
    current = copy / "proto/objects.proto"
    text = current.read_text()
    current.write_text(text.replace("message SettingKey {", "message SettingKey {\n  bool new = 99;", 1))
    before = contents(copy)
    refused = run(copy, "proto/new_version.py")
    assert refused.returncode == 1
    assert "SettingKey" in refused.stderr
    assert contents(copy) == before


def test_what_does_not_fit_together_gets_no_new_version(copy: Path) -> None:
    frozen = copy / f"proto/old/objects_v{CATALOG_VERSION - 1}.proto"
    frozen.write_text(frozen.read_text() + "// changed\n")
    before = contents(copy)
    refused = run(copy, "proto/new_version.py")
    assert refused.returncode == 1
    assert "is frozen and was changed: restore it" in refused.stderr
    assert contents(copy) == before
