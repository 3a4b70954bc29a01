"""Reads the values of Arrow arrays as numbers, and gives floats one bit pattern per value.

Invariants:

- Canonical floats have one NaN, and no negative zero.
"""

import math
import struct
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows: TypeAlias = pa.Table | pa.RecordBatch
R = TypeVar("R", pa.Table, pa.RecordBatch)

# NumPy has the same names for these types.
_DTYPES: dict[int, np.dtype[Any]] = {
    getattr(pa, f"{kind}{bits}")().id: np.dtype(f"{kind}{bits}")
    for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (32, 64)))
    for bits in widths
}
_SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
_LEAST = {4: -(2**31), 8: -(2**63)}
# With up to this many rows, plain Python is faster than the fixed cost of NumPy's calls.
FEW_ROWS = 64


def values_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a fixed-width numeric array without copying. Values under a null are arbitrary."""
    dtype = _DTYPES[array.type.id]
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def count_type(type_: pa.DataType) -> pa.DataType:
    """Return the integer type in which a date, a timestamp or a time of day counts its units."""
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def few_numbers(array: pa.Array, code: str) -> tuple[Any, ...]:
    """Return the values like `values_of`, read with this `struct` code. Much faster for a few rows."""
    data = array.buffers()[1]
    size = struct.calcsize(code)
    return struct.unpack_from(f"<{len(array)}{code}", data, array.offset * size) if data is not None else ()


def canonical_floats(array: pa.Array) -> pa.Array:
    """Return the float array with one NaN and no negative zero; the same array if it is canonical already."""
    if len(array) <= FEW_ROWS:
        size = array.type.bit_width // 8
        numbers = few_numbers(array, "d" if size == 8 else "f")
        # Zero is equal to negative zero, but has different bits.
        has_least = 0.0 in numbers and _LEAST[size] in few_numbers(array, "q" if size == 8 else "i")
        if not has_least and not any(map(math.isnan, numbers)):
            return array
    values = values_of(array)
    if not len(values):
        return array
    integer = _SIGNED[values.dtype.itemsize]
    bits = values.view(integer)
    # argmin takes a quarter of the time of min, and finds a NaN if there is one. Negative zero has the least
    # bits of all floats.
    has_nan = np.isnan(values[values.argmin()])
    if bits[bits.argmin()] != _LEAST[integer.itemsize]:
        canonical = np.array(np.nan, values.dtype).view(integer)
        if not has_nan or (bits[np.isnan(values)] == canonical).all():
            return array
    fixed = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
    return pa.array(fixed, array.type, mask=_null_mask(array), from_pandas=False)


def ordered_bits(array: pa.Array) -> pa.Array:
    """Return signed integers with the order and equality of the canonical floats, NaN above infinity."""
    values = values_of(array)
    integer = _SIGNED[values.dtype.itemsize]
    bits = values.view(integer)
    flip = (bits >> (8 * bits.itemsize - 1)) & ~_LEAST[bits.itemsize]
    return pa.array(bits ^ flip, mask=_null_mask(array))


def _null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
