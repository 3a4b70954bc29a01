"""The hash of a row, which decides its shard. It is the same in every version, process and language.

Invariants:

- The hash is XXH3-64 with seed 0 over the canonical bytes of the hashed columns, in the given order. Each
  column has a tag: 0 for null (and nothing more), or 1, followed by the value. Integers, bool, days and
  times, in the unit in which they are stored, have 8 bytes little endian (unsigned as u64), floats are f64,
  decimals are the scale (u8) and the unscaled i128 without trailing zeros, string and binary are a u32
  length and the bytes.
- So the hash of a value does not depend on the width of its column: int32 7 and int64 7 have the same hash,
  and so have decimals 1.5 and 1.50. Widening a column moves no row. Signed and unsigned integers of the same
  value have the same hash.
- The hash is frozen. A change would look for rows in other shards than the ones that contain them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from holdfast.errors import BadInput
from holdfast.persist.rows.canonical import SMALL_ROWS
from holdfast.persist.rows.values import Rows, canonical_floats, count_type, values_of
from holdfast.polars_forks import polars_works

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

# XXH3's constants for inputs of 9 to 16 bytes: words 3 to 6 of its secret, and its multiplier.
_FLIP_LOW: Final = np.uint64(0x6782737BEA4239B9)
_FLIP_HIGH: Final = np.uint64(0xAF56BC3B0996523A)
_AVALANCHE: Final = np.uint64(0x165667919E3779F9)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)
# The intermediate values of this many rows stay in the processor's cache.
_BLOCK_ROWS: Final = 8192


def row_hash(table: Rows, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Hash each row over `columns`, in their order. Raises `BadInput` for a type that can't be hashed."""
    if not columns:
        raise BadInput("a row hash needs at least one column")
    if len(columns) == 1 and table.num_rows > SMALL_ROWS:
        words = _words(columns[0], table.column(columns[0]))
        if words is not None:
            return _hash_words(words)
    rows = canonical_bytes(table, columns)
    if len(rows) <= SMALL_ROWS or not polars_works():
        return np.fromiter(map(xxhash.xxh3_64_intdigest, _each(rows)), np.uint64, len(rows))
    import polars as pl
    import polars_hash as plh

    frame = pl.DataFrame({"row": pl.Series(pl.from_arrow(rows))})
    hashed = frame.select(plh.col("row").nchash.xxh3_64(seed=0))
    return hashed.to_series().to_numpy().astype(np.uint64, copy=False)


def _each(rows: pa.Array) -> Iterator[bytes]:
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield from rows.slice(start, _BLOCK_ROWS).to_pylist()


def _words(name: str, array: pa.Array | pa.ChunkedArray) -> Words | None:
    """Return a column's values, if all have 8 canonical bytes and none is null; otherwise None."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    is_long = pa.types.is_decimal(array.type) or _text(array.slice(0, 0)) is not None
    if array.null_count or is_long:
        return None
    return _fixed(name, array).view("<u8").reshape(-1)


def _hash_words(words: Words) -> Words:
    """Return XXH3-64 of a tag 1 and the 8 bytes of each value: its formula for an input of 9 bytes."""
    hashed = np.empty(len(words), np.uint64)
    for start in range(0, len(words), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        low = ((words[block] << np.uint64(8)) | np.uint64(1)) ^ _FLIP_LOW
        high = words[block] ^ _FLIP_HIGH
        mixed = np.uint64(9) + low.byteswap() + high + _folded_product(low, high)
        mixed ^= mixed >> np.uint64(37)
        mixed *= _AVALANCHE
        hashed[block] = mixed ^ (mixed >> np.uint64(32))
    return hashed


def _folded_product(one: Words, other: Words) -> Words:
    """Multiply to 128 bits, and combine the two halves by exclusive or."""
    half = np.uint64(32)
    a, b, c, d = one & _LOW_HALF, one >> half, other & _LOW_HALF, other >> half
    least, middle = a * c, b * c
    cross = (least >> half) + (middle & _LOW_HALF) + a * d
    high = (middle >> half) + (cross >> half) + b * d
    folded: Words = np.bitwise_xor(high, (cross << half) | (least & _LOW_HALF))
    return folded


def shard_of(table: Rows, columns: Sequence[str], shards: int) -> npt.NDArray[np.int64]:
    """Return the index in `[0, shards)` of each row's shard: its hash modulo `shards`."""
    if shards < 1:
        raise BadInput(f"a collection must have at least one shard, not {shards}")
    if shards == 1:
        return np.zeros(table.num_rows, np.int64)
    return (row_hash(table, columns) % np.uint64(shards)).astype(np.int64)


