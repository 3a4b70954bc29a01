"""An earlier commit of Holdfast: a wheel of that commit in a venv of its own, or only its sources.

The wheel is built once and stays in the cache folder. The venv uses the dependencies of this environment.
Only Holdfast itself is the earlier one.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from testbed.cache import cache_folder, locked
from testbed.errors import Unavailable

_ROOT = Path(__file__).parents[2]
_UV = Path(sys.executable).with_name("uv")
_PARTS = ("catalog", "README.md", "LICENSE")


class EarlierHoldfast:
    """The Holdfast of `commit`, installed in a venv in `folder`. Raises `Unavailable`."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.commit = commit
        self._bin = folder / commit / "bin"
        wheel = _wheel(commit)
        _run([_UV, "venv", "--quiet", "--python", sys.executable, self._bin.parent])
        python = self._bin / "python"
        _run([_UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, wheel])
        purelib = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        # A path in a .pth file comes after the venv's own packages, and its .pth files are not read: this
        # repository's Holdfast is not found.
        (Path(purelib.decode().strip()) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def start(self, script: Path, *arguments: str) -> "subprocess.Popen[str]":
        """Start a script with pipes for its input and output."""
        command: list[str | Path] = [self._bin / "python", script, *arguments]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )

    def holdfast(self, *arguments: str) -> str:
        """What its command line program prints; raises where it fails."""
        return _run([self._bin / "holdfast", *arguments]).decode()


def _wheel(commit: str) -> Path:
    """The wheel of a commit, built where the cache has none."""
    folder = cache_folder() / "earlier" / commit
    with locked(f"earlier-{commit}"):
        found = sorted(folder.glob("*.whl"))
        if found:
            return found[0]
        packed = _packed(commit)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            with tarfile.open(fileobj=BytesIO(packed)) as archive:
                archive.extractall(made, filter="data")
            _run([_UV, "build", "--quiet", "--wheel", "--out-dir", Path(made, "dist"), Path(made, "catalog")])
            Path(made, "dist").rename(folder)
        return next(folder.glob("*.whl"))


def unpacked(commit: str, folder: Path) -> tuple[Path, Path]:
    """Write the sources of a commit into a folder, and return where its library and its operator are.

    A process with both in its `PYTHONPATH` imports them instead of this repository's. Raises `Unavailable`.
    """
    with tarfile.open(fileobj=BytesIO(_packed(commit, ("catalog", "operator")))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "catalog", folder / "operator"


def _packed(commit: str, parts: Sequence[str] = _PARTS) -> bytes:
    shallow = "the clone has no history: fetch it with 'git fetch --unshallow'"
    try:
        return _run(["git", "-C", _ROOT, "archive", "--format=tar", commit, "--", *parts])
    except Unavailable as error:
        raise Unavailable(f"commit {commit} is not in this repository; {shallow} ({error})") from None


def _run(command: Sequence[str | Path]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, check=False, env=_environment())
    except OSError as error:
        raise Unavailable(f"{command[0]} can't be run: {error}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise Unavailable(
            f"{Path(command[0]).name} {command[1]} failed with {done.returncode}: {said[-2000:]}"
        )
    return done.stdout


def _environment() -> dict[str, str]:
    """Ours, without what would bring this repository's Holdfast into another Python."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
