"""Formats decode good records and name bad ones, whatever stands beside them."""

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ingest.formats.debezium import DebeziumJson
from holdfast.ingest.formats.decoded import Decoded
from holdfast.ingest.formats.files import Csv
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.formats.keys import JsonKeys
from holdfast.ingest.formats.parquet import Parquet
from holdfast.ingest.formats.raw import Raw
from holdfast.ingest.reading import included
from holdfast.ingest.source import MESSAGES
from holdfast.persist import Schema
from holdfast.persist.rows.casts import column_of

COLUMNS = Schema.of({"id": "int64"}, {"name": "string?"}).arrow


def messages(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.nulls(count, pa.int64()),
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def found(decoded: Decoded) -> list[tuple[int, dict[str, Any]]]:
    return list(zip(decoded.index.tolist(), decoded.rows.to_pylist(), strict=True))


def bad(decoded: Decoded) -> list[int]:
    return [each.index for each in decoded.bad]


def test_json_objects_become_rows_by_name() -> None:
    decoded = Json(COLUMNS).decode(
        messages(b'{"name":"a","id":1}', b' {"id": 2,\n "more": {"x": [1]}}\r\n', b'{"id":3,"name":null}')
    )
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": None}]
    assert found(decoded) == list(enumerate(rows))
    assert not decoded.bad


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"   ",
        None,
        b"null",
        b"[1]",
        b"{",
        b'{"id":1',
        b'{"id":1}{"id":2}',
        b'{"id":1} {"id":2}',
        b'{"id":1}\n{"id":2}',
        b'{"id":"1"}',
        b'{"id":1.5}',
        b'{"id":9223372036854775808}',
        b'{"id":1,"id":2}',
        b'{"id":1,"name":2}',
        b'{"id":{"a":1}}',
        b'{"id":1,"name":"a\nb"}',
        b'{"id":1,"name":"\xff"}',
        b'{"id":1,"name":"\\ud800"}',
        b'{"id":1,}',
        b'{"id":1}\x00',
        b'{"id":1]}',
        b'{"name":"}',
        b'{"id":1 /* no */}',
        b'{"id":1,\n"z":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_bad_json_record_harms_no_other(record: bytes | None) -> None:
    good = [b'{"id":%d}' % number for number in range(5)]
    for at in range(6):
        decoded = Json(COLUMNS).decode(messages(*good[:at], record, *good[at:]))
        assert bad(decoded) == [at]
        assert [row["id"] for _, row in found(decoded)] == list(range(5))
        assert [index for index, _ in found(decoded)] == [index for index in range(6) if index != at]


def test_two_records_that_look_whole_together_are_both_bad() -> None:
    pairs = [
        (b'{"name":"}', b'{"}'),
        (b'{"a":[{}', b"{}]}"),
        (b'{"a":{"b":{}', b"{}}}"),
        (b'{"a":"\\}', b'{"}'),
    ]
    for one, two in pairs:
        decoded = Json(COLUMNS).decode(messages(b'{"id":1}', one, two, b'{"id":2}'))
        assert bad(decoded) == [1, 2]
        assert [row["id"] for _, row in found(decoded)] == [1, 2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
RECORDS = st.one_of(
    st.fixed_dictionaries({"id": st.integers(-5, 5)}, optional={"name": st.text(max_size=4), "z": JSON}).map(
        lambda value: json.dumps(value).encode()
    ),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"id": JSON, "name": JSON}).map(lambda value: json.dumps(value, indent=1).encode()),
    st.binary(max_size=8),
)


def plainly(record: bytes) -> dict[str, Any] | None:
    """What the record means, decoded by itself with another library."""
    try:
        value = json.loads(record)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    id_, name = value.get("id"), value.get("name")
    if isinstance(name, dict | list):
        name = json.dumps(name, ensure_ascii=False, separators=(",", ":"))
    fits = id_ is None or (type(id_) is int and -(2**63) <= id_ < 2**63)
    if not fits or not (name is None or isinstance(name, str)):
        return None
    try:
        record.decode()
        (name or "").encode()
    except UnicodeError:
        return None
    return {"id": id_, "name": name}


@settings(max_examples=300, deadline=None)
@given(st.lists(RECORDS, max_size=8))
def test_many_json_records_are_decoded_as_each_by_itself(records: list[bytes]) -> None:
    decoded = Json(COLUMNS).decode(messages(*records))
    wanted = [plainly(record) for record in records]
    assert found(decoded) == [(at, row) for at, row in enumerate(wanted) if row is not None]
    assert bad(decoded) == [at for at, row in enumerate(wanted) if row is None]


