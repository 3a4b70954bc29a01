"""Where Spark finds `format("holdfast")` by itself: it looks for `DefaultSource` in modules named `pyspark_*`."""

from holdfast.spark.datasource import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
