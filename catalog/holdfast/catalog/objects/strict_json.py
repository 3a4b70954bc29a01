"""Checks that `google.protobuf.json_format` does not do: that JSON is exactly one message.

Invariants
- A field occurs once, in one of its two spellings, and never as null: a field that is not set is left out.
- A whole number is a JSON integer, or its text in plain digits.
- Anything else that is wrong is left to that parser.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

_NUMBERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_ENUM,
    }
)
_DIGITS = re.compile(r"-?[0-9]+")


class _Field(NamedTuple):
    name: str
    message: Any
    is_number: bool
    enum: frozenset[str]


def check_strict(descriptor: Any, fields: Mapping[str, Any]) -> None:
    """Raise `ValueError`, with its name, for a field that occurs twice, is null, or is no plain number."""
    known = _fields(descriptor)
    seen: set[str] = set()
    for name, value in fields.items():
        field = known.get(name)
        if field is None:
            continue
        if field.name in seen:
            raise ValueError(f"field {field.name} occurs twice")
        seen.add(field.name)
        if value is None:
            raise ValueError(f"field {field.name} is null: leave it out instead")
        if field.message is None and not field.is_number:
            continue
        for each in value if isinstance(value, list) else (value,):
            if field.message is None:
                _check_number(field, each)
            elif isinstance(each, dict):
                check_strict(field.message, each)


def _check_number(field: _Field, value: Any) -> None:
    if isinstance(value, str):
        plain = value in field.enum or _DIGITS.fullmatch(value) is not None
    else:
        plain = isinstance(value, int) and not isinstance(value, bool)
    if not plain:
        wanted = "one of " + ", ".join(sorted(field.enum)) if field.enum else "a whole number"
        raise ValueError(f"field {field.name} is {value!r}, not {wanted}")


@cache
def _fields(descriptor: Any) -> Mapping[str, _Field]:
    found = {}
    for field in descriptor.fields:
        enum = frozenset(() if field.enum_type is None else field.enum_type.values_by_name)
        row = _Field(field.name, field.message_type, field.cpp_type in _NUMBERS, enum)
        found[field.name] = found[field.json_name] = row
    return found
