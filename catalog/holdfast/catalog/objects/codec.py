"""Encodes an object as a row of the catalog's shard and back: `tag + key message`, `value message`.

Invariants
- Encoding is byte-stable, because consolidation compares bytes.
- A decoded row keeps its bytes. A retraction carries those, never a new encoding.
- A row that this version can't hold exactly (unknown kind, unknown field) is an error, and never dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple

from google.protobuf.message import DecodeError, Message

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.registry import K, Kind, ObjectType, V
from holdfast.errors import BadInput

TAG_BYTES = 2
KINDS: Mapping[bytes, Kind] = MappingProxyType({kind.tag: kind for kind in Kind})


class Row(NamedTuple):
    """A row of the shard. `key` begins with the tag of its kind."""

    key: bytes
    value: bytes

    @property
    def kind(self) -> Kind:
        """The kind of its tag. Raises `CorruptBlob` for an unknown tag."""
        return kind_of(self.key)


class RowUpdate(NamedTuple):
    """A change of the catalog: `diff` is +1 or -1."""

    row: Row
    diff: int


@dataclass(frozen=True)
class Object(Generic[K, V]):
    """One object of the catalog. The messages belong to the caller: changing them changes nothing else."""

    key: K
    value: V


def encode_message(message: Message) -> bytes:
    """The canonical encoding of a message.

    Raises `BadInput` if it has fields that this version doesn't know.
    """
    encoded = message.SerializeToString(deterministic=True)
    # The cheapest way to find unknown fields is to drop them, which must not change the caller's message.
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != len(encoded):
        raise BadInput(
            f"{message.DESCRIPTOR.name} has fields that catalog objects of this version don't have"
        )
    return encoded


def encode_key(collection: ObjectType[K, Any], key: K) -> bytes:
    """The bytes of a key with its tag. Raises `BadInput` if `key` is not a key of the collection."""
    if not isinstance(key, collection.key):
        raise BadInput(f"a key of {collection} is a {collection.key.__name__}, not a {type(key).__name__}")
    return collection.kind.tag + encode_message(key)


def encode_value(collection: ObjectType[Any, V], value: V) -> bytes:
    """The bytes of a value. Raises `BadInput` if `value` is not a value of the collection."""
    if not isinstance(value, collection.value):
        raise BadInput(
            f"a value of {collection} is a {collection.value.__name__}, not a {type(value).__name__}"
        )
    return encode_message(value)


def encode(collection: ObjectType[K, V], key: K, value: V) -> Row:
    """The row of an object."""
    return Row(encode_key(collection, key), encode_value(collection, value))


def decode(collection: ObjectType[K, V], row: Row) -> Object[K, V]:
    """Decode a row of that collection.

    Raises `CorruptBlob` if its bytes are not an object of this version.
    """
    return Object(
        _decode(collection.key, row.key[TAG_BYTES:], collection), decode_value(collection, row.value)
    )


def decode_value(collection: ObjectType[Any, V], value: bytes) -> V:
    """The value of a row of that collection. Raises like `decode`."""
    found: V = _decode(collection.value, value, collection)
    return found


def known(collection: ObjectType[K, V], row: Row) -> Object[K, V]:
    """Decode a row of that collection that was encoded or decoded before. It is not checked again."""
    return Object(collection.key.FromString(row.key[TAG_BYTES:]), collection.value.FromString(row.value))


def known_value(collection: ObjectType[Any, V], value: bytes) -> V:
    """The value of a row of that collection that was encoded or decoded before."""
    return collection.value.FromString(value)


def canonical_key(collection: ObjectType[Any, Any], key: bytes) -> bytes:
    """The canonical encoding of a row's key, which usually is the key itself. Raises like `decode`."""
    data = key[TAG_BYTES:]
    message = _decode(collection.key, data, collection)
    encoded: bytes = message.SerializeToString(deterministic=True)
    return key if encoded == data else key[:TAG_BYTES] + encoded


def kind_of(key: bytes) -> Kind:
    """The kind whose tag a key begins with. Raises `CorruptBlob` for an unknown tag."""
    tag = key[:TAG_BYTES]
    try:
        return KINDS[tag]
    except KeyError:
        raise corrupt("a row of the catalog", "a known kind of object", f"tag {tag.hex()}") from None


def _decode(message_type: type[Any], data: bytes, collection: ObjectType[Any, Any]) -> Any:
    try:
        message = message_type.FromString(data)
    except DecodeError:
        expected = f"a {message_type.__name__}"
        raise corrupt(f"a row of {collection}", expected, f"bytes {data[:32].hex()}") from None
    message.DiscardUnknownFields()
    # If it encodes to the same bytes without unknown fields, it had none. Otherwise its size is smaller now.
    if message.SerializeToString() != data and message.ByteSize() != message_type.FromString(data).ByteSize():
        raise corrupt(f"a row of {collection}", f"a {message_type.__name__}", "one with unknown fields")
    return message
