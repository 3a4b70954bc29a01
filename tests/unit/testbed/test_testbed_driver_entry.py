"""The program that becomes the application has its arguments, import path and exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import testbed

ENTRY = Path(testbed.__file__).with_name("_driver_entry.py")
PROGRAM = """
import json, sys
from neighbour import GREETING
print(json.dumps({"argv": sys.argv[1:], "name": __name__, "path": sys.path, "greeting": GREETING}))
sys.exit(5)
"""


@pytest.mark.parametrize("kind", ["file", "module"])
def test_the_application_runs_as_if_it_had_been_submitted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("GREETING = 'hello'")
    (tmp_path / "gate.go").touch()
    target = f"file:{tmp_path / 'app.py'}" if kind == "file" else "module:app"
    done = subprocess.run(
        [sys.executable, ENTRY, tmp_path / "gate", target, "one", "--two"],
        env={"PYTHONPATH": str(tmp_path) if kind == "module" else ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 5, done.stderr
    told = json.loads(done.stdout)
    assert (told["argv"], told["name"], told["greeting"]) == (["one", "--two"], "__main__", "hello")
    assert str(ENTRY.parent) not in told["path"]
    assert (tmp_path / "gate.started").exists()


def test_nothing_of_the_application_runs_before_the_gate_opens(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    entry: list[str | Path] = [sys.executable, ENTRY, tmp_path / "gate", f"file:{tmp_path / 'app.py'}"]
    with subprocess.Popen(entry) as waiting:
        while not (tmp_path / "gate.started").exists():
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.05)
        assert not (tmp_path / "ran").exists()
        (tmp_path / "gate.go").touch()
        assert waiting.wait(60) == 0
    assert (tmp_path / "ran").exists()
