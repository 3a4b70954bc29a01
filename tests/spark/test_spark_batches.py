"""Turns `_diff` into repeated rows, and the types of a collection into Spark's."""

import datetime as dt
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from holdfast.errors import BadInput
from holdfast.persist.rows.column_types import TYPE_NAMES
from holdfast.persist.rows.schema import Schema
from holdfast.spark.batches import BATCH_ROWS, conform, rows_of
from holdfast.spark.types import batch_schema, check_fits, check_writes, spark_schema


def updates(values: list[int], diffs: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.int64()), pa.array([f"r{v}" for v in values]), pa.array(diffs, pa.int64())],
        names=["id", "name", "_diff"],
    )


@given(st.dictionaries(st.integers(-5, 50), st.integers(0, 200), max_size=30))
def test_a_row_appears_as_often_as_its_diff_says(contents: dict[int, int]) -> None:
    batch = updates(list(contents), list(contents.values()))
    found = Counter(v for rows in rows_of(batch, where="x") for v in rows.column("id").to_pylist())
    assert found == Counter({value: n for value, n in contents.items() if n})


def test_batches_stay_small_whatever_the_multiplicity() -> None:
    sizes = [rows.num_rows for rows in rows_of(updates([1, 2], [3 * BATCH_ROWS, 1]), where="x")]
    assert sum(sizes) == 3 * BATCH_ROWS + 1
    assert max(sizes) == BATCH_ROWS


def test_wide_rows_come_in_smaller_batches() -> None:
    wide = pa.RecordBatch.from_arrays(
        [pa.array(["x" * 20_000] * 20_000), pa.array([1] * 20_000, pa.int64())], names=["text", "_diff"]
    )
    sizes = [rows.num_rows for rows in rows_of(wide, where="x")]
    assert sum(sizes) == 20_000
    assert max(sizes) < 5_000


def test_a_negative_multiplicity_is_an_error_that_shows_the_row() -> None:
    with pytest.raises(
        BadInput, match=r"collection c at 7 is not a multiset: \{'id': 2, .*\} occurs -3 times"
    ):
        list(rows_of(updates([1, 2], [1, -3]), where="collection c at 7"))


def test_every_column_type_has_a_spark_type_that_holds_all_its_values() -> None:
    names = [name.replace("(p,s)", "(12,3)") for name in TYPE_NAMES]
    schema = Schema.of(key={f"c{i}": name for i, name in enumerate(names)})
    simple = {
        name: field.dataType.simpleString() for name, field in zip(names, spark_schema(schema), strict=True)
    }
    assert simple == {
        "bool": "boolean",
        "int8": "tinyint",
        "int16": "smallint",
        "int32": "int",
        "int64": "bigint",
        "uint8": "smallint",
        "uint16": "int",
        "uint32": "bigint",
        "uint64": "decimal(20,0)",
        "float32": "float",
        "float64": "double",
        "string": "string",
        "binary": "binary",
        "date32": "date",
        "timestamp": "timestamp_ntz",
        "timestamp_utc": "timestamp",
        "decimal128(12,3)": "decimal(12,3)",
    }
    assert all(field.nullable for field in spark_schema(schema))


def test_conform_widens_without_loss_and_orders_columns() -> None:
    schema = Schema.of(
        key={"u64": "uint64", "u8": "uint8"}, value={"at": "timestamp", "d": "decimal128(5,2)?"}
    )
    rows = pa.RecordBatch.from_pylist(
        [{"u64": 2**64 - 1, "u8": 255, "at": dt.datetime.fromisoformat("2026-01-02T03:00:00"), "d": None}],
        schema=schema.arrow,
    )
    wanted = batch_schema(spark_schema(schema, ["d", "u64", "u8"]))
    assert conform(rows, wanted).to_pylist() == [{"d": None, "u64": Decimal(2**64 - 1), "u8": 255}]
    assert conform(rows, wanted).schema.equals(wanted)


def test_conform_refuses_nulls_where_the_given_schema_has_none() -> None:
    rows = pa.RecordBatch.from_pylist([{"a": None}], schema=pa.schema([("a", pa.int64())]))
    not_null = batch_schema(t.StructType([t.StructField("a", t.LongType(), nullable=False)]))
    with pytest.raises(BadInput, match="column 'a' has nulls"):
        conform(rows, not_null)


def test_a_schema_of_the_users_own_picks_columns_but_never_changes_types() -> None:
    schema = Schema.of(key={"a": "uint64", "b": "string"})
    check_fits(t.StructType([t.StructField("b", t.StringType())]), "orders", schema)
    with pytest.raises(BadInput, match=r"collection orders has no column 'c'; it has a, b"):
        check_fits(t.StructType([t.StructField("c", t.StringType())]), "orders", schema)
    with pytest.raises(BadInput, match=r"column 'a' is decimal\(20,0\) in Spark, not bigint"):
        check_fits(t.StructType([t.StructField("a", t.LongType())]), "orders", schema)


def test_moments_of_every_zone_are_timestamps_and_other_later_types_are_refused() -> None:
    schema = Schema.of(
        {"id": "int64"},
        {
            "s": "timestamp(s)",
            "zoned": "timestamp(ms,Europe/Paris)",
            "l": "list<int64>",
            "ns": "timestamp(ns)?",
        },
    )
    struct = spark_schema(schema, ["s", "zoned"])
    assert [field.dataType for field in struct] == [t.TimestampNTZType(), t.TimestampType()]
    stored = pa.RecordBatch.from_arrays(
        [pa.array([1000], pa.timestamp("ms")), pa.array([5], pa.timestamp("ms", "UTC"))], ["s", "zoned"]
    )
    assert conform(stored, batch_schema(struct)).num_rows == 1
    for name in ("l", "ns"):
        with pytest.raises(BadInput, match="Spark has no type for a column of type"):
            spark_schema(schema, [name])
    given = t.StructType([t.StructField("id", t.LongType()), t.StructField("l", t.ArrayType(t.LongType()))])
    with pytest.raises(BadInput, match="column 'l' is array<bigint>, which can't be converted"):
        check_writes(given, "orders", schema, counted=False)
