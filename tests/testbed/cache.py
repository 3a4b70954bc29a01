"""The folder for results that take long to build. It is outside the repository, and all clones share it."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """`testbed/` in `$HOLDFAST_CACHE`, else in `$XDG_CACHE_HOME/holdfast`, else in `~/.cache/holdfast`."""
    env = os.environ if env is None else env
    if env.get("HOLDFAST_CACHE"):
        return Path(env["HOLDFAST_CACHE"]).absolute() / "testbed"
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).absolute() / "holdfast" / "testbed"
    return Path(env["HOME"] if env.get("HOME") else Path.home()) / ".cache" / "holdfast" / "testbed"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Only one process of the machine at a time is in here, of those with this name and this cache folder."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
