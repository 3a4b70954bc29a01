"""Avro decodes what fastavro decodes, and names what is bad, whatever stands beside it."""

import base64
import datetime as dt
import io
import json
import math
import subprocess
import sys
import tracemalloc
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import cramjam
import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ingest.formats import avro, avro_blocks
from holdfast.ingest.formats.avro import _HEADER as HEADER
from holdfast.ingest.formats.avro import Avro, AvroFiles
from holdfast.ingest.formats.decoded import TooManyBad, decode_good
from holdfast.ingest.schema_texts import FILE, SchemaTexts
from holdfast.persist import Schema
from unit.ingest.avromessages import ORDER, bare, container, wire
from unit.ingest.formats.test_formats import COLUMNS, bad, found, messages


def texts(**schemas: Any) -> SchemaTexts:
    """Texts by ids such as `s1`."""
    return SchemaTexts(stored={name[1:]: json.dumps(each) for name, each in schemas.items()})


def orders(**given: Any) -> Avro:
    return Avro(COLUMNS, texts(s1=ORDER), head=True, **given)


def of_field(type_: Any) -> dict[str, Any]:
    """The schema of a record with the field `x`."""
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": type_}]}


def decoded_field(type_: Any, value: object, column: str) -> Any:
    """The value of `x` in a column of this type; a reason in a tuple if it is bad."""
    schema = of_field(type_)
    columns = Schema.of({}, {"x": f"{column}?"}).arrow
    form = Avro(columns, SchemaTexts(found={FILE: json.dumps(schema)}), head=False)
    decoded = form.decode(messages(value if isinstance(value, bytes) else bare({"x": value}, schema)))
    return (decoded.bad[0].reason,) if decoded.bad else decoded.rows["x"][0].as_py()


def test_records_become_rows_by_name_with_the_schema_of_each() -> None:
    later = {**ORDER, "fields": [{"name": "more", "type": "string"}, *reversed(ORDER["fields"])]}
    form = Avro(COLUMNS, texts(s1=ORDER, s300=later), head=True)
    decoded = form.decode(
        messages(
            wire({"id": 1, "name": "a"}),
            wire({"id": 2, "name": None, "more": "x"}, 300, later),
            wire({"id": 3, "name": None}),
        )
    )
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": 3, "name": None}]
    assert found(decoded) == list(enumerate(rows))
    assert not decoded.bad


GOOD = [wire({"id": number, "name": "x" * number}) for number in range(5)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, "the message is empty"),
        (b"", "the message is empty"),
        (b"\0\0\0\1", "the message has no schema id"),
        (b'{"id":1}', "the message has no schema id"),
        (b"\1" + GOOD[1][1:], "the message has no schema id"),
        (GOOD[1][:-1], "it ends within a record"),
        (GOOD[1] + b"\0", "1 bytes follow its record"),
        (b"\0\0\0\0\1", "it ends within a record"),
        (b"\0\0\0\0\1\2\2\2\xff", "its bytes are no record of its schema"),
        (b"\0\0\0\0\1\2\x07", "its bytes are no record of its schema"),
        (b"\0\0\0\0\1\2\2\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1x", "it ends within a record"),
        (b"\0\0\0\0\2\2\0", "nobody knows 2"),
        (b"\0\0\0\0\3\2\0", "its schema 3 can't be used: column 'id' has type int64"),
        (b"\0\xff\xff\xff\xff\2\0", "nobody knows 4294967295"),
    ],
)
def test_a_bad_record_harms_no_other(message: bytes | None, reason: str) -> None:
    known = texts(s1=ORDER, s3={**ORDER, "fields": [{"name": "id", "type": "string"}]})
    known.refused = {"2": "nobody knows 2", "4294967295": "nobody knows 4294967295"}
    form = Avro(COLUMNS, known, head=True)
    for at in range(6):
        decoded = form.decode(messages(*GOOD[:at], message, *GOOD[at:]))
        assert bad(decoded) == [at]
        assert reason in decoded.bad[0].reason
        assert [row["id"] for _, row in found(decoded)] == list(range(5))
        assert [index for index, _ in found(decoded)] == [index for index in range(6) if index != at]


def test_a_reason_does_not_depend_on_what_stands_beside() -> None:
    cut = GOOD[4][:-2]
    alone = orders().decode(messages(cut)).bad[0].reason
    for beside in (GOOD[0], b"\0\0\0\0\1\2\2\2\xff", b"xxxxxxxx"):
        assert orders().decode(messages(cut, beside)).bad[0].reason == alone


