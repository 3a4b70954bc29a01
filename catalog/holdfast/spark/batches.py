"""From consolidated updates to the rows of a multiset, in batches that a consumer wants.

A row whose `_diff` is n appears n times. A negative `_diff` in a snapshot means that something was taken
out which was never put in: there is no multiset to show, so it is an error and never a silent loss.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput, NoMultiset

# Spark reads fastest in batches of 10 k to 100 k rows; wide rows get fewer.
BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20


def rows_of(batch: pa.RecordBatch, *, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of consolidated updates, without `_diff`, each as often as its `_diff` says.

    `where` names what is read. Raises `NoMultiset` showing a row whose `_diff` is negative.
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
            f"{where} is no multiset: {row} occurs {least} times",
            hint="some writer retracted what was not there; find it with 'holdfast persist inspect'",
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

    Raises `BadInput` for what is not in these types any more: a column was widened since they were told.
    """
    arrays = []
    for field in schema:
        array = batch.column(field.name)
        if not field.nullable and array.null_count:
            raise BadInput(f"column {field.name!r} has nulls; the schema given declares it not null")
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowInvalid:
            raise BadInput(
                f"column {field.name!r} is {array.type} now and has values that are no {field.type}",
                hint="load the DataFrame anew, or start the stream anew from its checkpoint",
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch_rows(batch: pa.RecordBatch) -> int:
    per_row = max(1, int(batch.nbytes) // int(batch.num_rows))
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // per_row))
