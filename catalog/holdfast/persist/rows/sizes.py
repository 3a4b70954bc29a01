"""Measures how many bytes rows take, and cuts rows into pieces of about so many bytes.

Memory is bounded in bytes and not in rows, because a row may have a hundred bytes or a hundred million. A
piece has at least one row. So the bound is the given number of bytes or one row, whichever is greater.
"""

import math
from collections.abc import Iterable, Iterator

import pyarrow as pa

from holdfast.persist.rows.values import R

_TOLERANCE = 1.25
"""A piece may be larger than asked by this factor before it is cut again."""


def pieces_of(rows: R, most_bytes: int, most_rows: int | None = None) -> Iterator[R]:
    """Yield the rows in order, in slices of about `most_bytes` or less, or of one row.

    Slices have equal numbers of rows if possible. If some rows are much larger than others, their slices have
    fewer.
    """
    if not rows.num_rows:
        return
    count = math.ceil(rows.nbytes / most_bytes)
    if most_rows is not None:
        count = max(count, math.ceil(rows.num_rows / most_rows))
    if count <= 1 or rows.num_rows == 1:
        yield rows
        return
    size = math.ceil(rows.num_rows / count)
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        if piece.nbytes <= _TOLERANCE * most_bytes:
            yield piece
        else:
            yield from pieces_of(piece, most_bytes)


def gathered(pieces: Iterable[pa.RecordBatch], least_bytes: int) -> Iterator[pa.Table]:
    """Join non-empty pieces into tables of at least so many bytes, except for the last one."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for piece in pieces:
        waiting.append(piece)
        held += piece.nbytes
        if held >= least_bytes:
            yield pa.Table.from_batches(waiting)
            waiting, held = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
