"""Schema evolution: which schemas may follow each other on a shard, and how to convert rows between them.

Invariants:

- Key columns never change. Value columns keep their names and their order. A value column may become
  nullable. Its type may become another type of the same kind that can hold all of its values. New columns
  come last and are nullable. A codec keeps its name, and its version never goes back.
- Converting rows to a newer schema keeps their order, and keeps different rows different. So sorted rows stay
  sorted, and equal rows of any two schemas are equal after both are converted to a later one. Rows are
  therefore converted to one schema first, and then merged, summed and compared.
- The other direction works for contents of a time that was complete before the newer schema existed, because
  none of their rows needs it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CodecMismatch, CorruptBlob, HoldfastError
from holdfast.persist.rows.order import Key, KeyRange
from holdfast.persist.rows.schema import DIFF, TIME, Column, Schema
from holdfast.persist.rows.values import R, ordered_bits

_BITS: Final = {f"{kind}{bits}": bits for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}


def evolution_fault(old: Schema, new: Schema) -> str:
    """Return why `new` can't follow `old` on a shard, or "" if it can."""
    if new.key != old.key:
        return "key columns never change"
    if (fault := _codec_fault(old.codec, new.codec)) or old.codec is not None:
        return fault or ("" if old.value == new.value else "columns of a codec never change")
    for was, now in zip(old.value, new.value, strict=False):
        if was.name != now.name:
            return f"column {was.name!r} must stay where it is, and new ones come last"
        if was.nullable and not now.nullable:
            return f"column {was.name!r} may hold nulls already"
        if not widens(was, now):
            return f"column {was.name!r} can't become {now.type}: not every {was.type} is one"
    if len(new.value) < len(old.value):
        return f"column {old.value[len(new.value)].name!r} can't be dropped"
    for added in new.value[len(old.value) :]:
        if not added.nullable:
            return f"column {added.name!r} is new and must be nullable: {added.name} {added.type}?"
    return ""


def _codec_fault(old: tuple[str, int] | None, new: tuple[str, int] | None) -> str:
    if (old and old[0]) != (new and new[0]):
        return "a codec can't be added, removed or replaced"
    if old is not None and new is not None and new[1] < old[1]:
        return f"the version of codec {old[0]} never goes back"
    return ""


def widens(was: Column, now: Column) -> bool:
    """Whether each value of a column's type is also a value of the other type, and of the same kind."""
    old, new = was.arrow.type, now.arrow.type
    if old == new:
        return True
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return _BITS[now.type] > _BITS[was.type]
    if not (pa.types.is_integer(old) and pa.types.is_integer(new)):
        return False
    if pa.types.is_signed_integer(old) and not pa.types.is_signed_integer(new):
        return False
    return _BITS[now.type] > _BITS[was.type]


def mismatch(old: Schema, new: Schema, *, shard: str) -> CodecMismatch:
    """Return the error for a schema that a shard with newest schema `old` does not have."""
    message = f"the schema does not fit {shard}: it has {old}, but the given schema is {new}"
    fault = evolution_fault(old, new)
    if fault:
        return CodecMismatch(
            f"{message} ({fault})",
            hint="give a schema that the shard has or had, or one that can follow its own",
        )
    return CodecMismatch(message, hint="it may follow: evolve the shard to it first (PersistClient.evolve)")


def check_evolution(old: Schema, new: Schema, *, shard: str = "the shard") -> None:
    """Raise `CodecMismatch`, which shows both schemas, if a schema can't follow `old`."""
    fault = evolution_fault(old, new)
    if fault:
        raise CodecMismatch(
            f"the schema can't follow the schema of {shard}: it has {old}, not {new} ({fault})",
            hint="keep its columns as they are, and add nullable ones at the end; or write to a new shard",
        )


def newest(schemas: Iterable[Schema]) -> Schema:
    """Of schemas that follow each other, return the newest one. Rows of all others can be converted to it."""
    found, *others = schemas
    for schema in others:
        if not evolution_fault(found, schema):
            found = schema
    return found


