"""Finds the columns of a file and their types.

- All rows count, not only the first ones, with bounded memory. A file of JSON is mapped into memory.
- In CSV, a type is chosen only if every value of the column has it and no value loses anything by it. So a
  column with 007, or with whole numbers that no int64 has, is text.
- JSON has types of its own: texts stay text, and a column with whole numbers and fractions is float64. The
  rows are refused if that would change a whole number.
- A column without a value is text. All columns may be null, except for key columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput
from holdfast.file_formats import check_file, format_by_suffix
from holdfast.persist import Schema
from holdfast.persist.rows.schema import DIFF, TIME, Column
from holdfast.tables.files.formats import check_distinct, names_of_csv, reading_text
from holdfast.tables.files.quotes import check_quotes
from holdfast.text import naming

_BLOCK_BYTES: Final = 1 << 20
# Python has no year 0.
_DATE: Final = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-\d\d-\d\d"
_CLOCK: Final = rf"{_DATE}[T ]\d\d:\d\d:\d\d(\.\d{{1,6}})?"
_MOST_DIGITS: Final = 17
_WHOLE_DIGITS: Final = 15
_WHOLE: Final = r"(0|-?[1-9][0-9]{0,18})"

# In the order of preference. Text that has the pattern must also convert.
_PATTERNS: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "bool": (r"^(true|false)$", pa.bool_()),
    "int64": (rf"^{_WHOLE}$", pa.int64()),
    # A whole number beyond 15 digits may lose some as a float. `_is_exact` looks at fractions.
    "float64": (
        r"^(0|-?[1-9][0-9]{0,14}|-?(0|[1-9][0-9]*)\.[0-9]+([eE][+-]?[0-9]+)?|-?[1-9][eE][+-]?[0-9]+)$",
        pa.float64(),
    ),
    "date32": (rf"^{_DATE}$", pa.date32()),
    "timestamp": (rf"^{_CLOCK}$", pa.timestamp("us")),
    "timestamp_utc": (rf"^{_CLOCK}(Z|[+-]\d\d:?\d\d)$", pa.timestamp("us", "UTC")),
}


def schema_of_file(
    file: Path, form: str | None, *, key: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> Schema:
    """The schema of a file with rows. `form` is its format (None: by its name).

    `key` names the key columns. `columns` has types that replace those that were found. Raises `BadInput`,
    which names the file, if it can't be read, if a name is not that of a column, or if a type isn't
    supported.
    """
    check_file(file, form)
    found = _FIELDS[form or format_by_suffix(file)]
    given = dict(columns or {})
    with naming(str(file)):
        try:
            fields = list(found(file))
        except OSError as error:
            raise BadInput(f"can't read it: {error.strerror or error}") from None
        except pa.ArrowException as error:
            raise BadInput(f"it is not {form or format_by_suffix(file)}: {error}") from None
        names = [field.name for field in fields]
        for name in (*key, *given):
            if name not in names:
                raise BadInput(f"there is no column {name!r} ({', '.join(names)})")
        for name in (TIME, DIFF):
            if name in names:
                raise BadInput(
                    f"a table can't have a column {name!r}",
                    hint="create the table with its columns, and then write the file to it",
                )
        schema = Schema.from_arrow(pa.schema(fields), list(key))
        return Schema(
            tuple(_column(each, given, nullable=False) for each in schema.key),
            tuple(_column(each, given, nullable=True) for each in schema.value),
        )


def _column(found: Column, given: Mapping[str, str], *, nullable: bool) -> Column:
    if found.name not in given:
        return Column(found.name, found.type, nullable=nullable)
    (column,) = Schema.of(key={}, value={found.name: given[found.name]}).value
    return column


def _of_csv(file: Path) -> Iterator[pa.Field]:
    with file.open("rb") as stream:
        head = stream.read(_BLOCK_BYTES)
    if not head:
        raise BadInput("it is empty: not even the names of columns are there")
    names = names_of_csv(head)
    check_distinct(names)
    check_quotes(lambda: file.open("rb"))
    with reading_text(lambda: file.open("rb")):
        yield from _types_of_csv(file, names)


def _types_of_csv(file: Path, names: Sequence[str]) -> Iterator[pa.Field]:
    from pyarrow import csv as arrow_csv

    left = {name: set(_PATTERNS) for name in names}
    seen: set[str] = set()
    opened = arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for batch in opened:
        for name in names:
            values = batch.column(name).drop_null()
            if len(values):
                seen.add(name)
                left[name] = {type_ for type_ in left[name] if _has_type(values, type_)}
    for name in names:
        fitting = [type_ for type_ in _PATTERNS if type_ in left[name]] if name in seen else []
        yield pa.field(name, _PATTERNS[fitting[0]][1] if fitting else pa.string())


def _has_type(values: pa.Array, type_: str) -> bool:
    pattern, arrow = _PATTERNS[type_]
    if not pc.all(pc.match_substring_regex(values, pattern)).as_py():
        return False
    try:
        found = pc.cast(values, arrow)
    except pa.ArrowException:
        return False
    return type_ != "float64" or _is_exact(values, found)


def _is_exact(texts: pa.Array, floats: pa.Array) -> bool:
    """Whether floats have all significant digits of their texts, up to 17. No float has more of its own."""
    digits = pc.utf8_trim(pc.replace_substring_regex(texts, r"[eE].*|[-.]", ""), "0")
    # A number beyond the range of floats became infinite, or 0.
    is_there = pc.and_(pc.is_finite(floats), pc.equal(pc.equal(digits, ""), pc.equal(floats, 0.0)))
    whole = pc.utf8_length(pc.extract_regex(texts, r"^-?(?P<whole>[0-9]*)").field("whole"))
    is_short = pc.and_(
        pc.less_equal(pc.utf8_length(digits), _MOST_DIGITS), pc.less_equal(whole, _WHOLE_DIGITS)
    )
    return bool(pc.all(pc.and_(is_there, is_short)).as_py())


def _of_json(file: Path) -> Iterator[pa.Field]:
    import polars as pl

    try:
        schema = pl.scan_ndjson(file, infer_schema_length=None).collect_schema()
    except pl.exceptions.PolarsError as error:
        raise BadInput(
            f"it is not JSON lines: {str(error).splitlines()[0]}", hint="give one object per line"
        ) from None
    for name, type_ in schema.items():
        if type_ == pl.Int128:
            # Whole numbers that no int64 has.
            yield pa.field(name, pa.decimal128(38, 0))
        else:
            yield pa.field(name, _plain(pl.Series(name, [], type_).to_arrow().type))


def _plain(type_: pa.DataType) -> pa.DataType:
    """A type of Polars as a column can have it."""
    if pa.types.is_null(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_list(type_) or pa.types.is_list(type_):
        return pa.list_(_plain(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in type_])
    return type_


def _of_parquet(file: Path) -> Iterator[pa.Field]:
    from pyarrow import parquet

    return iter(parquet.read_schema(file))


def _of_arrow(file: Path) -> Iterator[pa.Field]:
    with pa.OSFile(str(file)) as stream:
        try:
            return iter(pa.ipc.open_file(stream).schema)
        except pa.ArrowInvalid:
            stream.seek(0)
            return iter(pa.ipc.open_stream(stream).schema)


_FIELDS: Final[Mapping[str, Callable[[Path], Iterator[pa.Field]]]] = {
    "csv": _of_csv,
    "json": _of_json,
    "parquet": _of_parquet,
    "arrow": _of_arrow,
}
