"""The values of Arrow columns as Python values. Moments that Python doesn't have become text."""

from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

_MICROSECONDS: Final = {pa.time64("ns"): pa.time64("us")}
_FRACTION: Final = len("00:00:00.000000")


def cells_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column, like `to_pylist`.

    Moments and times of day in nanoseconds are text, and no digit is lost. So are moments and days before the
    year 1 and after 9999. A map is a dict if its keys are text, and otherwise a list of pairs.
    """
    type_ = column.type
    if (pa.types.is_timestamp(type_) or pa.types.is_time(type_)) and type_.unit == "ns":
        return _nanoseconds(column)
    if pa.types.is_nested(type_):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [cell for chunk in chunks for cell in _nested(chunk)]
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        if not (pa.types.is_timestamp(type_) or pa.types.is_date(type_)):
            raise
        return [_moment(value) for value in column]


def _moment(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        # Arrow's own text is wrong for years of six digits.
        unit: Any = getattr(value.type, "unit", "D")
        text = str(np.datetime64(value.value, unit))
        return f"{text}Z" if getattr(value.type, "tz", None) else text


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, like `to_pylist`, with the values of `cells_of`."""
    names = table.column_names
    columns = [cells_of(column) for column in table.columns]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _nested(values: pa.Array) -> list[Any]:
    """The cells of lists, structs or maps."""
    valid = values.is_valid().to_pylist()
    if pa.types.is_struct(values.type):
        names = [each.name for each in values.type]
        fields = [cells_of(each) for each in values.flatten()]
        rows = [dict(zip(names, cells, strict=True)) for cells in zip(*fields, strict=True)]
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    offsets = values.offsets.to_pylist()
    start, end = offsets[0], offsets[-1]
    if not pa.types.is_map(values.type):
        inner = cells_of(values.values.slice(start, end - start))
        cells: list[Any] = [inner[a - start : b - start] for a, b in pairwise(offsets)]
    else:
        keys = cells_of(values.keys.slice(start, end - start))
        pairs = list(zip(keys, cells_of(values.items.slice(start, end - start)), strict=True))
        cells = [pairs[a - start : b - start] for a, b in pairwise(offsets)]
        if pa.types.is_string(values.type.key_type):
            cells = [dict(each) for each in cells]
    return [cell if there else None for cell, there in zip(cells, valid, strict=True)]


def _nanoseconds(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    type_ = column.type
    coarse = _MICROSECONDS.get(type_) or pa.timestamp("us", type_.tz)
    counts = column.cast(pa.int64()).to_pylist()
    whole = pa.array([None if count is None else count // 1000 for count in counts], pa.int64())
    return [
        None if value is None else _with_rest(value.isoformat(timespec="microseconds"), count % 1000)
        for value, count in zip(whole.cast(coarse).to_pylist(), counts, strict=True)
    ]


def _with_rest(text: str, rest: int) -> str:
    start, found, fraction = text.rpartition("T")
    return f"{start}{found}{fraction[:_FRACTION]}{rest:03d}{fraction[_FRACTION:]}"
