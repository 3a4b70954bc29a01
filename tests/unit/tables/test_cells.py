"""Moments as Python values, and as text where Python has none."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.tables.cells import cells_of

LEAST, GREATEST = -(2**63) + 1, 2**63 - 1


@pytest.mark.parametrize(
    ("type_", "value", "cell"),
    [
        (pa.timestamp("us"), 1, datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001 - the column has no zone
        (pa.timestamp("us", tz="UTC"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), 253402300800_000001, "10000-01-01T00:00:00.000001Z"),
        (pa.timestamp("us"), GREATEST, "294247-01-10T04:00:54.775807"),
        (pa.timestamp("us"), LEAST, "-290308-12-21T19:59:05.224193"),
        (pa.timestamp("s"), -62135596801, "0000-12-31T23:59:59"),
        (pa.timestamp("ns"), LEAST, "1677-09-21T00:12:43.145224193"),
        (pa.timestamp("ns"), GREATEST, "2262-04-11T23:47:16.854775807"),
        (pa.date32(), 0, date(1970, 1, 1)),
        (pa.date32(), 2**31 - 1, "5881580-07-11"),
    ],
)
def test_a_moment_that_python_has_not_is_text(type_: pa.DataType, value: int, cell: Any) -> None:
    counts = pa.int32() if pa.types.is_date(type_) else pa.int64()
    array = pa.array([value, None], counts).cast(type_)
    assert cells_of(array) == [cell, None]
    assert cells_of(pa.array([list(array)], pa.list_(type_))) == [[cell, None]]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamp_utc", 253402300800_000000),
        ("timestamp", -62135596800_000001),
        ("timestamp(ms,Europe/Paris)", 253402300800_000),
        ("date32", 2932897),
    ],
)
def test_a_table_keeps_moments_that_python_has_not(tmp_path: Path, type_: str, value: int) -> None:
    counts = pa.int32() if type_ == "date32" else pa.int64()
    with holdfast.table(f"file://{tmp_path}", "moments", columns={"at": type_}) as table:
        at = pa.array([value], counts).cast(table.schema.field("at").type)
        table.append(pa.table({"at": at}))
        read = table.read()["at"]
    assert read.cast(counts).to_pylist() == [value]
    # docs/how-to/use-tables.md says so.
    with pytest.raises(OverflowError):
        read.to_pylist()
