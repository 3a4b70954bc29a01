"""`verify` finds every kind of damage and names its key. It finds nothing in a sound location."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BadInput
from holdfast.persist import PersistClient, Schema
from holdfast.persist.admin.verify import Verified, verify
from holdfast.persist.ids import rollup_key
from holdfast.persist.rows.part import checksum, decode_parquet, encode_parquet
from holdfast.persist.state.codec import encode_diff, encode_state
from holdfast.persist.state.state import Part, PutEntry, Rollup, ShardState, StateDiff
from holdfast.persist.stores import Entry
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, updates

BLOBS: dict[str, Any] = {
    "inline_max_bytes": 0,
    "compaction_fanin": 4,
    "rollup_every": 8,
    "part_target_bytes": 200,
}


def write(client: PersistClient, count: int) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(count):
            found = [(key, "x", time, 1) for key in range(5)]
            writer.compare_and_append(updates(found), time, time + 1)


def verified(stores: Stores, shard: str = SHARD) -> Verified:
    return verify(stores.open(mode="read"), shard)


@pytest.fixture
def filled(stores: Stores) -> Stores:
    write(stores.open(maintenance="inline", **BLOBS), 22)
    return stores


def live(stores: Stores) -> list[Part]:
    """The parts of the longest run."""
    return [*max((run for batch in stores.state().batches for run in batch.runs), key=len)]


@pytest.mark.parametrize("settings", [{}, BLOBS, {"maintenance": "off"}, {**BLOBS, "maintenance": "off"}])
def test_nothing_is_found_where_all_is_well(stores: Stores, settings: dict[str, Any]) -> None:
    client = stores.open(**{"maintenance": "inline", **settings})
    write(client, 22)
    before = stores.stored()
    found = verified(stores)
    assert found.findings == ()
    assert found.rows == sum(batch.rows for batch in stores.state().batches)
    assert found.versions > 0
    assert stores.stored() == before
    client.finalize(SHARD)
    assert verified(stores).findings == ()


def test_a_shard_with_every_type_and_nan_is_well(stores: Stores) -> None:
    schema = Schema.of({"f": "float64?", "s": "string?"}, {"b": "bool?", "d": "date32?"})
    client = stores.open(**BLOBS)
    with client.writer(SHARD, schema, purpose="test") as writer:
        for time in range(6):
            table = pa.table(
                {
                    "f": pa.array([None, float("nan"), -0.0, 1.5], pa.float64()),
                    "s": pa.array(["b", None, "a", ""]),
                    "b": pa.array([True, None, False, True]),
                    "d": pa.array([None, 1, 2, -5], pa.int32()).cast(pa.date32()),
                }
            )
            writer.compare_and_append(table, time, time + 1)
    assert verified(stores).findings == ()
    client.maintain(SHARD)
    assert verified(stores).findings == ()


def test_a_shard_that_never_was_is_told(stores: Stores) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        verified(stores, OTHER)


def test_lost_and_damaged_parts_are_found_all_of_them(filled: Stores) -> None:
    first, second = [str(part.blob_key) for part in live(filled)[:2]]
    filled.blob.delete(first)
    data = filled.blob.get(second)
    assert data is not None
    filled.blob.put(second, data[:-1] + bytes([data[-1] ^ 1]))
    findings = {finding.key: finding.what for finding in verified(filled).findings}
    assert findings.keys() == {first, second}
    assert findings[first] == "the part is gone"
    assert "crc32c" in findings[second]


def rewrite(stores: Stores, change: Callable[[Part, pa.Table], tuple[Part, pa.Table]]) -> str:
    """Put another part in the place of one, and let the state vouch for its bytes, by a new log."""
    state = stores.state()
    part = live(stores)[0]
    data = stores.blob.get(str(part.blob_key))
    assert data is not None
    changed, table = change(part, decode_parquet(data, SCHEMA, key="x"))
    data = encode_parquet(SCHEMA, 1, table)
    stores.blob.put(str(part.blob_key), data)
    changed = replace(changed, size_bytes=len(data), crc32c=checksum(data))

    def runs(of: tuple[tuple[Part, ...], ...]) -> tuple[tuple[Part, ...], ...]:
        return tuple(tuple(changed if each == part else each for each in run) for run in of)

    batches = tuple(replace(batch, runs=runs(batch.runs)) for batch in state.batches)
    replant(stores, replace(state, batches=batches))
    return str(part.blob_key)


def replant(stores: Stores, state: ShardState) -> None:
    """Let the newest rollup be this state, and nothing follow it."""
    data = encode_state(replace(state, rollups={}))
    key = rollup_key(SHARD, state.seqno)
    stores.blob.put(key, data)
    rollup = Rollup(state.seqno, key, len(data), checksum(data))
    diff = StateDiff(state.seqno + 1, SHARD, "0", state.wall_ms + 1, "ship", rollup, (PutEntry(rollup),))
    stores.consensus._logs[SHARD] = [Entry(diff.seqno, encode_diff(diff))]


def reversed_rows(part: Part, table: pa.Table) -> tuple[Part, pa.Table]:
    return part, table.take(list(range(table.num_rows))[::-1])


def one_twice(part: Part, table: pa.Table) -> tuple[Part, pa.Table]:
    return replace(part, rows=part.rows + 1), pa.concat_tables([table.slice(0, 1), table])


def one_missing(part: Part, table: pa.Table) -> tuple[Part, pa.Table]:
    return part, table.slice(0, table.num_rows - 1)


def other_times(part: Part, table: pa.Table) -> tuple[Part, pa.Table]:
    return part, table.set_column(2, table.schema.field("_time"), pa.array([0] * len(table), pa.uint64()))


def no_diff(part: Part, table: pa.Table) -> tuple[Part, pa.Table]:
    return part, table.set_column(3, table.schema.field("_diff"), pa.array([0] * len(table), pa.int64()))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (reversed_rows, "not sorted"),
        (one_twice, "a row twice"),
        (one_missing, "rows, not"),
        (other_times, "its times are 0 to 0"),
        (no_diff, "diff 0"),
    ],
)
def test_a_part_whose_rows_break_a_promise_is_found(
    filled: Stores, change: Callable[[Part, pa.Table], tuple[Part, pa.Table]], what: str
) -> None:
    key = rewrite(filled, change)
    told = [finding.what for finding in verified(filled).findings if finding.key == key]
    assert any(what in each for each in told), verified(filled).findings


def test_a_log_with_a_gap_or_another_row_is_found(stores: Stores) -> None:
    client = stores.open()
    write(client, 5)
    log = stores.consensus._logs[SHARD]
    taken = log.pop(2)
    assert verified(stores).findings
    log.insert(2, taken._replace(data=log[3].data))
    assert verified(stores).findings


def test_a_rollup_that_is_not_what_the_log_leads_to_is_found(filled: Stores) -> None:
    state = filled.state()
    rollup = state.latest_rollup
    assert rollup is not None
    filled.blob.put(rollup.blob_key, b"x" * rollup.size_bytes)
    (finding,) = verified(filled).findings
    assert finding.key == rollup.blob_key
    filled.blob.delete(rollup.blob_key)
    (finding,) = verified(filled).findings
    assert "is missing: version" in finding.what


def test_a_shard_that_is_written_meanwhile_has_no_findings(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 12)
    moved = False

    def move(key: str) -> None:
        nonlocal moved
        if "/p" in key and not moved:
            moved = True
            client.maintain(SHARD)

    found = verify(stores.open(mode="read"), SHARD, looking_at=move)
    assert moved
    assert found.findings == ()


def test_a_log_that_is_cut_meanwhile_is_well(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows after the first page go: a rollup that is newer than the audit's head has come."""
    monkeypatch.setattr("holdfast.persist.admin.verify._PAGE", 4)
    client = stores.open(rollup_every=8)
    write(client, 20)
    looker = stores.open(mode="read")
    looker.session.machine(SHARD).refresh()
    scan, left = stores.consensus.scan, [client.maintain]

    def cut(key: str, from_seqno: int, limit: int) -> list[Entry]:
        found = scan(key, from_seqno, limit)
        if left:
            left.pop()(SHARD)
        return found

    monkeypatch.setattr(stores.consensus, "scan", cut)
    assert verify(looker, SHARD).findings == ()
    assert scan(SHARD, 0, 1)[0].seqno > 20
