"""A value is in its column exactly, or its record is bad. The table is in docs/how-to/ingest-files.md."""

import datetime as dt
import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ingest.formats.avro import AvroFiles
from holdfast.ingest.formats.decoded import Decoded
from holdfast.ingest.formats.files import Csv
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.formats.parquet import Parquet
from holdfast.persist import Schema
from unit.ingest.formats.test_formats import messages

BAD = "bad"
DAY = dt.date(2026, 1, 31)
MIDNIGHT, NOON = dt.datetime.fromisoformat("2026-01-31"), dt.datetime.fromisoformat("2026-01-31T12:00")
MICROSECOND = dt.datetime.fromisoformat("1970-01-01T00:00:00.000001")
NOON_UTC = NOON.replace(tzinfo=dt.UTC)


def decoded(form: str, given: Any, column: str) -> Decoded:
    """One value, with the number 1 beside it."""
    columns = Schema.of({"id": "int64"}, {"v": column + "?"}).arrow
    kind, _, type_ = form.partition(" ")
    if kind == "json":
        return Json(columns).decode(messages(b'{"id":1,"v":%s}' % given.encode()))
    if kind == "csv":
        return Csv(columns).decode(messages(b"id,v\n1,%s\n" % given.encode()))
    file = io.BytesIO()
    if kind == "parquet":
        array = given if isinstance(given, pa.Array) else pa.array([given], parquet_type(type_))
        pq.write_table(pa.table({"id": [1], "v": array}), file)
        return Parquet(columns).decode(messages(file.getvalue()))
    types = [{"name": "id", "type": "long"}, {"name": "v", "type": json.loads(type_)}]
    fastavro.writer(file, {"type": "record", "name": "R", "fields": types}, [{"id": 1, "v": given}])
    return AvroFiles(columns).decode(messages(file.getvalue()))


def parquet_type(name: str) -> pa.DataType:
    unit = {"timestamp": "us", "timestamp_ns": "ns"}.get(name)
    if unit is not None:
        return pa.timestamp(unit)
    if name.startswith("decimal"):
        return pa.decimal128(30, int(name.removeprefix("decimal")))
    return pa.timestamp("us", "UTC") if name == "instant" else pa.type_for_alias(name)


