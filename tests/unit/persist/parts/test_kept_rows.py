"""The decoded rows of small parts are kept after they were verified, within a bound."""

import gc
import os
import signal
from array import array
from types import ModuleType

import pyarrow as pa
import pytest

from holdfast.errors import CorruptBlob
from holdfast.persist import PersistClient
from holdfast.persist.parts import part_store, picked, verified
from holdfast.persist.rows.row_filter import RowFilter
from holdfast.persist.state.state import Part
from holdfast.tables.filters import filter_of
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows

CHOSEN: RowFilter = filter_of([("k", "=", 3)], SCHEMA)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> verified._KeptRows:
    found = verified._KeptRows()
    monkeypatch.setattr(verified, "_rows", found)
    return found


def looked_up(client: PersistClient, as_of: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (
        client.reader(SHARD, purpose="t").snapshot(as_of).filtered(CHOSEN).to_table().to_pylist()
    )
    return found


def test_a_small_part_is_not_read_again_until_it_is_forgotten() -> None:
    stores = Stores()
    client = stores.open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(100)), 0, 1)
    expected = [{"k": 3, "v": "x", "_diff": 1}]
    assert looked_up(client, 0) == expected
    (key,) = stores.parts()
    stores.blob.put(key, bytes(len(stores.blob.get(key) or b"")))
    assert looked_up(client, 0) == expected
    machine = client.session.machine(SHARD)
    (part,) = (part for batch in machine.state.batches for part in batch.parts)
    assert verified.forget(machine, part)
    with pytest.raises(CorruptBlob):
        looked_up(client, 0)


def test_the_bytes_of_all_kept_rows_have_a_bound(
    kept: verified._KeptRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 3 * (verified._LEAST_BYTES + 2000)
    monkeypatch.setattr(verified, "_ALL_ROWS_BYTES", most)
    client = Stores().open(inline_max_bytes=0, compaction_fanin=100)
    writer = client.writer(SHARD, SCHEMA, purpose="t")
    for time in range(6):
        writer.compare_and_append(rows(*range(20), value=str(time)), time, time + 1)
        assert len(looked_up(client, time)) == time + 1
    assert 0 < kept._bytes <= most
    assert 0 < len(kept._found) < 6


def test_rows_that_a_dictionary_made_small_are_not_kept(kept: verified._KeptRows) -> None:
    client = Stores().open(inline_max_bytes=0)
    wide = rows(*range(1000), value="x" * (verified._GROUP_BYTES // 500))
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(wide, 0, 1)
    for _ in range(2):
        assert len(looked_up(client, 0)) == 1
    assert list(kept._found.values()) == [None]


def test_kept_rows_end_with_their_client(kept: verified._KeptRows) -> None:
    client = Stores().open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(100)), 0, 1)
    assert len(looked_up(client, 0)) == 1
    assert kept._bytes > 0
    client.close()
    del client
    gc.collect()
    kept._drop_ended()
    assert (kept._bytes, len(kept._found), kept._groups) == (0, 0, {})


def test_the_bytes_of_kept_footers_have_a_bound_and_a_footer_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As an earlier build writes parts.
    monkeypatch.setattr(part_store, "footer_of", lambda data: (0, 0))
    stores = Stores()
    client = stores.open(inline_max_bytes=0, compaction_fanin=100)
    writer = client.writer(SHARD, SCHEMA, purpose="t")
    for time in range(6):
        writer.compare_and_append(rows(*range(20), value=str(time)), time, time + 1)
    read_whole: list[Part] = []
    blocks_of = verified._blocks_of

    def noted(part: Part, file: pa.NativeFile) -> "array[int]":
        read_whole.append(part)
        return blocks_of(part, file)

    monkeypatch.setattr(verified, "_blocks_of", noted)
    machine = client.session.machine(SHARD)
    parts = [part for batch in machine.state.batches for part in batch.parts]
    one = verified.known_part(machine, parts[0]).footer_bytes
    monkeypatch.setattr(verified, "_FOOTER_BYTES", 2 * one)
    for _ in range(2):
        assert [verified.known_part(machine, part).part for part in parts] == parts
        assert len(verified._kept[machine]._known) == 2
    assert read_whole == parts
    # The checksums of its blocks still verify a part.
    key = str(parts[0].blob_key)
    data = bytearray(stores.blob.get(key) or b"")
    data[-9] ^= 1
    stores.blob.put(key, bytes(data))
    with pytest.raises(CorruptBlob):
        verified.known_part(machine, parts[0])
    assert verified.forget(machine, parts[0])
    with pytest.raises(CorruptBlob, match="crc32c"):
        verified.known_part(machine, parts[0])
    assert read_whole == [*parts, parts[0], parts[0]]


def test_a_forked_child_has_no_rows_even_of_a_change_that_was_not_complete(
    kept: verified._KeptRows,
) -> None:
    client = Stores().open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(100)), 0, 1)
    assert len(looked_up(client, 0)) == 1
    machine = client.session.machine(SHARD)
    (part,) = (part for batch in machine.state.batches for part in batch.parts)
    known = verified.known_part(machine, part)
    before = kept._bytes
    # Another thread has begun to keep rows.
    kept._bytes += 100
    child = os.fork()
    if not child:
        is_there, _ = kept.get(known)
        os._exit(0 if (is_there, kept._bytes, len(kept._found)) == (False, 0, 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    kept._bytes -= 100
    assert kept._bytes == before > 0


@pytest.mark.parametrize("module", [verified, picked])
def test_a_forked_child_reads_though_a_thread_of_its_parent_held_the_lock(module: ModuleType) -> None:
    client = Stores().open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(100)), 0, 1)
    assert len(looked_up(client, 0)) == 1
    with module._lock:
        child = os.fork()
        if not child:
            signal.alarm(10)
            with module._lock:
                os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
