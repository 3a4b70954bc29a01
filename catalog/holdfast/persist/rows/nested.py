"""Encodes lists, structs and maps as bytes, and decodes them. All rows of a column are converted at once.

Invariants:

- Equal values have equal bytes, and different values different bytes. So the bytes can be compared, hashed
  and summed up. Floats are canonical, and a map has each key once, in the order of its keys.
- The bytes of a value don't depend on other rows. `docs/reference/FORMAT.md` describes them.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist.rows import arrow_rows
from holdfast.persist.rows.casts import cast_column
from holdfast.persist.rows.column_types import is_list

Bytes: TypeAlias = npt.NDArray[np.uint8]
Counts: TypeAlias = npt.NDArray[np.int64]

_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""About how many bytes of values are converted together. Their indexes take several times as much."""
_LONG: Final = 256
"""Pieces of this many bytes are copied one by one, which needs no indexes."""


def encoded(name: str, given: pa.Array, want: pa.DataType, leaf: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Encode nested values of a column `name` as the type `want`. Null stays null.

    `leaf` gives scalar values their one bit pattern. Raises `BadInput`, which names the place in the column,
    for values that do not fit.
    """
    if (type_ := _without_views(given.type)) != given.type:
        given = given.cast(type_)
    blocks = [_encoded(name, each, want, leaf) for each in _blocks(given)]
    try:
        return blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks or [pa.array([], pa.binary())])
    except pa.ArrowInvalid:
        hint = "append it in smaller pieces"
        raise BadInput(f"column {name!r} has more than 2 GiB in one append", hint=hint) from None


def decode(name: str, stored: pa.Array, want: pa.DataType) -> pa.Array:
    """Decode the values of a column. Raises `CorruptBlob` for bytes that are no values of the type."""
    blocks = [_decoded(name, each, want) for each in _blocks(stored)]
    return blocks[0] if len(blocks) == 1 else pa.concat_arrays(blocks or [pa.array([], want)])


def _without_views(type_: pa.DataType) -> pa.DataType:
    """The type without views of text and bytes, from which Arrow can't take. Polars has them."""
    if pa.types.is_string_view(type_):
        return pa.large_string()
    if pa.types.is_binary_view(type_):
        return pa.large_binary()
    if pa.types.is_dictionary(type_):
        return _without_views(type_.value_type)
    if pa.types.is_struct(type_):
        return pa.struct([each.with_type(_without_views(each.type)) for each in type_])
    if pa.types.is_map(type_):
        item = type_.item_field
        return pa.map_(_without_views(type_.key_type), item.with_type(_without_views(item.type)))
    if is_list(type_):
        kind = pa.list_ if pa.types.is_list(type_) else pa.large_list
        return kind(type_.value_field.with_type(_without_views(type_.value_type)))
    return type_


def _blocks(array: pa.Array) -> list[pa.Array]:
    count = max(1, -(-int(array.nbytes) // _BLOCK_BYTES))
    size = max(1, -(-len(array) // count))
    return [array.slice(start, size) for start in range(0, len(array), size)]


def _encoded(name: str, given: pa.Array, want: pa.DataType, leaf: Callable[[pa.Array], pa.Array]) -> pa.Array:
    valid = given.is_valid()
    there = given.drop_null() if given.null_count else given
    writer = _Writer(leaf)
    writer.payload(name, there, want, np.ones(len(there), np.int64))
    data, sizes = writer.joined(len(there))
    lengths = np.zeros(len(given), np.int64)
    lengths[valid.to_numpy(zero_copy_only=False)] = sizes
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    buffers = [valid.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(given), buffers).cast(pa.binary())


class _Writer:
    """Collects pieces. Each has bytes for all rows, in their order, and the number of bytes for each row."""

    def __init__(self, leaf: Callable[[pa.Array], pa.Array]) -> None:
        self._leaf = leaf
        self._pieces: list[tuple[Bytes, Counts]] = []

    def joined(self, rows: int) -> tuple[Bytes, Counts]:
        """Return the bytes of all rows, each row's pieces together, and their number for each row."""
        sizes = np.zeros(rows, np.int64)
        for _, lengths in self._pieces:
            sizes += lengths
        at = _starts(sizes)
        data = np.empty(int(sizes.sum()), np.uint8)
        for flat, lengths in self._pieces:
            _copy(flat, _starts(lengths), data, at, lengths)
            at = at + lengths
        return data, sizes

    def payload(self, place: str, values: pa.Array, want: pa.DataType, counts: Counts) -> None:
        """Add values without nulls. `counts` says how many of them each row has."""
        if pa.types.is_map(want):
            self._map(place, values, want, counts)
        elif is_list(want):
            if not is_list(values.type):
                _misfit(place, values.type, want)
            lengths = pc.list_value_length(values).to_numpy().astype(np.int64)
            counts = self._lengths(lengths, counts)
            self._element(f"{place}[]", values.flatten(), want.value_field, counts)
        elif pa.types.is_struct(want):
            self._struct(place, values, want, counts)
        else:
            self._scalars(place, values, want, counts)

    def _element(self, place: str, values: pa.Array, field: pa.Field, counts: Counts) -> None:
        if pa.types.is_null(values.type):
            values = pa.nulls(len(values), field.type)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        if field.nullable:
            self._pieces.append((valid.view(np.uint8), counts))
            counts = _sums(valid, counts)
        elif not valid.all():
            raise BadInput(f"column {place!r} is not nullable, but it has a null")
        self.payload(place, values.drop_null() if values.null_count else values, field.type, counts)

    def _struct(self, place: str, values: pa.Array, want: pa.DataType, counts: Counts) -> None:
        if not pa.types.is_struct(values.type):
            _misfit(place, values.type, want)
        given = dict(zip((each.name for each in values.type), values.flatten(), strict=True))
        for field in want:
            found = given.pop(field.name, None)
            if found is None and not field.nullable:
                raise BadInput(f"column {place!r} has no field {field.name!r}")
            found = pa.nulls(len(values)) if found is None else found
            self._element(f"{place}.{field.name}", found, field, counts)
        if given:
            names = ", ".join(each.name for each in want)
            raise BadInput(f"column {place!r} has no field {next(iter(given))!r} in its type ({names})")

    def _map(self, place: str, values: pa.Array, want: pa.DataType, counts: Counts) -> None:
        offsets, keys, items = _entries(place, values, want)
        keys = self._leaf(keys if keys.type == want.key_type else cast_column(place, keys, want.key_type))
        if keys.null_count:
            raise BadInput(f"column {place!r} has a null as a key")
        lengths = np.diff(offsets)
        owners = pa.array(np.repeat(np.arange(len(lengths)), lengths), pa.int64())
        rows = pa.RecordBatch.from_arrays([owners, keys], ["map", "key"])
        order = arrow_rows.in_order(rows, rows.schema.names)
        if not arrow_rows.differing(rows, rows.schema.names, order).all():
            raise BadInput(f"column {place!r} has a key twice in one map")
        counts = self._lengths(lengths, counts)
        self._scalars(f"{place}.key", keys.take(pa.array(order)), want.key_type, counts)
        self._element(f"{place}.value", items.take(pa.array(order)), want.item_field, counts)

    def _scalars(self, place: str, values: pa.Array, want: pa.DataType, counts: Counts) -> None:
        try:
            values = self._leaf(values if values.type == want else cast_column(place, values, want))
        except pa.ArrowInvalid as error:
            raise BadInput(f"column {place!r} does not fit {want}: {error}") from None
        if pa.types.is_string(want) or pa.types.is_binary(want):
            bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
            bounds = bounds.astype(np.int64) if len(values) else np.zeros(1, np.int64)
            data = values.buffers()[2]
            text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            counts = self._lengths(np.diff(bounds), counts)
            self._pieces.append((text[bounds[0] : bounds[-1]], counts))
        elif pa.types.is_boolean(want):
            self._pieces.append((values.to_numpy(zero_copy_only=False).view(np.uint8), counts))
        else:
            width = want.bit_width // 8
            data = values.buffers()[1]
            flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
            start = values.offset * width
            self._pieces.append((flat[start : start + len(values) * width], counts * width))

    def _lengths(self, lengths: Counts, counts: Counts) -> Counts:
        """Add the length of each value. Returns the sum of the lengths for each row."""
        self._pieces.append((np.ascontiguousarray(lengths.astype("<u4")).view(np.uint8), counts * 4))
        return _sums(lengths, counts)


def _entries(place: str, values: pa.Array, want: pa.DataType) -> tuple[Counts, pa.Array, pa.Array]:
    """The entries of maps without nulls: where each map begins and the last one ends, the keys and the items.

    Polars has maps as lists of structs.
    """
    if pa.types.is_map(values.type):
        offsets = values.offsets.to_numpy().astype(np.int64)
        keys, items = values.keys, values.items
    elif is_list(values.type) and [each.name for each in _fields(values.type.value_type)] == ["key", "value"]:
        offsets = values.offsets.to_numpy().astype(np.int64)
        keys, items = values.values.flatten()
        if values.values.null_count:
            raise BadInput(f"column {place!r} has a null instead of an entry")
    else:
        _misfit(place, values.type, want)
    start, size = int(offsets[0]) if len(offsets) else 0, int(offsets[-1] - offsets[0])
    return offsets - start, keys.slice(start, size), items.slice(start, size)


def _fields(type_: pa.DataType) -> list[pa.Field]:
    return list(type_) if pa.types.is_struct(type_) else []


def _misfit(place: str, given: pa.DataType, want: pa.DataType) -> NoReturn:
    raise BadInput(f"column {place!r} is {given}, which can't be converted to {want} without loss")


def _decoded(name: str, stored: pa.Array, want: pa.DataType) -> pa.Array:
    there = stored.drop_null() if stored.null_count else stored
    try:
        reader = _Reader(there)
        values = reader.payload(want, np.ones(len(there), np.int64))
        reader.check_end()
        values.validate(full=True)
    except (_MalformedError, pa.ArrowInvalid) as error:
        raise CorruptBlob(f"column {name}", f"values of {want}", f"other bytes: {error}") from None
    return values if values is None or not stored.null_count else _spread(values, stored.is_valid())


class _MalformedError(Exception):
    """The bytes of a row are no value of the type."""


class _Reader:
    """Reads the pieces of all rows, in the order in which they were written."""

    def __init__(self, stored: pa.Array) -> None:
        wide = stored.cast(pa.large_binary())
        bounds = np.frombuffer(wide.buffers()[1], np.int64)[wide.offset :][: len(wide) + 1]
        bounds = bounds if len(wide) else np.zeros(1, np.int64)
        data = wide.buffers()[2]
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        self._at, self._ends = bounds[:-1].copy(), bounds[1:]

    def check_end(self) -> None:
        """Raise an error if a row has more bytes."""
        if not (self._at == self._ends).all():
            raise _MalformedError("more than one value")

    def payload(self, want: pa.DataType, counts: Counts) -> pa.Array:
        """Read values without nulls. `counts` says how many of them each row has."""
        total = int(counts.sum())
        if pa.types.is_map(want):
            offsets, inner = self._lengths(counts)
            keys = self.payload(want.key_type, inner)
            items = self._element(want.item_field, inner)
            return pa.MapArray.from_arrays(offsets, keys, items, type=want)
        if pa.types.is_list(want):
            offsets, inner = self._lengths(counts)
            return pa.ListArray.from_arrays(offsets, self._element(want.value_field, inner), type=want)
        if pa.types.is_struct(want):
            children = [self._element(field, counts) for field in want]
            return pa.StructArray.from_arrays(children, fields=list(want))
        if pa.types.is_string(want) or pa.types.is_binary(want):
            offsets, inner = self._lengths(counts)
            buffers = [None, offsets.buffers()[1], pa.py_buffer(self._take(inner))]
            return pa.Array.from_buffers(want, total, buffers)
        if pa.types.is_boolean(want):
            return pa.array(self._flags(counts))
        flat = self._take(counts * (want.bit_width // 8))
        return pa.Array.from_buffers(want, total, [None, pa.py_buffer(flat)])

    def _element(self, field: pa.Field, counts: Counts) -> pa.Array:
        if not field.nullable:
            return self.payload(field.type, counts)
        valid = self._flags(counts)
        values = self.payload(field.type, _sums(valid, counts))
        return values if valid.all() else _spread(values, pa.array(valid))

    def _flags(self, counts: Counts) -> npt.NDArray[np.bool_]:
        flags = self._take(counts)
        if flags.size and flags.max() > 1:
            raise _MalformedError("a flag that is not 0 or 1")
        return flags.view(np.bool_)

    def _lengths(self, counts: Counts) -> tuple[pa.Array, Counts]:
        """Read the length of each value. Returns the offsets of all, and the sum of lengths for each row."""
        lengths = self._take(counts * 4).view("<u4").astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if offsets[-1] > len(self._data):
            raise _MalformedError("a length beyond the end")
        return pa.array(offsets.astype(np.int32)), _sums(lengths, counts)

    def _take(self, lengths: Counts) -> Bytes:
        if (self._at + lengths > self._ends).any():
            raise _MalformedError("too few bytes")
        found = np.empty(int(lengths.sum()), np.uint8)
        _copy(self._data, self._at, found, _starts(lengths), lengths)
        self._at = self._at + lengths
        return found


def _spread(values: pa.Array, valid: pa.Array) -> pa.Array:
    """Values and nulls: the next value where `valid` is true."""
    flags = valid.to_numpy(zero_copy_only=False)
    places = np.cumsum(flags) - 1
    if not pa.types.is_struct(values.type):
        return values.take(pa.array(places, pa.int64(), mask=~flags))
    # Below a null, a field that is not nullable has some value: Parquet takes no null there.
    some = values if len(values) else _blank(values.type, 1)
    fields = some.take(pa.array(np.maximum(places, 0), pa.int64())).flatten()
    return pa.StructArray.from_arrays(fields, fields=list(values.type), mask=pa.array(~flags))


def _blank(type_: pa.DataType, count: int) -> pa.Array:
    """Some values of a type."""
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays([_blank(each.type, count) for each in type_], fields=list(type_))
    offsets = pa.array(np.zeros(count + 1, np.int32))
    if pa.types.is_map(type_):
        keys, items = pa.array([], type_.key_type), pa.array([], type_.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_)
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(offsets, pa.array([], type_.value_type), type=type_)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return pa.array([b""] * count).cast(type_)
    zeros = pa.py_buffer(np.zeros(16 * count, np.uint8))
    return pa.Array.from_buffers(type_, count, [None, zeros])


def _starts(lengths: Counts) -> Counts:
    starts: Counts = np.cumsum(lengths) - lengths
    return starts


def _sums(values: npt.NDArray[Any], counts: Counts) -> Counts:
    """The sum of the next `counts` values for each row."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(counts)
    found: Counts = sums[ends] - sums[ends - counts]
    return found


def _copy(source: Bytes, starts: Counts, target: Bytes, at: Counts, lengths: Counts) -> None:
    """Copy `lengths` bytes from each of `starts` in the source to each place in the target."""
    total = int(lengths.sum())
    if total > _LONG * len(lengths):
        for start, place, length in zip(starts.tolist(), at.tolist(), lengths.tolist(), strict=True):
            target[place : place + length] = source[start : start + length]
        return
    within = np.arange(total) - np.repeat(_starts(lengths), lengths)
    target[np.repeat(at, lengths) + within] = source[np.repeat(starts, lengths) + within]
