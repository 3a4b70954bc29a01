"""A read of the rows that a filter chooses has the rows of a full read, also the second time."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import DiffOverflow
from holdfast.persist import PersistClient, Schema
from holdfast.persist.parts import picked as picked_reads
from holdfast.persist.parts import snapshot as snapshots
from holdfast.persist.parts import verified
from holdfast.persist.parts.picked import picked
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.key_filter import KeyFilter, among
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows
from unit.persist.rows.strategies import batches, contents, schemas

SMALL: dict[str, Any] = {"part_target_bytes": 600, "compaction_fanin": 2}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each read that asked, so far, was one of few rows."""
    found: list[bool] = []

    def noted(*given: object, **named: object) -> object:
        result = picked(*given, **named)  # type: ignore[arg-type]
        found.append(result is not None)
        return result

    monkeypatch.setattr(snapshots, "picked", noted)
    return found


def appended(client: PersistClient, schema: Schema, pieces: Sequence[pa.RecordBatch]) -> None:
    """Append each piece at its own time."""
    with client.writer(SHARD, schema, purpose="t") as writer:
        for time, piece in enumerate(pieces):
            times = pa.array([time] * piece.num_rows, pa.uint64())
            writer.compare_and_append(piece.set_column(len(schema.names), "_time", times), time, time + 1)


@pytest.mark.parametrize("inline", [0, 900])
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_it_has_the_rows_of_a_full_read(
    inline: int, kept: int, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_GROUP_BYTES", kept)

    @settings(max_examples=25)
    @given(data=st.data(), others=st.integers(0, 3), sums=st.sampled_from([0, 512]))
    def check(data: st.DataObject, others: int, sums: int) -> None:
        schema = data.draw(schemas())
        assume(schema.key)
        pieces = data.draw(st.lists(batches(schema), min_size=1, max_size=5))
        client = Stores().open(inline_max_bytes=inline, **SMALL)
        appended(client, schema, pieces)
        both = pa.Table.from_batches(pieces)
        keys = both.select(schema.key_names).slice(others, 3)
        assume(keys.num_rows)
        reader = client.reader(SHARD, purpose="t")
        for as_of in (len(pieces) - 1, 0, len(pieces) - 1):
            whole = reader.snapshot(as_of).to_table()
            expected = contents(schema, whole.filter(pa.array(among(whole.select(schema.key_names), keys))))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(picked_reads, "SMALL_ROWS", sums)
                found = reader.snapshot(as_of).filtered(KeyFilter(schema, keys)).to_table()
            assert found.schema.equals(schema.arrow_diff)
            assert found.num_rows == len(expected)
            assert contents(schema, found) == expected
        client.close()

    check()
    assert any(reads)


def test_keys_are_found_in_row_groups_in_order_and_in_any_order() -> None:
    schema = Schema.of({"k": "float64"}, {"v": "string"})
    client = Stores().open(inline_max_bytes=0)
    values = [float("nan"), 1.5, -0.0, 1.5, float("inf"), -2.0]
    given = [{"k": value, "v": str(index)} for index, value in enumerate(values)]
    appended(client, schema, [prepare_updates(schema, given, default_time=0)])
    for wanted, expected in (([1.5], "13"), ([float("nan"), 0.0], "02"), ([7.0], ""), ([-2.0, 1.5], "135")):
        found = (
            client.reader(SHARD, purpose="t")
            .snapshot(0)
            .filtered(KeyFilter(schema, pa.table({"k": wanted})))
            .to_table()
        )
        assert sorted(found["v"].to_pylist()) == list(expected)


def test_a_row_group_that_was_read_is_not_read_again() -> None:
    stores = Stores()
    client = stores.open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(40_000)), 0, 1)

    def looked_up(key: int) -> list[dict[str, object]]:
        snapshot = client.reader(SHARD, purpose="t").snapshot(0)
        found = snapshot.filtered(KeyFilter(SCHEMA, pa.table({"k": [key]}))).to_table()
        return list(found.to_pylist())

    assert looked_up(3) == [{"k": 3, "v": "x", "_diff": 1}]
    (key,) = stores.parts()
    stores.blob.put(key, bytes(len(stores.blob.get(key) or b"")))
    assert looked_up(4) == [{"k": 4, "v": "x", "_diff": 1}]


def test_inline_rows_are_read_again_after_every_write() -> None:
    client = Stores().open()
    writer = client.writer(SHARD, SCHEMA, purpose="t")
    writer.compare_and_append(None, 0, 1)
    reader = client.reader(SHARD, purpose="t")
    for time in range(1, 20):
        piece = prepare_updates(SCHEMA, [{"k": 1, "v": str(time)}, {"k": 2, "v": "x"}], default_time=time)
        writer.compare_and_append(piece, time, time + 1)
        for as_of in (time, (time + 1) // 2, time):
            snapshot = reader.snapshot(as_of).filtered(KeyFilter(SCHEMA, pa.table({"k": [1]})))
            assert sorted(snapshot.to_table()["v"].to_pylist()) == sorted(map(str, range(1, as_of + 1)))
            whole = reader.snapshot(as_of).to_table()
            assert {"k": 2, "v": "x", "_diff": as_of} in whole.to_pylist()


def test_a_sum_beyond_int64_names_the_shard_and_the_row() -> None:
    client = Stores().open(inline_max_bytes=0)
    most = {"k": 1, "v": "a", "_diff": 2**63 - 1}
    appended(client, SCHEMA, [prepare_updates(SCHEMA, [most], default_time=0)] * 2)
    snapshot = client.reader(SHARD, purpose="t").snapshot(1)
    with pytest.raises(DiffOverflow, match=rf"k=1, v=.* of shard {SHARD}"):
        snapshot.filtered(KeyFilter(SCHEMA, pa.table({"k": [1]}))).to_table()


def test_many_keys_are_merged_and_few_ones_renew_the_lease_between_row_groups(
    reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Stores().open(inline_max_bytes=0)
    client.writer(SHARD, SCHEMA, purpose="t").compare_and_append(rows(*range(70_000)), 0, 1)
    keys = KeyFilter(SCHEMA, pa.table({"k": [1, 40_000, 69_999]}))
    snapshot = client.reader(SHARD, purpose="t").snapshot(0)
    beats: list[bool] = []
    monkeypatch.setattr(snapshot._pins, "beat", lambda: beats.append(True))
    assert sorted(snapshot.filtered(keys).to_table()["k"].to_pylist()) == [1, 40_000, 69_999]
    assert reads == [True]
    assert len(beats) > 2
    monkeypatch.setattr(picked_reads, "_FEW_ROWS", 2)
    assert sorted(snapshot.filtered(keys).to_table()["k"].to_pylist()) == [1, 40_000, 69_999]
    assert reads == [True, False]
