"""JSON: each message is one object, whose fields are columns by name.

Arrow reads the objects strictly: a field has the type of its column, a number fits it, and no field occurs
twice. Dates are text such as "2026-01-31", timestamps are ISO 8601 text, binary values are base64. An object
or an array goes as JSON text into a column of type string. A missing field is null. Fields without a column
are ignored.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
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

_ERRORS: Final = (pa.ArrowInvalid, UnicodeDecodeError, pl.exceptions.ComputeError)
_NESTED: Final = re.compile(r"changed from \w+ to (object|array)")
_EXPONENT: Final = r"[eE][+-]?[0-9]{2,}"
_WILD: Final = re.compile(WILD_EXPONENT)


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
        self._decimals = frozenset(_decimals(read))
        self._options = pyarrow.json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")

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
            if not self._is_nested:
                try:
                    return self._table(part, part)
                except pa.ArrowInvalid as error:
                    if not self._texts or not _NESTED.search(str(error)):
                        raise
                self._is_nested = True
            return self._table(_flat(part, self._texts), part)

        good, failed = decode_good(len(values), decode, _ERRORS, self._most_bad)
        bad += [(int(index[at]), reason) for at, reason in failed]
        if len(bad) > self._most_bad:
            raise TooManyBad(*min(bad))
        told = [BadRecord(at, positions[at].as_py(), "decode", reason) for at, reason in sorted(bad)]
        rows, numbers = joined(good, self._columns)
        return Decoded(rows, index[numbers], told)

    def _table(self, values: pa.Array, record: pa.Array) -> pa.Table:
        """The rows of objects. `record` has their original text."""
        text = values.cast(pa.string())
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text), "\n")[0]
        buffer = lines.as_buffer()
        table = pyarrow.json.read_json(
            pa.BufferReader(buffer),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=self._options,
        )
        if table.num_rows != len(values):
            return table
        return pa.table(
            self._arrays(table, record.cast(pa.string())),
            schema=pa.schema([each.with_nullable(True) for each in self._columns]),
        )

    def _arrays(self, table: pa.Table, text: pa.Array, /) -> Sequence[pa.Array | pa.ChunkedArray]:
        """The columns, from the fields of the objects and their text."""
        return [
            pa.chunked_array([text]).cast(each.type)
            if each.name == self._record
            else converted(table[each.name], each.type)
            for each in self._columns
        ]


def _decimals(fields: Iterable[pa.Field]) -> Iterator[str]:
    """The names of the fields with decimals, at any depth."""
    for each in fields:
        if pa.types.is_decimal(each.type):
            yield each.name
        elif pa.types.is_struct(each.type):
            yield from _decimals(each.type.fields)


def _tame(
    values: pa.Array, index: np.ndarray, decimals: AbstractSet[str]
) -> tuple[pa.Array, np.ndarray, list[tuple[int, str]]]:
    """The objects whose numbers Arrow can convert to decimals, their indexes, and the others."""
    suspects = np.flatnonzero(
        pc.match_substring_regex(values, _EXPONENT).to_numpy(zero_copy_only=False)
    ).tolist()
    wild = [at for at in suspects if _is_wild(values[at].as_py(), decimals)]
    if not wild:
        return values, index, []
    kept = np.setdiff1d(np.arange(len(values)), wild)
    return values.take(pa.array(kept)), index[kept], [(int(index[at]), TOO_WILD) for at in wild]


def _is_wild(value: bytes, decimals: AbstractSet[str]) -> bool:
    """Whether a field with decimals has such an exponent. What is no JSON has none: Arrow refuses it."""

    def is_wild(found: object, name: str) -> bool:
        match found:
            case tuple():
                return any(is_wild(each, key) for key, each in found)
            case list():
                return any(is_wild(each, name) for each in found)
            case str():
                return name in decimals and _WILD.search(found) is not None
            case _:
                return False

    try:
        found = _parsed(value)
    except ValueError:
        return False
    except RecursionError:
        # Arrow may go deeper.
        return True
    return is_wild(found, "")


def _flat(values: pa.Array, texts: AbstractSet[str]) -> pa.Array:
    """The objects with JSON text in the place of objects and arrays in these fields."""
    return pa.array([_flat_object(each, texts) for each in values.to_pylist()], pa.binary())


def _flat_object(value: bytes, texts: AbstractSet[str]) -> bytes:
    try:
        flat = [
            (name, _text(each) if name in texts and isinstance(each, tuple | list) else each)
            for name, each in _parsed(value)
        ]
        return _text(tuple(flat)).encode()
    except (ValueError, RecursionError):
        # Arrow says what is wrong with it.
        return value


def _parsed(value: bytes) -> Any:
    """A value of JSON. An object is a tuple of pairs, because a name may occur twice."""
    return json.loads(value, parse_int=_Number, parse_float=_Number, object_pairs_hook=tuple)


def _text(value: Any) -> str:
    """A parsed value as JSON text."""
    match value:
        case _Number():
            return value
        case tuple():
            pairs = (f"{json.dumps(name, ensure_ascii=False)}:{_text(each)}" for name, each in value)
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join(map(_text, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_as(type_: pa.DataType) -> pa.DataType:
    """The type in which Arrow reads a field of a column."""
    return pa.string() if pa.types.is_date(type_) or pa.types.is_binary(type_) else type_


def converted(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The values in the type of their column."""
    if pa.types.is_binary(type_):
        decoded = pl.Series(column).str.decode("base64", strict=True)
        return pa.chunked_array([decoded.to_arrow().cast(type_)])
    return column if column.type == type_ else column.cast(type_)


def _objects(values: pa.Array) -> tuple[pa.Array, np.ndarray, list[tuple[int, str]]]:
    """The values that look like one object on one line, their indexes, and the others with the reason."""
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
