"""A part is read as it was written, or refused. It is never read in part or as something else."""

import contextlib
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptBlob, VersionTooNew
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.part import (
    checksum,
    decode_inline,
    decode_parquet,
    encode_inline,
    encode_parquet,
    verify,
)
from holdfast.persist.rows.schema import Schema
from unit.persist.rows.strategies import batches, comparable, schemas

POINTS = Schema.of(key={"id": "int64"}, value={"x": "float64?", "tag": "string"})


def points(count: int) -> pa.RecordBatch:
    rows = [{"id": i, "x": None if i % 3 == 0 else i / 7, "tag": f"t{i % 5}"} for i in range(count)]
    return sort_updates(POINTS, prepare_updates(POINTS, rows, default_time=4))


@given(st.data())
def test_both_forms_give_back_the_same_rows(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    batch = sort_updates(schema, data.draw(batches(schema)))
    inline = encode_inline(batch)
    parquet = encode_parquet(schema, 3, batch, row_group_rows=7)
    for table in (decode_inline(inline, schema, key="k"), decode_parquet(parquet, schema, key="k")):
        assert table.schema.equals(schema.arrow_updates)
        assert comparable(schema, table) == comparable(schema, batch)
        for name in ("_time", "_diff"):
            assert table.column(name).to_pylist() == batch.column(name).to_pylist()


def test_some_columns_of_a_parquet_part_can_be_read() -> None:
    data = encode_parquet(POINTS, 0, points(10))
    table = decode_parquet(data, POINTS, ["_time", "id"], key="k")
    assert table.schema.names == ["_time", "id"]
    assert table.column("id").to_pylist() == list(range(10))


def test_the_footer_says_what_the_part_is() -> None:
    rows = [{"id": i, "x": math.nan if i in (2, 9) else 1.0, "tag": ""} for i in range(10)]
    batch = prepare_updates(POINTS, rows, default_time=0)
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(POINTS, 12, batch, row_group_rows=4)))
    footer = metadata.metadata
    assert footer[b"holdfast.format_version"] == b"1"
    assert footer[b"holdfast.schema_id"] == b"12"
    assert json.loads(footer[b"holdfast.schema"])["key"] == [
        {"name": "id", "type": "int64", "nullable": False}
    ]
    assert json.loads(footer[b"holdfast.has_nan"]) == {"x": [0, 2]}
    assert [column.column_index for column in metadata.row_group(0).sorting_columns] == [0, 1, 2, 3]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.row_group(1).column(0).statistics.min == 4


def test_a_null_is_not_a_nan_in_the_footer() -> None:
    nan_under_null = pa.array([math.nan, 1.0], mask=pa.array([True, False]).to_numpy(zero_copy_only=False))
    batch = prepare_updates(
        POINTS, pa.table({"id": [1, 2], "x": nan_under_null, "tag": ["", ""]}), default_time=0
    )
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(POINTS, 0, batch)))
    assert json.loads(metadata.metadata[b"holdfast.has_nan"]) == {}


@pytest.mark.parametrize("form", ["inline", "parquet"])
@given(position=st.integers(0, 1_000_000), flip=st.integers(1, 255))
@settings(max_examples=200)
def test_a_changed_part_fails_its_checksum_and_never_decodes_to_another_schema(
    form: str, position: int, flip: int
) -> None:
    batch = points(300)
    data = encode_inline(batch) if form == "inline" else encode_parquet(POINTS, 0, batch, row_group_rows=100)
    changed = bytearray(data)
    changed[position % len(data)] ^= flip
    with pytest.raises(CorruptBlob):
        verify(bytes(changed), size=len(data), crc32c=checksum(data), key="k")
    with contextlib.suppress(CorruptBlob, VersionTooNew):
        decode = decode_inline if form == "inline" else decode_parquet
        assert decode(bytes(changed), POINTS, key="k").schema.equals(POINTS.arrow_updates)


def test_a_changed_page_is_refused_without_the_checksum_of_the_whole() -> None:
    data = encode_parquet(POINTS, 0, points(300))
    column = pq.read_metadata(pa.BufferReader(data)).row_group(0).column(0)
    changed = bytearray(data)
    start = column.dictionary_page_offset or column.data_page_offset
    # The last byte of the page: its header, which no checksum of its own covers, comes first.
    changed[start + column.total_compressed_size - 1] ^= 1
    with pytest.raises(CorruptBlob):
        decode_parquet(bytes(changed), POINTS, key="k")


def test_every_truncation_is_refused() -> None:
    inline, parquet = encode_inline(points(20)), encode_parquet(POINTS, 0, points(20))
    for size in range(len(inline)):
        with pytest.raises(CorruptBlob):
            decode_inline(inline[:size], POINTS, key="k")
    for size in range(len(parquet)):
        with pytest.raises(CorruptBlob):
            decode_parquet(parquet[:size], POINTS, key="k")


def test_a_stream_of_none_or_more_than_one_batch_is_refused() -> None:
    batch = points(2)
    for count in (0, 2):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            for _ in range(count):
                writer.write_batch(batch)
        with pytest.raises(CorruptBlob):
            decode_inline(bytes(sink.getvalue()), POINTS, key="k")
    with pytest.raises(CorruptBlob, match="more data"):
        decode_inline(encode_inline(batch) * 2, POINTS, key="k")


def test_a_stream_that_begins_in_another_way_is_read_too() -> None:
    batch = points(2)
    sink = pa.BufferOutputStream()
    older = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, batch.schema, options=older) as writer:
        writer.write_batch(batch)
    data = bytes(sink.getvalue())
    assert not data.startswith(POINTS.stream_begin)
    assert decode_inline(data, POINTS, key="k").equals(pa.Table.from_batches([batch]))


def test_parts_of_another_schema_are_refused() -> None:
    other = Schema.of(key={"id": "int64"}, value={"x": "float64", "tag": "string"})
    with pytest.raises(CorruptBlob, match="x float64"):
        decode_inline(encode_inline(points(2)), other, key="k")
    with pytest.raises(CorruptBlob, match="x float64"):
        decode_parquet(encode_parquet(POINTS, 0, points(2)), other, key="k")


def test_foreign_parquet_is_refused_and_a_newer_format_named() -> None:
    table = pa.Table.from_batches([points(3)])

    def written(footer: dict[str, str]) -> bytes:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata(footer)
        return bytes(sink.getvalue())

    with pytest.raises(CorruptBlob, match=r"without holdfast\.format_version"):
        decode_parquet(written({}), POINTS, key="k")
    with pytest.raises(VersionTooNew, match="k has part format 2"):
        decode_parquet(written({"holdfast.format_version": "2"}), POINTS, key="k")
    with pytest.raises(CorruptBlob, match="no schema"):
        decode_parquet(written({"holdfast.format_version": "1"}), POINTS, key="k")


def test_another_size_or_checksum_is_named() -> None:
    verify(b"abc", size=3, crc32c=0x364B3FB7, key="k")
    with pytest.raises(CorruptBlob, match="k is corrupt: expected 4 bytes, found 3 bytes"):
        verify(b"abc", size=4, crc32c=0, key="k")
    with pytest.raises(CorruptBlob, match="expected crc32c 00000001, found 364b3fb7"):
        verify(b"abc", size=3, crc32c=1, key="k")