def test_json_has_a_form_for_each_type() -> None:
    types = {
        "flag": "bool?", "tiny": "int8?", "huge": "uint64?", "real": "float64?", "half": "float32?",
        "text": "string?", "bytes": "binary?", "day": "date32?", "at": "timestamp_utc?",
        "local": "timestamp?", "price": "decimal128(10,2)?",
    }  # fmt: skip
    record = {
        "flag": True, "tiny": -128, "huge": 2**64 - 1, "real": 0.1, "half": 1.5, "text": "ü",
        "bytes": base64.b64encode(b"\x00\xff").decode(), "day": "2026-02-28",
        "at": "2026-01-01T01:00:00.123456+01:00", "local": "2026-01-01 00:00:00", "price": "1.25",
    }  # fmt: skip
    columns = Schema.of({}, types).arrow
    decoded = Json(columns).decode(messages(json.dumps(record).encode()))
    assert not decoded.bad
    (row,) = decoded.rows.to_pylist()
    assert row["huge"] == 2**64 - 1
    assert (row["bytes"], row["day"]) == (b"\x00\xff", dt.date(2026, 2, 28))
    assert row["at"] == dt.datetime(2026, 1, 1, 0, 0, 0, 123456, dt.UTC)
    assert (row["price"], row["half"], row["tiny"]) == (Decimal("1.25"), 1.5, -128)
    for name, value in [("tiny", 128), ("bytes", "?"), ("day", "2026-02-30"), ("day", 1), ("price", "1.255")]:
        assert bad(Json(columns).decode(messages(json.dumps({name: value}).encode()))) == [0], (name, value)


def test_csv_names_bad_records_by_number() -> None:
    text = b'id,other,name\n1,x,a\nbad,x,b\n3,x,"two\nlines"\n4,x\n5,x,\n6,x,""\n'
    decoded = Csv(COLUMNS).decode(messages(text))
    rows = [{"id": 1, "name": "a"}, {"id": 3, "name": "two\nlines"}, {"id": 5, "name": None}]
    assert [row for _, row in found(decoded)] == [*rows, {"id": 6, "name": ""}]
    assert [(each.position, each.kind) for each in decoded.bad] == [(2, "decode"), (4, "decode")]
    assert "3 columns" in decoded.bad[1].reason or "2 fields instead of 3" in decoded.bad[1].reason


@pytest.mark.parametrize(
    ("text", "rows", "failed"),
    [
        (b'id,name\n1,a\n2,"open\n3,c\n', [1], 2),
        (b'id,name\n1,"a"\n2,x,"open\n3,c\n', [1], 2),
        (b'id,name\n"open\n3,c\n', [], 1),
        (b'id\n1\n"2\n3\n', [1], 2),
        (b'id,name\n1,"a"\n2,"b"', [1, 2], 0),
        (b'id\n"1"\n2\n', [1, 2], 0),
        (b'id,name\r\n1,"a\r\nb"\r\n2,b\r\n', [1, 2], 0),
        (b'id,name\n1,5" pipe\n2,"say ""hi"""\n', [1, 2], 0),
        (b'id,name\n1,"a"\n2\n3,b\n', [1, 3], 2),
    ],
)
def test_a_quote_that_is_not_closed_takes_no_records_along(text: bytes, rows: list[int], failed: int) -> None:
    decoded = Csv(COLUMNS).decode(messages(text))
    assert decoded.rows["id"].to_pylist() == rows
    assert [each.position for each in decoded.bad] == ([failed] if failed else [])
    if failed and b'"a"\n2\n' not in text:
        assert "a quote is not closed" in decoded.bad[0].reason


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"name\na\n\nb\n", ["a", None, "b"]),
        (b"name\n\na\n\n", [None, "a", None]),
        (b"name\r\na\r\n\r\nb", ["a", None, "b"]),
        (b'name\n""\n\n"a\n\nb"\n', ["", None, "a\n\nb"]),
        (b"\n\nname\na\n", ["a"]),
        (b"name\n", []),
    ],
)
def test_an_empty_line_is_a_record_of_a_csv_file_with_one_column(
    text: bytes, values: list[str | None]
) -> None:
    columns = Schema.of({}, {"name": "string?"}).arrow
    decoded = Csv(columns).decode(messages(text))
    assert decoded.rows["name"].to_pylist() == values
    assert decoded.numbers is not None
    assert decoded.numbers.tolist() == list(range(1, len(values) + 1))
    wider = Csv(columns).decode(messages(text.replace(b"name", b"name,x").replace(b"a\n", b"a,\n")))
    assert None not in wider.rows["name"].to_pylist()