def test_more_bad_records_than_wanted_end_it() -> None:
    with pytest.raises(TooManyBad, match="no schema id"):
        orders(most_bad=3).decode(messages(*[b"?"] * 4))
    with pytest.raises(TooManyBad, match="ends within"):
        orders(most_bad=3).decode(messages(*[GOOD[1][:-1]] * 4))
    assert len(orders(most_bad=3).decode(messages(*[b"?"] * 3)).bad) == 3


NAMED = {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 3}


@pytest.mark.parametrize(
    ("type_", "value", "column", "wanted"),
    [
        ("boolean", True, "bool", True),
        ("int", -7, "int8", -7),
        ("long", 2**40, "uint64", 2**40),
        ("int", 3, "float64", 3.0),
        ("float", 1.5, "float32", 1.5),
        ("double", math.inf, "float64", math.inf),
        ("string", "ü", "string", "ü"),
        ("bytes", b"\0\xff", "binary", b"\0\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
        (["null", "long"], None, "int64", None),
        (["long", "null"], 4, "int64", 4),
        ("null", None, "int64", None),
        ({"type": "int", "logicalType": "date"}, dt.date(2026, 2, 28), "date32", dt.date(2026, 2, 28)),
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5), "string", str(uuid.UUID(int=5))),
        (NAMED, Decimal("-12.345"), "decimal128(9,3)", Decimal("-12.345")),
        (["null", NAMED], Decimal("1.500"), "decimal128(5,1)", Decimal("1.5")),
        # Debezium's own names of types.
        (
            {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"},
            1_000_001,
            "timestamp",
            dt.datetime(1970, 1, 1, 0, 0, 1, 1),  # noqa: DTZ001 - so is the column
        ),
        ({"type": "int", "connect.name": "io.debezium.time.Date"}, 1, "date32", dt.date(1970, 1, 2)),
        # An unknown logical type means nothing.
        ({"type": "long", "logicalType": "furlongs"}, 4, "int64", 4),
        ({"type": "bytes", "logicalType": "decimal"}, b"a", "binary", b"a"),
    ],
)
def test_types_fill_columns(type_: Any, value: object, column: str, wanted: object) -> None:
    plain = bare({"x": value}, of_field(type_))
    assert decoded_field(type_, plain, column) == wanted


@pytest.mark.parametrize("unit", ["millis", "micros"])
def test_timestamps(unit: str) -> None:
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123000, dt.UTC)
    utc = {"type": "long", "logicalType": f"timestamp-{unit}"}
    local = {"type": "long", "logicalType": f"local-timestamp-{unit}"}
    assert decoded_field(utc, at, "timestamp_utc") == at
    assert decoded_field(local, at.replace(tzinfo=None), "timestamp") == at.replace(tzinfo=None)
    assert "local-timestamp" in decoded_field(local, at.replace(tzinfo=None), "timestamp_utc")[0]
    assert "timestamp[us]" in decoded_field(utc, at, "timestamp")[0]


@pytest.mark.parametrize(
    ("type_", "value", "column"),
    [
        ("long", 128, "int8"),
        ("long", -1, "uint64"),
        ("long", 2**53 + 1, "float64"),
        ("double", 1.5, "float32"),
        ("string", "1", "int64"),
        ("long", 1, "string"),
        ("long", 1, "timestamp"),
        ("bytes", b"a", "string"),
        ("string", "a", "binary"),
        ({"type": "array", "items": "int"}, [1], "int64"),
        (["int", "string"], 1, "int64"),
        (NAMED, Decimal("1.234"), "decimal128(9,2)"),
        (NAMED, Decimal("123456.000"), "decimal128(5,0)"),
        # One of ten digits, which fastavro would round.
        (NAMED, b"\x7f\xff\xff\xff", "decimal128(38,3)"),
        (NAMED, Decimal("1.000"), "binary"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xfe" + b"\xff" * 8 + b"\1", "timestamp_utc"),
    ],
)
def test_a_value_that_does_not_fit_is_bad(type_: Any, value: object, column: str) -> None:
    assert isinstance(decoded_field(type_, value, column), tuple)


def test_nested_values_are_json_text() -> None:
    inner = {
        "type": "record",
        "name": "In",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": NAMED},
            {"name": "again", "type": ["null", "D"]},
            {"name": "raw", "type": "bytes"},
            {"name": "no", "type": "double"},
            {"name": "ids", "type": {"type": "map", "values": ["null", "int", "string"]}},
        ],
    }
    value = {
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "price": Decimal("1.250"),
        "again": Decimal("-0.001"),
        "raw": b"\0\xff",
        "no": math.nan,
        "ids": {"a": None, "ü": 1, "c": "x"},
    }
    text = decoded_field(["null", inner], value, "string")
    assert json.loads(text) == {
        "at": "2026-01-01T00:00:00+00:00",
        "price": "1.250",
        "again": "-0.001",
        "raw": base64.b64encode(b"\0\xff").decode(),
        "no": "NaN",
        "ids": {"a": None, "ü": 1, "c": "x"},
    }
    assert "ü" in text
    assert decoded_field({"type": "array", "items": "int"}, [1, 2], "string") == "[1,2]"
    assert decoded_field(["null", "int", "string"], "x", "string") == '"x"'
    assert decoded_field(["null", "int", "string"], None, "string") is None


