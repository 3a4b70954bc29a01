"""The limits of a part: between which values its rows' first column lies. The state of a shard has them.

- A limit is a value in the order of `holdfast.persist.rows.order`: floats, dates and times are integers.
- A long text or binary value is cut. The least one becomes smaller by that. The greatest one is made greater.
- No limit is known for a null, which is first in the order, for decimals, and for numbers beyond int64.
- Limits come from the rows that were written, and a part never changes. The checksums of the log and of its
  rollups cover them. So a part can be left out of a read without a look at its bytes.
"""

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist.rows.evolution import widens
from holdfast.persist.rows.order import Key, key_at
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.values import Rows, count_type

Limit: TypeAlias = int | str | bytes

_LONGEST: Final = 32
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


def least_of(schema: Schema, rows: Rows) -> Limit | None:
    """The least value of the first column of rows in the total order, or a smaller one. None: unknown."""
    value = _value(schema, rows, 0)
    return value[:_LONGEST] if isinstance(value, str | bytes) else value


def greatest_of(schema: Schema, rows: Rows) -> Limit | None:
    """The greatest value of the first column of rows in the total order, or a greater one. None: unknown."""
    value = _value(schema, rows, rows.num_rows - 1)
    if isinstance(value, int) or value is None or len(value) <= _LONGEST:
        return value
    return _after_text(value[:_LONGEST]) if isinstance(value, str) else _after_binary(value[:_LONGEST])


def key_of(limit: Limit | None) -> Key | None:
    """The limit as a position in the total order."""
    return None if limit is None else ((True, limit),)


def _value(schema: Schema, rows: Rows, index: int) -> Limit | None:
    ((_, value),) = key_at(schema.names[:1], rows, index)
    match value:
        case bool():
            return int(value)
        case int():
            return value if _LEAST <= value <= _GREATEST else None
        case str() | bytes():
            return value
        case _:
            return None


def _after_text(text: str) -> str | None:
    """The least text of at most this length that is greater than all that begin with `text`."""
    for end in range(len(text) - 1, -1, -1):
        following = ord(text[end]) + 1
        if following <= _LAST_CHARACTER:
            following = _SURROGATES.stop if following in _SURROGATES else following
            return text[:end] + chr(following)
    return None


def _after_binary(data: bytes) -> bytes | None:
    kept = data.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class StatedBounds(PartBounds):
    """What the limits of a part say of its rows, as if they were one row group."""

    def __init__(self, own: Schema, least: Limit, greatest: Limit) -> None:
        self._own = own
        self._limits = least, greatest
        self.groups = 1
        self.derived = {}

    def of(self, column: Column) -> list[ColumnBounds]:
        """See `PartBounds`."""
        first = self._own.columns[0]
        if column.name != first.name or not widens(first, column):
            return [ColumnBounds()]
        values = _array(first, self._limits)
        if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
            # Bounds know nothing of NaN.
            return [ColumnBounds(None, has_nulls=False)]
        return [ColumnBounds(values.cast(column.stored.type), has_nulls=False)]


@lru_cache(maxsize=4096)
def stated_bounds(own: Schema, least: Limit, greatest: Limit) -> StatedBounds:
    """The bounds of a part that was written under `own`, kept for the next read."""
    return StatedBounds(own, least, greatest)


def _array(column: Column, limits: tuple[Limit, Limit]) -> pa.Array:
    type_ = column.stored.type
    if pa.types.is_floating(type_):
        width = type_.bit_width
        bits = np.array(limits, f"i{width // 8}")
        flip = (bits >> (width - 1)) & np.iinfo(bits.dtype).max
        return pa.array((bits ^ flip).view(f"f{width // 8}"), type_, from_pandas=False)
    if pa.types.is_temporal(type_):
        return pa.array(limits, count_type(type_)).view(type_)
    if pa.types.is_boolean(type_):
        return pa.array(map(bool, limits), type_)
    return pa.array(limits, type_)
