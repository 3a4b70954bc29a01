"""The rows of the simulated shards: their schema, and how they are written and read."""

from collections import Counter

import pyarrow as pa

from holdfast.persist import Schema
from sim.audit import Violation
from sim.history import Row, Update

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
LATER = Schema.of({"k": "int64"}, {"v": "string?", "n": "int8?"})
"""What shards evolve to in some worlds; `n` stays null, so that rows of both are the same rows."""


def table(updates: tuple[Update, ...], schema: Schema) -> pa.Table:
    """Updates as a writer of a schema hands them in."""
    keys, values, times, diffs = zip(*updates, strict=True)
    columns = {
        "k": pa.array(keys, pa.int64()),
        "v": pa.array(values, pa.string()),
        "_time": pa.array(times, pa.uint64()),
        "_diff": pa.array(diffs, pa.int64()),
    }
    if schema == LATER:
        columns["n"] = pa.nulls(len(keys), pa.int8())
    return pa.table(columns)


def contents(found: pa.Table) -> Counter[Row]:
    """A snapshot as rows and how often they are in; a row that is given twice is an error."""
    columns = [found.column(name).to_pylist() for name in ("k", "v", "_diff")]
    rows: Counter[Row] = Counter()
    for key, value, diff in zip(*columns, strict=True):
        if (key, value) in rows or diff == 0:
            raise Violation(f"a snapshot is not consolidated: {key}, {value}")
        rows[key, value] = diff
    if "n" in found.column_names and found.column("n").null_count < len(found):
        raise Violation("a column that nobody wrote has values")
    return rows
