"""Finds what a local Spark needs: Java 17 or newer, and the package pyspark."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from testbed import sparkstart
from testbed.errors import Unavailable

MINIMUM_JAVA: Final = 17


def missing(env: Mapping[str, str] | None = None) -> str | None:
    """Why Spark can't run here, and what to do about it; None if it can."""
    env = os.environ if env is None else env
    if importlib.util.find_spec("pyspark") is None:
        return "the package pyspark is missing: run make setup"
    java = _java(env)
    if java is None:
        return f"Java is missing: install Java {MINIMUM_JAVA} or newer, or set JAVA_HOME"
    version = _java_version(java)
    if version is None or version < MINIMUM_JAVA:
        told = "of unknown version" if version is None else str(version)
        return f"Java is {told} ({java}): install Java {MINIMUM_JAVA} or newer, or set JAVA_HOME"
    return None


def home() -> Path:
    """The folder of the installed pyspark, which is a whole Spark; raises `Unavailable`."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable(missing() or "the package pyspark is incomplete: run make setup")
    return Path(spec.origin).parent


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that tie a Spark process to this Python, this pyspark and the loopback interface.

    Its JVM starts as fast as it can (see `sparkstart`), unless `env` has options for it.
    """
    env = os.environ if env is None else env
    java = _java(env)
    quick = sparkstart.flags(java, home()) if java is not None and java.exists() else ""
    ours = {
        "SPARK_SUBMIT_OPTS": env.get("SPARK_SUBMIT_OPTS", quick),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return ours | ({"JAVA_HOME": env["JAVA_HOME"]} if env.get("JAVA_HOME") else {})


def make_archive() -> None:
    """Make what lets a JVM of Spark start in less time, where it is missing: half a minute, once."""
    java = _java(os.environ)
    if java is not None:
        sparkstart.make(java, home(), {**os.environ, **environment({**os.environ, "SPARK_SUBMIT_OPTS": ""})})


def parse_java_version(told: str) -> int | None:
    """The major version from `java -version` (1.8 is 8); None if it can't be found there."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else None


def _java(env: Mapping[str, str]) -> Path | None:
    if env.get("JAVA_HOME"):
        return Path(env["JAVA_HOME"]) / "bin" / "java"
    found = shutil.which("java", path=env.get("PATH"))
    return Path(found) if found else None


@cache
def _java_version(java: Path) -> int | None:
    try:
        # It tells its version on standard error.
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return None
    return parse_java_version(told)
