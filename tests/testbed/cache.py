"""Where the test bed keeps what takes long to make: outside the repository, shared by all clones."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """`testbed/` in `$HOLDFAST_CACHE`, else in `$XDG_CACHE_HOME/holdfast`, else in `~/.cache/holdfast`."""
    env = os.environ if env is None else env
    if env.get("HOLDFAST_CACHE"):
        return Path(env["HOLDFAST_CACHE"]).absolute() / "testbed"
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"]).absolute() / "holdfast" / "testbed"
    return Path(env["HOME"] if env.get("HOME") else Path.home()) / ".cache" / "holdfast" / "testbed"
