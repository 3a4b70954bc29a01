"""Decodes the messages of pgoutput, version 1: what a transaction does to the rows of tables. Pure.

Messages of a transaction come together, between `TransactionBegin` and `TransactionEnd`, and transactions
come in the order of their commits. Before the first change of a table, and after each change of its columns,
a `Relation` says which columns it has.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


class Unchanged:
    """The value of a column that an update doesn't change and that is stored apart (TOAST)."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = bytes | None | Unchanged
"""A value as text in UTF-8, as its type writes it."""


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins. `at` is the position of its commit.

    `facts` are the position, the time and the id. Transactions of different logs differ in them.
    """

    at: int
    facts: bytes = b""


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The transaction ends. `end` is the position after it."""

    end: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column. `is_key` says whether the old row of an update or a delete has it."""

    name: str
    type_id: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns that a table has from here on."""

    table: int
    columns: Sequence[RelationColumn]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row before and after. Without `old`, the key is the same as before, or the row is new.

    `old` has all values if `is_old_whole`, otherwise only those of the key.
    """

    table: int
    old: Sequence[Value] | None
    new: Sequence[Value] | None
    is_old_whole: bool = False


@dataclass(frozen=True, slots=True)
class Truncation:
    """All rows of these tables are deleted."""

    tables: Sequence[int]


Event = TransactionBegin | TransactionEnd | Relation | RowChange | Truncation

_BEGIN: Final = struct.Struct(">Q")
_COMMIT: Final = struct.Struct(">BQQq")
_COLUMN: Final = struct.Struct(">Ii")
_SIZE: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")


def decode(message: bytes, tables: frozenset[int] | None = None) -> Event | None:
    """Decode a message. None for one that changes no row, or only rows of others than these tables.

    Raises `ValueError` for a message that is unknown, because it may have changes.
    """
    kind = message[:1]
    if kind in b"IUD":
        table = _SIZE.unpack_from(message, 1)[0]
        if tables is not None and table not in tables:
            return None
        return _change(message, table)
    if kind == b"B":
        return TransactionBegin(_BEGIN.unpack_from(message, 1)[0], message[1:])
    if kind == b"C":
        return TransactionEnd(_COMMIT.unpack_from(message, 1)[2])
    if kind == b"R":
        return _relation(message)
    if kind == b"T":
        count = _SIZE.unpack_from(message, 1)[0]
        return Truncation(struct.unpack_from(f">{count}I", message, 6))
    if kind in b"YOM":
        # Names of types, origins, and messages of applications.
        return None
    raise ValueError(f"pgoutput has sent a message of the unknown kind {kind!r}")


def _relation(message: bytes) -> Relation:
    table = _SIZE.unpack_from(message, 1)[0]
    at = 5
    for _ in ("schema", "table"):
        at = message.index(b"\0", at) + 1
    # One byte is the replica identity.
    (count,) = _COUNT.unpack_from(message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags, end = message[at], message.index(b"\0", at + 1)
        type_id, modifier = _COLUMN.unpack_from(message, end + 1)
        columns.append(RelationColumn(message[at + 1 : end].decode(), type_id, modifier, bool(flags & 1)))
        at = end + 1 + _COLUMN.size
    return Relation(table, columns)


def _change(message: bytes, table: int) -> RowChange:
    old: Sequence[Value] | None = None
    new: Sequence[Value] | None = None
    is_old_whole = False
    at = 5
    while at < len(message):
        kind = message[at : at + 1]
        values, at = _tuple(message, at + 1)
        if kind == b"N":
            new = values
        elif kind in b"KO":
            old, is_old_whole = values, kind == b"O"
        else:
            raise ValueError(f"pgoutput has sent a row of the unknown kind {kind!r}")
    return RowChange(table, old, new, is_old_whole)


def _tuple(message: bytes, at: int) -> tuple[list[Value], int]:
    """The values of a row, and where it ends."""
    (count,) = _COUNT.unpack_from(message, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind == 0x74:  # t: text
            (size,) = _SIZE.unpack_from(message, at)
            at += 4
            values.append(message[at : at + size])
            at += size
        elif kind == 0x6E:  # n: null
            values.append(None)
        elif kind == 0x75:  # u: unchanged
            values.append(UNCHANGED)
        else:
            raise ValueError(f"pgoutput has sent a value of the unknown kind {kind:#x}")
    return values, at
