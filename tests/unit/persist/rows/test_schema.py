"""Schemas are plain values: checked when they are created, equal if they mean the same."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given

from holdfast.errors import BadInput, CodecMismatch
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.column_types import arrow_type, type_name
from holdfast.persist.rows.evolution import check_evolution
from holdfast.persist.rows.schema import Column, Schema
from unit.persist.rows.strategies import VALUES, schemas

ORDERS = Schema.of(
    key={"id": "int64"}, value={"name": "string?", "price": Column("price", "decimal128(10, 2)")}
)


def test_a_schema_knows_its_columns_and_their_arrow_form() -> None:
    assert ORDERS.names == ("id", "name", "price")
    assert (ORDERS.key_names, ORDERS.value_names) == (("id",), ("name", "price"))
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=True),
        pa.field("price", pa.decimal128(10, 2), nullable=False),
    ]
    time, diff = pa.field("_time", pa.uint64(), nullable=False), pa.field("_diff", pa.int64(), nullable=False)
    assert ORDERS.arrow.equals(pa.schema(fields))
    assert ORDERS.arrow_diff.equals(pa.schema([*fields, diff]))
    assert ORDERS.arrow_updates.equals(pa.schema([*fields, time, diff]))
    assert str(ORDERS) == "key (id int64), value (name string?, price decimal128(10,2))"


def test_every_type_name_is_its_arrow_type_and_back() -> None:
    for name in VALUES:
        assert type_name(arrow_type(name)) == name


@given(schemas())
def test_a_schema_survives_arrow_and_pickle(schema: Schema) -> None:
    assert Schema.from_arrow(schema.arrow, key=schema.key_names) == schema
    assert hash(pickle.loads(pickle.dumps(schema))) == hash(schema)
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_from_arrow_takes_the_key_in_the_order_given() -> None:
    fields = pa.schema([pa.field("a", pa.large_string()), pa.field("b", pa.int8(), nullable=False)])
    schema = Schema.from_arrow(fields, key=["b"])
    assert schema == Schema.of(key={"b": "int8"}, value={"a": "string?"})


@pytest.mark.parametrize("name", ["_time", "_x", ""])
def test_reserved_and_empty_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        Column(name, "int64")


@pytest.mark.parametrize(
    "type_", ["int", "decimal128(39,0)", "decimal128(5,6)", "decimal128(0,0)", "int64??", "timestamp[ns]", ""]
)
def test_an_unknown_type_is_refused_naming_the_column(type_: str) -> None:
    with pytest.raises(BadInput, match="column 'x': unknown column type"):
        Schema.of(key={"x": type_})


@pytest.mark.parametrize(
    "type_",
    [
        pa.list_(pa.float16()),
        pa.list_view(pa.int64()),
        pa.struct([]),
        pa.null(),
        pa.float16(),
        pa.date64(),
        pa.decimal128(5, -1),
        pa.decimal256(5, 1),
    ],
    ids=str,
)
def test_an_unsupported_arrow_type_is_refused_naming_the_column(type_: pa.DataType) -> None:
    with pytest.raises(BadInput, match="column 'x': unsupported Arrow type") as caught:
        Schema.from_arrow(pa.schema([("x", type_)]), key=["x"])
    assert caught.value.hint


def test_names_are_unique_across_key_and_value() -> None:
    with pytest.raises(BadInput, match="'a' is given twice"):
        Schema.of(key={"a": "int8"}, value={"a": "int8"})
    with pytest.raises(BadInput, match="'a' is given twice"):
        Schema.from_arrow(pa.schema([("a", pa.int8())]), key=["a", "a"])
    with pytest.raises(BadInput, match="given twice"):
        Schema.from_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]), key=["a"])


def test_a_schema_needs_a_column_and_a_key_that_exists() -> None:
    with pytest.raises(BadInput, match="at least one column"):
        Schema(key=())
    with pytest.raises(BadInput, match="key column 'b' is not in the schema"):
        Schema.from_arrow(pa.schema([("a", pa.int8())]), key=["b"])
    with pytest.raises(BadInput, match="'a' is given as a column named 'b'"):
        Schema.of(key={"a": Column("b", "int8")})


def test_another_schema_is_refused_with_both_printed() -> None:
    other = Schema.of(key={"id": "int64"}, value={"name": "string?"})
    check_evolution(ORDERS, Schema(ORDERS.key, ORDERS.value))
    with pytest.raises(CodecMismatch) as caught:
        check_evolution(ORDERS, other)
    assert str(ORDERS) in str(caught.value)
    assert str(other) in str(caught.value)
    with pytest.raises(CodecMismatch, match="codec points v2"):
        check_evolution(other, Schema(other.key, other.value, codec=("points", 2)))


@pytest.mark.parametrize("name", ["*", "^.*$", "^k$", "^$"])
def test_a_name_that_is_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="are patterns"):
        Schema.of({name: "int64"}, {})


@pytest.mark.parametrize("name", ["^k", "k$", "k*", ".*", "[k]", "ключ", "k\\d"])
def test_a_name_with_signs_stands_for_itself(name: str) -> None:
    schema = Schema.of({name: "int64"}, {"v": "string"})
    given = [{name: key, "v": "x"} for key in (3, 1, 2)]
    table = prepare_updates(schema, given, default_time=0)
    assert sort_updates(schema, table).column(name).to_pylist() == [1, 2, 3]