RECURSIVE = {"type": "record", "name": "N", "fields": [{"name": "x", "type": ["null", "N"]}]}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (RECURSIVE, "its record N is recursive"),
        (of_field({"type": "array", "items": "null"}), "whose items take no bytes"),
        (
            of_field({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
            "take no bytes",
        ),
        (of_field("Missing"), "it has no type Missing"),
        (of_field(["int", ["string"]]), "a union"),
        (of_field({"type": "enum", "name": "E"}), "no symbols"),
        (of_field({"type": "enum", "name": "E", "symbols": ["a-b"]}), "symbol"),
        (of_field({"type": "fixed", "name": "F", "size": -1}), "no size"),
        (of_field({"kind": "int"}), "is not a type"),
        ({"type": "record", "name": "R"}, "no fields"),
        ({"type": "record", "fields": []}, "no name"),
        ({"type": "record", "name": "R", "fields": [{"name": "x"}]}, "bad field"),
        (["null", "int"], "of type int, and not a record"),
        ("string", "of type string, and not a record"),
    ],
)
def test_a_schema_that_can_not_be_used_says_why(schema: Any, told: str) -> None:
    columns = Schema.of({}, {"x": "string?"}).arrow
    decoded = Avro(columns, texts(s1=schema), head=True).decode(messages(b"\0\0\0\0\1\0"))
    assert told in decoded.bad[0].reason
    with pytest.raises(BadInput, match="schemaFile can't be used"):
        Avro(columns, SchemaTexts(found={FILE: json.dumps(schema)}), head=False).check()
    for text in ("{", "", "[" * 100_000):
        assert bad(
            Avro(columns, SchemaTexts(stored={"1": text}), head=True).decode(messages(b"\0\0\0\0\1\0"))
        ) == [0]


def test_a_deeply_nested_message_ends_no_process() -> None:
    """What fastavro itself would do with a recursive schema, and what is done here."""
    deep = b"\0\0\0\0\1" + b"\2" * 1_000_000 + b"\0"
    by_itself = (
        "import fastavro, io, sys; fastavro.schemaless_reader("
        f"io.BytesIO(b'\\2' * 1000000 + b'\\0'), fastavro.parse_schema({RECURSIVE!r}), None)"
    )
    assert subprocess.run([sys.executable, "-c", by_itself], check=False).returncode < 0
    decoded = Avro(Schema.of({}, {"x": "string?"}).arrow, texts(s1=RECURSIVE), head=True).decode(
        messages(deep)
    )
    assert "recursive" in decoded.bad[0].reason


PRIMITIVES = st.sampled_from(["boolean", "int", "long", "float", "double", "bytes", "string", "null"])


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner.filter(lambda each: each != "null")),
        st.builds(lambda values: {"type": "map", "values": values}, inner),
        st.builds(
            lambda one: ["null", one],
            inner.filter(lambda each: each != "null" and not isinstance(each, list)),
        ),
    )


TYPES = st.recursive(
    st.one_of(
        PRIMITIVES,
        st.just({"type": "int", "logicalType": "date"}),
        st.just({"type": "long", "logicalType": "timestamp-micros"}),
        st.just({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}),
    ),
    nested,
    max_leaves=4,
)
COLUMN_OF = {
    "boolean": "bool", "int": "int32", "long": "int64", "float": "float32", "double": "float64",
    "bytes": "binary", "string": "string", "null": "string", "date": "date32",
    "timestamp-micros": "timestamp_utc", "decimal": "decimal128(12,4)",
}  # fmt: skip


