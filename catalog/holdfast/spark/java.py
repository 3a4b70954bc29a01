"""Checks the Java that Spark would use, before Spark fails with a page of stack trace."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from holdfast.errors import BadInput

MIN_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL = (
    f"install Java {MIN_JAVA} or newer (on Debian: apt-get install openjdk-17-jre-headless) "
    "and put it on PATH or set JAVA_HOME"
)


def require_java() -> int:
    """The major version of the Java that Spark will use. Raises `BadInput` if it is missing or too old."""
    java = _java()
    try:
        done = subprocess.run(  # noqa: S603  # the same program that Spark is about to run
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInput(f"Spark needs Java, but {java} does not run: {error}", hint=_INSTALL) from None
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        raise BadInput(f"Spark needs Java, but {java} does not print its version", hint=_INSTALL)
    major = int(match[1])
    if major < MIN_JAVA:
        raise BadInput(f"Spark needs Java {MIN_JAVA} or newer, but {java} is Java {major}", hint=_INSTALL)
    return major


def _java() -> str:
    # The same order as in Spark's own launcher.
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise BadInput(f"Spark needs Java, but JAVA_HOME has none: {java} is missing", hint=_INSTALL)
        return str(java)
    if found := shutil.which("java"):
        return found
    raise BadInput("Spark needs Java, but there is none on PATH", hint=_INSTALL)
