"""Checks the Pythons that Spark would run, before Spark fails to find the data source in them.

Spark plans what a data source reads with `PYSPARK_DRIVER_PYTHON`, or else with `PYSPARK_PYTHON`, with which
it also runs tasks. If neither is set, it uses "python3" from PATH. Spark brings pyspark along by itself.
"""

import os
import subprocess
import sys
from typing import Final

from holdfast.errors import BadInput

_TIMEOUT_S: Final = 60
_ASK: Final = (
    "import sys, importlib.util as u;"
    " print('%d.%d' % sys.version_info[:2], u.find_spec('pyspark_holdfast') is not None)"
)


def require_interpreters() -> None:
    """Raise `BadInput` unless the Pythons that Spark will run have this version and Holdfast."""
    if driver := os.environ.get("PYSPARK_DRIVER_PYTHON"):
        _require(driver, "PYSPARK_DRIVER_PYTHON")
    _require(os.environ.get("PYSPARK_PYTHON") or "python3", "PYSPARK_PYTHON")


def _require(python: str, variable: str) -> None:
    if python == sys.executable:
        return
    named = f"{variable} is" if os.environ.get(variable) else f"{variable} is not set, so Spark runs"
    hint = f"set {variable} to {sys.executable} before Spark starts"
    try:
        done = subprocess.run(  # noqa: S603  # the same program that Spark is about to run
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        version, has_holdfast = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BadInput(f"{named} {python}, which does not run as a Python: {error}", hint=hint) from None
    ours = "{}.{}".format(*sys.version_info)
    if version != ours:
        raise BadInput(f"{named} {python}, which is Python {version}; this is Python {ours}", hint=hint)
    if has_holdfast != "True":
        raise BadInput(f"{named} {python}, which does not have Holdfast installed", hint=hint)
