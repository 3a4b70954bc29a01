"""The rows of the simulated shards: their schema, and how they go in and come out."""

from collections import Counter

import pyarrow as pa

from holdfast.persist import Schema
from sim.audit import Violation
from sim.history import Row, Update

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})


def table(updates: tuple[Update, ...]) -> pa.Table:
    """Updates as a writer hands them in."""
    keys, values, times, diffs = zip(*updates, strict=True)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array(values, pa.string()),
            "_time": pa.array(times, pa.uint64()),
            "_diff": pa.array(diffs, pa.int64()),
        }
    )


def contents(found: pa.Table) -> Counter[Row]:
    """A snapshot as rows and how often they are in; a row that is given twice is an error."""
    columns = [found.column(name).to_pylist() for name in ("k", "v", "_diff")]
    rows: Counter[Row] = Counter()
    for key, value, diff in zip(*columns, strict=True):
        if (key, value) in rows or diff == 0:
            raise Violation(f"a snapshot is not consolidated: {key}, {value}")
        rows[key, value] = diff
    return rows
