"""Compares object types of two versions: most have the same bytes in both."""

from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.catalog.objects.registry import ObjectType


def same_bytes(one: ObjectType[Any, Any], other: ObjectType[Any, Any]) -> bool:
    """Whether each row of one type is also a row of the other, with the same contents."""
    return all(
        _shape(mine.DESCRIPTOR) == _shape(theirs.DESCRIPTOR)
        for mine, theirs in ((one.key, other.key), (one.value, other.value))
    )


@cache
def _shape(message: Descriptor) -> tuple[object, ...]:
    """Everything that determines the meaning of bytes, except the version's name. No message is recursive."""
    return tuple(sorted(map(_field, message.fields)))


def _field(field: FieldDescriptor) -> tuple[object, ...]:
    enum, message, oneof = field.enum_type, field.message_type, field.containing_oneof
    return (
        field.number,
        field.name,
        field.type,
        field.is_repeated,
        field.has_presence,
        "" if oneof is None else oneof.name,
        () if enum is None else tuple(sorted((value.number, value.name) for value in enum.values)),
        () if message is None else _shape(message),
    )
