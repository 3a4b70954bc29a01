"""Rows as text: reads and writes CSV and JSON lines under the types of a schema.

Written rows are read back as the same rows, for all types. Text that stands for values (binary in base64,
decimals, times) is parsed by the type of its column, and never guessed. In CSV an empty cell is null and `""`
is the empty text.
"""

import base64
import binascii
import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput
from holdfast.persist import Schema
from holdfast.persist.rows.casts import column_of, row_place, shown
from holdfast.persist.rows.column_types import type_name
from holdfast.persist.rows.iso_times import NS_PER, moment_ns, time_ns
from holdfast.persist.rows.schema import DIFF, TIME
from holdfast.tables.cells import cells_of, rows_of
from holdfast.tables.files.quotes import check_quotes

if TYPE_CHECKING:
    import _csv

    from pyarrow.csv import CSVStreamingReader

_CSV_VALUE: Final = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): invalid value (.*)", re.DOTALL
)
"""What Arrow reports for a value that its column can't have."""
_CSV_TEXT: Final = re.compile(r"In CSV column #(\d+): .*invalid UTF8 data")
"""What Arrow reports for text that is not UTF-8."""
_NO_CHARACTER: Final = "\ufffd"
"""What Python puts in the place of bytes that are not UTF-8."""
_CONVERT: Final = "convert the file to UTF-8"

# A row can't be longer. Arrow reads about thirty blocks ahead.
_CSV_BLOCK_BYTES: Final = 1024 * 1024
_PIECE_ROWS: Final = 8 * 1024
_CORRECT: Final = "correct the file and try again"

Again = Callable[[], BinaryIO]
"""Opens a file once more, at its beginning."""
_Place = Callable[[int], str]


class Output(Protocol):
    """A stream that accepts bytes."""

    def write(self, data: bytes, /) -> int:
        """Write all of the data."""


def without_bytes(schema: pa.Schema) -> pa.Schema:
    """The schema with strings in place of binary and nested columns, for CSV."""
    return pa.schema(
        [field.with_type(pa.string()) if _is_text_in_csv(field.type) else field for field in schema]
    )


def _is_text_in_csv(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_nested(type_))


def bytes_as_text(table: pa.Table) -> pa.Table:
    """The table with binary columns in base64, as in JSON, and nested columns as JSON."""
    for index, field in enumerate(table.schema):
        if _is_text_in_csv(field.type):
            cells = [plain(cell) for cell in cells_of(table.column(index))]
            if pa.types.is_nested(field.type):
                cells = [None if cell is None else _json_text(cell) for cell in cells]
            texts = pa.array(cells, pa.string())
            table = table.set_column(index, field.with_type(pa.string()), texts)
    return table


def write_json_lines(table: pa.Table, stream: Output) -> None:
    """Write one JSON object per line and row. Binary is in base64, and NaN and infinities are strings."""
    for batch in table.to_batches():
        for row in rows_of(pa.Table.from_batches([batch])):
            cells = {name: plain(cell) for name, cell in row.items()}
            stream.write(_json_text(cells).encode() + b"\n")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def plain(cell: Any) -> Any:
    """A value as JSON represents it."""
    match cell:
        case bytes():
            return base64.b64encode(cell).decode()
        case float() if not math.isfinite(cell):
            return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
        case Decimal() if cell.as_tuple().exponent == 0:
            # A whole number: a sum in SQL, for example.
            return int(cell)
        case bool() | int() | float() | str() | None:
            return cell
        case list() | tuple():
            return [plain(each) for each in cell]
        case dict():
            return {name: plain(each) for name, each in cell.items()}
        case _:
            return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def _types(schema: Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema.arrow} | {TIME: pa.uint64(), DIFF: pa.int64()}


def names_of_csv(head: bytes) -> list[str]:
    """The names of the columns of a CSV file that begins like this. Raises `BadInput`."""
    # The rest of a character may be in the next block.
    text = head.decode("utf-8-sig", errors="replace")
    try:
        names = next(csv.reader(io.StringIO(text, newline="")), [])
    except csv.Error as error:
        raise BadInput(f"can't read the names of its columns: {error}") from None
    for name in names:
        if _NO_CHARACTER in name:
            raise BadInput(f"column name {name!r} is not UTF-8", hint=_CONVERT)
    return names


def check_distinct(names: Sequence[str]) -> None:
    """Raise `BadInput` if two columns have one name."""
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"column {twice!r} is given twice")


