"""User codecs: store any Python type in the two binary columns of a shard, `key` and `value`.

- The shard's schema contains the name and version of the codec. An older version refuses what a newer one
  wrote. Bytes of another codec are never decoded.
- To move a shard to a newer version, evolve it (`PersistClient.evolve`). Then both versions may write it. So
  the bytes themselves must show how to decode them, and `decode` gets a mix of all versions up to its own.
- A shard consolidates bytes. So equal keys and values must have equal bytes: a retraction cancels an
  insertion only if both were encoded alike. A new version must therefore encode old values to the same bytes.
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
    """Encodes and decodes batches of keys and values. `name` and `version` (from 1) identify the codec.

    It must be thread-safe if threads share the handles that use it.
    """

    name: str
    version: int

    @abstractmethod
    def encode(self, keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
        """Encode the keys and the values as two binary arrays of the same length, without nulls."""

    @abstractmethod
    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[K], Sequence[V]]:
        """Decode two binary arrays, which any versions up to this one have encoded."""

    @property
    def schema(self) -> Schema:
        """Return the schema of a shard with this codec."""
        if not isinstance(self.name, str) or not self.name or not isinstance(self.version, int):
            raise BadInput(f"codec {type(self).__name__} needs a name and an integer version")
        if not 0 < self.version < 2**32:
            raise BadInput(f"codec {self.name} has version {self.version}: expected 1 to 2^32 - 1")
        return Schema.of({"key": "binary"}, {"value": "binary"}, codec=(self.name, self.version))


class ValueCodec(Codec[K, V]):
    """A codec of single keys and values. It is simple to write, and slower than a codec of batches.

    It must be thread-safe if threads share the handles that use it.
    """

    @abstractmethod
    def encode_key(self, key: K) -> bytes:
        """Encode a key. Equal keys must have equal bytes."""

    @abstractmethod
    def encode_value(self, value: V) -> bytes:
        """Encode a value. Equal values must have equal bytes."""

    @abstractmethod
    def decode_key(self, data: bytes) -> K:
        """Decode a key that any version up to this one encoded."""

    @abstractmethod
    def decode_value(self, data: bytes) -> V:
        """Decode a value that any version up to this one encoded."""

    def encode(self, keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
        """Encode one by one; see `Codec.encode`."""
        return (
            pa.array([self.encode_key(key) for key in keys], pa.binary()),
            pa.array([self.encode_value(value) for value in values], pa.binary()),
        )

    def decode(self, keys: pa.Array, values: pa.Array) -> tuple[Sequence[K], Sequence[V]]:
        """Decode one by one; see `Codec.decode`."""
        return (
            [self.decode_key(data) for data in keys.to_pylist()],
            [self.decode_value(data) for data in values.to_pylist()],
        )


def check_codec(codec: Codec[K, V], schema: Schema, *, shard: str) -> None:
    """Refuse bytes that another codec, or a newer version of this one, may have written.

    Raises:
        CodecMismatch: the shard has another codec, or none.
        VersionTooNew: the shard has a newer version of this codec.
    """
    if schema.codec is None or schema.codec[0] != codec.name:
        raise CodecMismatch(
            f"codec {codec.name} v{codec.version} does not fit shard {shard}, which has {schema}",
            hint="open the shard with its own codec, or without a codec if it has none",
        )
    if schema.codec[1] > codec.version:
        raise VersionTooNew(
            f"shard {shard} has codec {codec.name} v{schema.codec[1]},"
            f" but this process has version {codec.version}",
            hint="use a version of the codec that is at least as new",
        )


def encode(codec: Codec[K, V], keys: Sequence[K], values: Sequence[V]) -> tuple[pa.Array, pa.Array]:
    """Encode keys and values and check the result. Raises `BadInput` if the codec returns no two columns."""
    what = f"codec {codec.name} v{codec.version}"
    try:
        arrays = codec.encode(keys, values)
    except Exception as error:
        # Leave out the error's message, because it may contain the data.
        raise BadInput(f"{what} can't encode the given rows: {type(error).__name__}") from error
    for array in arrays:
        if not isinstance(array, pa.Array) or array.type not in _BINARY or array.null_count:
            raise BadInput(f"{what} must encode into binary arrays without nulls")
        if len(array) != len(keys):
            raise BadInput(f"{what} encoded {len(keys)} rows into {len(array)}")
    return arrays


def decode(
    codec: Codec[K, V], keys: pa.Array, values: pa.Array, *, shard: str
) -> tuple[Sequence[K], Sequence[V]]:
    """Decode two columns of a shard. Raises `CorruptBlob` if the codec fails on them."""
    what = f"bytes of codec {codec.name} v{codec.version} or older"
    try:
        decoded = codec.decode(keys, values)
    except Exception as error:
        raise CorruptBlob(f"a row of shard {shard}", what, f"{type(error).__name__} in decoding") from error

    if any(len(column) != len(keys) for column in decoded):
        raise BadInput(f"codec {codec.name} v{codec.version} did not decode {len(keys)} rows into as many")
    return decoded
