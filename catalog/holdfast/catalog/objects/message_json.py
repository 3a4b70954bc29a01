"""Messages as proto JSON, converted fast. A dump of a large catalog spends most of its time here.

Invariants
- `google.protobuf.json_format` can read the result: fields by their names in the .proto file, 64-bit numbers
  as text, bytes in base64, enums by name.
- Fields are in the order of their numbers. A field that is not set is left out if its absence has a meaning.
  Otherwise its default is written.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple, assert_never

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_WIDE = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


class _Shape(Enum):
    PLAIN = auto()
    OPTIONAL = auto()
    REPEATED = auto()


class _Field(NamedTuple):
    name: str
    shape: _Shape
    convert: Callable[[Any], Any] | None
    """None if the value is its own JSON."""


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message to proto JSON, with the field names of the .proto file and defaults written out."""
    found: dict[str, Any] = {}
    message_type: Any = type(message)
    for name, shape, convert in _fields(message_type):
        match shape:
            case _Shape.PLAIN:
                value = getattr(message, name)
                found[name] = value if convert is None else convert(value)
            case _Shape.OPTIONAL:
                if message.HasField(name):
                    value = getattr(message, name)
                    found[name] = value if convert is None else convert(value)
            case _Shape.REPEATED:
                values = getattr(message, name)
                found[name] = list(values) if convert is None else [convert(value) for value in values]
            case _:
                assert_never(shape)
    return found


def json_text(message: Message) -> str:
    """Return a message as JSON on one line, as the commands take keys and values."""
    return json.dumps(message_to_json(message), ensure_ascii=False)


@cache
def _fields(message_type: type[Message]) -> tuple[_Field, ...]:
    fields: Mapping[int, Any] = message_type.DESCRIPTOR.fields_by_number
    return tuple(_Field(fields[n].name, _shape(fields[n]), _converter(fields[n])) for n in sorted(fields))


def _shape(field: FieldDescriptor) -> _Shape:
    if field.is_repeated:
        return _Shape.REPEATED
    return _Shape.OPTIONAL if field.has_presence else _Shape.PLAIN


def _converter(field: FieldDescriptor) -> Callable[[Any], Any] | None:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return message_to_json
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return _names(field.enum_type)
        case wide if wide in _WIDE:
            return str
    return _base64 if field.type == FieldDescriptor.TYPE_BYTES else None


def _names(enum: EnumDescriptor) -> Callable[[int], str | int]:
    """Returns the name of a number, or the number itself if this version has no name for it."""
    names = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number, number)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
