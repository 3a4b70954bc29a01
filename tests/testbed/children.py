"""The module path of Python processes that tests start.

pyarrow imports pandas if it is installed, and this takes half of the start of a process. This environment has
pandas for Spark. A plain `pip install holdfast` has no pandas, so processes that do not use Spark get a path
without it.
"""

import os
from pathlib import Path
from typing import Final

PLAIN: Final = Path(__file__).parent / "plain"
"""A folder on whose path pandas is not installed."""


def plain_path(*more: str | Path) -> str:
    """`PYTHONPATH` of a process without pandas that finds these folders too."""
    return os.pathsep.join(map(str, (PLAIN, *more)))


def patched(folder: Path, patch: str) -> dict[str, str]:
    """The environment of a process without pandas that runs a patch before its program.

    The patch is written into `folder`, which is made.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(patch)
    return {"PYTHONPATH": plain_path(folder)}
