"""Reasons of bad records are plain words, and have no row numbers of the decoder."""

import gzip
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ingest.formats.avro import AvroFiles
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.formats.files import Csv
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.formats.parquet import Parquet
from holdfast.ingest.formats.raw import Raw
from holdfast.persist import Schema
from unit.ingest.formats.test_formats import messages

COLUMNS = Schema.of(
    {"id": "int64"},
    {"count": "int32?", "text": "string?", "price": "decimal128(5,2)?", "at": "timestamp_utc?"},
).arrow
ONLY_TEXT = Schema.of({"text": "string"}).arrow
NOT_TEXT = "it is not text in UTF-8 (a compressed file must be decompressed first)"


def reason(form: Format, record: bytes) -> str:
    (found,) = form.decode(messages(record)).bad
    return found.reason


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b'{"count":"a"}', "field 'count' has JSON's type string, and its column takes number"),
        (b'{"count":5000000000}', "field 'count': '5000000000' is not a value of type int32"),
        (b'{"price":"1.234"}', "field 'price': 1.234 has too many digits for type decimal128(5, 2)"),
        (b'{"at":"soon"}', "field 'at': 'soon' is not a value of type timestamp[us, tz=UTC]"),
        (b'{"count":1,"count":2}', "field 'count' occurs twice"),
        (b'{"count" 1}', "it is not valid JSON: missing a colon after a name of object member"),
        (b'{"count":1}}', "it is not valid JSON: something follows the object"),
        (b'{\n"text":"\n"}', "it is not valid JSON: a text has a line break or another control character"),
        (b'{"text":"\xff"}', NOT_TEXT),
    ],
)
def test_a_reason_of_json_is_plain(record: bytes, expected: str) -> None:
    assert reason(Json(COLUMNS), record) == expected


def nested(levels: int, beside: str = "") -> bytes:
    """An object that has, with itself, so many levels."""
    within = "[" * (levels // 2) + '{"a":' * (levels - levels // 2 - 1) + "1"
    ends = "}" * (levels - levels // 2 - 1) + "]" * (levels // 2)
    return f'{{"text":{within}{ends}{beside}}}'.encode()


@pytest.mark.parametrize("levels", [257, 258, 500, 5000, 100_000])
def test_nested_json_has_a_greatest_depth(levels: int) -> None:
    form = Json(COLUMNS)
    too_deep = "its objects and arrays are nested more than 256 levels deep"
    assert reason(form, nested(levels)) == too_deep
    assert reason(form, f'{{"text":[1],"other":{nested(levels - 1).decode()}}}'.encode()) == too_deep
    # What no column takes may have any depth.
    deep = f'{{"text":"a","other":{nested(levels - 1).decode()}}}'.encode()
    decoded = form.decode(messages(nested(256), deep, b'{"text":[1]}'))
    assert (decoded.rows.num_rows, decoded.bad) == (3, [])
    assert decoded.rows["text"].to_pylist() == [nested(256)[8:-1].decode(), "a", "[1]"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b'{"text":[1,}', "expecting value"),
        (b'{"text":[NaN]}', "a number is NaN or Infinity"),
        (b'{"text":{"a":"\\ud800"}}', "the surrogate pair in string is invalid"),
    ],
)
def test_a_reason_of_nested_json_is_what_is_wrong(record: bytes, expected: str) -> None:
    assert reason(Json(COLUMNS), record) == f"it is not valid JSON: {expected}"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (b"id,count\n1,a\n", "column 'count': 'a' is not a value of type int32"),
        (b"id,price\n1,1.234\n", "column 'price': a decimal has too many digits for the column"),
        (b"id,price\n1,123456\n", "column 'price': a decimal has more digits than the column's 5"),
        (
            b"id,at\n1,2026-01-01\n",
            "column 'at': '2026-01-01' is not a value of type timestamp[us, tz=UTC]: ",
        ),
        (b"id,text\n1,\xff\n", f"in row 2 (the header is row 1): {NOT_TEXT}"),
        (b"\n\n", "it has no header that can be read: the file is empty, compressed or damaged"),
    ],
)
def test_a_reason_of_csv_is_plain(file: bytes, expected: str) -> None:
    found = reason(Csv(COLUMNS), file)
    assert found.startswith(expected)
    assert "assume_timezone" not in found
    assert "parse error" not in found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5_000_000_000], "5000000000 is not between -2147483648 and 2147483647"),
        ([1.5], "1.500000 does not fit type int32 exactly"),
        ([[1]], "type list<element: int64> can't become type int32"),
    ],
)
def test_a_reason_of_parquet_is_plain(tmp_path: Path, values: list[Any], expected: str) -> None:
    pq.write_table(pa.table({"id": [1], "count": values}), tmp_path / "x")
    contents = (tmp_path / "x").read_bytes()
    assert reason(Parquet(COLUMNS), contents) == f"column 'count': {expected}"
    assert reason(Parquet(COLUMNS), contents[:-9]) == "it is not a whole Parquet file"


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        ("long", 1 << 40, "column 'count': 1099511627776 is out of the range of the column's type"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0},
            Decimal(123456),
            "column 'price': a decimal has more digits than the column's 5",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            Decimal("1.234"),
            "column 'price': a decimal has too many digits for the column",
        ),
    ],
)
def test_a_reason_of_avro_is_plain(type_: Any, value: Any, expected: str) -> None:
    name = "price" if isinstance(value, Decimal) else "count"
    fields = [{"name": "id", "type": "long"}, {"name": name, "type": type_}]
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, [{"id": 1, name: value}])
    assert reason(AvroFiles(COLUMNS), file.getvalue()) == expected
    damaged = file.getvalue()[:-1] + b"x"
    assert reason(AvroFiles(COLUMNS), damaged) == "its records can't be read: the file is damaged"


def test_text_that_is_compressed_is_not_text() -> None:
    assert reason(Raw(ONLY_TEXT), gzip.compress(b"a", mtime=0)) == NOT_TEXT
