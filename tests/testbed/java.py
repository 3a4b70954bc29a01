"""Finds Java 17 or newer, which Spark and Kafka need."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

MINIMUM: Final = 17


def find(env: Mapping[str, str]) -> Path | None:
    """The program `java` of `JAVA_HOME`, or else of `PATH`."""
    if env.get("JAVA_HOME"):
        return Path(env["JAVA_HOME"]) / "bin" / "java"
    found = shutil.which("java", path=env.get("PATH"))
    return Path(found) if found else None


def missing(env: Mapping[str, str]) -> str | None:
    """Why Java can't be used here, and what to do about it; None if it can."""
    java = find(env)
    if java is None:
        return f"Java is missing: install Java {MINIMUM} or newer, or set JAVA_HOME"
    version = _version(java)
    if version is None or version < MINIMUM:
        told = "of unknown version" if version is None else str(version)
        return f"Java is {told} ({java}): install Java {MINIMUM} or newer, or set JAVA_HOME"
    return None


def parse_version(told: str) -> int | None:
    """The major version from `java -version` (1.8 is 8); None if it can't be found there."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else None


@cache
def _version(java: Path) -> int | None:
    try:
        # It tells its version on standard error.
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    return parse_version(told)