def canonical_bytes(table: Rows, columns: Sequence[str]) -> pa.Array:
    """Return the input of the hash: the canonical bytes of each row, as a large_binary array."""
    pieces: list[pa.Array] = []
    blocks: list[Bytes] = []

    def flush() -> None:
        if blocks:
            pieces.append(_rows(blocks, None))
            blocks.clear()

    for name in columns:
        array = table.column(name)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks or [pa.array([], array.type)])
        text = _text(array)
        block = _tagged(_fixed(name, array) if text is None else _lengths(text))
        if array.null_count == 0:
            # Adjacent fixed-width columns without nulls become one block.
            blocks.append(block)
        else:
            flush()
            pieces.append(_rows([block], array.is_valid().to_numpy(zero_copy_only=False)))
        if text is not None:
            flush()
            pieces.append(text.fill_null(b""))
    flush()
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _text(array: pa.Array) -> pa.Array | None:
    """Return strings and binary as large_binary; None for other types."""
    type_ = array.type
    if pa.types.is_string(type_) or pa.types.is_string_view(type_):
        return array.cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_large_string(type_) or pa.types.is_binary(type_) or pa.types.is_binary_view(type_):
        return array.cast(pa.large_binary())
    return array if pa.types.is_large_binary(type_) else None


def _lengths(text: pa.Array) -> Bytes:
    lengths = pc.binary_length(text).fill_null(0)
    return _as_bytes(values_of(lengths).astype("<u4"))


def _fixed(name: str, array: pa.Array) -> Bytes:
    """Return the value bytes of a fixed-width column, one row each. Bytes under a null are arbitrary."""
    type_ = array.type
    if pa.types.is_boolean(type_):
        return _as_bytes(values_of(array.cast(pa.uint8())).astype("<u8"))
    if pa.types.is_integer(type_):
        return _as_bytes(values_of(array).astype("<i8" if pa.types.is_signed_integer(type_) else "<u8"))
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return _as_bytes(values_of(canonical_floats(array)).astype("<f8"))
    if pa.types.is_date32(type_) or pa.types.is_timestamp(type_) or pa.types.is_time(type_):
        return _as_bytes(values_of(array.view(count_type(type_))).astype("<i8"))
    if pa.types.is_decimal128(type_):
        return _decimals(array)
    raise BadInput(f"column {name!r} of type {type_} can't be hashed")


def _decimals(array: pa.Array) -> Bytes:
    limbs = np.frombuffer(array.buffers()[1], "<i8").reshape(-1, 2)[array.offset : array.offset + len(array)]
    low, high = limbs[:, 0].copy(), limbs[:, 1].copy()
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        low[null] = high[null] = 0
    scale = np.full(len(array), array.type.scale, np.uint8)
    wide = np.flatnonzero(high != low >> 63)
    narrow = np.ones(len(array), np.bool_)
    narrow[wide] = False
    for _ in range(array.type.scale):
        quotient = low // 10
        shorter = narrow & (scale > 0) & (quotient * 10 == low)
        if not shorter.any():
            break
        low = np.where(shorter, quotient, low)
        scale -= shorter
    for row in wide.tolist():
        value, digits = (int(high[row]) << 64) | (int(low[row]) & (2**64 - 1)), int(scale[row])
        while digits and value % 10 == 0:
            value, digits = value // 10, digits - 1
        scale[row] = digits
        high[row] = value >> 64
        low[row] = (value & (2**64 - 1)) - (2**64 if value & 2**63 else 0)
    unscaled = np.stack([low, high], axis=1).astype("<i8")
    return np.concatenate([scale[:, None], _as_bytes(unscaled)], axis=1)


def _as_bytes(values: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1 if len(values) else 0)


def _tagged(values: Bytes) -> Bytes:
    return np.concatenate([np.ones((len(values), 1), np.uint8), values], axis=1)


def _rows(blocks: Iterable[Bytes], valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return one binary value per row, from blocks of equal width. An invalid row has only a tag 0."""
    block = np.concatenate(list(blocks), axis=1)
    rows, width = block.shape
    if valid is None:
        flat, lengths = block.reshape(-1), np.full(rows, width)
    else:
        block[:, 0] = valid
        keep = np.repeat(valid[:, None], width, axis=1)
        keep[:, 0] = True
        flat, lengths = block[keep], np.where(valid, width, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(flat))]
    )
