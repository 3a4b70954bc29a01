"""Namespaces for a node, so that a node changes nothing of the machine.

Invariants
- Mounts, routes, filters and settings of the sandbox are visible only inside it. The sandbox sees all files
  of the machine. The machine does not see what the sandbox writes below /run and /var.
- Kernel settings that a kubelet changes are covered by files with the values that it expects.
- The first process of the sandbox ends with this process. All other processes, mounts and interfaces end with
  it.
- The only way out is a pair of interfaces to this machine. No route leads further.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from testbed.errors import Unavailable
from testbed.process import Child

INSIDE: Final = Path("/run/holdfast")
"""Where the sandbox's folder is for what runs in it."""
SHOWN: Final = INSIDE / "shown"
BRIDGE: Final = "10.244.0.1"
"""The address of the bridge that pods are on."""
_PODS: Final = 24
_LINKS: Final = ipaddress.IPv4Network("198.18.0.0/15")
"""Of these (meant for tests of networks, routed nowhere) the link to this machine takes four."""
_KERNEL: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_FLAGS: Final = ("--mount", "--net", "--pid", "--uts", "--ipc")
_PROGRAMS: Final = ("unshare", "nsenter", "mount", "setpriv", "sleep", "env")
_BOOT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01


def missing() -> str | None:
    """What this machine lacks to make namespaces; None if it can."""
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is missing: install util-linux and coreutils"
    done = subprocess.run(["unshare", *_FLAGS, "--fork", "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"namespaces can't be made here: {done.stderr.strip()}"
    return None


class Sandbox:
    """Namespaces with a folder and a link to this machine."""

    def __init__(self, folder: Path, first: Child, pid: int, link: ipaddress.IPv4Network) -> None:
        """Use `start`."""
        self.folder = folder
        self._first = first
        self._pid = pid
        outside, inside = link.hosts()
        self.outside: Final = str(outside)
        """This machine, for what runs in the sandbox and in its pods."""
        self.inside: Final = str(inside)
        """The sandbox, for this machine."""

    @classmethod
    def start(cls, folder: Path, *, shown: Path | None = None) -> Self:
        """Make one, whose files go to `folder`, and which finds the folder `shown` at `SHOWN`.

        Raises `Unavailable`, and leaves no process then.
        """
        first = Child(
            "sandbox",
            # The first process of a namespace is the parent of what loses its own: it reaps by not caring.
            [
                *("unshare", *_FLAGS, "--fork", "--kill-child", "--mount-proc", "--propagation", "slave"),
                *("env", "--ignore-signal=CHLD", "sleep", "infinity"),
            ],
            log=folder / "sandbox.log",
            cwd=Path("/"),
        )
        try:
            sandbox = cls(folder, first, _first_process(first), _free_link())
            sandbox._mount(shown)
            sandbox._connect()
        except BaseException:
            first.kill()
            raise
        return sandbox

    def enter(self, *command: str | Path) -> list[str | Path]:
        """What runs a command in here, and leaves it to the command to end on SIGTERM."""
        return [
            *("env", "--ignore-signal=TERM", "nsenter", f"--target={self._pid}", *_FLAGS, "--"),
            *("env", "--default-signal=TERM", *command),
        ]

    def run(self, *command: str | Path) -> str:
        """Run a command to its end, and return what it prints; raises `Unavailable` where it fails."""
        done = subprocess.run(
            [os.fspath(part) for part in self.enter(*command)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            told = " ".join(map(str, command))
            raise Unavailable(f"{told}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def succeeds(self, *command: str | Path) -> bool:
        """Run a command to its end; whether it succeeds."""
        entered = [os.fspath(part) for part in self.enter(*command)]
        return subprocess.run(entered, capture_output=True, check=False).returncode == 0

    def child(self, name: str, command: Sequence[str | Path], *, grace: float = 10.0) -> Child:
        """A process that stays until it is stopped."""
        return Child(
            name,
            self.enter(*command),
            log=self.folder / f"{name}.log",
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(INSIDE)},
            cwd=Path("/"),
            grace=grace,
        )

    def stop(self) -> None:
        """End all that runs in it, at once."""
        self._first.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._first.wait(_BOOT_SECONDS)

    def _mount(self, shown: Path | None) -> None:
        (self.folder / SHOWN.name).mkdir()
        for part in ("upper", "work"):
            (self.folder / "var" / part).mkdir(parents=True)
        covers = self.folder / "kernel"
        for name, value in _KERNEL.items():
            (covers / name).parent.mkdir(parents=True, exist_ok=True)
            (covers / name).write_text(f"{value}\n")
        self.run("sh", "-euc", _MOUNT, "sh", self.folder, shown or "", *_KERNEL)

    def _connect(self) -> None:
        outer = f"hf-{secrets.token_hex(4)}"
        for command in (
            f"link add {outer} type veth peer name machine netns {self._pid}",
            f"address add {self.outside}/30 dev {outer}",
            f"link set {outer} up",
        ):
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"ip {command}: {done.stderr.strip()}")
        self.run("sh", "-euc", _CONNECT, "sh", f"{self.inside}/30", f"{BRIDGE}/{_PODS}")


_MOUNT: Final = f"""
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p {INSIDE} /run/lock
mount --bind "$1" {INSIDE}
test -z "$2" || mount -o bind,ro "$2" {SHOWN}
mount -t overlay -o lowerdir=/var,upperdir={INSIDE}/var/upper,workdir={INSIDE}/var/work overlay /var
shift 2
for setting in "$@"; do
  test ! -e /proc/sys/$setting || mount --bind {INSIDE}/kernel/$setting /proc/sys/$setting
done
"""
"""The folder comes before what covers /var, below which it may lie."""
_CONNECT: Final = """
ip link set lo up
ip address add "$1" dev machine
ip link set machine up
ip link add cni0 type bridge
ip address add "$2" dev cni0
ip link set cni0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
# What a pod answers another one that asked a Service must pass the rules, though it stays on the bridge.
filtered=/proc/sys/net/bridge/bridge-nf-call-iptables
test ! -e $filtered || echo 1 > $filtered
"""


def _first_process(unshare: Child) -> int:
    """Wait until the namespaces are made, and return the number of the process that keeps them."""
    deadline = time.monotonic() + _BOOT_SECONDS
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    while True:
        with contextlib.suppress(OSError, ValueError):
            (pid,) = (int(each) for each in children.read_text().split())
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
                return pid
        if unshare.poll() is not None or time.monotonic() > deadline:
            raise Unavailable(f"namespaces could not be made: {unshare.tail(3)}")
        time.sleep(_POLL_SECONDS)


def _free_link() -> ipaddress.IPv4Network:
    """Four addresses that no route of this machine has anything to do with."""
    told = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=True
    ).stdout
    taken = [
        ipaddress.ip_network(route["dst"], strict=False)
        for route in json.loads(told or "[]")
        if route["dst"] != "default"
    ]
    for link in _LINKS.subnets(new_prefix=30):
        if not any(link.overlaps(other) for other in taken if isinstance(other, ipaddress.IPv4Network)):
            return link
    raise Unavailable(f"all addresses in {_LINKS} are routed somewhere")
