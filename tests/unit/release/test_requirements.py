"""What an installation brings: the requirements are those that the documentation lists.

What needs an extra says how to install it, and the first pages run with what they say alone.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "catalog" / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "reference" / "requirements.md").read_text()
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
WITHOUT = Path(__file__).with_name("without_extras.py")
MOST_MB = 450
"""The most that the base may take. If it takes more, change the page too, and say why in the change log."""


def name(requirement: str) -> str:
    return re.split(r"[\[<>=~ ]", requirement)[0]


def test_the_page_lists_the_requirements_and_the_extras() -> None:
    base, extras = PAGE.split("\nAn extra adds")
    assert re.findall(r"^\| `([\w-]+)` \|", base, re.MULTILINE) == sorted(
        map(name, PROJECT["dependencies"]), key=base.index
    )
    listed = {
        row[0]: set(re.findall(r"`([\w-]+)`", row[1]))
        for row in re.findall(r"^\| `(\w+)` \| \d+ \| ([^|]+) \|", extras, re.MULTILINE)
    }
    assert listed == {
        extra: set(map(name, packages)) for extra, packages in PROJECT["optional-dependencies"].items()
    }


def test_the_operator_pins_kubernetes() -> None:
    operator = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
    assert "kubernetes==37.0.1" in operator["dependencies"]


def test_what_needs_an_extra_names_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("collection: orders\n")
    done = subprocess.run(
        [sys.executable, WITHOUT, tmp_path], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {extra for extra, *_ in told} == set(PROJECT["optional-dependencies"])
    for extra, what, message, hint in told:
        assert re.search(r" needs \w+, which is not installed$", message), (what, message)
        assert hint.removeprefix("  hint: ") == f"pip install 'holdfast[{extra}]'", (what, hint)
        assert "secret" not in message


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT / "catalog"], check=True)
    (built,) = folder.glob("*.whl")
    with ZipFile(built) as files:
        assert "holdfast/py.typed" in files.namelist()
    return built


READING = """
import sys
from pathlib import Path

from testbed import docpages
from testbed.pageruns import PageRun

page, folder = sys.argv[1:]
with PageRun(Path(folder)) as run:
    for block in docpages.to_run(page):
        command = "holdfast " in block.text and "helm " not in block.text
        if command or block.title or block.language == "python":
            run.run(block)
            print(block.line)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "blocks"),
    [("README.md", 2), ("docs/tutorial/a-first-table.md", 6), ("docs/tutorial/a-first-source.md", 6)],
)
def test_the_first_pages_run_with_what_they_install(
    page: str, blocks: int, wheel: Path, tmp_path: Path
) -> None:
    (extras,) = re.findall(r"^pip install '?\./catalog(\S*?)'?$", (ROOT / page).read_text(), re.MULTILINE)
    venv = tmp_path / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python"]
    subprocess.run([*install, f"holdfast{extras} @ {wheel.as_uri()}"], check=True)
    if not extras:
        size = sum(
            path.stat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink()
        )
        assert size < MOST_MB << 20
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [venv / "bin" / "python", "-c", READING, page, tmp_path / "page"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) >= blocks
