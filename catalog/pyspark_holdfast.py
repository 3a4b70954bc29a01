"""Where Spark finds `format("holdfast")` by itself: as `DefaultSource` in a module named `pyspark_*`."""

from holdfast.spark.datasource import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
