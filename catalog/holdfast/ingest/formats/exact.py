"""Values in the type of their column: exactly, or not at all.

- Numbers become other numbers, times other times, and texts other texts, if that loses nothing: converted
  back, they are what they were. So a float becomes a decimal if it is the float nearest to that.
- A text is read as the value that it stands for. A float is the nearest one, unless it is beyond all.
- Everything but bytes that are not UTF-8 has a text. Nested values become JSON text.
- Nothing else is converted: a number is neither a time nor a truth value.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ingest.formats.json_text import as_json
from holdfast.ingest.formats.reasons import TOO_WILD
from holdfast.persist.rows.casts import WILD_EXPONENT

_INFINITY: Final = r"^[+-]?(?i:inf|infinity)$"
_TRUTH: Final = r"^(?i:true|false)$"


def exact(column: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
    """The values in the type of their column. Raises Arrow's errors if one does not fit."""
    if column.type == wanted.type:
        return column
    try:
        return _converted(column, wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise type(error)(f"column '{wanted.name}': {error}") from None


def _converted(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    given = _kind(column.type)
    if pa.types.is_string(wanted):
        return _nested(column) if given == "nested" else pc.cast(column, wanted)
    if given == "null" or (given == _kind(wanted) == "text"):
        return pc.cast(column, wanted)
    if given == "text":
        return _read(column.cast(pa.string()), wanted)
    if given != _kind(wanted):
        raise pa.ArrowNotImplementedError(f"Unsupported cast from {column.type} to {wanted}")
    from_float = pa.types.is_floating(column.type)
    # Arrow's own way between decimals and floats is not the nearest one. That of texts is.
    if pa.types.is_decimal(column.type) and pa.types.is_floating(wanted):
        found = pc.cast(pc.cast(column, pa.string()), wanted)
        is_same = pc.or_(
            pc.equal(pc.cast(pc.cast(found, pa.string()), column.type), column),
            pc.equal(pc.cast(found, column.type, safe=False), column),
        )
    else:
        found = pc.cast(column, wanted)
        through = pc.cast(found, pa.string()) if from_float and pa.types.is_decimal(wanted) else found
        try:
            back = pc.cast(through, column.type, safe=False)
        except pa.ArrowNotImplementedError:
            # Arrow's safe cast is exact from these types, or it would know the way back.
            return found
        is_same = pc.equal(back, column)
        if from_float:
            is_same = pc.or_(is_same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
    if not pc.all(is_same).as_py():
        first = column.filter(pc.invert(is_same))[0]
        raise pa.ArrowInvalid(f"{first} of type {column.type} does not fit type {wanted} exactly")
    return found


def _read(texts: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """What texts stand for."""
    if pa.types.is_decimal(wanted):
        _refuse(texts, pc.match_substring_regex(texts, WILD_EXPONENT), TOO_WILD)
    elif pa.types.is_integer(wanted):
        # Arrow reads hexadecimal numbers.
        _refuse(texts, pc.match_substring(texts, "x", ignore_case=True), wanted)
    elif pa.types.is_boolean(wanted):
        _refuse(texts, pc.invert(pc.match_substring_regex(texts, _TRUTH)), wanted)
        return pc.cast(pc.ascii_lower(texts), wanted)
    found = pc.cast(texts, wanted)
    if pa.types.is_floating(wanted):
        infinite = pc.and_(pc.is_inf(found), pc.invert(pc.match_substring_regex(texts, _INFINITY)))
        _refuse(texts, infinite, wanted)
    return found


def _refuse(texts: pa.ChunkedArray, which: pa.ChunkedArray, why: str | pa.DataType) -> None:
    if pc.any(which).as_py():
        first = texts.filter(which)[0]
        raise pa.ArrowInvalid(why if isinstance(why, str) else f"'{first}' is not a value of type {why}")


def _nested(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Nested values as JSON text."""
    values = column.to_pylist(maps_as_pydicts="strict")
    try:
        texts = [None if each is None else as_json(each) for each in values]
    except (TypeError, ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(f"it has no form in JSON: {error}") from None
    return pa.chunked_array([pa.array(texts, pa.string())])


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    if types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_):
        return "number"
    if types.is_date(type_) or types.is_timestamp(type_):
        return "time"
    if types.is_nested(type_):
        return "nested"
    if types.is_null(type_):
        return "null"
    texts = (
        types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary,
        types.is_binary_view, types.is_fixed_size_binary,
    )  # fmt: skip
    return "text" if any(is_text(type_) for is_text in texts) else str(type_)
