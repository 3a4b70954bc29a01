"""Columns that have one value in all rows, which share one block of memory for each value."""

import functools
from typing import Final

import pyarrow as pa

from holdfast.persist.rows.part import ROW_GROUP_ROWS

_ONE: Final = 1


def repeated(value: int, type_: pa.DataType, rows: int) -> pa.Array:
    """Return a value for each of some rows."""
    block = _block(value, type_)
    return block.slice(0, rows) if rows <= len(block) else pa.repeat(pa.scalar(value, type_), rows)


def are_ones(diffs: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether all of these diffs (int64, no nulls) are 1. Those of `repeated` are not read."""
    chunks = diffs.chunks if isinstance(diffs, pa.ChunkedArray) else [diffs]
    return all(_are_ones(chunk) for chunk in chunks)


def _are_ones(diffs: pa.Array) -> bool:
    data = diffs.buffers()[1]
    if data is None or data.address == _block(_ONE, pa.int64()).buffers()[1].address:
        return True
    values = diffs.to_numpy()
    return bool((values == _ONE).all())


@functools.lru_cache(maxsize=4)
def _block(value: int, type_: pa.DataType) -> pa.Array:
    # Of all that a batch needs, to fill the memory anew takes longest.
    return pa.repeat(pa.scalar(value, type_), ROW_GROUP_ROWS)
