"""Pages of a snapshot: its first rows at or after a place, in the total order.

- A place is the values of the first columns of a row (the key, if there is one), and the number of rows
  before it that have the same values there. So rows with equal keys have places of their own.
- Each shard returns its rows in the total order. So the first rows of the snapshot are among the first rows
  of its shards.
- Memory is bounded by rows and by bytes. Nothing is known of a shard after its bound of bytes, so the page
  ends where such a shard was cut.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.rows.canonical import python_values
from holdfast.persist.rows.order import Key
from holdfast.persist.rows.schema import Column
from holdfast.persist.rows.values import ordered_bits

MOST_SKIP: Final = 10_000
"""A place has at most so many rows before it that are alike."""
_MOST_COLUMNS: Final = 8
_MOST_TEXT: Final = 2000
_AGAIN: Final = "begin at the first page"


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The row that `skip` rows come before, of those that begin with `key`. The default is the first row."""

    key: Key = ()
    skip: int = 0


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows in the total order, as contents with `_diff`, and the place of each. `more` may follow them."""

    rows: pa.Table
    places: tuple[RowPlace, ...]
    more: bool


class ShardRows(NamedTuple):
    """The first rows of a shard. `is_cut` if more of them are needed, but there are too many bytes."""

    rows: pa.Table
    is_cut: bool


def place_columns(schema: Schema) -> tuple[Column, ...]:
    """The columns whose values are the key of a place: the key, or else the first columns of fixed size."""
    if schema.key:
        return schema.key
    first = schema.columns[:_MOST_COLUMNS]
    return tuple(takewhile(_is_short, first)) or first[:1]


def read_first(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int, most_bytes: int, least: int
) -> ShardRows:
    """At most so many first rows and bytes of batches, but at least `least` rows."""
    found: list[pa.RecordBatch] = []
    is_cut = False
    for each in batches:
        batch = each.slice(0, rows)
        while batch.nbytes > most_bytes and batch.num_rows > max(least, 0):
            batch, is_cut = batch.slice(0, max(batch.num_rows // 2, least)), True
        found.append(batch)
        rows -= batch.num_rows
        least -= batch.num_rows
        most_bytes -= batch.nbytes
        if is_cut or rows <= 0:
            break
    return ShardRows(pa.Table.from_batches(found, schema), is_cut)


def page_of(schema: Schema, shards: Sequence[ShardRows], most: int, start: RowPlace) -> RowPage:
    """The page of `most` rows from `start` on. The shards have their first rows that begin with its key."""
    rows = pa.concat_tables([each.rows for each in shards])
    keys = _keys(schema, rows)
    order = sorted(range(rows.num_rows), key=keys.__getitem__)
    ends = accumulate(each.rows.num_rows for each in shards)
    known = min(
        (order.index(end - 1) + 1 for each, end in zip(shards, ends, strict=True) if each.is_cut),
        default=len(order),
    )
    taken = order[start.skip : min(known, start.skip + most)]
    places = _places([keys[index] for index in order[: start.skip + len(taken)]], len(place_columns(schema)))
    more = len(order) > start.skip + len(taken) or any(each.is_cut for each in shards)
    return RowPage(rows.take(pa.array(taken, pa.int64())), tuple(places[start.skip :]), more)


def place_text(place: RowPlace, schema: Schema) -> str | None:
    """A place as text, for an address. None if it would be too long."""
    columns = place_columns(schema)
    values = [_shown(column, value) for column, (_, value) in zip(columns, place.key, strict=True)]
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    if len(text) > _MOST_TEXT:
        return None
    return f"{text}+{place.skip}" if place.skip else text


def parse_place(text: str, schema: Schema) -> RowPlace:
    """The place that `place_text` made. Raises `BadInput` for any other text."""
    values, _, skip = text.rpartition("+") if not text.endswith("]") else (text, "", "0")
    columns = place_columns(schema)
    try:
        if len(text) > 2 * _MOST_TEXT:
            raise ValueError
        found = json.loads(values)
        if not isinstance(found, list) or len(found) != len(columns):
            raise ValueError
        key = tuple(_parsed(column, value) for column, value in zip(columns, found, strict=True))
        place = RowPlace(key, int(skip) if skip.isascii() and skip.isdecimal() else -1)
    except (ValueError, ArithmeticError, RecursionError, pa.ArrowException):
        raise BadInput("the place of the first row can't be read", hint=_AGAIN) from None
    if not 0 <= place.skip <= MOST_SKIP:
        raise BadInput(
            f"a page begins after at most {MOST_SKIP:,} rows that are alike", hint="choose rows with a filter"
        )
    return place


def _keys(schema: Schema, rows: pa.Table) -> list[Key]:
    columns = []
    for name in schema.names:
        values = python_values(rows.column(name).combine_chunks())
        columns.append([(value is not None, value) for value in values])
    return list(zip(*columns, strict=True))


def _places(keys: Sequence[Key], length: int) -> list[RowPlace]:
    """The place of each of these rows, the first of which is the first one that begins with its key."""
    found: list[RowPlace] = []
    for key in keys:
        own = key[:length]
        skip = found[-1].skip + 1 if found and found[-1].key == own else 0
        found.append(RowPlace(own, skip))
    return found


def _is_short(column: Column) -> bool:
    type_ = column.stored.type
    return not (pa.types.is_string(type_) or pa.types.is_binary(type_))


def _shown(column: Column, value: Any) -> Any:
    """A value of `python_values` as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if value is None or not pa.types.is_floating(column.stored.type):
        return value
    # The inverse of the ordered bits is the same function. A wider type may read it, so the value is shown.
    integer, floating = (
        (np.int32, np.float32) if column.stored.type.bit_width == 32 else (np.int64, np.float64)
    )
    bits = ordered_bits(pa.array(np.array([value], integer).view(floating)))
    return float(bits.to_numpy().view(floating)[0])


def _parsed(column: Column, value: Any) -> tuple[bool, Any]:
    type_ = column.stored.type
    if value is None:
        return False, None
    found: Any = value
    if pa.types.is_string(type_):
        is_right = isinstance(value, str)
    elif pa.types.is_binary(type_):
        is_right, found = isinstance(value, str), bytes.fromhex(str(value))
    elif pa.types.is_decimal(type_):
        is_right, found = isinstance(value, str), _decimal(str(value), type_)
    elif pa.types.is_boolean(type_):
        is_right = isinstance(value, bool)
    elif pa.types.is_floating(type_):
        is_right = isinstance(value, int | float) and not isinstance(value, bool)
        number = math.nan if isinstance(value, float) and math.isnan(value) else float(value)
        found = ordered_bits(pa.array([number], pa.float64()).cast(type_))[0].as_py() if is_right else None
    else:
        is_right = isinstance(value, int) and not isinstance(value, bool)
    if not is_right:
        raise ValueError(column.name)
    return True, found


def _decimal(text: str, type_: pa.DataType) -> Decimal:
    try:
        found: Decimal = pa.scalar(Decimal(text), type_).as_py()
    except InvalidOperation as error:
        raise ValueError(text) from error
    return found
