"""JSON: each message is one object, whose fields are columns by name.

Arrow reads the objects strictly: a field has the type of its column, a number fits it, and no field occurs
twice. A float is the nearest one; one that is too great is refused. Dates are text such as "2026-01-31",
timestamps are ISO 8601 text, binary values are base64. An object or an array goes as JSON text into a column
of type string, nested at most `MOST_NESTED` levels deep. A missing field is null. Fields without a column are
ignored.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.ingest.formats.decoded import (
    MOST_BAD,
    BadRecord,
    Decoded,
    TooManyBad,
    decode_good,
    joined,
    stripped,
)
from holdfast.ingest.formats.reasons import TOO_WILD, plain_reason
from holdfast.persist.rows.casts import WILD_EXPONENT

_ERRORS: Final = (pa.ArrowInvalid, UnicodeDecodeError)
_NESTED: Final = re.compile(r"changed from \w+ to (object|array)")
MOST_NESTED: Final = 256
"""So many levels of objects and arrays, with itself, has an object at most that has JSON text in a column.

Python's own limits are greater, and are different for each version and process.
"""
_EXPONENT: Final = r"[eE][+-]?[0-9]{2,}"
_WILD: Final = re.compile(WILD_EXPONENT)
_UNNAMED: Final = "Failed to convert JSON to "
"""How errors of Arrow begin that don't name the field."""
_BEYOND_FLOAT32: Final = (2 - 2**-24) * 2.0**127
"""The least number whose nearest float32 is infinite."""


class _TooDeep(Exception):
    """An object is nested too deeply."""


class _Number(str):
    """A number as it was written."""


