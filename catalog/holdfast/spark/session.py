"""A Spark session that is set up for Holdfast, and reading and writing with keywords instead of options."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from holdfast import errors
from holdfast.errors import BadInput, HoldfastError
from holdfast.spark.interpreter import require_interpreters
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
_CONDITIONS_FORM = 'such as [("id", ">=", 10), ("name", "in", ["a", "b"])]'
# Indented where another error wraps a task's own; the hint is its note.
_ERROR = re.compile(r"^\s*holdfast\.errors\.(\w+): (.+)(?:\n\s*hint: (.+))?", re.MULTILINE)


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Set what people trip over: worker interpreter, Arrow, filter push-down, time zone, local addresses.

    What the builder has already stays as it is. Call it before `getOrCreate`. Raises `BadInput` when
    there is no Java that Spark can start on, or where all of Spark runs here and `PYSPARK_PYTHON` or
    `PYSPARK_DRIVER_PYTHON` is no Python of this version with Holdfast.
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
        require_interpreters()
    for name, value in settings.items():
        if name not in given:
            builder = builder.config(name, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Make `format("holdfast")` known to this session, and to what this thread writes with it.

    Spark finds it by itself where `pyspark_holdfast` is importable, which an installed Holdfast is; but in
    any thread but the one that made the session not for writing.
    """
    from holdfast.spark.datasource import HoldfastDataSource  # it needs pyspark, this module does not

    spark.dataSource.register(HoldfastDataSource)
    _activate(spark)


def read(
    spark: "SparkSession",
    *,
    collection: str,
    url: str | None = None,
    blob: str | None = None,
    consensus: str | None = None,
    as_of: int | None = None,
    as_of_timestamp: str | datetime | date | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """The collection (by id or name) at `as_of`, by default the latest complete time, as a DataFrame.

    `as_of_timestamp` is that time where times are milliseconds: a date or time, UTC where it has no zone.
    It is in the location `url`, or in `blob` and `consensus`. `where` are conditions that must all hold, such
    as `[("id", ">=", 10), ("name", "in", ["a", "b"]), ("note", "is not", None)]`; a timestamp without a zone
    is in the session's.

    The time is fixed here: the DataFrame shows the same rows however late and often it is used, as long
    as the collection's `since` doesn't pass it: `hold` keeps it from that. Of a collection that was never
    written it has no rows.

    Raises, with one line instead of Spark's errors, `CollectionNotFound`, `StoreUnreachable`, `BadInput` for
    what doesn't fit, and `HoldfastError` for a time that can't be read.
    """
    return _load(
        spark,
        url=url,
        blob=blob,
        consensus=consensus,
        collection=collection,
        asOf=as_of,
        asOfTimestamp=as_of_timestamp,
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
    as_of_timestamp: str | datetime | date | None = None,
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
        asOfTimestamp=as_of_timestamp,
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
    _activate(frame.sparkSession)
    with _own_errors():
        frame.write.format("holdfast").mode(mode).options(**given).save()


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
    from holdfast.collections import StorageController
    from holdfast.persist import PersistClient  # it takes a second, and the operator imports this module

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
    if columns is not None:
        if isinstance(columns, str):
            raise BadInput(f"columns are a list of names, not {columns!r}", hint=f"such as [{columns!r}]")
        options["columns"] = json.dumps(list(columns))
    if where is not None:
        options["where"] = json.dumps(_conditions(where), default=_as_json)
        options["timeZone"] = spark.conf.get("spark.sql.session.timeZone")
    given = {name: str(value) for name, value in options.items() if value is not None}
    with _own_errors():
        return spark.read.format("holdfast").options(**given).load()


def _activate(spark: "SparkSession") -> None:
    """As `createDataFrame` does: Spark looks for sources to write to in the session of its own thread."""
    session: Any = spark
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001  # there is no other way


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise the last of our errors that is told in one of Spark's in its place, which has all traces.

    Where Spark doesn't find the data source it is `BadInput` if its interpreters are why.
    """
    from py4j.protocol import Py4JJavaError  # as below
    from pyspark.errors import PySparkException  # it takes a second, and the operator imports this module

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        if found := _ERROR.findall(text):
            raise _error(*found[-1]) from None
        if "[DATA_SOURCE_NOT_FOUND]" in text:
            require_interpreters()
        raise


def _error(name: str, message: str, hint: str) -> HoldfastError:
    """An error of that class; of the nearest above it that is made of a message alone, where it isn't."""
    kind: type[HoldfastError] = getattr(errors, name, HoldfastError)
    plain = signature(HoldfastError)
    made: HoldfastError = next(each for each in kind.mro() if signature(each) == plain)(message, hint=hint)
    return made


def _conditions(where: object) -> list[object]:
    """The conditions, once it is known that there are some: one alone, and text, would be taken apart."""
    if isinstance(where, str) or not isinstance(where, Iterable):
        raise BadInput(f"where is a list of conditions, not {where!r}", hint=_CONDITIONS_FORM)
    found = list(where)
    for condition in found:
        if not isinstance(condition, list | tuple):
            raise BadInput(f"where: {condition!r} is no condition", hint=_CONDITIONS_FORM)
    return found


def _as_json(value: object) -> object:
    """A value of a condition as the option has it, where JSON has no form of its own for it."""
    match value:
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case set() | frozenset() | range():
            return list(value)
        case _ if hasattr(value, "tolist"):
            # Scalars and arrays of NumPy, pandas and Arrow.
            return value.tolist()
        case _:
            raise BadInput(f"where: {value!r} is no value of a column")