@contextmanager
def reading_text(again: Again) -> Iterator[None]:
    """If text of the CSV file isn't UTF-8, the block raises `BadInput`, which names its place."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if (found := _CSV_TEXT.match(str(error))) is None:
            raise
        index = int(found[1])
        with _csv_rows(again) as rows:
            name = next(rows)[index]
            wrong = (rows.line_num for row in rows if _NO_CHARACTER in "".join(row[index : index + 1]))
            place = next((f" in line {line}" for line in wrong), "")
        raise BadInput(f"column {name!r}: the text{place} is not UTF-8", hint=_CONVERT) from None


def from_csv(stream: pa.NativeFile, again: Again, schema: Schema) -> Iterator[pa.Table]:
    """The rows of a CSV file in pieces. There is at least one piece. An error names the line: `again`."""
    with again() as file:
        names_of_csv(file.read(_CSV_BLOCK_BYTES))
    check_quotes(again)
    try:
        with reading_text(again):
            yield from _from_csv(stream, again, schema)
    except pa.ArrowInvalid as error:
        found = _CSV_VALUE.fullmatch(str(error))
        if found is None:
            raise
        raise _bad_csv(again, schema, int(found[1]), found[3]) from None


def _bad_csv(again: Again, schema: Schema, index: int, quoted: str) -> BadInput:
    """The error for a value that Arrow can't read. Arrow gives only the number of its column."""
    with _csv_rows(again) as rows:
        names = next(rows)
        value = quoted[1:-1]
        # An empty cell is no error unless it is quoted, and quotes are not seen here.
        line = next((f" in line {rows.line_num}" for row in rows if value and row[index:][:1] == [value]), "")
    known = {field.name: type_name(field.type) for field in schema.arrow} | {TIME: "uint64", DIFF: "int64"}
    name = names[index]
    return BadInput(f"column {name!r}: {quoted}{line} is not a valid {known[name]}", hint=_CORRECT)


@contextmanager
def _csv_rows(again: Again) -> "Iterator[_csv.Reader]":
    with io.TextIOWrapper(again(), "utf-8-sig", "replace", newline="") as text:
        yield csv.reader(text)


def _csv_line(again: Again, before: int, row: int) -> str:
    """The place of a row of CSV, counted from 0 after `before` others: the last line of it."""
    row += before
    with _csv_rows(again) as rows:
        next(rows)
        # Arrow counts no empty lines either, except in a file with one column.
        return next(
            (f"line {rows.line_num}" for at, _ in enumerate(filter(None, rows)) if at == row), row_place(row)
        )


def _from_csv(stream: pa.NativeFile, again: Again, schema: Schema) -> Iterator[pa.Table]:
    if not stream.size():
        raise BadInput("the file is empty: not even the names of columns are there")
    types = _types(schema) | {
        field.name: pa.string() if pa.types.is_decimal(field.type) else field.type
        for field in without_bytes(schema.arrow)
    }
    opened = _open_csv(stream, types, schema)
    texts: Iterator[pa.RecordBatch] | None = None
    before = 0
    for index, batch in enumerate(opened):
        place = partial(_csv_line, again, before)
        infinite = _infinite(batch)
        if infinite and texts is None:
            as_text = dict.fromkeys(_floats(schema.arrow), pa.string())
            texts = islice(_open_csv(again(), types | as_text, schema), index, None)
        if texts is not None:
            _check_infinite(infinite, next(texts), schema, place)
        yield _typed(pa.Table.from_batches([batch]), schema, place)
        before += batch.num_rows
    if not before:
        yield _typed(opened.schema.empty_table(), schema, row_place)


def _open_csv(
    stream: pa.NativeFile | BinaryIO, types: dict[str, pa.DataType], schema: Schema
) -> "CSVStreamingReader":
    """Read a CSV file in blocks, which do not depend on `types`."""
    from pyarrow import csv

    return csv.open_csv(
        stream,
        read_options=csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
        # In a file with one column, an empty line is a row with null.
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(schema.arrow) > 1),
        convert_options=csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _floats(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if pa.types.is_floating(field.type)]


