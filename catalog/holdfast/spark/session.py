"""A Spark session that is set up for Holdfast, and reading and writing with keywords instead of options."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import BadInput, HoldfastError, Indeterminate
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
# Those that say something of what was written; in a task's error they stand deeper.
_TASK_ERROR_LINE = re.compile(r"^\s*holdfast\.errors\.(\w+): (.+)$", re.MULTILINE)
_ERRORS = {"BadInput": BadInput, "Indeterminate": Indeterminate}
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
    collection: str,
    url: str | None = None,
    blob: str | None = None,
    consensus: str | None = None,
    as_of: int | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """The collection (by id or name) at `as_of`, by default the latest complete time, as a DataFrame.

    It is in the location `url`, or in `blob` and `consensus`. `where` are conditions that must all hold, such
    as `[("id", ">=", 10), ("name", "in", ["a", "b"]), ("note", "is not", None)]`.

    The time is fixed here: the DataFrame shows the same rows however late and often it is used, as long
    as the collection's `since` doesn't pass it: `hold` keeps it from that. Of a collection that was never
    written it has no rows. Raises `BadInput` with one line instead of Spark's `AnalysisException`.
    """
    return _load(
        spark,
        url=url,
        blob=blob,
        consensus=consensus,
        collection=collection,
        asOf=as_of,
        columns=columns,
        where=where,
        partitions=partitions,
    )


def diff(
    spark: "SparkSession",
    *,
    collection: str,
    after: int,
    url: str | None = None,
    blob: str | None = None,
    consensus: str | None = None,
    as_of: int | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """The changes of the collection after a time and up to `as_of`: rows with `_time` and `_diff`.

    The rest as for `read`.
    """
    return _load(
        spark,
        url=url,
        blob=blob,
        consensus=consensus,
        collection=collection,
        mode="diff",
        **{"from": after},
        asOf=as_of,
        columns=columns,
        where=where,
        partitions=partitions,
    )


def write(
    frame: "DataFrame",
    *,
    collection: str,
    url: str | None = None,
    blob: str | None = None,
    consensus: str | None = None,
    mode: Literal["append", "overwrite"] = "append",
    at: int | None = None,
    write_id: str | None = None,
) -> None:
    """Write the rows of a DataFrame to a collection (by id or name), all in one step and at one time.

    Columns go by their names. `append` adds the rows; a column `_diff` tells how often, -1 takes one away.
    With `overwrite` they take the place of all that is there. The time is `at`, or now. A write whose
    `write_id` is on record as done is not done again: who doesn't know whether a write happened writes again.
    `url`, `blob` and `consensus` as for `read`.

    Raises, with one line instead of Spark's errors, `BadInput` where the rows don't fit and `HoldfastError`
    where something else went wrong: nothing was written. `Indeterminate` where that is not known.
    """
    from py4j.protocol import Py4JJavaError  # as below
    from pyspark.errors import PySparkException  # it takes a second, and the operator imports this module

    if mode not in ("append", "overwrite"):
        raise BadInput(f"mode {mode!r} is none for a collection; there are append and overwrite")
    options = {
        "url": url,
        "blob": blob,
        "consensus": consensus,
        "collection": collection,
        "at": at,
        "writeId": write_id,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    try:
        frame.write.format("holdfast").mode(mode).options(**given).save()
    except (PySparkException, Py4JJavaError) as error:
        found = _TASK_ERROR_LINE.findall(str(error))
        if not found:
            raise
        kind, line = found[-1]
        raise _ERRORS.get(kind, HoldfastError)(line) from None


@contextmanager
def hold(
    *,
    collection: str,
    url: str | None = None,
    blob: str | None = None,
    consensus: str | None = None,
    as_of: int | None = None,
    purpose: str = "spark",
) -> Iterator[int]:
    """Keep a collection readable from `as_of` on for the block, by a lease of this process; gives the time.

    By default the latest complete time. Raises `CollectionNotFound`, `AsOfTooEarly`, `AsOfNotYetAvailable`.
    """
    from holdfast.persist import PersistClient  # it takes a second, and the operator imports this module
    from holdfast.storage import StorageController

    with (
        PersistClient.open(url, blob=blob, consensus=consensus) as client,
        StorageController(client).reader(collection, purpose=purpose) as reader,
    ):
        time = reader.readable(as_of)
        reader.allow_compaction(time)
        yield time


def _load(
    spark: "SparkSession",
    *,
    columns: Sequence[str] | None,
    where: Sequence[tuple[str, str, Any]] | None,
    **options: object,
) -> "DataFrame":
    from pyspark.errors import AnalysisException  # as above

    if columns is not None:
        options["columns"] = json.dumps(list(columns))
    if where is not None:
        options["where"] = json.dumps([list(condition) for condition in where], default=_as_text)
    given = {name: str(value) for name, value in options.items() if value is not None}
    try:
        return spark.read.format("holdfast").options(**given).load()
    except AnalysisException as error:
        found = _ERROR_LINE.findall(str(error))
        if not found:
            raise
        raise BadInput(found[-1]) from None


def _as_text(value: object) -> str:
    """A value of a condition as the option has it."""
    match value:
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case _:
            raise BadInput(f"where: {value!r} is no value of a column")
