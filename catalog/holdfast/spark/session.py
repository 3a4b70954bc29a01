"""A Spark session that is set up for Holdfast, and reading with keywords instead of options."""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    # The push-down of 4.3 gives wrong results when a DataFrame is used twice; see `datasource`.
    "spark.sql.python.filterPushdown.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
}
# The name of this machine may resolve to an address that nothing listens on.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_ERROR_LINE = re.compile(r"^holdfast\.errors\.\w+: (.+)$", re.MULTILINE)


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Set what people trip over: worker interpreter, Arrow, filter push-down, time zone, local addresses.

    What the builder has already stays as it is. Call it before `getOrCreate`. Raises `BadInput` when
    there is no Java that Spark can start on.
    """
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not under_submit:
        require_java()
    given: dict[str, object] = builder._options  # noqa: SLF001  # the builder has no way to ask
    # Workers run "python3" from PATH otherwise: another Python, without our packages.
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**_SETTINGS, "spark.pyspark.python": python}
    if not under_submit and str(given.get("spark.master", "local")).startswith("local"):
        settings |= _LOCAL_SETTINGS
    for name, value in settings.items():
        if name not in given:
            builder = builder.config(name, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Make `format("holdfast")` known to this session.

    Spark finds it by itself where `pyspark_holdfast` is importable, which an installed Holdfast is.
    """
    from holdfast.spark.datasource import HoldfastDataSource  # it needs pyspark, this module does not

    spark.dataSource.register(HoldfastDataSource)


def read(
    spark: "SparkSession",
    *,
    url: str,
    collection: str,
    as_of: int | None = None,
    columns: Sequence[str] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """The collection (by id or name) at `as_of`, by default the latest complete time, as a DataFrame.

    The time is fixed here: the DataFrame shows the same rows however late and often it is used, as long
    as the collection's `since` doesn't pass it. Raises `BadInput` with one line instead of Spark's
    `AnalysisException`.
    """
    from pyspark.errors import AnalysisException  # as above

    reader = spark.read.format("holdfast").option("url", url).option("collection", collection)
    if as_of is not None:
        reader = reader.option("asOf", as_of)
    if columns is not None:
        reader = reader.option("columns", json.dumps(list(columns)))
    if partitions is not None:
        reader = reader.option("partitions", partitions)
    try:
        return reader.load()
    except AnalysisException as error:
        found = _ERROR_LINE.findall(str(error))
        if not found:
            raise
        raise BadInput(found[-1]) from None