def upgraded(rows: R, old: Schema, new: Schema) -> R:
    """Convert updates of `old` to `new`, which follows it: nulls in new columns, values in wider types.

    They may have no times.
    """
    if old == new or old.arrow_updates.equals(new.arrow_updates):
        return rows
    arrays: list[Any] = []
    for column in new.columns:
        if column.name in old.names:
            arrays.append(rows.column(column.name).cast(column.stored.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.stored.type))
    has_times = TIME in rows.schema.names
    arrays += [rows.column(name) for name in ([TIME, DIFF] if has_times else [DIFF])]
    return type(rows).from_arrays(arrays, schema=new.arrow_updates if has_times else new.arrow_diff)


def lowered(contents: pa.Table, new: Schema, old: Schema, *, where: str) -> pa.Table:
    """Convert contents (columns and `_diff`) of `new` back to `old`, which it follows.

    Raises `CorruptBlob`, which names `where`, if a row needs `new`. Such rows did not exist under `old`.
    """
    if old == new or old.arrow_diff.equals(new.arrow_diff):
        return contents
    needs = [name for name in new.names[len(old.names) :] if contents.column(name).null_count < len(contents)]
    needs += [c.name for c in old.columns if not c.nullable and contents.column(c.name).null_count]
    if needs:
        raise CorruptBlob(where, f"rows of {old}", f"values of a later schema in column {needs[0]!r}")
    try:
        found = contents.select([*old.names, DIFF]).cast(old.arrow_diff)
    except pa.ArrowInvalid as error:
        raise CorruptBlob(where, f"rows of {old}", " ".join(str(error).split())[:200]) from None
    # Arrow's cast drops the low bits of a float.
    for was in old.columns:
        wide = contents.column(was.name)
        if was.type == "float32" and wide.type != was.arrow.type:
            again = found.column(was.name).cast(wide.type)
            if not pc.all(pc.or_(pc.equal(again, wide), pc.is_nan(wide)), min_count=0).as_py():
                raise CorruptBlob(where, f"rows of {old}", f"values beyond float32 in column {was.name!r}")
    return found


def upgraded_key(key: Key | None, old: Schema, new: Schema) -> Key | None:
    """Convert a position in the order of `old` to the same position in the order of `new`.

    In keys, floats are stored as integers of the same width. All other values are stored as they are.
    """
    if key is None or old == new:
        return key
    pairs = zip(key, old.columns, new.columns, strict=False)
    return tuple(
        (True, _wider_float(value))
        if there and was.type == "float32" and now.type == "float64"
        else (there, value)
        for (there, value), was, now in pairs
    )


def _wider_float(ordered: int) -> int:
    bits = np.array([ordered], np.int32)
    values = (bits ^ ((bits >> 31) & np.int32(2**31 - 1))).view(np.float32)
    return int(ordered_bits(pa.array(values.astype(np.float64), from_pandas=False))[0].as_py())


def upgraded_range(wanted: KeyRange, old: Schema, new: Schema) -> KeyRange:
    """Convert a range of rows of `old` to the same range of rows of `new`."""
    if old == new:
        return wanted
    return replace(
        wanted,
        lower=upgraded_key(wanted.lower, old, new),
        upper=upgraded_key(wanted.upper, old, new),
        after=upgraded_key(wanted.after, old, new),
    )


def seen_through(rows: R, schema: Schema) -> R:
    """Updates of an earlier schema as updates of `schema`. Raises `HoldfastError` for rows of a later one.

    The snapshot or listen of a shard has the schema that its process knew when it began, and shards of one
    rendition may differ in that. The collection's record is never behind any of them. If you read the record
    after the rows, its schema is theirs or a later one.
    """
    return fitted(rows, schema.arrow_updates)


def fitted(rows: R, wanted: pa.Schema) -> R:
    """Convert rows of an earlier schema to a later one: nulls in new columns, values in wider types.

    Raises `HoldfastError` for rows of a later schema. Their extra values would be lost, and a deletion of
    such a row would not match it.
    """
    if rows.schema.equals(wanted):
        return rows
    there = set(rows.schema.names)
    if later := there.difference(wanted.names):
        raise HoldfastError(f"rows have columns of a later schema: {', '.join(sorted(later))}")
    columns: list[Any] = [
        rows.column(field.name).cast(field.type)
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return type(rows).from_arrays(columns, schema=wanted)
