"""The node of the test bed leaves nothing on the machine, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import cgroups
from testbed.sandbox import Sandbox

pytestmark = pytest.mark.node

TESTS = Path(__file__).parents[1]
OWNER = """
import signal, sys
from pathlib import Path
from testbed.sandbox import Sandbox
sandbox = Sandbox.start(Path(sys.argv[1]))
stays = sandbox.child("stays", ["setsid", "--fork", "sleep", "86397"])
print(sandbox.outside, flush=True)
signal.pause()
"""


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def addresses() -> str:
    return subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout


def running(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def test_a_sandbox_changes_nothing_of_the_machine(tmp_path: Path) -> None:
    settings = [Path("/proc/sys/net/ipv4/ip_forward"), Path("/proc/sys/vm/overcommit_memory")]
    before = [setting.read_text() for setting in settings]
    machines_own = {path: set(Path(path).iterdir()) for path in ("/run", "/var/lib")}
    sandbox = Sandbox.start(tmp_path)
    try:
        assert sandbox.run("cat", *settings) == "1\n1\n"
        sandbox.run(
            "sh", "-c", "echo 1 > /proc/sys/vm/overcommit_memory; mkdir /run/planted /var/lib/planted"
        )
        assert sandbox.run("ls", "/var/lib").split().count("planted") == 1
        assert [setting.read_text() for setting in settings] == before
        assert {path: set(Path(path).iterdir()) for path in machines_own} == machines_own
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert sandbox.outside in addresses()
    finally:
        sandbox.stop()
    assert eventually(lambda: sandbox.outside not in addresses())


def test_nothing_of_a_sandbox_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    ) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        assert address in addresses()
        assert eventually(lambda: running("sleep 86397"))
        owner.send_signal(signal.SIGKILL)
    assert eventually(lambda: not running("sleep 86397"))
    assert eventually(lambda: address not in addresses())


def test_a_control_group_goes_with_what_is_frozen_in_it() -> None:
    name = f"{cgroups.PREFIX}test-{os.getpid()}"
    cgroups.create(name)
    groups = [Path("/sys/fs/cgroup/freezer") / name, Path("/sys/fs/cgroup") / name]
    group = next(group for group in groups if group.exists())
    pod = group / "podabc"
    pod.mkdir()
    sleeper = subprocess.Popen(["sleep", "86396"])
    try:
        (pod / "cgroup.procs").write_text(str(sleeper.pid))
        cgroups.set_frozen(name, "abc", frozen=True)
        assert name in cgroups.left_over()
        cgroups.remove(name)
        assert sleeper.wait(60) == -signal.SIGKILL
    finally:
        cgroups.thaw(name)
        sleeper.kill()
        sleeper.wait()
    assert name not in cgroups.left_over()
