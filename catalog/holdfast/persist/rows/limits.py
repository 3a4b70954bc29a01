"""The limits of a part: between which values its rows' first column lies. The state of a shard has them.

- A limit is a value in the order of `holdfast.persist.rows.order`: floats, dates and times are integers.
- A long text or binary value is cut. The least one becomes smaller by that. The greatest one is made greater.
- No limit is known for a null, which is first in the order, for decimals, and for numbers beyond int64.
- Limits come from the rows that were written, and a part never changes. The checksums of the log and of its
  rollups cover them. So a part can be left out of a read without a look at its bytes.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.persist.rows.evolution import upgraded_key, widens
from holdfast.persist.rows.order import Key, key_at
from holdfast.persist.rows.row_filter import ColumnBounds, PartBounds
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.rows.values import Rows, count_type

Limit: TypeAlias = int | str | bytes

_LONGEST: Final = 32
"""So much of a text or binary value is kept, beyond what the least and the greatest one begin with alike."""
_MOST_ALIKE: Final = 224
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)
_UNKNOWN: Final = ColumnBounds()


def first_value(schema: Schema, rows: Rows, index: int) -> Limit | None:
    """The value of the first column of a row, as limits have it. None if there can be no limit."""
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


def limits_of(first: Limit | None, last: Limit | None) -> tuple[Limit | None, Limit | None]:
    """The limits of rows in the total order whose first and last row have these values. None: unknown."""
    longest = _LONGEST + _alike(first, last)
    least = first[:longest] if isinstance(first, str | bytes) else first
    if isinstance(last, str) and len(last) > longest:
        return least, _after_text(last[:longest])
    if isinstance(last, bytes) and len(last) > longest:
        return least, _after_binary(last[:longest])
    return least, last


def _alike(first: Limit | None, last: Limit | None) -> int:
    """The length of what two texts or binary values begin with alike."""
    if not (isinstance(first, str | bytes) and isinstance(last, str | bytes)):
        return 0
    pairs = zip(first[:_MOST_ALIKE], last[:_MOST_ALIKE], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def key_of(limit: Limit | None) -> Key | None:
    """The limit as a position in the total order."""
    return None if limit is None else ((True, limit),)


def keys_of(
    least: Limit | None, greatest: Limit | None, own: Schema, newest: Schema
) -> tuple[Key | None, Key | None]:
    """The limits of a part that was written under `own` as positions in the total order of `newest`."""
    low, high = (upgraded_key(key_of(each), own, newest) for each in (least, greatest))
    return low, high


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
    """What the limits of parts say of their rows, as if each part were one row group.

    The parts were written under `own`. A part without limits has no bounds.
    """

    def __init__(self, own: Schema, limits: Sequence[tuple[Limit | None, Limit | None]]) -> None:
        self._own = own
        self._limits = limits
        self.groups = len(limits)
        self.derived = {}

    def of(self, column: Column) -> list[ColumnBounds]:
        """See `PartBounds`."""
        first = self._own.columns[0]
        if column.name != first.name or not widens(first, column):
            return [_UNKNOWN] * self.groups
        known = [limit for pair in self._limits if None not in pair for limit in pair]
        values = _array(first, known)
        # Bounds know nothing of NaN, which is the last value.
        nan = values.is_nan() if pa.types.is_floating(values.type) else None
        values = values.cast(column.stored.type)
        found, place = [], 0
        for pair in self._limits:
            if None in pair:
                found.append(_UNKNOWN)
                continue
            is_bounded = nan is None or not nan[place + 1].as_py()
            found.append(ColumnBounds(values.slice(place, 2) if is_bounded else None, has_nulls=False))
            place += 2
        return found


def _array(column: Column, limits: Sequence[Any]) -> pa.Array:
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