def _infinite(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Which values are infinite, for each column that has one."""
    found = {name: pc.is_inf(batch.column(name)) for name in _floats(batch.schema)}
    return {name: each for name, each in found.items() if pc.any(each).as_py()}


def _check_infinite(
    infinite: Mapping[str, pa.Array], texts: pa.RecordBatch, schema: Schema, place: _Place
) -> None:
    """Raise `BadInput` for a number that is too large for its column. Arrow makes it infinite."""
    for name, is_ in infinite.items():
        column = texts.column(name)
        too_large = pc.and_(is_, pc.invert(pc.match_substring(column, "inf", ignore_case=True)))
        if (row := pc.index(too_large, True).as_py()) >= 0:
            type_ = type_name(schema.arrow.field(name).type)
            raise BadInput(
                f"column {name!r}: {shown(column[row].as_py())} in {place(row)} is too large for {type_}",
                hint="write Infinity or -Infinity if the value is infinite",
            )


def _typed(table: pa.Table, schema: Schema, place: _Place) -> pa.Table:
    """Convert the text columns of CSV to their types. `place` names the place of a row."""
    for index, name in enumerate(table.column_names):
        column = next((each for each in schema.columns if each.name == name), None)
        if column is None:
            continue
        type_ = column.arrow.type
        if pa.types.is_decimal(type_) or pa.types.is_nested(type_):
            read = _decimal if pa.types.is_decimal(type_) else _NestedText(type_)
            cells = enumerate(table.column(index).to_pylist())
            found = [_read(read, name, cell, row, place) for row, cell in cells]
            table = table.set_column(index, name, column_of(name, found, type_, place=place))
        if column.type == "binary":
            cells = enumerate(table.column(index).to_pylist())
            values = [_bytes(name, cell, row, place) for row, cell in cells]
            table = table.set_column(index, name, pa.array(values, pa.binary()))
        if column.type in ("binary", "string") and not column.nullable:
            # In a column without nulls, an empty cell is the empty text, quoted or not.
            empty = pa.scalar(b"" if column.type == "binary" else "", column.arrow.type)
            table = table.set_column(index, name, table.column(index).fill_null(empty))
    return table


def from_json_lines(stream: BinaryIO, schema: Schema, *, partial: bool = False) -> Iterator[pa.Table]:
    """The rows of a file of JSON lines in pieces. There is at least one piece.

    A column that a row leaves out is null. With `partial`, all rows must have the same columns instead, and
    the pieces have only these.
    """
    objects = _objects(stream)
    given: dict[str, Any] | None = None
    is_first = True
    while True:
        numbered = list(islice(objects, _PIECE_ROWS))
        if partial and numbered:
            given = numbered[0][1] if given is None else given
            _check_alike(numbered, given)
        if numbered or is_first:
            piece = _from_objects([row for _, row in numbered], [line for line, _ in numbered], schema)
            yield piece if given is None else piece.select([*given])
        is_first = False
        if len(numbered) < _PIECE_ROWS:
            return


def _check_alike(numbered: list[tuple[int, dict[str, Any]]], given: dict[str, Any]) -> None:
    """Raise `BadInput` unless all rows have the columns of the first one."""
    for number, row in numbered:
        if lacking := sorted(row.keys() ^ given.keys()):
            other = "the first line" if lacking[0] in given else f"line {number}"
            raise BadInput(
                f"column {lacking[0]!r} is in {other}, and not in all lines",
                hint="give the same columns in all lines, or merge them apart",
            )


def _from_objects(rows: list[dict[str, Any]], lines: list[int], schema: Schema) -> pa.Table:
    def place(row: int) -> str:
        return f"line {lines[row]}"

    types = _types(schema)
    names = list(dict.fromkeys(name for row in rows for name in row)) if rows else list(schema.names)
    columns = {}
    for name in names:
        if name not in types:
            raise BadInput(f"column {name!r} is not in the schema ({', '.join(schema.names)})")
        read = _reader(types[name])
        default = 1 if name == DIFF else None
        values = [_read(read, name, row.get(name, default), at, place) for at, row in enumerate(rows)]
        columns[name] = column_of(name, values, types[name], place=place)
    # A column that no row has is null, as in a row that leaves it out.
    for name in schema.names:
        if name not in columns:
            columns[name] = pa.nulls(len(rows), types[name])
    return pa.table(columns)


def _objects(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects, each with the number of its line."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            # Parsing as Decimal keeps every digit.
            row = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            said = f"{error.msg}, at {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
            raise BadInput(f"line {number} is not JSON: {said}", hint="give one object per line") from None
        if not isinstance(row, dict):
            raise BadInput(
                f"line {number} is not a JSON object: {shown(row)}", hint="give one object per line"
            )
        yield number, row


class _ChangedError(Exception):
    """A whole number is none of the values of a float."""


def _read(read: Callable[[Any], Any], name: str, value: Any, row: int, place: _Place) -> Any:
    if value is None:
        return None
    try:
        return read(value)
    except _ChangedError as error:
        raise BadInput(
            f"column {name!r}: the whole number {error} in {place(row)} would change as a float",
            hint="choose another type for the column, such as decimal128(38,9)",
        ) from None
    except (ValueError, TypeError, InvalidOperation, OverflowError):
        raise BadInput(
            f"column {name!r}: {shown(value)} in {place(row)} is not a valid {_meant(read)}",
            hint=_CORRECT,
        ) from None


def _reader(type_: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_nested(type_):
        return _Nested(type_)
    if pa.types.is_binary(type_):
        return _base64
    if pa.types.is_decimal(type_):
        return _decimal
    if pa.types.is_floating(type_):
        return _float
    if pa.types.is_date(type_):
        return date.fromisoformat
    if pa.types.is_timestamp(type_):
        return _Moment(type_)
    if pa.types.is_time(type_):
        return _TimeOfDay(type_)
    return _as_is


@dataclass(frozen=True)
class _Nested:
    """Reads lists, structs and maps of one type from JSON."""

    type: pa.DataType

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        if pa.types.is_struct(self.type):
            readers = {each.name: _reader(each.type) for each in self.type}
            unread = readers.get
            return {name: _inside(unread(name, _as_is), each) for name, each in dict(value).items()}
        if pa.types.is_map(self.type):
            key, item = _reader(self.type.key_type), _reader(self.type.item_type)
            pairs = value.items() if isinstance(value, dict) else value
            return [(_inside(key, one), _inside(item, other)) for one, other in pairs]
        if not isinstance(value, list):
            raise TypeError
        read = _reader(self.type.value_type)
        return [_inside(read, each) for each in value]


@dataclass(frozen=True)
class _NestedText(_Nested):
    """Reads them from a text that is JSON."""

    def __call__(self, value: Any) -> Any:
        return super().__call__(json.loads(value, parse_float=Decimal))


def _inside(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


@dataclass(frozen=True)
class _Moment:
    """Reads ISO timestamps of one type."""

    type: pa.DataType

    def __call__(self, value: Any) -> Any:
        moment = datetime.fromisoformat(value)
        if (moment.tzinfo is not None) is not (self.type.tz is not None):
            # The conversion to the column refuses it with a better message.
            return moment
        return _counted(moment_ns(value, moment.tzinfo), self.type)


@dataclass(frozen=True)
class _TimeOfDay:
    """Reads ISO times of day of one type."""

    type: pa.DataType

    def __call__(self, value: Any) -> Any:
        return _counted(time_ns(value), self.type)


def _counted(ns: int, type_: pa.DataType) -> pa.Scalar:
    count, rest = divmod(ns, NS_PER[type_.unit])
    if rest:
        raise ValueError("it is finer than the type")
    return pa.scalar(count, type_)


def _bytes(name: str, cell: str | None, row: int, place: _Place) -> bytes | None:
    found: bytes | None = _read(_base64, name, cell, row, place)
    return found


def _base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool):
        raise TypeError
    return Decimal(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or (isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity")):
        raise TypeError
    found = float(value)
    if isinstance(value, int) and int(found) != value:
        raise _ChangedError(value)
    if math.isinf(found) and not isinstance(value, str):
        raise OverflowError("it is beyond the range of floats")
    return found


def _as_is(value: Any) -> Any:
    # The remaining types need no parsing. Integers may be written as 1.0, which the cast to the column
    # accepts.
    return value


def _meant(read: Callable[[Any], Any]) -> str:
    match read:
        case _Nested(type=type_):
            return type_name(type_)
        case _Moment(type=type_) | _TimeOfDay(type=type_):
            what = "ISO timestamp" if isinstance(read, _Moment) else "ISO time"
            return what if type_.unit == "us" else f"{what} in {type_.unit}"
        case _:
            return _MEANT[read]


_MEANT: Final[dict[Callable[[Any], Any], str]] = {
    _base64: "base64 text",
    _decimal: "decimal",
    _float: "number",
    date.fromisoformat: "ISO date",
    _as_is: "value",
}
