"""User codecs: any Python type as the two binary columns of a shard, `key` and `value`.

- Name and version of a codec are in the shard's schema. What a newer version wrote is refused by an older
  one, and another codec's bytes are never decoded.
- A shard moves to a newer version when it is evolved to it (`PersistClient.evolve`), and is written by both
  from then on. So bytes must tell by themselves how to decode them, and `decode` gets those of all versions
  up to its own, mixed.
- What a shard consolidates is bytes. Equal keys and values must have equal bytes: a retraction cancels what
  was put in only where both were encoded alike, so a new version leaves the bytes of old values as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import pyarrow as pa

from holdfast.errors import BadInput, CodecMismatch, CorruptBlob, VersionTooNew
from holdfast.persist.rows.schema import Schema

K = TypeVar("K")
V = TypeVar("V")
_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())


class Codec(ABC, Generic[K, V]):
    """Turns batches of keys and values into bytes and back; `name` and `version` (from 1) say how."""

    name: str
    version: int

    @abstractmethod
    def encode(self, keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
        """The keys and the values as two binary arrays of the same length, without nulls."""

    @abstractmethod
    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[K], Sequence[V]]:
        """The keys and the values of two binary arrays, made by any versions up to this one."""

    @property
    def schema(self) -> Schema:
        """The schema of a shard with this codec."""
        if not isinstance(self.name, str) or not self.name or not isinstance(self.version, int):
            raise BadInput(f"codec {type(self).__name__} needs a name and a version that is a number")
        if not 0 < self.version < 2**32:
            raise BadInput(f"codec {self.name} has version {self.version}: versions are from 1 to 2^32 - 1")
        return Schema.of({"key": "binary"}, {"value": "binary"}, codec=(self.name, self.version))


class ValueCodec(Codec[K, V]):
    """A codec of single keys and values: simple to write, slower than one of batches."""

    @abstractmethod
    def encode_key(self, key: K) -> bytes:
        """The bytes of a key; equal keys have equal bytes."""

    @abstractmethod
    def encode_value(self, value: V) -> bytes:
        """The bytes of a value; equal values have equal bytes."""

    @abstractmethod
    def decode_key(self, data: bytes) -> K:
        """The key that some version up to this one encoded."""

    @abstractmethod
    def decode_value(self, data: bytes) -> V:
        """The value that some version up to this one encoded."""

    def encode(self, keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
        """As `Codec.encode`, one by one."""
        return (
            pa.array([self.encode_key(key) for key in keys], pa.binary()),
            pa.array([self.encode_value(value) for value in values], pa.binary()),
        )

    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[K], Sequence[V]]:
        """As `Codec.decode`, one by one."""
        return (
            [self.decode_key(data) for data in keys.to_pylist()],
            [self.decode_value(data) for data in values.to_pylist()],
        )


def check_codec(codec: Codec[K, V], schema: Schema, *, shard: str) -> None:
    """Refuse to decode what another codec, or a newer version of this one, may have written.

    Raises:
        CodecMismatch: the shard has another codec, or none.
        VersionTooNew: it has a newer version of this one.
    """
    if schema.codec is None or schema.codec[0] != codec.name:
        raise CodecMismatch(
            f"codec {codec.name} v{codec.version} does not fit shard {shard}: it has {schema}",
            hint="open the shard with its own codec, or without one where it has none",
        )
    if schema.codec[1] > codec.version:
        raise VersionTooNew(
            f"shard {shard} has codec {codec.name} v{schema.codec[1]},"
            f" this process knows it up to v{codec.version}",
            hint="use a version of the codec that is at least as new",
        )


def encode(codec: Codec[K, V], keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
    """What a codec makes of keys and values, checked. Raises `BadInput` where it makes no two columns."""
    what = f"codec {codec.name} v{codec.version}"
    try:
        arrays = codec.encode(keys, values)
    except Exception as error:
        # Not its message: that may tell what was to be stored.
        raise BadInput(f"{what} can't encode what was given: {type(error).__name__}") from error
    for array in arrays:
        if not isinstance(array, pa.Array) or array.type not in _BINARY or array.null_count:
            raise BadInput(f"{what} must encode into binary arrays without nulls")
        if len(array) != len(keys):
            raise BadInput(f"{what} made {len(array)} rows of {len(keys)}")
    return arrays


def decode(
    codec: Codec[K, V], keys: pa.Array, values: pa.Array, *, shard: str
) -> tuple[Sequence[K], Sequence[V]]:
    """The keys and values in two columns of a shard. Raises `CorruptBlob` where the codec fails on them."""
    what = f"bytes of codec {codec.name} v{codec.version} or older"
    try:
        decoded = codec.decode(keys, values)
    except Exception as error:
        raise CorruptBlob(f"a row of shard {shard}", what, f"{type(error).__name__} in decoding") from error

    if any(len(column) != len(keys) for column in decoded):
        raise BadInput(f"codec {codec.name} v{codec.version} did not decode {len(keys)} rows into as many")
    return decoded