def test_records_of_a_file_have_numbers() -> None:
    first, second = b"id,name\n1,a\nx,b\n3,c\n4\n5,e\n", b"id,name\n9,z\n"
    decoded = Csv(COLUMNS).decode(messages(first, second))
    assert decoded.rows["id"].to_pylist() == [1, 3, 5, 9]
    assert decoded.numbers is not None
    assert decoded.numbers.tolist() == [1, 3, 5, 1]
    assert [(each.index, each.position) for each in decoded.bad] == [(0, 2), (0, 4)]


def test_nested_json_is_text_in_a_string_column() -> None:
    columns = Schema.of({"id": "int64"}, {"name": "string?", "record": "string?"}).arrow
    values = [
        b'{"id":1,"name":"plain"}',
        b'{"id":2,"name":{"a":[1,2.50,12345678901234567890123],"\xc3\xa4":null}}',
        b'{"id":3,"name":[true,{"x":"\\u00e4"}]}',
        b'{"id":4,"name":5}',
        b'{"id":5,"name":{"x":NaN}}',
        b'{"id":6,"name":{},"id":7}',
        b'{"id":8,"name":"{\\"no\\": 1}","more":{"y":[]}}',
    ]
    decoded = Json(columns, "record").decode(messages(*values))
    assert decoded.rows["name"].to_pylist() == [
        "plain",
        '{"a":[1,2.50,12345678901234567890123],"\u00e4":null}',
        '[true,{"x":"\u00e4"}]',
        '{"no": 1}',
    ]
    assert decoded.rows["id"].to_pylist() == [1, 2, 3, 8]
    assert decoded.rows["record"].to_pylist() == [values[at].decode() for at in (0, 1, 2, 6)]
    assert bad(decoded) == [3, 4, 5]


def test_nested_parquet_is_text_in_a_string_column(tmp_path: Path) -> None:
    nested = [{"a": [1, 2], "d": Decimal("1.50"), "t": dt.date(2026, 1, 2)}, None]
    table = pa.table({"id": [1, 2], "name": pa.array(nested)})
    pq.write_table(table, tmp_path / "x.parquet")
    decoded = Parquet(COLUMNS).decode(messages((tmp_path / "x.parquet").read_bytes()))
    assert decoded.rows["name"].to_pylist() == ['{"a":[1,2],"d":"1.50","t":"2026-01-02"}', None]
    durations = pa.table({"id": [1], "name": pa.array([[dt.timedelta(1)]])})
    pq.write_table(durations, tmp_path / "y.parquet")
    decoded = Parquet(COLUMNS).decode(messages((tmp_path / "y.parquet").read_bytes()))
    assert "it has no form in JSON" in decoded.bad[0].reason


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        (b"1", "int64", 1),
        (b" -7\n", "int64", -7),
        (b'{"id": 1}', "int64", 1),
        (b'"a b"', "string", "a b"),
        (b'"a \\" b"', "string", 'a " b'),
        (b"true", "bool", True),
        (b"1.5", "float64", 1.5),
        (b"1.5", "int64", None),
        (b"abc", "string", None),
        (b'1,"x":2', "int64", None),
        (b"1} {", "int64", None),
        (b"", "int64", None),
        (b"null", "int64", None),
    ],
)
def test_a_key_may_be_a_value_without_a_name(key: bytes, name: str, value: object) -> None:
    columns = Schema.of({"id": name}).arrow
    decoded = JsonKeys(columns).decode(messages(key))
    if value is None:
        assert decoded.rows["id"].to_pylist() in ([], [None])
    else:
        assert decoded.rows["id"].to_pylist() == [value]
    assert JsonKeys(Schema.of({"id": name, "b": "int64"}).arrow).decode(messages(b"1")).bad


WILD = ["1e-999999999", "1e-2147483649", "1E999999999", "1e-77", "-1.5e+00100", "1e99999999999999999999"]


@pytest.mark.parametrize("number", WILD)
def test_a_number_with_a_wild_exponent_is_a_bad_record(number: str) -> None:
    # Arrow reads beyond a table for such a number, which ends the process.
    columns = Schema.of({"id": "int64"}, {"v": "decimal128(10,2)?", "name": "string?"}).arrow
    records = [
        b'{"id":1,"v":1.5,"name":"%s"}' % number.encode(),
        b'{"id":2,"v":%s}' % number.encode(),
        b'{"id":3,"v":"%s"}' % number.encode(),
        b'{"id":4,"v":1e1}',
    ]
    decoded = Json(columns).decode(messages(*records))
    assert decoded.rows["id"].to_pylist() == [1, 4]
    assert bad(decoded) == [1, 2]
    text = f"id,v\n1,1.5\n2,{number}\n3,2e1\n".encode()
    decoded = Csv(Schema.of({"id": "int64"}, {"v": "decimal128(10,2)?"}).arrow).decode(messages(text))
    assert decoded.rows["id"].to_pylist() == [1, 3]
    assert [each.position for each in decoded.bad] == [2]
    event = b'{"op":"c","before":null,"after":{"id":1,"v":%s}}' % number.encode()
    debezium = DebeziumJson(Schema.of({"id": "int64"}, {"v": "decimal128(10,2)?"}).arrow, ["id"])
    assert bad(debezium.decode(messages(event))) == [0]
    if len(number) < 20:
        with pytest.raises(BadInput, match="row 0: its exponent is beyond 76 digits"):
            column_of("v", [Decimal(number)], pa.decimal128(10, 2))


