"""Spark on collections: `format("holdfast")`, the settings that it needs, and jobs for large work.

You can import this package without pyspark: the operator reads job specs and manifests without it.
"""

from holdfast.spark.session import configure, diff, hold, read, register, write

__all__ = ["configure", "diff", "hold", "read", "register", "write"]
