"""A part of a part is verified without the rest: by its footer, which has the checksums of its blocks."""

import random

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import CorruptBlob
from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts import runs, verified
from holdfast.persist.parts.ahead import READ_AHEAD
from holdfast.persist.parts.verified import KnownPart, known_part, open_known
from holdfast.persist.rows.blocks import (
    BLOCK_BYTES,
    KEY_BLOCKS,
    all_blocks,
    checksums,
    footer_of,
    no_sums,
    put_sums,
)
from holdfast.persist.rows.order import KeyRange
from holdfast.persist.rows.part import KEYED_GROUP_ROWS, encode_parquet
from holdfast.persist.state.state import Part
from unit.persist.open_stores import SCHEMA, SHARD, Stores

GROUPS = 6
ROWS = GROUPS * KEYED_GROUP_ROWS


@pytest.fixture
def stores() -> Stores:
    """A shard with one part of some row groups, with values that can't be compressed."""
    stores = Stores()
    writer = stores.open(inline_max_bytes=0).writer(SHARD, SCHEMA, purpose="test")
    chosen = random.Random(1)
    names = [f"{chosen.getrandbits(64):x}" for _ in range(ROWS)]
    writer.compare_and_append(pa.table({"k": range(ROWS), "v": names}), 0, 1)
    return stores


def the_part(client: PersistClient) -> Part:
    (part,) = (part for batch in client.session.machine(SHARD).look().batches for part in batch.parts)
    return part


def known(client: PersistClient) -> KnownPart:
    return known_part(client.session.machine(SHARD), the_part(client))


def damage(stores: Stores, client: PersistClient, at: int) -> None:
    key = str(the_part(client).blob_key)
    data = bytearray(stores.blob.get(key) or b"")
    data[at] ^= 1
    stores.blob.put(key, bytes(data))


def range_of_group(number: int) -> KeyRange:
    start = number * KEYED_GROUP_ROWS
    return KeyRange.between(SCHEMA, start, start + KEYED_GROUP_ROWS)


def test_the_footer_has_the_checksum_of_each_block(stores: Stores) -> None:
    client = stores.open()
    part = the_part(client)
    data = stores.blob.get(str(part.blob_key)) or b""
    assert (part.footer_bytes, part.footer_crc32c) == footer_of(data)
    assert google_crc32c.value(data[-part.footer_bytes :]) == part.footer_crc32c
    assert known(client).blocks == checksums(data)
    assert len(known(client).blocks) > 20


@pytest.mark.parametrize("before", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("size", [9, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_blocks_may_end_anywhere(before: int, size: int) -> None:
    data = random.Random(before).randbytes(before + size)
    stored = bytearray(data[:before] + KEY_BLOCKS + no_sums(before) + b"end")
    put_sums(memoryview(stored), before)
    assert stored.startswith(data[:before] + KEY_BLOCKS)
    assert stored.endswith(b"end")
    sums = bytes(stored[before + len(KEY_BLOCKS) : -3])
    schema = pa.schema([("a", pa.int8())], metadata={KEY_BLOCKS: sums})
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    assert all_blocks(data[before:], metadata, before, "k") == checksums(data)
    with pytest.raises(CorruptBlob, match="checksums of"):
        all_blocks(data[before:], metadata, before + BLOCK_BYTES, "k")


def test_only_the_footer_is_read_before_the_row_groups(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[tuple[int, int]] = []
    open_part_file = verified.open_part_file

    def noted(machine: object, part: Part, wanted: object = None) -> pa.NativeFile:
        assert isinstance(wanted, list)
        spans.extend(wanted)
        return open_part_file(machine, part, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(verified, "open_part_file", noted)
    client = stores.open()
    part = the_part(client)
    reader = client.reader(SHARD, purpose="test")
    found = pa.Table.from_batches(reader.snapshot(0).within(range_of_group(2)), SCHEMA.arrow_diff)
    assert found.num_rows == KEYED_GROUP_ROWS
    assert spans[0] == (part.size_bytes - part.footer_bytes, part.size_bytes)
    assert sum(end - start for start, end in spans[1:]) < part.size_bytes / 2
    assert spans[1][0] > 0


def test_threads_that_decode_share_what_was_fetched(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    open_part_file = verified.open_part_file

    def noted(machine: object, part: Part, wanted: object = None) -> pa.NativeFile:
        opened.append(wanted)
        return open_part_file(machine, part, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(verified, "open_part_file", noted)
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", KEYED_GROUP_ROWS)
    client = stores.open()
    assert GROUPS > READ_AHEAD
    (rows,) = runs.open_runs(
        client.session.machine(SHARD), SCHEMA, [[the_part(client)]], runs.At(0), columns=["v"]
    )
    assert sum(batch.num_rows for batch in rows) == ROWS
    # The footer, and the row groups.
    assert len(opened) == 2


def test_a_column_may_have_the_name_of_the_checksums() -> None:
    schema = Schema.of({"k": "int64"}, {"holdfast.blocks": "string", "AAAA": "string"})
    columns = [[1], ["holdfast.blocks"], [no_sums(5).decode()], pa.array([5], pa.uint64()), [1]]
    data = encode_parquet(schema, 1, pa.table(columns, schema=schema.arrow_updates))
    before = len(data) - footer_of(data).size
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert all_blocks(data[before:], metadata, before, "k") == checksums(data)


def test_damage_is_found_where_it_is_read(stores: Stores) -> None:
    client = stores.open()
    machine, there = client.session.machine(SHARD), known(client)
    damage(stores, client, the_part(client).size_bytes // 2)
    for group in (0, GROUPS - 1):
        with open_known(machine, there, [group]) as file, pq.ParquetFile(file) as parquet:
            assert parquet.read_row_group(group).num_rows == KEYED_GROUP_ROWS
    reader = client.reader(SHARD, purpose="test")

    def rows_of(*groups: int) -> int:
        read = (reader.snapshot(0).within(range_of_group(group)) for group in groups)
        return sum(batch.num_rows for batches in read for batch in batches)

    assert rows_of(0, GROUPS - 1) == 2 * KEYED_GROUP_ROWS
    with pytest.raises(CorruptBlob, match=r"in memory blob.* the verified bytes"):
        rows_of(*range(GROUPS))
    with pytest.raises(CorruptBlob, match="crc32c"):
        reader.snapshot(0).to_table()


@pytest.mark.parametrize("before_end", [1, 5, 9, 200])
def test_a_damaged_footer_is_found(stores: Stores, before_end: int) -> None:
    client = stores.open()
    damage(stores, client, the_part(client).size_bytes - before_end)
    with pytest.raises(CorruptBlob, match="footer with crc32c"):
        known(client)


@pytest.mark.parametrize("size", [-1, 1])
def test_an_object_of_another_size_is_found(stores: Stores, size: int) -> None:
    client = stores.open()
    key = str(the_part(client).blob_key)
    data = stores.blob.get(key) or b""
    stores.blob.put(key, data[:size] if size < 0 else data + b"x")
    with pytest.raises(CorruptBlob, match=f"expected {len(data)} bytes"):
        known(client)
