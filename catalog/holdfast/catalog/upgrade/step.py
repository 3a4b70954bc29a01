"""What a step from one version of the catalog's format to the next is, and what steps are written with.

Invariants
- A step is a pure function of the rows before it: no clock, no chance, no I/O of its own. The same rows give
  the same bytes, whoever runs it.
- It streams: of what may be big (items, comments, storage usage) it never holds all rows, only tables of what
  is few in any catalog (roles, clusters, replicas, ...).
- It retracts stored bytes as they were read and adds new ones. A row whose bytes stay as they are is not
  mentioned, and neither is `user_version`, which whoever runs the step commits together with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast.catalog.objects.codec import TAG_BYTES, Row, Update
from holdfast.catalog.objects.registry import Kind
from holdfast.errors import CorruptBlob

__all__ = ["Kind", "OldRows", "Row", "Step", "Update", "carried", "encode", "read", "replaced"]

K = TypeVar("K", bound=Message)
V = TypeVar("V", bound=Message)


class OldRows(Protocol):
    """The catalog before the step."""

    def rows(self, kind: Kind) -> Iterator[Row]:
        """The rows of a kind as they are stored, streamed, in any order; may be called many times."""


@dataclass(frozen=True)
class Step:
    """How a catalog at version `source` becomes one at `target`.

    `updates` gives the changes. `guard` is asked, where there is one, whether this build has anything to do
    at all, by the version of the library: when not, only the version of the catalog is raised.
    """

    source: int
    target: int
    updates: Callable[[OldRows], Iterator[Update]]
    guard: Callable[[str], bool] | None = None


def read(old: OldRows, kind: Kind, key: type[K], value: type[V]) -> Iterator[tuple[Row, K, V]]:
    """The rows of a kind, each with its messages; `CorruptBlob` where the bytes are no such messages."""
    for row in old.rows(kind):
        yield row, _decode(kind, key, row.key[TAG_BYTES:]), _decode(kind, value, row.value)


def carried(message: Message, to: type[V]) -> V:
    """The same contents as a message of the next version, which has all these fields under their numbers."""
    new = to.FromString(message.SerializeToString(deterministic=True))
    known = new.ByteSize()
    new.DiscardUnknownFields()
    if new.ByteSize() != known:
        raise TypeError(f"{to.DESCRIPTOR.full_name} has not all fields of {message.DESCRIPTOR.full_name}")
    return new


def encode(kind: Kind, key: Message, value: Message) -> Row:
    """The row of an object."""
    return Row(
        kind.tag + key.SerializeToString(deterministic=True), value.SerializeToString(deterministic=True)
    )


def replaced(stored: Row, new: Row) -> Iterator[Update]:
    """The changes that put a row in the place of another; none when their bytes are equal."""
    if stored != new:
        yield Update(stored, -1)
        yield Update(new, 1)


def _decode(kind: Kind, message_type: type[Any], data: bytes) -> Any:
    where = f"a row of kind {kind.name.lower()}"
    expected = f"a {message_type.DESCRIPTOR.full_name.removeprefix('holdfast.')}"
    try:
        message = message_type.FromString(data)
    except DecodeError:
        raise CorruptBlob(where, expected, f"bytes {data[:32].hex()}") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise CorruptBlob(where, expected, "one with unknown fields")
    return message