class Json:
    """Decodes JSON objects into rows of these columns. `record` names a column for the object as text."""

    whole = False

    def __init__(self, columns: pa.Schema, record: str = "", *, most_bad: int = MOST_BAD) -> None:
        self._columns = columns
        self._most_bad = most_bad
        self._record = record
        fields = [each for each in columns if each.name != record]
        texts = frozenset(each.name for each in fields if pa.types.is_string(each.type))
        self._is_nested = False
        self._read(pa.schema([pa.field(each.name, read_as(each.type)) for each in fields]), texts)

    def _read(self, read: pa.Schema, texts: AbstractSet[str] = frozenset()) -> None:
        """Read these fields of each object. Objects and arrays go as text into the fields `texts`."""
        self._texts = texts
        self._fields = read
        self._decimals = frozenset(_names(read, pa.types.is_decimal))
        self._floats = frozenset(_names(read, pa.types.is_float32))
        self._options = _options(read)

    def check(self) -> None:
        """Every type of a column has a form in JSON."""

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode messages. One that is not exactly one object with fitting fields is a bad record."""
        values, index, bad = _objects(messages["value"])
        positions = messages["position"]
        if self._decimals:
            values, index, wild = _tame(values, index, self._decimals)
            bad += wild

        def decode(begin: int, end: int) -> pa.Table:
            part = values[begin:end]
            try:
                return self._decoded(part)
            except pa.ArrowInvalid as error:
                if len(part) > 1 or not str(error).startswith(_UNNAMED):
                    raise
                raise pa.ArrowInvalid(f"field '{_culprit(self._fields, part)}': {error}") from None

        good, failed = decode_good(len(values), decode, _ERRORS, self._most_bad)
        bad += [(int(index[at]), reason) for at, reason in failed]
        if len(bad) > self._most_bad:
            raise TooManyBad(*min(bad))
        told = [BadRecord(at, positions[at].as_py(), "decode", reason) for at, reason in sorted(bad)]
        rows, numbers = joined(good, self._columns)
        return Decoded(rows, index[numbers], told)

    def _decoded(self, part: pa.Array) -> pa.Table:
        if not self._is_nested:
            try:
                return self._table(part, part)
            except pa.ArrowInvalid as error:
                if not self._texts or not _NESTED.search(str(error)):
                    raise
            self._is_nested = True
        try:
            return self._table(_flat(part, self._texts), part)
        except pa.ArrowInvalid as error:
            # Arrow may have read an object that can't be flat. What it says is not what is wrong.
            if len(part) == 1 and _NESTED.search(str(error)) and (why := _why(part[0].as_py(), self._texts)):
                raise pa.ArrowInvalid(why) from None
            raise

    def _table(self, values: pa.Array, record: pa.Array) -> pa.Table:
        """The rows of objects. `record` has their original text."""
        table = _parse(values, self._options)
        if table.num_rows != len(values):
            return table
        rows = pa.table(
            self._arrays(table, record.cast(pa.string())),
            schema=pa.schema([each.with_nullable(True) for each in self._columns]),
        )
        if self._floats:
            self._refuse_overflow(rows, values)
        return rows

    def _refuse_overflow(self, rows: pa.Table, values: pa.Array) -> None:
        """Raise if a number has become infinite. `Infinity` may be."""
        for each in rows.schema:
            if pa.types.is_float32(each.type):
                infinite = pc.is_inf(rows[each.name]).combine_chunks()
                for value in values.filter(infinite).to_pylist():
                    if _has(value, self._floats, _overflows):
                        raise pa.ArrowInvalid(f"field '{each.name}': a number is beyond what a float can be")

    def _arrays(self, table: pa.Table, text: pa.Array, /) -> Sequence[pa.Array | pa.ChunkedArray]:
        """The columns, from the fields of the objects and their text."""
        return [
            pa.chunked_array([text]).cast(each.type)
            if each.name == self._record
            else converted(table[each.name], each)
            for each in self._columns
        ]


def _options(fields: pa.Schema) -> pyarrow.json.ParseOptions:
    return pyarrow.json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")


def _parse(values: pa.Array, options: pyarrow.json.ParseOptions) -> pa.Table:
    """The fields of objects. There are more rows than values if a value has several objects."""
    text = values.cast(pa.string())
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text), "\n")[0]
    buffer = lines.as_buffer()
    return pyarrow.json.read_json(
        pa.BufferReader(buffer),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
        parse_options=options,
    )


def _culprit(fields: Iterable[pa.Field], value: pa.Array, within: Sequence[str] = ()) -> str:
    """The first field that Arrow can't convert, as a path. An error of Arrow doesn't name it."""
    for each in fields:
        alone = each
        for name in reversed(within):
            alone = pa.field(name, pa.struct([alone]))
        try:
            _parse(value, _options(pa.schema([alone])))
        except pa.ArrowInvalid:
            path = [*within, each.name]
            return (
                _culprit(each.type.fields, value, path) if pa.types.is_struct(each.type) else "/".join(path)
            )
    return "/".join(within)


def _names(fields: Iterable[pa.Field], is_wanted: Callable[[pa.DataType], bool]) -> Iterator[str]:
    """The names of the fields with such types, at any depth."""
    for each in fields:
        if is_wanted(each.type):
            yield each.name
        elif pa.types.is_struct(each.type):
            yield from _names(each.type.fields, is_wanted)


def _overflows(number: str) -> bool:
    return abs(float(number)) >= _BEYOND_FLOAT32


def _tame(
    values: pa.Array, index: np.ndarray, decimals: AbstractSet[str]
) -> tuple[pa.Array, np.ndarray, list[tuple[int, str]]]:
    """The objects whose numbers Arrow can convert to decimals, their indexes, and the others."""
    suspects = np.flatnonzero(
        pc.match_substring_regex(values, _EXPONENT).to_numpy(zero_copy_only=False)
    ).tolist()
    wild = [at for at in suspects if _has(values[at].as_py(), decimals, _is_wild)]
    if not wild:
        return values, index, []
    kept = np.setdiff1d(np.arange(len(values)), wild)
    return values.take(pa.array(kept)), index[kept], [(int(index[at]), TOO_WILD) for at in wild]


def _is_wild(number: str) -> bool:
    return _WILD.search(number) is not None


def _has(value: bytes, names: AbstractSet[str], is_wanted: Callable[[str], bool]) -> bool:
    """Whether one of these fields has such a number or text. What is no JSON has none: Arrow refuses it."""

    def has(found: object, name: str) -> bool:
        match found:
            case tuple():
                return any(has(each, key) for key, each in found)
            case list():
                return any(has(each, name) for each in found)
            case str():
                return name in names and is_wanted(found)
            case _:
                return False

    try:
        found = _parsed(value)
    except ValueError:
        return False
    except RecursionError:
        # Arrow may go deeper.
        return True
    return has(found, "")


def _flat(values: pa.Array, texts: AbstractSet[str]) -> pa.Array:
    """The objects with JSON text in the place of objects and arrays in these fields."""
    return pa.array([_flat_object(each, texts) for each in values.to_pylist()], pa.binary())


def _flat_object(value: bytes, texts: AbstractSet[str]) -> bytes:
    try:
        return _flattened(value, texts)
    except (ValueError, RecursionError, _TooDeep):
        # If Arrow refuses it, `_why` says what is wrong.
        return value


def _flattened(value: bytes, texts: AbstractSet[str]) -> bytes:
    flat = [
        (name, _text(each, 1) if name in texts and isinstance(each, tuple | list) else each)
        for name, each in _parsed(value)
    ]
    return _text(tuple(flat)).encode()


def _why(value: bytes, texts: AbstractSet[str]) -> str:
    """Why an object can't be flat, as an error. Empty if it can."""
    try:
        _flattened(value, texts)
    except json.JSONDecodeError as error:
        return f"JSON parse error: {error.msg}"
    except UnicodeEncodeError:
        return "JSON parse error: the surrogate pair in string is invalid"
    except ValueError:
        return "JSON parse error: a number is NaN or Infinity"
    except (RecursionError, _TooDeep):
        return f"its objects and arrays are nested more than {MOST_NESTED} levels deep"
    return ""


