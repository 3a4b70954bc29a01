"""Starts Spark faster: flags for a short-lived JVM, and an archive of the classes that it loads.

Invariants
- Nothing depends on the archive. A JVM of another Spark or Java ignores it and starts without it.
- When `make` returns, the archive is complete: it is written under another name first.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.cache import cache_folder

_FLAGS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_KEPT: Final = 4
"""Archives that stay, one for each clone; they have 160 MB."""
_SECONDS: Final = 1200.0
# Does a little of what tests do, and ends when the JVM has written the archive.
_LESSON: Final = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(0, 500, 1, 2).selectExpr("id", "concat('n', id) as name").write.parquet(sys.argv[1])
spark.read.parquet(sys.argv[1]).filter("id % 2 = 0").groupBy("name").count().orderBy("name").collect()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def flags(java: Path, home: Path) -> str:
    """The options of a JVM that runs the Spark in `home` for a test."""
    archive = archive_of(java, home)
    # Where it doesn't fit, the JVM would say so on standard output.
    return f"{_FLAGS} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else _FLAGS


def make(java: Path, home: Path, environment: Mapping[str, str]) -> bool:
    """Make the archive where it is missing, once for each clone and Java; False where that went wrong."""
    archive = archive_of(java, home)
    if archive.exists():
        return True
    folder = archive.parent / f".making-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        made = folder / archive.name
        done = subprocess.run(
            [sys.executable, "-c", _LESSON, folder / "rows"],
            env={**environment, "SPARK_SUBMIT_OPTS": f"{_FLAGS} -XX:ArchiveClassesAtExit={made}"},
            cwd=folder,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode == 0 and made.exists():
            made.rename(archive)
    except subprocess.TimeoutExpired:
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for old in sorted(archive.parent.glob("*.jsa"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return archive.exists()


def archive_of(java: Path, home: Path) -> Path:
    """Where the archive of the Spark in `home` is kept, once it is made."""
    told = (home, java.resolve(), java.stat().st_mtime_ns, (home / "jars").stat().st_mtime_ns)
    return cache_folder() / "spark" / f"{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}.jsa"
