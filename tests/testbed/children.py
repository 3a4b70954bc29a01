"""What Python processes that tests start have on their path.

pyarrow imports pandas wherever it is installed, and here it is, for Spark: half of the start of a process.
A plain `pip install holdfast` has no pandas, and so has no process that a test starts which isn't of Spark.
"""

import os
from pathlib import Path
from typing import Final

PLAIN: Final = Path(__file__).parent / "plain"
"""A folder on whose path pandas is not installed."""


def plain_path(*more: str | Path) -> str:
    """`PYTHONPATH` of a process without pandas that finds these folders too."""
    return os.pathsep.join(map(str, (PLAIN, *more)))
