"""Finds what a local Spark needs: Java 17 or newer, and the package pyspark."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed import java, sparkstart
from testbed.errors import Unavailable


def missing(env: Mapping[str, str] | None = None) -> str | None:
    """Why Spark can't run here, and what to do about it; None if it can."""
    env = os.environ if env is None else env
    if importlib.util.find_spec("pyspark") is None:
        return "the package pyspark is missing: run make setup"
    return java.missing(env)


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
    found = java.find(env)
    quick = sparkstart.flags(found, home()) if found is not None and found.exists() else ""
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
    found = java.find(os.environ)
    if found is not None:
        sparkstart.make(found, home(), {**os.environ, **environment({**os.environ, "SPARK_SUBMIT_OPTS": ""})})