def column_of(type_: Any) -> str:
    if isinstance(type_, list):
        return column_of(type_[1])
    if isinstance(type_, dict):
        return COLUMN_OF.get(type_.get("logicalType", ""), "string")
    return COLUMN_OF[type_]


def is_nested(type_: Any) -> bool:
    if isinstance(type_, list):
        return is_nested(type_[1])
    return isinstance(type_, dict) and type_["type"] in {"array", "map"}


def value_of(type_: Any) -> st.SearchStrategy[Any]:
    if isinstance(type_, list):
        return st.none() | value_of(type_[1])
    logical = type_.get("logicalType") if isinstance(type_, dict) else None
    if logical == "date":
        return st.dates()
    if logical == "timestamp-micros":
        return st.datetimes(timezones=st.just(dt.UTC))
    if logical == "decimal":
        return st.decimals(-(10**7), 10**7, places=4)
    if isinstance(type_, dict):
        if type_["type"] == "array":
            return st.lists(value_of(type_["items"]), max_size=3)
        return st.dictionaries(st.text(max_size=3), value_of(type_["values"]), max_size=3)
    return {
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=5),
        "string": st.text(max_size=5),
        "null": st.none(),
    }[type_]


def as_fastavro_says(value: Any) -> Any:
    """A value of fastavro in JSON's terms."""
    if isinstance(value, dict):
        return {name: as_fastavro_says(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_fastavro_says(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, dt.date) else value


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_it_decodes_what_fastavro_decodes(data: st.DataObject) -> None:
    types = data.draw(st.lists(TYPES, min_size=1, max_size=4))
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    schema = {"type": "record", "name": "R", "fields": fields}
    columns = Schema.of({}, {f"f{number}": f"{column_of(each)}?" for number, each in enumerate(types)}).arrow
    one = st.fixed_dictionaries({each["name"]: value_of(each["type"]) for each in fields})
    records = data.draw(st.lists(one, max_size=5))
    encoded = [bare(record, schema) for record in records]
    junk = data.draw(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=12)), max_size=2))
    for at, bytes_ in junk:
        encoded.insert(at, bytes_)
    parsed = fastavro.parse_schema(schema)
    wanted: list[tuple[int, Any]] = []
    for at, message in enumerate(encoded):
        stream = io.BytesIO(message)
        try:
            record: Any = fastavro.schemaless_reader(stream, parsed, None)
            if stream.tell() != len(message):
                continue
            rows = {
                name: as_fastavro_says(each) if is_nested(type_) else each
                for (name, each), type_ in zip(record.items(), types, strict=True)
            }
            pa.table(
                {
                    each.name: pa.array([record[each.name]], each.type)
                    for each in columns
                    if not is_nested(types[int(each.name[1:])])
                }
            )
        except Exception:  # noqa: BLE001 - whatever it is
            continue
        wanted.append((at, rows))
    form = Avro(columns, texts(s9=schema), head=True)
    decoded = form.decode(messages(*(b"\0\0\0\0\x09" + each for each in encoded)))
    got = [
        (
            at,
            {
                name: json.loads(each) if each is not None and is_nested(types[int(name[1:])]) else each
                for name, each in row.items()
            },
        )
        for at, row in found(decoded)
    ]
    assert [at for at, _ in got] == [at for at, _ in wanted]
    assert got == wanted
    assert bad(decoded) == [at for at in range(len(encoded)) if at not in {index for index, _ in wanted}]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_are_rows_or_bad_records(records: list[bytes]) -> None:
    decoded = orders().decode(messages(*(b"\0\0\0\0\1" + each for each in records)))
    assert sorted([*bad(decoded), *(index for index, _ in found(decoded))]) == list(range(len(records)))
    for index, row in found(decoded):
        # Each by itself is the same row.
        assert found(orders().decode(messages(b"\0\0\0\0\1" + records[index]))) == [(0, row)]


CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]


@pytest.mark.parametrize("codec", CODECS)
def test_object_container_files(codec: str) -> None:
    records = [{"id": number, "name": None if number % 3 else str(number)} for number in range(25_000)]
    whole = container(records, codec=codec)
    decoded = AvroFiles(COLUMNS).decode(messages(whole, whole[:-25], b"", b"Obj\1", b"PAR1" * 20))
    assert [row for _, row in found(decoded)] == records
    assert [(each.index, each.kind) for each in decoded.bad] == [(at, "file") for at in range(1, 5)]