LONG = "x" * 10_000


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        ({"id": [0] * 100_000, "name": ["a"] * 100_000}, {}),
        ({"id": [0] * 100, "name": [LONG] * 100}, {}),
        ({"id": [0] * 100, "name": [LONG] * 100}, {"use_dictionary": False}),
        (
            {"id": [0] * 100, "name": [LONG] * 100},
            {"use_dictionary": False, "column_encoding": {"name": "DELTA_BYTE_ARRAY"}},
        ),
        ({"id": [0] * 100, "name": [[LONG]] * 100}, {}),
        ({"id": [0] * 100, "name": pa.array([LONG.encode()] * 100, pa.binary(len(LONG)))}, {}),
    ],
    ids=["numbers", "dictionary", "compressed", "shared", "nested", "fixed"],
)
def test_a_parquet_file_with_too_many_bytes_of_values_is_refused(
    rows: dict[str, Any], written: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the limit it is read.
    for most, refused in ((500_000, True), (4_000_000, False)):
        monkeypatch.setattr(Parquet, "most_bytes", most)
        with io.BytesIO() as file:
            pq.write_table(pa.table(rows), file, compression="zstd", **written)
            assert len(file.getvalue()) < 50_000
            decoded = Parquet(COLUMNS).decode(messages(file.getvalue()))
        assert decoded.rows.num_rows == (0 if refused else len(rows["id"]))
        if refused:
            (bad,) = decoded.bad
            assert bad.kind == "file"
            assert bad.reason.startswith("its values take more than 500,000 bytes of memory")


def test_texts_of_a_dictionary_are_what_they_were() -> None:
    texts = ["a", None, "b", "a", "", *(str(each) for each in range(2000))]
    for type_ in (pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        with io.BytesIO() as file:
            table = pa.table({"id": range(len(texts)), "name": pa.array(texts).cast(type_)})
            pq.write_table(table, file, row_group_size=300, dictionary_pagesize_limit=2000)
            decoded = Parquet(COLUMNS).decode(messages(file.getvalue()))
        assert decoded.rows["name"].to_pylist() == texts
        assert decoded.rows["name"].type == pa.string()


def test_a_parquet_file_with_a_column_twice_is_a_bad_record(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    pq.write_table(table, tmp_path / "x.parquet")
    decoded = Parquet(COLUMNS).decode(messages((tmp_path / "x.parquet").read_bytes()))
    assert [each.reason for each in decoded.bad] == ["it has column 'id' twice"]


@pytest.mark.parametrize("text", [b"", b"name\na\n", b"id,id\n1,2\n", b"\xff\xfe\x00"])
def test_a_csv_file_that_can_not_be_read_is_one_bad_record(text: bytes) -> None:
    decoded = Csv(COLUMNS).decode(messages(b"id,name\n1,a\n", text))
    assert [row for _, row in found(decoded)] == [{"id": 1, "name": "a"}]
    assert [(each.index, each.kind) for each in decoded.bad] == [(1, "file")]


def test_parquet_columns_are_found_by_name_and_cast(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int32()), "x": [0, 0]}), tmp_path / "f"
    )
    decoded = Parquet(COLUMNS).decode(messages((tmp_path / "f").read_bytes(), b"PAR1 no"))
    assert [row for _, row in found(decoded)] == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert [(each.index, each.kind) for each in decoded.bad] == [(1, "file")]


def test_raw_takes_one_column() -> None:
    decoded = Raw(Schema.of({}, {"text": "string"}).arrow).decode(messages(b"a", b"\xff", b""))
    assert found(decoded) == [(0, {"text": "a"}), (2, {"text": ""})]
    assert bad(decoded) == [1]
    with pytest.raises(BadInput, match="exactly one column of type binary or string, found id int64"):
        Raw(COLUMNS).check()


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.int64()])
def test_timestamps_of_messages_are_milliseconds_in_columns_of_each_type(type_: pa.DataType) -> None:
    (found,) = included(pa.array([1_700_000_000_123]), "timestamp", type_).cast(pa.int64()).to_pylist()
    assert found == (1_700_000_000_123 if type_ == pa.int64() else 1_700_000_000_123_000)
