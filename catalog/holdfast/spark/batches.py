"""Turns consolidated updates into the rows of a multiset, in batches of a good size for Spark.

A row with `_diff` n occurs n times. A negative `_diff` in a snapshot means that a writer removed a row that
did not exist. Then there is no multiset to show, so this is an error and never a silent loss.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput, NoMultiset

# Spark reads fastest in batches of 10,000 to 100,000 rows. Batches of wide rows are smaller.
BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20


def rows_of(batch: pa.RecordBatch, *, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of consolidated updates, without `_diff`. Each occurs as often as its `_diff` says.

    `where` is the name of what is read. Raises `NoMultiset`, showing the row, for a negative `_diff`.
    """
    if batch.num_rows == 0:
        return
    diffs = batch.column("_diff").to_numpy()
    columns = batch.drop_columns(["_diff"])
    size = _batch_rows(columns)
    least, greatest = int(diffs.min()), int(diffs.max())
    if least < 0:
        row = columns.slice(int(diffs.argmin()), 1).to_pylist()[0]
        raise NoMultiset(
            f"{where} is not a multiset: {row} occurs {least} times",
            hint="a writer removed a row that did not exist; find it with 'holdfast persist inspect'",
        )
    if least == greatest == 1:
        for start in range(0, columns.num_rows, size):
            yield columns.slice(start, size)
        return
    ends = np.cumsum(diffs)
    for start in range(0, int(ends[-1]), size):
        wanted = np.arange(start, min(start + size, int(ends[-1])))
        yield columns.take(pa.array(np.searchsorted(ends, wanted, side="right")))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `batch` that `schema` names, in its order and in exactly its types.

    Raises `BadInput` for values that these types can't hold: a column was widened since the schema was read.
    """
    arrays = []
    for field in schema:
        array = batch.column(field.name)
        if not field.nullable and array.null_count:
            raise BadInput(f"column {field.name!r} has nulls, but the given schema declares it not null")
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowInvalid:
            raise BadInput(
                f"column {field.name!r} is {array.type} now and has values that {field.type} can't hold",
                hint="load the DataFrame again, or restart the stream from its checkpoint",
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch_rows(batch: pa.RecordBatch) -> int:
    per_row = max(1, int(batch.nbytes) // int(batch.num_rows))
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // per_row))
