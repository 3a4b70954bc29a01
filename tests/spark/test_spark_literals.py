"""Conditions compare each type of column as Spark's SQL does, and skip no matching row."""

import datetime as dt
import itertools
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast.spark
from holdfast.collections.conditions import kept, narrowed
from holdfast.persist import Schema, SnapshotPart
from holdfast.persist.rows.canonical import python_values
from holdfast.spark.conditions import conditions
from holdfast.spark.options import parse_options

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
INTEGERS = {f"{sign}int{bits}": (sign, bits) for sign in ("", "u") for bits in (8, 16, 32, 64)}
NAN, INF = float("nan"), float("inf")


def integers(sign: str, bits: int) -> list[int]:
    least, greatest = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return [n for n in (least, -1, 0, 1, 2, 16_777_217, 2**53 + 1, greatest) if least <= n <= greatest]


def decimals(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


def moments(*texts: str) -> list[dt.datetime]:
    return [dt.datetime.fromisoformat(text) for text in texts]


OTHERS: dict[str, list[Any]] = {
    "bool": [False, True],
    "string": ["", "A", "a", "aa", "\u00e9", "\uffff", "\U0001f600"],
    "binary": [b"", b"\0", b"a", b"a\0", b"\x80", b"\xff\xff"],
    "date32": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 3, 29), dt.date(9999, 12, 31)],
    "timestamp": moments("0001-01-01", "1969-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999"),
    "timestamp_utc": moments("0001-01-01T00:00:00Z", "2026-03-29T01:30:00.000001Z", "9999-12-31T12:00:00Z"),
}
COLUMNS: dict[str, list[Any]] = {
    **{name: integers(*each) for name, each in INTEGERS.items()},
    "float32": [-INF, -1.5, 0.0, 0.10000000149011612, 0.5, 16_777_216.0, 3.4028234663852886e38, INF, NAN],
    "float64": [-INF, -1.5, 0.0, 0.1, 0.5, 1.001, 9_007_199_254_740_992.0, 1e300, INF, NAN],
    "decimal128(10,2)": decimals("-99999999.99", "-0.50", "0.00", "0.10", "1.00", "1.50", "99999999.99"),
    "decimal128(20,0)": decimals("-1", "0", "2", "9007199254740993", "99999999999999999999"),
    "decimal128(6,6)": decimals("-0.999999", "0.000000", "0.000001", "0.500000", "0.999999"),
    **OTHERS,
}
# As JSON and Spark's SQL have them.
NUMBERS = (
    *("-1e300", "-9223372036854775809", "-9223372036854775808", "-129", "-128", "-1.5", "-1", "-0.5"),
    *("-0.0000001", "0", "0.0", "0.0000001", "0.1", "0.5", "0.999999", "1", "1.001", "1.5", "2.5"),
    *("127", "127.5", "128", "255", "255.5", "256", "16777216", "16777217", "16777217.5"),
    *("4294967295.5", "9007199254740992.5", "9007199254740993", "9007199254740993.0"),
    *("9223372036854775807", "9223372036854775807.5", "9223372036854775808", "18446744073709551615"),
    *("18446744073709551615.5", "18446744073709551616", "99999999999999999999.9", "1e30", "1e300"),
    *("NaN", "Infinity", "-Infinity"),
)


def column_of(type_: str) -> pa.RecordBatch:
    """Rows of a column of the type, which has a null, numbered by `id`."""
    schema = Schema.of(key={"id": "int64"}, value={"v": f"{type_}?"}).arrow
    values = [*COLUMNS[type_], None]
    return pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int64()), pa.array(values, schema.field("v").type)], schema=schema
    )


def asked(column: str, operator: str, value: str) -> list[tuple[str, str, Any]]:
    """The option as it is parsed."""
    where = f'[["{column}", "{operator}", {value}]]'
    return list(parse_options({"url": "file:///srv", "collection": "c", "where": where}).where)


def in_json(value: Any) -> str:
    match value:
        case bytes():
            return json.dumps(value.hex())
        case dt.date():
            return json.dumps(value.isoformat())
        case _:
            return json.dumps(value)


def comparisons(type_: str) -> Iterator[tuple[str, str]]:
    values, more = NUMBERS, "0.5, 2"
    if type_ in OTHERS:
        values, more = tuple(map(in_json, OTHERS[type_])), in_json(OTHERS[type_][1])
    for value in values:
        for operator in OPERATORS:
            yield operator, value
        yield "in", f"[{value}, {more}]"


def place(value: Any) -> tuple[bool, Any]:
    return (True, 0) if isinstance(value, float | Decimal) and math.isnan(value) else (False, value)


def meant(literal: str, type_: str) -> Any:
    """The value that JSON stands for."""
    if type_ in OTHERS:
        return next(value for value in OTHERS[type_] if in_json(value) == literal)
    return float(literal) if type_.startswith("float") else Decimal(literal)