AVRO_DECIMAL = 'avro {"type":"bytes","logicalType":"decimal","precision":10,"scale":3}'
CASES: list[tuple[str, Any, str, Any]] = [
    # Integers.
    ("json", "7", "int32", 7), ("json", "-0", "int32", 0), ("json", "0x10", "int32", BAD),
    ("json", "1.0", "int32", BAD),
    ("json", "1e2", "int32", BAD), ("json", "2147483648", "int32", BAD), ("json", '"7"', "int32", BAD),
    ("json", "true", "int32", BAD), ("json", "9223372036854775808", "int64", BAD),
    ("json", "-1", "uint8", BAD),
    ("csv", "7", "int32", 7), ("csv", "007", "int32", 7), ("csv", "0x10", "int32", BAD),
    ("csv", "0X1f", "int64", BAD),
    ("csv", "+7", "int32", BAD), ("csv", " 7", "int32", BAD), ("csv", "7.0", "int32", BAD),
    ("csv", "128", "int8", BAD),
    ("csv", "-1", "uint8", BAD), ("csv", "true", "int32", BAD),
    ("parquet int64", 7, "int8", 7), ("parquet int64", 128, "int8", BAD),
    ("parquet double", 7.0, "int32", 7),
    ("parquet double", 7.5, "int32", BAD), ("parquet double", math.nan, "int32", BAD),
    ("parquet double", 1e300, "int64", BAD),
    ("parquet decimal2", Decimal("7.00"), "int32", 7), ("parquet decimal2", Decimal("7.10"), "int32", BAD),
    ("parquet string", "7", "int32", 7), ("parquet string", "0x10", "int32", BAD),
    ("parquet bool", True, "int32", BAD),
    ("parquet timestamp", NOON, "int64", BAD), ("parquet uint64", 2**64 - 1, "int64", BAD),
    ('avro "long"', 7, "int8", 7), ('avro "long"', 128, "int8", BAD), ('avro "double"', 7.0, "int32", BAD),
    # Floats. A text is the nearest one.
    ("json", "0.1", "float64", 0.1), ("json", "9007199254740993", "float64", 2.0**53),
    ("json", "1e400", "float64", BAD),
    ("json", "-1e400", "float64", BAD), ("json", "0.1", "float32", float(np.float32(0.1))),
    ("json", "1e39", "float32", BAD),
    ("json", "-3.4028236e38", "float32", BAD),
    ("json", "3.4028235e38", "float32", float(np.finfo(np.float32).max)),
    ("json", "Infinity", "float32", math.inf), ("json", "-Infinity", "float64", -math.inf),
    ("json", "1e-400", "float64", 0.0),
    ("json", '"1"', "float64", BAD),
    ("csv", "0.1", "float64", 0.1), ("csv", "1e400", "float64", BAD), ("csv", "-1e39", "float32", BAD),
    ("csv", "inf", "float32", math.inf), ("csv", "-Infinity", "float64", -math.inf),
    ("csv", "9007199254740993", "float64", 2.0**53),
    ("csv", "0x1p3", "float64", BAD),
    ("parquet double", 0.5, "float32", 0.5), ("parquet double", 0.1, "float32", BAD),
    ("parquet double", 1e300, "float32", BAD),
    ("parquet double", math.inf, "float32", math.inf),
    ("parquet float", 0.1, "float64", float(np.float32(0.1))),
    ("parquet int64", 2**53, "float64", 2.0**53), ("parquet int64", 2**53 + 1, "float64", BAD),
    ("parquet int64", 2**24 + 1, "float32", BAD), ("parquet decimal2", Decimal("0.10"), "float64", 0.1),
    ("parquet decimal2", Decimal("12345678901234567890.12"), "float64", BAD),
    ("parquet string", "1e400", "float64", BAD),
    ("parquet bool", True, "float64", BAD),
    ('avro "long"', 2**53 + 1, "float64", BAD), ('avro "double"', 0.5, "float32", BAD),
    ('avro "float"', 0.5, "float64", 0.5),
    # Decimals.
    ("json", "1.23", "decimal128(10,2)", Decimal("1.23")), ("json", "1.239", "decimal128(10,2)", BAD),
    ("json", '"1.239"', "decimal128(10,2)", BAD), ("json", "1.2300", "decimal128(10,2)", Decimal("1.23")),
    ("json", "123456789.12", "decimal128(10,2)", BAD), ("json", "1e2", "decimal128(10,2)", Decimal(100)),
    # With the zeros of the scale they have too many digits; the last two would wrap around in 128 bits.
    ("json", "123456789.0", "decimal128(10,2)", BAD), ("json", '"123456789"', "decimal128(10,2)", BAD),
    ("json", "1e8", "decimal128(10,2)", BAD), ("json", "1" * 37, "decimal128(38,2)", BAD),
    ("json", f"{-(2**128 // 100)}", "decimal128(10,2)", BAD), ("json", "9" * 38, "decimal128(38,2)", BAD),
    ("json", "9" * 38, "decimal128(38,0)", Decimal("9" * 38)),
    ("csv", "1.23", "decimal128(10,2)", Decimal("1.23")), ("csv", "1.239", "decimal128(10,2)", BAD),
    ("csv", "123456789.12", "decimal128(10,2)", BAD), ("csv", "0x10", "decimal128(10,2)", BAD),
    ("parquet double", 1.24, "decimal128(10,2)", Decimal("1.24")),
    ("parquet double", 1.239, "decimal128(10,2)", BAD),
    ("parquet double", 0.005, "decimal128(10,2)", BAD),
    ("parquet double", math.nan, "decimal128(10,2)", BAD),
    ("parquet double", 1e20, "decimal128(10,2)", BAD),
    ("parquet decimal3", Decimal("1.230"), "decimal128(10,2)", Decimal("1.23")),
    ("parquet decimal3", Decimal("1.239"), "decimal128(10,2)", BAD),
    ("parquet string", "1.239", "decimal128(10,2)", BAD),
    (AVRO_DECIMAL, Decimal("1.230"), "decimal128(10,2)", Decimal("1.23")),
    (AVRO_DECIMAL, Decimal("1.239"), "decimal128(10,2)", BAD),
    ("parquet double", 987.41, "decimal128(38,10)", Decimal("987.4100000000")),
    ("parquet double", 2.0**60, "decimal128(38,0)", Decimal(2**60)),
    ("parquet int8", 7, "decimal128(10,2)", Decimal(7)),
    ("parquet decimal0", Decimal(2**60), "float64", 2.0**60),
    ("parquet decimal10", Decimal("987.41"), "float64", 987.41),
    # Truth values.
    ("json", "true", "bool", True), ("json", "1", "bool", BAD), ("json", '"true"', "bool", BAD),
    ("csv", "true", "bool", True), ("csv", "FALSE", "bool", False), ("csv", "1", "bool", BAD),
    ("csv", "yes", "bool", BAD),
    ("csv", "t", "bool", BAD), ("parquet string", "True", "bool", True),
    ("parquet string", "0", "bool", BAD),
    ("parquet int64", 1, "bool", BAD), ("parquet double", 0.5, "bool", BAD), ('avro "int"', 1, "bool", BAD),
    # Times.
    ("json", '"2026-01-31"', "date32", DAY), ("json", '"2026-01-31T00:00:00"', "date32", BAD),
    ("json", "5", "date32", BAD),
    ("json", '"2026-02-30"', "date32", BAD), ("json", '"2026-01-31T12:00:00.123456789"', "timestamp", BAD),
    ("json", '"2026-01-31T12:00:00"', "timestamp", NOON),
    ("json", '"2026-01-31T13:00:00+01:00"', "timestamp", NOON),
    ("json", '"2026-01-31T12:00:00"', "timestamp_utc", NOON_UTC), ("json", "5", "timestamp", BAD),
    ("csv", "2026-01-31", "date32", DAY), ("csv", "2026-01-31T12:00:00", "date32", BAD),
    ("csv", "5", "date32", BAD),
    ("csv", "2026-01-31T12:00:00.1234567", "timestamp", BAD),
    ("csv", "2026-01-31 12:00:00", "timestamp", NOON),
    ("csv", "2026-01-31T12:00:00Z", "timestamp", BAD), ("csv", "2026-01-31T12:00:00", "timestamp_utc", BAD),
    ("csv", "2026-01-31T13:00:00+01:00", "timestamp_utc", NOON_UTC),
    ("parquet timestamp", NOON, "date32", BAD), ("parquet timestamp", MIDNIGHT, "date32", DAY),
    ("parquet date32", DAY, "timestamp", MIDNIGHT), ("parquet timestamp", NOON, "timestamp_utc", NOON_UTC),
    ("parquet instant", NOON_UTC, "timestamp", NOON), ("parquet int64", 5, "timestamp", BAD),
    ("parquet timestamp_ns", pa.array([1], pa.timestamp("ns")), "timestamp", BAD),

    ("parquet timestamp_ns", pa.array([1000], pa.timestamp("ns")), "timestamp", MICROSECOND),
    ("parquet int32", 5, "date32", BAD), ('avro "long"', 5, "timestamp", BAD),
    # Texts and bytes.
    ("json", "5", "string", BAD), ("json", '[1,{"a":0.10}]', "string", '[1,{"a":0.10}]'),
    ("csv", " 5 ", "string", " 5 "),
    ("parquet int64", 5, "string", "5"), ("parquet float", 0.1, "string", "0.1"),
    ("parquet decimal2", Decimal("1.50"), "string", "1.50"),
    ("parquet bool", True, "string", "true"), ("parquet date32", DAY, "string", "2026-01-31"),
    ("parquet binary", b"\xff", "string", BAD), ("parquet binary", b"a", "string", "a"),
    ("parquet string", "a", "binary", b"a"),
    ("parquet large_string", "7", "int32", 7), ("parquet int64", 7, "binary", BAD),
    ('avro "bytes"', b"a", "string", BAD),
    ("parquet dictionary", pa.array(["a"]).dictionary_encode(), "string", "a"),
    ("parquet null", pa.nulls(1), "int32", None), ("parquet halffloat", np.float16(1.5), "float32", 1.5),
]  # fmt: skip


@pytest.mark.parametrize(("form", "given", "column", "found"), CASES, ids=lambda each: f"{each}"[:40])
def test_a_value_is_exact_or_bad(form: str, given: Any, column: str, found: Any) -> None:
    done = decoded(form, given, column)
    if found is not BAD:
        assert done.bad == []
        (value,) = done.rows["v"].to_pylist()
        assert (value, type(value)) == (found, type(found))
        return
    assert done.rows.num_rows == 0
    (bad,) = done.bad
    # JSON that can't be read at all has no fields.
    assert "'v'" in bad.reason or "not valid JSON" in bad.reason
