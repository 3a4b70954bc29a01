"""The values of Arrow columns as Python values. Nanoseconds become text, because Python doesn't have them."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_MICROSECONDS: Final = {pa.time64("ns"): pa.time64("us")}
_FRACTION: Final = len("00:00:00.000000")


def cells_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, like `to_pylist`.

    Moments and times of day in nanoseconds are text, and no digit is lost. Raises `ValueError` and
    `OverflowError` for a moment before the year 1 or after 9999.
    """
    type_ = column.type
    if (pa.types.is_timestamp(type_) or pa.types.is_time(type_)) and type_.unit == "ns":
        return _nanoseconds(column)
    return list(column.to_pylist())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, like `to_pylist`, with the values of `cells_of`."""
    names = table.column_names
    columns = [cells_of(column) for column in table.columns]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _nanoseconds(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    type_ = column.type
    coarse = _MICROSECONDS.get(type_) or pa.timestamp("us", type_.tz)
    counts = column.cast(pa.int64())
    rests = [None if count is None else count % 1000 for count in counts.to_pylist()]
    whole = pc.divide(pc.subtract(counts, pa.array(rests, pa.int64())), 1000)
    return [
        None if value is None else _with_rest(value.isoformat(timespec="microseconds"), rest)
        for value, rest in zip(whole.cast(coarse).to_pylist(), rests, strict=True)
    ]


def _with_rest(text: str, rest: int | None) -> str:
    start, found, fraction = text.rpartition("T")
    return f"{start}{found}{fraction[:_FRACTION]}{rest or 0:03d}{fraction[_FRACTION:]}"