def test_a_container_with_the_codec_lz4() -> None:
    block = bare({"id": 1, "name": "a"})
    packed = bytes(cramjam.lz4.compress_block(block, store_size=True))
    schema, sync = json.dumps(ORDER).encode(), b"s" * 16
    head = bare(
        {"magic": b"Obj\1", "meta": {"avro.schema": schema, "avro.codec": b"lz4"}, "sync": sync}, HEADER
    )
    decoded = AvroFiles(COLUMNS).decode(messages(head + bytes([2, 2 * len(packed)]) + packed + sync))
    assert found(decoded) == [(0, {"id": 1, "name": "a"})]
    decoded = AvroFiles(COLUMNS).decode(messages(head.replace(b"\x06lz4", b"\x06zip") + b"\2\2\0" + sync))
    assert decoded.bad[0].reason == "its codec 'zip' is not known"


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_that_unpacks_to_too_much_is_refused_before_that(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = container([{"id": 1, "name": "x" * 400_000}], codec=codec)
    monkeypatch.setattr(avro_blocks, "MOST_BLOCK_BYTES", 400_010)
    assert AvroFiles(COLUMNS).decode(messages(file)).rows.num_rows == 1
    monkeypatch.setattr(avro_blocks, "MOST_BLOCK_BYTES", 1000)
    tracemalloc.start()
    decoded = AvroFiles(COLUMNS).decode(messages(file))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [each.kind for each in decoded.bad] == ["file"]
    assert "a block has more than 1,000 bytes of records" in decoded.bad[0].reason
    # The dictionary of xz has megabytes.
    assert peak < len(file) + 200_000 or codec == "xz"


def test_large_records_are_decoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_CHUNK_BYTES", 1000)
    columns, seen = Schema.of({"id": "int64"}, {}).arrow, list[int]()
    monkeypatch.setattr(
        avro, "decode_good", lambda count, *given: seen.append(count) or decode_good(count, *given)
    )
    records = [{"id": each, "name": "x" * 600} for each in range(30)]
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(ORDER), records, "deflate", sync_interval=500)
    decoded = AvroFiles(columns).decode(messages(stream.getvalue()))
    assert decoded.rows["id"].to_pylist() == list(range(30))
    assert max(seen) <= 3


def test_a_container_names_bad_records_by_number() -> None:
    schema = {**ORDER, "fields": [{"name": "id", "type": "long"}, {"name": "price", "type": NAMED}]}
    columns = Schema.of({"id": "int8"}, {"price": "decimal128(9,3)"}).arrow
    records = [{"id": number, "price": Decimal(number)} for number in (1, 128, 3)]
    decoded = AvroFiles(columns).decode(messages(container(records, schema)))
    assert [row["id"] for _, row in found(decoded)] == [1, 3]
    assert [(each.index, each.position, each.kind) for each in decoded.bad] == [(0, 2, "decode")]
    assert "column 'id'" in decoded.bad[0].reason


def test_a_container_of_records_without_bytes_is_refused() -> None:
    """A few bytes may have 2**62 of them."""
    empty = {"type": "record", "name": "E", "fields": []}
    decoded = AvroFiles(COLUMNS).decode(messages(container([{}], empty), container([{"x": None}], RECURSIVE)))
    assert "take no bytes" in decoded.bad[0].reason
    assert "recursive" in decoded.bad[1].reason


def test_keys_may_be_bare_values() -> None:
    columns = Schema.of({"id": "int64"}, {}).arrow
    form = Avro(columns, texts(s1="long", s2=ORDER), head=True, bare=True)
    decoded = form.decode(messages(wire(4, 1, "long"), wire({"id": 5, "name": None}, 2)))
    assert [row["id"] for _, row in found(decoded)] == [4, 5]


def test_the_messages_of_a_file_are_found_in_a_slice(tmp_path: Path) -> None:
    whole = messages(*GOOD)
    decoded = orders().decode(whole.slice(2, 2))
    assert [row["id"] for _, row in found(decoded)] == [2, 3]


def test_a_file_with_too_many_bytes_of_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    file = container([{"id": each} for each in range(1000)], schema)
    assert AvroFiles(COLUMNS).decode(messages(file)).rows.num_rows == 1000
    monkeypatch.setattr(AvroFiles, "most_bytes", 5000)
    decoded = AvroFiles(COLUMNS).decode(messages(file))
    assert decoded.rows.num_rows == 0
    assert [each.kind for each in decoded.bad] == ["file"]
