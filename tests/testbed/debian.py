"""Installs Debian packages if this process is root on a Debian machine, and otherwise says why not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable


def install(packages: tuple[str, ...], *, installed: Callable[[], bool]) -> str:
    """Install packages until `installed` holds, and return what went wrong: nothing where it holds.

    No service of theirs is started. A machine that is new gets its lists of packages first.
    """
    if installed():
        return ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"only root on Debian can install {' '.join(packages)}"
    print(f"installing the packages {' '.join(packages)} ...", file=sys.stderr, flush=True)
    # At run level 1 a package starts no server of its own.
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install_them = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    said = ""
    for command in (install_them, ["apt-get", "update"], install_them):
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stderr.strip()
        if installed():
            return ""
    return said or f"{' '.join(packages)} brought not all that is needed"
