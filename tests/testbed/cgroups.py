"""The control groups of one node: a folder in each hierarchy of the machine.

Invariants
- Only folders whose name begins with `PREFIX` are created or removed. Their processes belong to a node.
- A group is empty before it is removed. It is thawed before its processes are killed, because a frozen
  process cannot die.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

PREFIX: Final = "holdfast-node-"
_ROOT: Final = Path("/sys/fs/cgroup")
_NEEDED: Final = frozenset({"cpu", "cpuacct", "cpuset", "memory", "pids"})
_PATIENCE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


def missing() -> str | None:
    """What is wrong with the control groups of this machine; None if a node can use them."""
    if _unified():
        controllers = set((_ROOT / "cgroup.controllers").read_text().split())
        lack = {"cpu", "cpuset", "memory", "pids"} - controllers
    else:
        lack = {name for name in _NEEDED if not (_ROOT / name / "cgroup.procs").exists()}
    if lack:
        return f"the control groups {', '.join(sorted(lack))} are not in {_ROOT}"
    if not os.access(_hierarchies()[0], os.W_OK):
        return f"{_ROOT} can't be written"
    return None


def create(name: str) -> None:
    """Make the group in every hierarchy, so that what the kubelet needs can be made in it."""
    assert name.startswith(PREFIX)
    for root in _hierarchies():
        if _unified():
            wanted = " ".join(f"+{each}" for each in (root / "cgroup.controllers").read_text().split())
            (root / "cgroup.subtree_control").write_text(wanted)
        group = root / name
        group.mkdir(exist_ok=True)
        for setting in ("cpuset.mems", "cpuset.cpus"):
            # In the older hierarchy a new group has none, and takes no process without.
            if not _unified() and (group / setting).exists():
                (group / setting).write_text((root / setting).read_text())


def set_frozen(name: str, pod_uid: str, *, frozen: bool) -> None:
    """Stop everything in a pod of the group where it is, or let it go on; returns when that is so."""
    assert name.startswith(PREFIX)
    if _unified():
        switch, state = "cgroup.freeze", str(int(frozen))
    else:
        switch, state = "freezer.state", "FROZEN" if frozen else "THAWED"
    found = [each for root in _hierarchies() for each in (root / name).glob(f"**/pod{pod_uid}/{switch}")]
    assert found, f"the pod {pod_uid} has no control group with {switch}"
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for each in found:
        each.write_text(state)
        while each.read_text().strip() != state:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pod {pod_uid} doesn't become {state}")
            time.sleep(_POLL_SECONDS)


def kill(name: str, pod_uid: str, program: str) -> None:
    """End by SIGKILL what a pod of the group runs with this in its command line; there is such a process."""
    assert name.startswith(PREFIX)
    groups = [
        each.parent
        for root in _hierarchies()
        for each in (root / name).glob(f"**/pod{pod_uid}/**/cgroup.procs")
    ]
    pids = {pid for group in groups for pid in _processes(group)}
    ours = [pid for pid in pids if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert ours, f"nothing in the pod {pod_uid} has {program} in its command line"
    for pid in ours:
        # The first of a container takes the others with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def thaw(name: str) -> None:
    """Let everything in the group run again."""
    assert name.startswith(PREFIX)
    for root in _hierarchies():
        for state, running in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            # Groups vanish meanwhile. Unlike glob, walk passes over those.
            for folder, _, files in os.walk(root / name):
                if state in files:
                    with contextlib.suppress(OSError):
                        Path(folder, state).write_text(running)


def remove(name: str) -> None:
    """End what runs in the group, and remove it from every hierarchy."""
    thaw(name)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while left := [group for root in _hierarchies() if (group := root / name).exists()]:
        for group in left:
            # The deepest first; one with processes in it isn't removed.
            for folder, _, _ in os.walk(group, topdown=False):
                for pid in _processes(Path(folder)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the control group {left[0]} can't be removed: something still runs in it")
        if any(group.exists() for group in left):
            time.sleep(_POLL_SECONDS)


def left_over() -> list[str]:
    """The names of all groups of nodes on this machine."""
    return sorted({group.name for root in _hierarchies() for group in root.glob(f"{PREFIX}*")})


def _unified() -> bool:
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Where the hierarchies are mounted; of the older kind one for each controller."""
    if _unified():
        return [_ROOT]
    # Some names are links to a hierarchy that several controllers share.
    return [
        folder
        for folder in sorted(_ROOT.glob("*"))
        if not folder.is_symlink() and (folder / "cgroup.procs").exists()
    ]


def _processes(group: Path) -> list[int]:
    try:
        # 0 is a process of a namespace that can't be seen from here.
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split() if int(pid) > 0]
    except OSError:
        return []
