"""Spark on collections: `format("holdfast")`, the settings it wants, and jobs for the heavy work.

Importing this package needs no pyspark: the operator reads job specs and manifests without it.
"""

from holdfast.spark.session import configure, diff, hold, read, register, write

__all__ = ["configure", "diff", "hold", "read", "register", "write"]
