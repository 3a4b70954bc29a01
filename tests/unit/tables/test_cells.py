"""Moments as Python values, and as text where Python has none."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

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