def _parsed(value: bytes) -> Any:
    """A value of JSON. An object is a tuple of pairs, because a name may occur twice."""
    return json.loads(value, parse_int=_Number, parse_float=_Number, object_pairs_hook=tuple)


def _text(value: Any, level: int = 0) -> str:
    """A parsed value as JSON text. `level` says within how many objects and arrays it is."""
    if level >= MOST_NESTED and isinstance(value, tuple | list):
        raise _TooDeep
    match value:
        case _Number():
            return value
        case tuple():
            pairs = [
                f"{json.dumps(name, ensure_ascii=False)}:{_text(each, level + 1)}" for name, each in value
            ]
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join([_text(each, level + 1) for each in value])}]"
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_as(type_: pa.DataType) -> pa.DataType:
    """The type in which Arrow reads a field of a column.

    Arrow doesn't check that a decimal fits after it has added the zeros of the scale: in 128 bits it could
    wrap around. In 256 bits these zeros fit, and the cast to the type of the column checks the value.
    """
    if pa.types.is_decimal128(type_):
        return pa.decimal256(type_.precision, type_.scale)
    return pa.string() if pa.types.is_date(type_) or pa.types.is_binary(type_) else type_


def converted(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """The values in the type of their column."""
    try:
        if pa.types.is_binary(wanted.type):
            decoded = pl.Series(column).str.decode("base64", strict=True)
            return pa.chunked_array([decoded.to_arrow().cast(wanted.type)])
        return column if column.type == wanted.type else column.cast(wanted.type)
    except (pa.ArrowInvalid, pl.exceptions.ComputeError) as error:
        raise pa.ArrowInvalid(f"field '{wanted.name}': {error}") from None


def _objects(values: pa.Array) -> tuple[pa.Array, np.ndarray, list[tuple[int, str]]]:
    """The values that look like one object on one line, their indexes, and the others with the reason."""
    if _are_plain(values):
        return values, np.arange(len(values)), []
    plain = _plain(values)
    if not plain.all():
        values = stripped(values)
        plain = _plain(values)
    if plain.all():
        return values, np.arange(len(values)), []
    changed: dict[int, bytes] = {}
    bad: list[tuple[int, str]] = []
    for at in (~plain).arg_true().to_list():
        try:
            changed[at] = _on_one_line(values[at].as_py())
        except ValueError as error:
            bad.append((at, plain_reason(error)))
    refused = {at for at, _ in bad}
    index = np.array([at for at in range(len(values)) if at not in refused], np.int64)
    kept = [changed[at] if at in changed else values[at].as_py() for at in index.tolist()]
    return pa.array(kept, pa.binary()), index, bad


def _are_plain(values: pa.Array) -> bool:
    """Whether all values look like one object on one line. This looks at the bytes of all at once."""
    if values.null_count or not len(values):
        return False
    offsets = np.frombuffer(values.buffers()[1], "<i4")[values.offset : values.offset + len(values) + 1]
    if not (offsets[:-1] < offsets[1:]).all():
        return False
    data = np.frombuffer(values.buffers()[2], np.uint8)
    content = data[offsets[0] : offsets[-1]]
    return bool(
        (data[offsets[:-1]] == ord("{")).all()
        and (data[offsets[1:] - 1] == ord("}")).all()
        and not (content == ord("\n")).any()
        and not (content == ord("\r")).any()
    )


def _plain(values: pa.Array) -> pl.Series:
    texts = pl.Series(values)
    plain = texts.bin.starts_with(b"{") & texts.bin.ends_with(b"}")
    plain &= ~(texts.bin.contains(b"\n") | texts.bin.contains(b"\r"))
    return plain.fill_null(value=False)


def _on_one_line(value: bytes | None) -> bytes:
    """A stripped object with spaces instead of line breaks. Raises `ValueError` if it is none."""
    if not value:
        raise ValueError("the message is empty")
    if not (value.startswith(b"{") and value.endswith(b"}")):
        raise ValueError("the message is not a JSON object")
    # Line breaks may stand only between tokens. This raises if one is in a string.
    try:
        json.loads(value)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    return value.replace(b"\r", b" ").replace(b"\n", b" ")
