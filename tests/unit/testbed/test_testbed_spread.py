"""A run in several processes does every test once, keeps units together, and reports everything."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from testbed.spread import choose, rank, unit

TESTS = Path(__file__).resolve().parents[2]

ONE_FILE = """
import json, os, pathlib, pytest
from sim.report import tell

@pytest.mark.parametrize("number", range(3))
def test_it(number, request):
    if number == 2:
        tell(request.config, [f"told by {pathlib.Path(__file__).stem}"])
    with open(os.environ["LOG"], "a") as log:
        log.write(json.dumps([os.environ["PYTEST_XDIST_WORKER"], request.node.nodeid]) + "\\n")
"""


def test_a_file_is_one_piece_and_so_is_all_of_spark() -> None:
    assert unit("tests/unit/test_a.py::test_x[a::b]") == "tests/unit/test_a.py"
    assert unit("tests/spark/test_a.py::test_x") == unit("tests/spark/test_b.py::test_y") == "tests/spark"


def test_the_longest_pieces_are_begun_first_and_short_files_fill_the_end() -> None:
    files = {
        "tests/unit/a.py": 1,
        "tests/unit/b.py": 50,
        "tests/unit/test_a_model.py": 1,
        "tests/unit/test_a_kills.py": 4,
    }
    pieces = {**files, "tests/conformance/c.py": 2, "tests/spark": 3}
    assert sorted(pieces, key=lambda name: rank(name, pieces[name])) == [
        "tests/spark",
        "tests/conformance/c.py",
        "tests/unit/test_a_kills.py",
        "tests/unit/test_a_model.py",
        "tests/unit/b.py",
        "tests/unit/a.py",
    ]


def test_one_process_computes_while_all_others_wait_for_a_cluster() -> None:
    units = {"tests/apiserver/a.py": 1, "tests/helm/b.py": 2, "tests/sim/c.py": 3, "tests/unit/d.py": 9}
    assert choose(units, []) == "tests/apiserver/a.py"
    assert choose(units, ["tests/cluster", "tests/spark"]) == "tests/apiserver/a.py"
    assert choose(units, ["tests/cluster", "tests/apiserver/e.py"]) == "tests/sim/c.py"
    assert choose({"tests/helm/b.py": 2}, ["tests/cluster"]) == "tests/helm/b.py"


def test_a_run_goes_on_after_a_process_that_ended(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    # The first unit is done when the process ends.
    (folder / "test_a.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    ends = "import os, pathlib\ndef test_it():\n    file = pathlib.Path(os.environ['LOG'])\n"
    ends += "    if not file.exists():\n        file.touch()\n        os._exit(1)\n"
    (folder / "test_b.py").write_text(ends)
    for name in "cdef":
        (folder / f"test_{name}.py").write_text("def test_it(): pass\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "testbed.pytest_plugin"),
            *("-p", "no:cacheprovider", "--rootdir", tmp_path, "tests"),
        ],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": str(TESTS),
            "LOG": str(tmp_path / "log"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "1 failed, 8 passed" in done.stdout, done.stdout + done.stderr


def test_every_test_is_done_once_with_those_of_its_piece(tmp_path: Path) -> None:
    names = ["spark/test_a", "spark/test_b", *(f"unit/test_{name}" for name in "cdefg")]
    for name in names:
        file = tmp_path / "tests" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(ONE_FILE)
    log = tmp_path / "log"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "testbed.pytest_plugin"),
            *("-p", "sim.report", "-p", "no:cacheprovider", "--rootdir", tmp_path, "tests"),
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(TESTS), "LOG": str(log)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [json.loads(line) for line in log.read_text().splitlines()]
    tests = [test for _, test in ran]
    assert sorted(tests) == sorted(f"tests/{name}.py::test_it[{n}]" for name in names for n in range(3))
    processes = defaultdict(set)
    for process, test in ran:
        processes[unit(test)].add(process)
    assert all(len(those) == 1 for those in processes.values())
    assert len(set.union(*processes.values())) == 2
    for name in names:
        assert f"told by {Path(name).name}" in done.stdout