def holds(value: Any, operator: str, literal: str, type_: str) -> bool:
    """By Python, which compares integers, floats and decimals exactly."""
    if value is None:
        return False
    if operator == "in":
        return any(holds(value, "=", each, type_) for each in literal.strip("[]").split(", "))
    one, other = place(value), place(meant(literal, type_))
    match operator:
        case "=":
            return one == other
        case "!=":
            return one != other
        case "<":
            return one < other
        case "<=":
            return one <= other
        case ">":
            return one > other
        case _:
            return one >= other


@pytest.mark.parametrize("type_", COLUMNS)
def test_a_value_compares_with_any_column_of_its_kind(type_: str) -> None:
    rows = column_of(type_)
    schema = Schema.of(key={"id": "int64"}, value={"v": f"{type_}?"})
    wrong = []
    for operator, literal in comparisons(type_):
        found = (
            kept(rows, conditions(asked("v", operator, literal), "orders", schema)).column("id").to_pylist()
        )
        expected = [
            n for n, value in enumerate([*COLUMNS[type_], None]) if holds(value, operator, literal, type_)
        ]
        if found != expected:
            wrong.append((operator, literal, found, expected))
    assert wrong == []


@pytest.mark.parametrize("type_", COLUMNS)
def test_what_a_condition_on_the_first_column_skips_has_no_row_that_it_wants(type_: str) -> None:
    schema = Schema.of(key={"v": type_})
    keys = python_values(pa.array(COLUMNS[type_], schema.arrow.field("v").type))
    skipped = 0
    for operator, literal in comparisons(type_):
        part = narrowed(
            SnapshotPart("s", 5), conditions(asked("v", operator, literal), "orders", schema), schema
        )
        for value, key in zip(COLUMNS[type_], keys, strict=True):
            read = (
                part is not None
                and (part.lower is None or key >= part.lower)
                and (part.upper is None or key < part.upper)
            )
            assert read or not holds(value, operator, literal, type_), (operator, literal, value)
            skipped += not read
    assert skipped > (len(keys) if type_ in OTHERS else len(NUMBERS) * len(OPERATORS))


def in_sql(operator: str, literal: str, type_: str) -> str:
    values = ", ".join(sql_of(each, type_) for each in literal.strip("[]").split(", "))
    return f"in ({values})" if operator == "in" else f"{operator} {values}"


def sql_of(literal: str, type_: str) -> str:
    match meant(literal, type_):
        case str(text):
            return f"'{text}'"
        case bytes(octets):
            return f"X'{octets.hex()}'"
        case dt.datetime() as moment:
            return f"TIMESTAMP{'_LTZ' if moment.tzinfo else '_NTZ'}'{moment}'"
        case dt.date() as day:
            return f"DATE'{day}'"
        case float() | Decimal() as number if not math.isfinite(number):
            return f"double('{literal}')"
        case _:
            # One with an exponent is a double there.
            return literal


@pytest.mark.spark
@pytest.mark.long
def test_spark_itself_answers_the_same(spark: SparkSession, url: str, fill: Callable[..., str]) -> None:
    schema = Schema.of(key={"id": "int64"}, value={f"c{n}": f"{type_}?" for n, type_ in enumerate(COLUMNS)})
    height = max(map(len, COLUMNS.values())) + 1
    values = [[*each, *[None] * (height - len(each))] for each in COLUMNS.values()]
    arrays = [
        pa.array(each, field.type) for each, field in zip([range(height), *values], schema.arrow, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    fill("values", schema, {0: rows})
    # A few: each operator with each type, and with one or another each value.
    sample = [
        (f"c{n}", type_, *each)
        for n, type_ in enumerate(COLUMNS)
        for each in itertools.islice(comparisons(type_), n % 4, None, 4 if type_ in OTHERS else 18)
    ]
    whole = spark.read.format("holdfast").options(url=url, collection="values").load()
    in_spark = [f"{column} {in_sql(*each, type_)}" for column, type_, *each in sample]
    answers = sorted(whole.selectExpr("id", *in_spark).collect())
    wrong = []
    for n, (column, type_, operator, literal) in enumerate(sample, 1):
        found = (
            kept(rows, conditions(asked(column, operator, literal), "orders", schema))
            .column("id")
            .to_pylist()
        )
        # Where Spark knows that all values of a type match it forgets nulls in 4.3, and lets them match too.
        expected = [row for row, answer in enumerate(answers) if answer[n] and row < len(COLUMNS[type_])]
        if found != expected:
            wrong.append((type_, operator, literal, found, expected))
    assert wrong == []
    where = [("id", "<", 2.5), ("c3", "<", 0.5)]
    less = holdfast.spark.read(spark, url=url, collection="values", columns=["id"], where=where)
    assert sorted(less.collect()) == sorted(whole.where("id < 2.5 AND c3 < 0.5").select("id").collect())
    assert less.count() > 0
