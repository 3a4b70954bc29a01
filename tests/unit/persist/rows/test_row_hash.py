"""The row hash is frozen: golden values, and its definition byte by byte."""

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast import polars_forks
from holdfast.errors import BadInput
from holdfast.persist.rows.row_hash import canonical_bytes, row_hash, shard_of
from holdfast.persist.rows.schema import Schema
from unit.persist.rows.strategies import NESTED, batches, schemas


def _value(column_type: str, scalar: pa.Scalar) -> bytes:
    if not scalar.is_valid:
        return b"\x00"
    if column_type.startswith(("timestamp", "time(")) or column_type == "date32":
        return b"\x01" + struct.pack("<q", scalar.value)
    value: Any = scalar.as_py()
    if column_type.startswith("decimal"):
        sign, digits, exponent = value.as_tuple()
        unscaled, scale = int("".join(map(str, digits))) * (-1 if sign else 1), -exponent
        while scale and unscaled % 10 == 0:
            unscaled, scale = unscaled // 10, scale - 1
        return b"\x01" + bytes([scale]) + unscaled.to_bytes(16, "little", signed=True)
    if column_type in ("string", "binary") or column_type in NESTED:
        data = value.encode() if isinstance(value, str) else value
        return b"\x01" + struct.pack("<I", len(data)) + data
    if column_type.startswith("float"):
        return b"\x01" + struct.pack("<d", value)
    return b"\x01" + struct.pack("<Q" if column_type.startswith("uint") else "<q", value)


@given(st.data())
def test_each_hash_is_xxh3_of_the_canonical_bytes(data: st.DataObject) -> None:
    schema: Schema = data.draw(schemas())
    batch = data.draw(batches(schema))
    columns = [column for column in schema.columns if data.draw(st.booleans())] or [schema.columns[0]]
    expected = [
        xxhash.xxh3_64_intdigest(b"".join(_value(c.type, batch.column(c.name)[row]) for c in columns))
        for row in range(batch.num_rows)
    ]
    names = [column.name for column in columns]
    table = pa.Table.from_batches([batch[:5], batch[5:]])
    for small, lost in ((0, False), (0, True), (1000, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.persist.rows.row_hash.SMALL_ROWS", small)
            patch.setattr(polars_forks, "_lost", lost)
            assert row_hash(batch, names).tolist() == expected
            assert row_hash(table, names).tolist() == expected
            assert row_hash(batch[7:], names).tolist() == expected[7:]


def test_the_hash_of_many_values_of_eight_bytes_is_that_of_their_bytes() -> None:
    values = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 20_000, endpoint=True)
    values[:5] = [0, -1, 1, -(2**63), 2**63 - 1]
    table = pa.table({"i": values, "f": values * 0.37, "at": pa.array(values, pa.timestamp("us"))})
    for name in table.column_names:
        expected = [xxhash.xxh3_64_intdigest(row) for row in canonical_bytes(table, [name]).to_pylist()]
        assert row_hash(table, [name]).tolist() == expected
        assert row_hash(table[9:17_000], [name]).tolist() == expected[9:17_000]


@pytest.mark.parametrize(("small", "lost"), [(0, False), (0, True), (1000, False)])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 5000])
def test_every_length_class_of_xxh3_agrees(
    length: int, small: int, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polars_forks, "_lost", lost)
    monkeypatch.setattr("holdfast.persist.rows.row_hash.SMALL_ROWS", small)
    value = bytes(i * 37 % 251 for i in range(length))
    expected = xxhash.xxh3_64_intdigest(b"\x01" + struct.pack("<I", length) + value)
    assert row_hash(pa.table({"b": [value] * 3}), ["b"]).tolist() == [expected] * 3


@pytest.mark.parametrize(
    ("array", "golden"),
    [
        (pa.array([7], pa.int64()), 0xA37A4D57E7457851),
        (pa.array([-1], pa.int64()), 0x53A5F4BC2FC0168C),
        (pa.array([2**64 - 1], pa.uint64()), 0x53A5F4BC2FC0168C),
        (pa.array([True]), 0xA048B5CB82162577),
        (pa.array([1.5]), 0x2B68E3D95BC408B8),
        (pa.array([0.0]), 0x313C2DD2EC996E80),
        (pa.array([-0.0]), 0x313C2DD2EC996E80),
        (pa.array([float("nan")]), 0x6A33929CE40A04D7),
        (pa.array([""]), 0xD1DD927ED529F768),
        (pa.array(["flights"]), 0x454F5408B2AC38A6),
        (pa.array([None], pa.int64()), 0xC44BDFF4074EECDB),
        (pa.array([Decimal("1.50")]), 0x89151ED97EF097A9),
        (pa.array([Decimal("-12345678901234567890123.400")]), 0xEF7F54A054634B34),
        (pa.array([0], pa.timestamp("us", tz="UTC")), 0x313C2DD2EC996E80),
    ],
)
def test_golden_hashes_never_change(array: pa.Array, golden: int) -> None:
    assert row_hash(pa.table({"x": array}), ["x"]).tolist() == [golden]


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.array([7, -3], pa.int8()), pa.array([7, -3], pa.int64())),
        (pa.array([7, 200], pa.uint8()), pa.array([7, 200], pa.uint64())),
        (pa.array([7], pa.uint8()), pa.array([7], pa.int32())),
        (pa.array([1.5], pa.float32()), pa.array([1.5])),
        (pa.array([Decimal("1.5")], pa.decimal128(3, 1)), pa.array([Decimal("1.5")], pa.decimal128(30, 9))),
        (pa.array(["a"]), pa.array(["a"], pa.large_string())),
        (pa.array(["a"]), pa.array([b"a"], pa.binary_view())),
    ],
)
def test_widening_a_column_moves_no_row(narrow: pa.Array, wide: pa.Array) -> None:
    assert (
        row_hash(pa.table({"x": narrow}), ["x"]).tolist() == row_hash(pa.table({"x": wide}), ["x"]).tolist()
    )


def test_shards_are_the_hash_modulo_their_number() -> None:
    table = pa.table({"id": np.arange(10_000), "name": np.arange(10_000).astype(str)})
    shards = shard_of(table, ["id"], 7)
    assert shards.tolist() == [value % 7 for value in row_hash(table, ["id"]).tolist()]
    assert np.bincount(shards, minlength=7).min() > 1200
    assert shard_of(table, ["id"], 1).tolist() == [0] * 10_000
    assert shard_of(table[:0], ["id", "name"], 3).tolist() == []


def test_what_has_no_hash_is_refused() -> None:
    table = pa.table({"x": [[1]], "y": [1]})
    with pytest.raises(BadInput, match="column 'x' of type list"):
        row_hash(table, ["x"])
    with pytest.raises(BadInput, match="at least one column"):
        row_hash(table, [])
    with pytest.raises(BadInput, match="at least one shard"):
        shard_of(table, ["y"], 0)
