"""Set up a Spark session for Holdfast, and read and write with keyword arguments instead of options."""

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
from holdfast.extras import needs
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
    """Set what often goes wrong: worker interpreter, Arrow, filter push-down, time zone, local addresses.

    Settings that the builder already has are kept. Call this before `getOrCreate`. Raises `BadInput` if
    there is no Java that Spark can start on, or if pandas isn't installed. If all of Spark runs on this
    machine, also raises it if `PYSPARK_PYTHON` or `PYSPARK_DRIVER_PYTHON` isn't a Python of this version with
    Holdfast installed.
    """
    with needs("spark", "Spark"):
        import pandas as pd  # noqa: F401 - PySpark needs it for Arrow, and would fail later
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not under_submit:
        require_java()
    given: dict[str, object] = builder._options  # noqa: SLF001  # the builder has no way to ask
    # Otherwise workers run "python3" from PATH, which is another Python without our packages.
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
    """Register `format("holdfast")` with this session, and let this thread write with it.

    Spark finds the format by itself if `pyspark_holdfast` is importable, which it is if Holdfast is
    installed. For writing, this works only in the thread that created the session; call this in any other.
    """
    with needs("spark", 'format("holdfast")'):
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
    or_earlier: bool = False,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """Return the collection (by id or name) at `as_of`, by default the latest complete time, as a DataFrame.

    The location is `url`, or `blob` and `consensus`. If the collection's times are milliseconds, you can
    give `as_of_timestamp`, a date or time, instead of `as_of`. A date, or a text without a zone, is in UTC; a
    `datetime` without a zone is refused. `where` is a list of conditions that must all hold, such as
    `[("id", ">=", 10), ("name", "in", ["a", "b"]), ("note", "is not", None)]`. A timestamp without a zone
    in a condition is in the session's zone.

    You can read at every time that is at least two minutes past: the driver completes the collection up to a
    minute ago if that is needed and it may write. With `or_earlier`, nothing is completed: the DataFrame is
    at the latest complete time at or before the given one, and has it in the metadata of its columns
    (`frame.schema[0].metadata["asOf"]`).

    This call fixes the time: the DataFrame always shows the same rows, also if you use it again later, until
    the collection's `since` passes that time. `hold` prevents that. The DataFrame of a collection that was
    never written has no rows.

    Raises `CollectionNotFound`, `StoreUnreachable`, `BadInput` for wrong arguments, and `HoldfastError` for
    a time that can't be read. Each has a message of one line, instead of Spark's errors.
    """
    return _load(
        spark,
        url=url,
        blob=blob,
        consensus=consensus,
        collection=collection,
        asOf=as_of,
        asOfTimestamp=as_of_timestamp,
        orEarlier="true" if or_earlier else None,
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
    or_earlier: bool = False,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    partitions: int | None = None,
) -> "DataFrame":
    """Return the changes of the collection after `after` and up to `as_of`: rows with `_time` and `_diff`.

    The other arguments and the errors are those of `read`.
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
        orEarlier="true" if or_earlier else None,
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
    far_ahead: bool = False,
    write_id: str | None = None,
) -> None:
    """Write the rows of a DataFrame to a collection (by id or name), in one step and at one time.

    Columns are matched by name. `append` adds the rows; the optional column `_diff` says how many times, and
    -1 removes a row. `overwrite` replaces all rows of the collection. The time is `at`, by default now.
    If `at` is more than an hour ahead of the store's clock, it needs `far_ahead`.
    `url`, `blob` and `consensus` are those of `read`.

    If a write with this `write_id` is recorded as done, this call does nothing. So if you don't know whether
    a write happened, repeat it with the same `write_id`.

    Raises `BadInput` if the rows don't fit and `HoldfastError` for other failures. After these, nothing was
    written. Raises `Indeterminate` if that is unknown. Each has a message of one line, instead of Spark's
    errors.
    """
    if mode not in ("append", "overwrite"):
        raise BadInput(f"a collection can't be written with mode {mode!r}; use append or overwrite")
    options = {
        "url": url,
        "blob": blob,
        "consensus": consensus,
        "collection": collection,
        "at": at,
        "farAhead": "true" if far_ahead else None,
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
    """Keep a collection readable from `as_of` on during the block, with a lease of this process.

    Yields the time, which is by default the latest complete one. Raises `CollectionNotFound`,
    `AsOfTooEarly`, `AsOfNotYetAvailable`.
    """
    from holdfast.collections import StorageController
    from holdfast.collections.read_seals import complete
    from holdfast.persist import PersistClient  # it takes a second, and the operator imports this module

    with (
        PersistClient.open(url, blob=blob, consensus=consensus) as client,
        StorageController(client) as controller,
        controller.reader(collection, purpose=purpose) as reader,
    ):
        if as_of is not None:
            complete(controller, reader, as_of, f"collection {reader.info.name}", "leave as_of out")
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
            raise BadInput(f"columns must be a list of names, not {columns!r}", hint=f"such as [{columns!r}]")
        options["columns"] = json.dumps(list(columns))
    if where is not None:
        options["where"] = json.dumps(_conditions(where), default=_as_json)
        options["timeZone"] = spark.conf.get("spark.sql.session.timeZone")
    if isinstance(options.get("asOfTimestamp"), datetime):
        from holdfast.tables.moments import check_zone  # what reads tables takes a second

        check_zone(options["asOfTimestamp"])
    given = {name: str(value) for name, value in options.items() if value is not None}
    with _own_errors():
        return spark.read.format("holdfast").options(**given).load()


def _activate(spark: "SparkSession") -> None:
    """Make the session the active one of this thread, where Spark looks up the data source to write to.

    `createDataFrame` does the same.
    """
    session: Any = spark
    session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001  # there is no other way


@contextmanager
def _own_errors() -> Iterator[None]:
    """Replace an error of Spark, which has all tracebacks, by the last of our own errors in its text.

    If Spark doesn't find the data source because of its interpreters, that is a `BadInput`.
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
    """Return an error of that class, or of its nearest base class that takes only a message and a hint."""
    kind: type[HoldfastError] = getattr(errors, name, HoldfastError)
    plain = signature(HoldfastError)
    made: HoldfastError = next(each for each in kind.mro() if signature(each) == plain)(message, hint=hint)
    return made


def _conditions(where: object) -> list[object]:
    """Return the conditions as a list; refuse a single condition or a text, which would be split up."""
    if isinstance(where, str) or not isinstance(where, Iterable):
        raise BadInput(f"where must be a list of conditions, not {where!r}", hint=_CONDITIONS_FORM)
    found = list(where)
    for condition in found:
        if not isinstance(condition, list | tuple):
            raise BadInput(f"where: {condition!r} is not a condition", hint=_CONDITIONS_FORM)
    return found


def _as_json(value: object) -> object:
    """Return the form that the option `where` uses for a value that JSON can't represent."""
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
            raise BadInput(f"where: {value!r} can't be the value of a column")
