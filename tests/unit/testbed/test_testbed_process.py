"""Child processes end when they should, with all their processes."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.process import Child

TESTS = Path(__file__).parents[2]


def ended(handle: int, seconds: float = 20.0) -> bool:
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_an_exit_code_is_told_as_a_container_runtime_would(tmp_path: Path) -> None:
    assert Child("exits", ["sh", "-c", "exit 7"], log=tmp_path / "a").wait(20) == 7
    assert Child("is killed", ["sh", "-c", "kill -9 $$"], log=tmp_path / "b").wait(20) == 137


def test_output_of_both_kinds_is_kept(tmp_path: Path) -> None:
    child = Child("talks", ["sh", "-c", "echo one; echo two >&2; echo three"], log=tmp_path / "log")
    child.wait(20)
    assert child.tail(2) == "two\nthree"


def test_a_child_sees_only_the_environment_it_is_given(tmp_path: Path) -> None:
    child = Child("env", ["/usr/bin/env"], log=tmp_path / "log", env={"ONLY": "this"})
    child.wait(20)
    assert "ONLY=this" in child.tail()
    assert "HOME=" not in child.tail()


def test_stop_takes_the_grandchildren_along(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = Child("parent", ["sh", "-c", f"sleep 1000 & echo $! > {pipe}; wait"], log=tmp_path / "log")
    grandchild = os.pidfd_open(int(pipe.read_text()))
    child.stop()
    assert child.poll() == 128 + signal.SIGTERM
    assert ended(grandchild)


def test_stop_insists_when_the_grace_is_over(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = Child(
        "stubborn",
        ["sh", "-c", f"trap '' TERM; echo > {pipe}; while :; do sleep 1000; done"],
        log=tmp_path / "log",
        grace=0.1,
    )
    pipe.read_text()
    child.stop()
    assert child.poll() == 128 + signal.SIGKILL
    child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent")
def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from testbed.process import Child\n"
        "print(Child('sleeps', ['sleep', '1000'], log=Path(sys.argv[1])).pid, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert ended(child)
