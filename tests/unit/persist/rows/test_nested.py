"""Nested values as bytes: equal values have equal bytes, and every value comes back."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist import Schema
from holdfast.persist.rows import nested
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.casts import column_of
from holdfast.persist.rows.column_types import arrow_type, type_name
from holdfast.persist.rows.nested import decode
from holdfast.persist.rows.stored import logical_array, stored_array
from unit.persist.rows.strategies import NESTED

TYPES = st.sampled_from(sorted(NESTED))


def stored(values: list[Any], type_: pa.DataType) -> pa.Array:
    return stored_array("x", column_of("x", values, type_), type_)


def plain(value: Any) -> Any:
    """A value with the equality of nested values: NaN equals NaN, zero has no sign, maps have no order."""
    match value:
        case float():
            return "nan" if math.isnan(value) else value
        case list() if value and all(isinstance(each, tuple) for each in value):
            return frozenset((key, plain(each)) for key, each in value)
        case list() | tuple():
            return tuple(map(plain, value))
        case dict():
            return frozenset((name, plain(each)) for name, each in value.items())
        case _:
            return value


@given(st.data(), TYPES, st.booleans())
def test_equal_values_and_no_others_have_equal_bytes(data: st.DataObject, name: str, small: bool) -> None:
    values = data.draw(st.lists(st.none() | NESTED[name], max_size=12))
    type_ = arrow_type(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nested, "_BLOCK_BYTES", 64 if small else nested._BLOCK_BYTES)
        patch.setattr(nested, "_LONG", 2 if small else nested._LONG)
        found = stored(values, type_)
        again = logical_array("x", found, type_)
        assert again.type == type_
        again.validate(full=True)
        assert [plain(each) for each in again.to_pylist()] == [plain(each) for each in values]
        assert stored_array("x", again, type_).equals(found)
        assert stored_array("x", found, type_).equals(found)
        assert stored_array("x", again[1:], type_).equals(found[1:])
        assert stored_array("x", logical_array("x", found[1:], type_), type_).equals(found[1:])
    for one, its in zip(values, found.to_pylist(), strict=True):
        for other, others in zip(values, found.to_pylist(), strict=True):
            assert (its == others) == (plain(one) == plain(other))


@given(st.data(), TYPES)
def test_damaged_bytes_are_an_error_or_another_value(data: st.DataObject, name: str) -> None:
    type_ = arrow_type(name)
    (good,) = stored([data.draw(NESTED[name])], type_).to_pylist()
    at = data.draw(st.integers(0, len(good)))
    bad = good[:at] + data.draw(st.binary(max_size=6)) + good[at + data.draw(st.integers(0, 4)) :]
    damaged = pa.array([bad])
    try:
        value = decode("x", damaged, type_)
    except CorruptBlob:
        with pytest.raises(BadInput, match="column 'x' is binary"):
            stored_array("x", damaged, type_)
    else:
        value.validate(full=True)


@pytest.mark.parametrize(
    ("given_type", "name"),
    [
        (pa.large_list(pa.large_string()), "list<string>"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), "list<string>"),
        (pa.list_(pa.string_view()), "list<string>"),
        (pa.list_(pa.string(), 1), "list<string>"),
    ],
    ids=str,
)
def test_every_kind_of_list_is_one_type(given_type: pa.DataType, name: str) -> None:
    want = pa.array([["a"], None, ["b"]], arrow_type(name))
    given_ = want.cast(given_type)
    assert logical_array("x", stored_array("x", given_, want.type), want.type).equals(want)
    assert type_name(given_type) == "list<string?>"


@pytest.mark.parametrize(
    ("array", "name", "told"),
    [
        (pa.array([[1.5]]), "list<int64>", r"column 'x\[\]' does not fit int64"),
        (pa.array([["1"]]), "list<int64>", r"column 'x\[\]' is string"),
        (pa.array([[1, None]]), "list<int64>", r"column 'x\[\]' is not nullable"),
        (pa.array([1]), "list<int64>", "column 'x' is int64"),
        (pa.array([{"a": 1}]), "struct<b: int64?>", "no field 'a' in its type"),
        (pa.array([{"a": 1}]), "struct<a: int64, b: int64>", "column 'x' has no field 'b'"),
        (pa.array([{"a": ["x"]}]), "struct<a: list<int8>>", r"column 'x.a\[\]' is string"),
        (
            pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
            "map<string, int64>",
            "a key twice",
        ),
        (pa.array([[1]]), "map<string, int64>", "can't be converted to map"),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_place(array: pa.Array, name: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        stored_array("x", array, arrow_type(name))


def test_maps_have_no_order() -> None:
    type_ = pa.map_(pa.string(), pa.int64())
    pairs = [(str(each), each) for each in range(20)]
    shuffled = random.Random(1).sample(pairs, len(pairs))
    assert stored([pairs, shuffled], type_).unique().to_pylist() == stored([sorted(pairs)], type_).to_pylist()


def test_the_bytes_are_frozen() -> None:
    golden = {
        "list<int16?>": ([1, None, -1], "030000000100010100ffff"),
        "struct<a: bool, b: string?>": ({"a": True, "b": "é"}, "010102000000c3a9"),
        "map<string, float32?>": ([("b", -0.0), ("a", None)], "0200000001000000010000006162000100000000"),
        "list<timestamp(s,UTC)>": ([], "00000000"),
        "list<list<bool>?>": ([[True, False], None, []], "0300000001000102000000000000000100"),
        "list<decimal128(5,2)>": ([1], "0100000064" + "00" * 15),
    }
    for name, (value, expected) in golden.items():
        assert stored([value], arrow_type(name)).to_pylist() == [bytes.fromhex(expected)], name


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("list<int64>", "list<int64>"),
        (" list < string ? > ", "list<string?>"),
        ("struct<a:int64,b : list<decimal128( 5, 2)?>>", "struct<a: int64, b: list<decimal128(5,2)?>>"),
        ('struct<"a": bool, "é\\"": bool?>', 'struct<a: bool, "é\\"": bool?>'),
        ("map<string,map<int8,timestamp(ns, UTC)>?>", "map<string, map<int8, timestamp(ns,UTC)>?>"),
    ],
)
def test_types_are_read_from_their_names(name: str, normal: str) -> None:
    assert str(Schema.of({"id": "int64"}, {"x": name}).value[0]) == f"x {normal}"


@pytest.mark.parametrize(
    "name",
    [
        "list<>",
        "list<int64",
        "list<int64>>",
        "list<int64?>x",
        "struct<>",
        "struct<a>",
        "struct<a: int64,>",
        "struct<a: int64, a: int64>",
        "map<int64>",
        "map<int64?, int64>",
        "map<list<int64>, int64>",
        "list<int65>",
        "list<" * 17 + "int64" + ">" * 17,
        "list<int64, int64>",
        "list<_nothing>",
    ],
)
def test_wrong_names_of_types_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="column 'x'"):
        Schema.of({"id": "int64"}, {"x": name})


def test_a_key_is_never_nested() -> None:
    with pytest.raises(BadInput, match="key column 'x' is list<int64>: keys can't be nested"):
        Schema.of({"x": "list<int64>"})


def test_a_missing_column_and_a_column_of_nulls_are_null() -> None:
    schema = Schema.of({"id": "int64"}, {"x": "list<int64>?", "y": "struct<a: int64>?"})
    rows = prepare_updates(schema, pa.table({"id": [1], "x": pa.nulls(1)}), default_time=0)
    assert (rows["x"].null_count, rows["y"].null_count) == (1, 1)
