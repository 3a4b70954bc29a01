"""Catalog objects and their rows: stable bytes, a cache, and a refusal of unknown data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.dump import dump_json, dump_lines
from holdfast.catalog.objects.codec import Row, decode, encode, encode_message
from holdfast.catalog.objects.message_json import message_to_json
from holdfast.catalog.objects.registry import BY_NAME, DATABASES, ITEMS, OBJECT_TYPES, ROLES, ObjectType
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, CorruptBlob

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / f"v{CATALOG_VERSION}.json").read_text())

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}


@st.composite
def messages(draw: Callable[..., Any], message_type: type[Message]) -> Message:
    """Any message of a type, from its descriptor."""
    message = message_type()
    for field in message_type.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = messages(GetMessageClass(field.message_type))
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(inner, max_size=3)))
            else:
                getattr(message, field.name).CopyFrom(draw(inner))
        elif field.type == FieldDescriptor.TYPE_ENUM:
            setattr(message, field.name, draw(st.sampled_from(field.enum_type.values_by_number.keys())))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(SCALARS[field.type], max_size=3)))
        else:
            setattr(message, field.name, draw(SCALARS[field.type]))
    return message


EXAMPLES = 40
"""Of each type; the code is the same for all of them."""
each_collection = pytest.mark.parametrize("collection", OBJECT_TYPES.values(), ids=str)


@each_collection
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_any_object_comes_back_from_its_row_and_from_its_json(
    collection: ObjectType[Any, Any], data: st.DataObject
) -> None:
    key, value = data.draw(messages(collection.key)), data.draw(messages(collection.value))
    row = encode(collection, key, value)
    assert row.kind is collection.kind
    found = decode(collection, row)
    assert (found.key, found.value) == (key, value)
    assert encode(collection, found.key, found.value) == row
    for message in (key, value):
        assert message_to_json(message) == MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        edited = ParseDict(message_to_json(message), type(message)())
        assert encode_message(edited) == encode_message(message)


@each_collection
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_the_order_in_which_fields_are_set_does_not_show(
    collection: ObjectType[Any, Any], data: st.DataObject
) -> None:
    for message_type in (collection.key, collection.value):
        message = data.draw(messages(message_type))
        backwards = message_type()
        for field, value in reversed(message.ListFields()):
            if field.is_repeated:
                getattr(backwards, field.name).extend(value)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                getattr(backwards, field.name).CopyFrom(value)
            else:
                setattr(backwards, field.name, value)
        assert encode_message(backwards) == encode_message(message)


def test_unknown_fields_are_refused_on_both_ways() -> None:
    # Field 15, which the message does not have.
    value = encode_message(pb.DatabaseValue(name="d")) + b"\x78\x01"
    key = DATABASES.kind.tag + encode_message(pb.DatabaseKey(id=pb.ObjectId(user=1)))
    with pytest.raises(CorruptBlob, match="unknown fields"):
        decode(DATABASES, Row(key, value))
    with pytest.raises(BadInput, match="fields that"):
        encode(DATABASES, pb.DatabaseKey(), pb.DatabaseValue.FromString(value))
    with pytest.raises(CorruptBlob):
        decode(DATABASES, Row(key, b"\xff\xff"))


def test_a_dump_has_every_type_and_a_line_for_each_object() -> None:
    rows = [
        Row(bytes.fromhex(row["tag"] + row["key_hex"]), bytes.fromhex(row["value_hex"])) for row in GOLDEN
    ]
    dumped = dump_json(rows)
    assert list(json.loads(dumped)) == list(BY_NAME)
    objects = [line for line in dumped.splitlines() if line.startswith("    ")]
    assert len(objects) == len(rows)
    assert all(set(json.loads(line.rstrip(","))) == {"key", "value"} for line in objects)
    assert dump_json(reversed(rows)) == dumped == "".join(dump_lines(iter(rows)))
    assert list(json.loads(dump_json([])).values()) == [[]] * len(BY_NAME)


def test_unknown_tags_are_refused() -> None:
    with pytest.raises(CorruptBlob, match="ffff"):
        dump_json([Row(b"\xff\xff", b"")])
    with pytest.raises(CorruptBlob, match="tag 00"):
        dump_json([Row(b"\x00", b"")])


def test_messages_of_another_type_are_refused() -> None:
    with pytest.raises(BadInput, match="a key of items is a ItemKey, not a RoleKey"):
        encode(ITEMS, pb.RoleKey(), pb.ItemValue())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a value of roles"):
        encode(ROLES, pb.RoleKey(), pb.DatabaseValue())  # type: ignore[arg-type]
