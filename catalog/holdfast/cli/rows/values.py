"""The options `--key` and `--set`: values as text, for the columns of a schema.

A value is written as in `--where`: a number, a date or time, true or false, hexadecimal for binary columns,
or any text, which may be in single quotes. `null` without quotes is null.
"""

import csv
import math
from collections.abc import Sequence
from datetime import UTC
from functools import reduce
from operator import and_, or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.literals import floor
from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.checks import check_columns
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.column_types import type_name

_FORM: Final = "such as --set count=3 --set \"note='two words'\""
_UNFIT: Final = (ValueError, TypeError, ArithmeticError, pa.ArrowException)


def where_keys(keys: Sequence[str], schema: Schema) -> pc.Expression:
    """The condition that a row has one of the keys of `--key`. Raises `BadInput`.

    With several key columns, a key is one line of CSV.
    """
    if not schema.key:
        raise BadInput("--key: there are no key columns", hint="choose rows with --where")
    types = {column.name: column.arrow.type for column in schema.key}
    chosen = []
    for key in keys:
        texts = [key] if len(types) == 1 else _texts(key)
        if len(texts) != len(types):
            raise BadInput(
                f"--key: {shown(key)} has {len(texts)} of {len(types)} values: {', '.join(types)}",
                hint=f"separate the values with commas, as in --key {','.join(types).upper()}",
            )
        equal = []
        for (name, type_), text in zip(types.items(), texts, strict=True):
            value = _value("--key", name, type_, text)
            if value is None:
                raise BadInput("--key: nothing equals null", hint=f'use --where "{name} is null"')
            equal.append(pc.field(name) == pc.scalar(value))
        chosen.append(reduce(and_, equal))
    return reduce(or_, chosen)


def values_to_set(given: Sequence[str], schema: Schema) -> dict[str, Any]:
    """The values of `--set`, as `Table.update` takes them, by column. Raises `BadInput`."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise BadInput(f"--set: {shown(each)} has no '='", hint=_FORM)
        if name in found:
            raise BadInput(f"--set: column {name!r} is given twice")
        check_columns(schema, [name])
        value = _value("--set", name, schema.arrow.field(name).type, text)
        found[name] = None if value is None else pc.scalar(value)
    return found


def _texts(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise BadInput(f"--key: {shown(line)} is not one line of CSV: {error}") from None


def _value(option: str, name: str, type_: pa.DataType, text: str) -> pa.Scalar | None:
    """The value that a text stands for. None for null."""
    if text.lower() == "null":
        return None
    if len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].replace("''", "'")
    try:
        if pa.types.is_string(type_):
            return pa.scalar(text, type_)
        if pa.types.is_boolean(type_):
            return pa.scalar({"true": True, "false": False}[text.lower()], type_)
        zone = UTC if getattr(type_, "tz", None) in (None, "UTC") else pa.lib.string_to_tzinfo(type_.tz)
        value, is_exact = floor(text, type_, zone)
        if pa.types.is_floating(type_) and not is_exact:
            # The nearest float32, as in Python.
            value = pa.scalar(float(text), type_)
            is_exact = not math.isinf(value.as_py())
    except (*_UNFIT, LookupError):
        is_exact = False
    if not is_exact:
        raise BadInput(f"{option}: {shown(text)} is not a value of column {name!r} ({type_name(type_)})")
    return value
