"""The interface of an upgrade step from one version of the catalog's format to the next, and its tools.

Invariants
- A step is a pure function of the rows before it. It uses no clock, no randomness and no I/O of its own. The
  same rows give the same bytes in every process.
- A step streams. It never holds all rows of a type that may be large (items, comments, storage usage). It may
  hold types that are small in every catalog (roles, clusters, replicas, ...).
- A step retracts stored bytes as it read them, and adds new bytes. It returns no updates for rows whose bytes
  stay equal, and none for `user_version`: the runner commits that together with the step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from holdfast.catalog.damage import corrupt
from holdfast.catalog.objects.codec import TAG_BYTES, Row, RowUpdate
from holdfast.catalog.objects.registry import Kind

__all__ = ["Kind", "OldRows", "Row", "Step", "Update", "carried", "encode", "read", "replaced"]

Update = RowUpdate
"""The name that the steps import. They are frozen."""

K = TypeVar("K", bound=Message)
V = TypeVar("V", bound=Message)


class OldRows(Protocol):
    """The catalog before the step."""

    def rows(self, kind: Kind) -> Iterator[Row]:
        """Stream the stored rows of a kind, in any order. You can call it several times."""


@dataclass(frozen=True)
class Step:
    """A step that upgrades a catalog from version `source` to `target`.

    `updates` returns the changes. `guard` gets the version of the library, and returns whether the step has
    anything to do. If not, only the version of the catalog is raised. Without a guard the step always runs.
    """

    source: int
    target: int
    updates: Callable[[OldRows], Iterator[RowUpdate]]
    guard: Callable[[str], bool] | None = None


def read(old: OldRows, kind: Kind, key: type[K], value: type[V]) -> Iterator[tuple[Row, K, V]]:
    """The rows of a kind, each with its key and value. Raises `CorruptBlob` if the bytes don't decode."""
    for row in old.rows(kind):
        yield row, _decode(kind, key, row.key[TAG_BYTES:]), _decode(kind, value, row.value)


def carried(message: Message, to: type[V]) -> V:
    """The same contents as a message of the next version, which has all these fields and numbers."""
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


def replaced(stored: Row, new: Row) -> Iterator[RowUpdate]:
    """The changes that replace one row by another. None if their bytes are equal."""
    if stored != new:
        yield RowUpdate(stored, -1)
        yield RowUpdate(new, 1)


def _decode(kind: Kind, message_type: type[Any], data: bytes) -> Any:
    where = f"a row of kind {kind.name.lower()}"
    expected = f"a {message_type.DESCRIPTOR.full_name.removeprefix('holdfast.')}"
    try:
        message = message_type.FromString(data)
    except DecodeError:
        raise corrupt(where, expected, f"bytes {data[:32].hex()}") from None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise corrupt(where, expected, "one with unknown fields")
    return message
