"""Shards in mode WRITE_SEAL: a write is durable, and invisible until a seal passes it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.errors import (
    CLOSED,
    BadInput,
    Fenced,
    HandleExpired,
    Indeterminate,
    NotWritable,
    UpperMismatch,
)
from holdfast.persist import PersistClient, PersistConfig, Prepared, ReadHandle, WriteHandle, WriteMode
from holdfast.persist.admin.manual import compact_now
from holdfast.persist.admin.verify import verify
from holdfast.persist.state.invariants import check_step
from holdfast.persist.state.machine import Version
from holdfast.persist.state.state import (
    Batch,
    Part,
    PendingBatch,
    SealPending,
    ShardState,
    StateDiff,
    apply,
    part_keys,
)
from testbed.faults import Fault, Operation, ScriptedPlan
from unit.persist.open_stores import (
    OTHER,
    SCHEMA,
    SHARD,
    Row,
    Stores,
    Update,
    changes,
    contents,
    rows,
    updates,
)

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "part_target_bytes": 100}
SPREAD: list[Update] = [(1, "a", 0, 1), (2, "b", 4, 1), (3, "c", 9, 2), (1, "a", 9, -1)]


def commits(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set" and operation.keys != ("lock",)


def sealing(client: PersistClient, shard: str = SHARD) -> WriteHandle:
    return client.writer(shard, SCHEMA, purpose="test", mode=WriteMode.WRITE_SEAL)


def locked(stores: Stores, plan: Any = None, **settings: Any) -> PersistClient:
    client = stores.open(plan, **settings)
    client.exclusive("job")
    return client


def expected(given: list[Update], as_of: int) -> dict[Row, int]:
    found: dict[Row, int] = {}
    for key, value, time, diff in given:
        if time <= as_of:
            found[key, value] = found.get((key, value), 0) + diff
    return {row: count for row, count in found.items() if count}


def read_all_ways(reader: ReadHandle, client: PersistClient, as_of: int) -> dict[Row, int]:
    """A snapshot at once, which the stream and the pieces must agree with."""
    whole = contents(reader.snapshot(as_of).to_table())
    stream = [row for batch in reader.snapshot(as_of) for row in batch.to_pylist()]
    pieces = [
        row
        for part in reader.snapshot_parts(as_of, 3)
        for row in client.read_snapshot_part(part).to_table().to_pylist()
    ]
    for found in (stream, pieces):
        assert {(row["k"], row["v"]): row["_diff"] for row in found} == whole
        assert len(found) == len(whole)
    return dict(whole)


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_what_is_written_is_seen_once_it_is_sealed(stores: Stores, settings: dict[str, Any]) -> None:
    client = locked(stores, audit_pushdown=True, **settings)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    assert writer.upper() == 0
    with client.reader(SHARD, purpose="test") as reader:
        listen = reader.subscribe
        for upper in (1, 3, 9, 10):
            writer.seal(upper)
            for as_of in range(upper):
                assert read_all_ways(reader, client, as_of) == expected(SPREAD, as_of)
        assert not stores.state().pending
        events = listen(0).next(0) + reader.listen(0).next(0)
        assert any(getattr(event, "frontier", 0) == 10 for event in events)
        heard = [
            c for event in reader.listen(0).next(0) if hasattr(event, "table") for c in changes(event.table)
        ]
        assert heard == sorted(update for update in SPREAD if update[2] > 0)


def test_a_part_that_a_seal_cuts_is_in_a_batch_and_pending_at_once(stores: Stores) -> None:
    client = locked(stores, inline_max_bytes=0)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    (key,) = stores.parts()
    writer.seal(5)
    state = stores.state()
    ((sealed,),) = [batch.runs[0] for batch in state.batches]
    (pending,) = state.pending.values()
    assert (sealed.blob_key, sealed.lower, sealed.upper) == (key, 0, 5)
    ((left,),) = pending.runs
    assert (left.blob_key, left.lower, left.upper, pending.lower, pending.upper) == (key, 5, 10, 5, 10)
    writer.seal(CLOSED)
    state = stores.state()
    assert [[part.lower for part in batch.parts] for batch in state.batches] == [[0], [5]]
    assert not state.pending
    assert part_keys(state) == {key}


def test_a_part_stays_until_nothing_names_it(stores: Stores) -> None:
    client = locked(stores, inline_max_bytes=0, compaction_fanin=2, rollup_every=1)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    (key,) = stores.parts()
    for upper in (2, 5, 7):
        writer.seal(upper)
        client.maintain(SHARD)
    state = stores.state()
    assert [batch.level for batch in state.batches] == [2] or len(state.batches) < 3
    assert key in stores.parts()
    assert key not in state.garbage
    writer.seal(10)
    writer.seal(11)
    for _ in range(4):
        client.maintain(SHARD)
    assert key not in stores.parts()
    assert stores.parts() == part_keys(stores.state())
    found = client.reader(SHARD, purpose="test").snapshot(10).to_table()
    assert contents(found) == expected(SPREAD, 10)


def test_a_successor_seals_what_a_crashed_process_wrote(stores: Stores) -> None:
    crashed = locked(stores)
    old = sealing(crashed)
    old.write(updates([(1, "a", 0, 1)]))
    client = locked(stores)
    writer = sealing(client)
    with pytest.raises(Fenced):
        old.write(updates([(2, "late", 0, 1)]))
    with pytest.raises(Fenced):
        old.seal(1)
    writer.write(updates([(3, "c", 0, 1)]))
    writer.seal(1)
    found = client.reader(SHARD, purpose="test").snapshot(0).to_table()
    assert contents(found) == {(1, "a"): 1, (3, "c"): 1}


def test_the_lock_is_needed(stores: Stores) -> None:
    client = locked(stores, inline_max_bytes=0)
    sealing(client).write(rows(1))
    prepared: list[Prepared] = []
    free = stores.open(inline_max_bytes=0)
    writer = sealing(free)
    before = stores.stored()
    attempts: list[Callable[[], object]] = [
        lambda: writer.write(rows(2)),
        lambda: writer.seal(5),
        lambda: writer.seal(0),
        lambda: prepared.append(writer.prepare_write(rows(2))),
        lambda: free.multi_write([sealing(client).prepare_seal(0, 5)]),
    ]
    for attempt in attempts:
        with pytest.raises(NotWritable, match="has not taken the write lock") as refused:
            attempt()
        assert "exclusive" in refused.value.hint
    assert stores.stored() == before
    client.close()
    with pytest.raises(NotWritable), stores.open() as late:
        sealing(late).write(rows(2))


def test_the_lock_that_was_given_up_is_needed_too(stores: Stores) -> None:
    client = stores.open()
    with client.exclusive("job"):
        writer = sealing(client)
        writer.write(rows(1))
    with pytest.raises(NotWritable):
        writer.seal(1)
    with client.exclusive("job"):
        writer.seal(1)
    assert stores.state().upper == 1


def test_the_mode_of_a_shard_is_fixed(stores: Stores) -> None:
    client = locked(stores)
    late = client.writer(SHARD, SCHEMA, purpose="opened before the shard was made")
    writer = sealing(client)
    with pytest.raises(BadInput, match="mode WRITE_SEAL: use write and seal"):
        writer.compare_and_append(rows(1), 0, 1)
    with pytest.raises(BadInput, match="mode APPEND: use compare_and_append and seal"):
        late.write(rows(1))
    writer.seal(1)
    before = stores.stored()
    with pytest.raises(BadInput, match=f"shard {SHARD} has write mode WRITE_SEAL, not APPEND"):
        client.writer(SHARD, SCHEMA, purpose="test")
    for attempt in (lambda: late.compare_and_append(rows(1), 1, 2), lambda: late.seal(2)):
        with pytest.raises(BadInput, match="has write mode WRITE_SEAL, not APPEND"):
            attempt()
    assert stores.stored() == before
    client.writer(OTHER, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    with pytest.raises(BadInput, match="write mode APPEND, not WRITE_SEAL"):
        sealing(client, OTHER)


def test_a_shard_is_made_in_its_mode_by_a_multi_write(stores: Stores) -> None:
    client = stores.open()
    mode = WriteMode.WRITE_SEAL
    client.multi_write([client.prepare_create(SHARD, SCHEMA, purpose="test", mode=mode)])
    assert stores.state().write_mode is mode
    assert client.inspect(SHARD).mode == "WRITE_SEAL"


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_times_that_are_sealed_are_refused(stores: Stores, settings: dict[str, Any]) -> None:
    client = locked(stores, **settings)
    writer = sealing(client)
    writer.write(updates([(1, "a", 3, 1)]))
    writer.seal(5)
    parts, seqno = stores.parts(), stores.state().seqno
    with pytest.raises(UpperMismatch) as late:
        writer.write(updates([(2, "b", 9, 1), (2, "b", 4, 1)]))
    assert (late.value.expected, late.value.actual, late.value.shard_id) == (4, 5, SHARD)
    assert (stores.parts(), stores.state().pending) == (parts, {})
    assert stores.state().seqno <= seqno + 1, "at most the writer's registration"
    with pytest.raises(UpperMismatch):
        client.multi_write([writer.prepare_seal(4, 6)])
    with pytest.raises(BadInput, match="forward"):
        writer.prepare_seal(5, 5)
    with pytest.raises(BadInput, match="not in the schema"):
        writer.write([{"k": 1, "v": "a", "other": 2}])
    writer.seal(5)
    writer.seal(4)
    assert stores.state().upper == 5


def test_a_write_without_times_is_at_the_upper(stores: Stores) -> None:
    client = locked(stores)
    writer = sealing(client)
    writer.seal(7)
    writer.write(rows(1))
    writer.write(None)
    (pending,) = stores.state().pending.values()
    assert (pending.lower, pending.upper) == (7, 8)


def test_the_last_time_can_be_written_and_sealed(stores: Stores) -> None:
    client = locked(stores)
    writer = sealing(client)
    writer.write(updates([(1, "a", CLOSED - 1, 1), (2, "b", 0, 1)]))
    writer.seal(CLOSED - 1)
    reader = client.reader(SHARD, purpose="test")
    assert read_all_ways(reader, client, CLOSED - 2) == {(2, "b"): 1}
    writer.seal(CLOSED)
    assert read_all_ways(reader, client, CLOSED - 1) == {(2, "b"): 1, (1, "a"): 1}
    with pytest.raises(UpperMismatch):
        writer.write(rows(3))


def test_several_shards_at_once(stores: Stores) -> None:
    client = locked(stores)
    one = sealing(client)
    plain = client.writer(OTHER, SCHEMA, purpose="test")
    one.write(updates([(1, "a", 2, 1)]))
    client.multi_write(
        [
            one.prepare_write(updates([(2, "b", 0, 1)])),
            one.prepare_write(updates([(3, "c", 9, 1)])),
            one.prepare_seal(0, 5),
            plain.prepare_append(rows(7), 0, 5),
        ]
    )
    assert (stores.state().upper, stores.state(OTHER).upper) == (5, 5)
    reader = client.reader(SHARD, purpose="test")
    assert read_all_ways(reader, client, 4) == {(1, "a"): 1, (2, "b"): 1}
    before = stores.stored()
    with pytest.raises(UpperMismatch):
        client.multi_write([one.prepare_seal(5, 10), plain.prepare_append(rows(8), 4, 10)])
    with pytest.raises(BadInput, match="one append or seal per shard"):
        client.multi_write([one.prepare_seal(5, 10), one.prepare_seal(10, 11)])
    assert stores.stored() == before
    client.multi_write([one.prepare_seal(5, 10), one.prepare_write(updates([(4, "d", 12, 1)]))])
    assert read_all_ways(reader, client, 9) == {(1, "a"): 1, (2, "b"): 1, (3, "c"): 1}
    with pytest.raises(UpperMismatch):
        client.multi_write([one.prepare_seal(10, 15), one.prepare_write(updates([(4, "d", 14, 1)]))])
    assert [(b.lower, b.upper) for b in stores.state().pending.values()] == [(12, 13)]


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.DETERMINATE],
        [Fault.INDETERMINATE_BEFORE],
        [Fault.INDETERMINATE_AFTER],
        [Fault.INDETERMINATE_BEFORE, Fault.DETERMINATE, Fault.INDETERMINATE_AFTER],
    ],
)
@pytest.mark.parametrize("how", ["one by one", "at once"])
def test_writes_and_seals_are_settled_and_happen_once(
    stores: Stores, faults: list[Fault], settings: dict[str, Any], how: str
) -> None:
    sealing(locked(stores)).seal(1)
    script = {2 * at + first: fault for at, fault in enumerate(faults) for first in (0, 1)}
    client = locked(stores, ScriptedPlan(script, matches=commits), **settings)
    writer = sealing(client)
    wanted = [(1, "a", 2, 1), (1, "a", 5, 1)]
    if how == "at once":
        client.multi_write([writer.prepare_write(updates(wanted)), writer.prepare_seal(1, 4)])
    else:
        writer.write(updates(wanted))
        writer.seal(4)
    reader = stores.open().reader(SHARD, purpose="test")
    assert contents(reader.snapshot(3).to_table()) == {(1, "a"): 1}
    writer.seal(6)
    assert contents(reader.snapshot(5).to_table()) == {(1, "a"): 2}
    assert len(stores.state().batches) == 3
    assert stores.parts() == part_keys(stores.state())


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("what", ["write", "seal"])
def test_what_can_not_be_settled_spends_its_handle(stores: Stores, landed: bool, what: str) -> None:
    fault = Fault.INDETERMINATE_AFTER if landed else Fault.INDETERMINATE_BEFORE
    plan = ScriptedPlan({2: fault}, matches=commits)
    client = locked(stores, plan, retry_deadline_s=0.0, **BLOBS)
    writer = sealing(client)
    writer.write(updates([(1, "a", 0, 1)]))
    if what == "seal":
        with pytest.raises(Indeterminate):
            writer.seal(5)
        assert stores.state().upper == (5 if landed else 0)
    else:
        with pytest.raises(Indeterminate):
            writer.write(updates([(2, "b", 0, 1)]))
        assert len(stores.state().pending) == (2 if landed else 1)
        assert len(stores.parts()) == 2, "a blob is rather leaked than lost"
    with pytest.raises(HandleExpired):
        writer.write(rows(3))
    sealing(client).seal(9)


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_many_writes_without_a_seal_leave_few_pending_batches(
    stores: Stores, settings: dict[str, Any]
) -> None:
    client = locked(stores, maintenance="inline", compaction_fanin=4, rollup_every=16, **settings)
    writer = sealing(client)
    given = [(at % 7, f"{at % 3}", at % 50, 1 if at % 5 else -1) for at in range(200)]
    most = 0
    for update in given:
        writer.write(updates([update]))
        most = max(most, len(client.session.machine(SHARD).state.pending))
    assert most <= 4 * 4, "at most three of each level: 64 = 4^3 < 200 < 4^4"
    (rollup,) = stores.state().rollups.values()
    assert rollup.size_bytes < 40_000
    reader = stores.open().reader(SHARD, purpose="test")
    for upper in (10, 11, 50):
        writer.seal(upper)
        assert contents(reader.snapshot(upper - 1).to_table()) == expected(given, upper - 1)
    client.maintain(SHARD)
    assert part_keys(stores.state()) == stores.parts()
    assert client.inspect(SHARD).pending == 0


class Meanwhile:
    """Something happens just before the n-th commit."""

    def __init__(self, what: Callable[[], object], at: int = 0) -> None:
        self.left = at
        self._what = what

    def decide(self, operation: Operation) -> Fault:
        if commits(operation):
            self.left -= 1
            if self.left == -1:
                self._what()
        return Fault.NONE


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("upper", [2, 5, 10])
def test_a_merge_of_what_a_seal_took_or_cut_is_dropped(
    stores: Stores, settings: dict[str, Any], upper: int
) -> None:
    client = locked(stores, **settings)
    writer = sealing(client)
    given = [(1, "a", 0, 1), (1, "a", 3, 1), (2, "b", 3, 1), (1, "a", 9, 1)]
    writer.write(updates(given[:2]))
    writer.write(updates(given[2:]))
    merger = stores.open(Meanwhile(lambda: writer.seal(upper)), compaction_fanin=2, **settings)
    merger.maintain(SHARD)
    assert stores.parts() == part_keys(stores.state())
    writer.seal(11)
    found = stores.open().reader(SHARD, purpose="test").snapshot(10).to_table()
    assert contents(found) == expected(given, 10)


@pytest.mark.parametrize("fault", [Fault.INDETERMINATE_BEFORE, Fault.INDETERMINATE_AFTER])
@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_a_merge_of_unknown_outcome_is_settled(
    stores: Stores, settings: dict[str, Any], fault: Fault
) -> None:
    writer = sealing(locked(stores, **settings))
    given: list[Update] = [(key, "a", key, 1) for key in range(4)]
    for update in given:
        writer.write(updates([update]))
    stores.open(
        ScriptedPlan({0: fault}, matches=commits), compaction_fanin=4, rollup_every=1, **settings
    ).maintain(SHARD)
    (pending,) = stores.state().pending.values()
    assert pending.level == 1
    assert stores.parts() == part_keys(stores.state())
    writer.seal(4)
    found = stores.open().reader(SHARD, purpose="test").snapshot(3).to_table()
    assert contents(found) == expected(given, 3)


def test_updates_that_cancel_out_leave_nothing_pending(stores: Stores) -> None:
    client = locked(stores, compaction_fanin=2)
    writer = sealing(client)
    writer.write(updates([(1, "a", 3, 1)]))
    writer.write(updates([(1, "a", 3, -1)]))
    client.maintain(SHARD)
    assert not stores.state().pending
    writer.seal(5)
    assert contents(client.reader(SHARD, purpose="test").snapshot(4).to_table()) == {}


def test_what_is_pending_ends_with_the_shard(stores: Stores) -> None:
    client = locked(stores, inline_max_bytes=0)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    writer.write(updates(SPREAD))
    writer.seal(5)
    client.finalize(SHARD)
    state = stores.state()
    assert (state.finalized, dict(state.pending)) == (True, {})
    assert set(state.garbage) == stores.parts()
    client.maintain(SHARD)
    assert stores.parts() == set()
    for _ in range(3):
        client.maintain(SHARD)
    with pytest.raises(Exception, match="finalized"):
        writer.write(rows(1))


def test_a_look_at_a_shard_tells_what_is_pending(stores: Stores) -> None:
    client = locked(stores)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    writer.write(updates(SPREAD[2:]))
    info = client.inspect(SHARD)
    assert (info.mode, info.pending, info.pending_rows, info.rows) == ("WRITE_SEAL", 2, 6, 0)
    assert info.pending_size_bytes > 0


def test_it_outlives_the_process_and_its_rollups(stores: Stores) -> None:
    client = locked(stores, rollup_every=1, maintenance="inline")
    writer = sealing(client)
    writer.write(updates(SPREAD))
    writer.seal(5)
    writer.write(updates([(8, "h", 7, 1)]))
    client.maintain(SHARD)
    again = locked(stores)
    assert again.session.machine(SHARD).refresh() == client.session.machine(SHARD).state
    sealing(again).seal(10)
    found = again.reader(SHARD, purpose="test").snapshot(9).to_table()
    assert contents(found) == expected([*SPREAD, (8, "h", 7, 1)], 9)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_on_real_stores(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config = PersistConfig(inline_max_bytes=0, compaction_fanin=3, gc_grace_s=0.0, debug_validate=True)
    consensus = request.getfixturevalue("postgres_url") if store == "postgres" else None
    place: dict[str, Any] = {"blob": f"file://{tmp_path}", "consensus": consensus} if consensus else {}
    given: list[Update] = [(key % 5, "x", key, 1) for key in range(30)]

    def open_it() -> PersistClient:
        return PersistClient.open(None if place else f"file://{tmp_path}", config=config, **place)

    with open_it() as client, client.exclusive("job"):
        writer = sealing(client)
        for update in given:
            writer.write(updates([update]))
        writer.seal(12)
        client.maintain(SHARD)
    with open_it() as client, client.exclusive("job"):
        sealing(client).seal(30)
        client.maintain(SHARD)
        reader = client.reader(SHARD, purpose="test")
        for as_of in (11, 29):
            assert read_all_ways(reader, client, as_of) == expected(given, as_of)


def piece(lower: int, upper: int, key: str) -> Part:
    return Part(5, 1, lower, upper, 10, blob_key=key)


def test_a_seal_takes_and_leaves_by_time() -> None:
    pending = {
        "a": PendingBatch("a", "w", 5, 9, ((piece(5, 6, "a1"), piece(7, 9, "a2")), (piece(5, 9, "a3"),)), 2),
        "b": PendingBatch("b", "w", 8, 9, ((piece(8, 9, "b1"),),)),
        "c": PendingBatch("c", "w", 5, 8, ((piece(5, 8, "c1"),),)),
    }
    state = ShardState(
        SHARD,
        seqno=9,
        write_mode=WriteMode.WRITE_SEAL,
        schemas={1: SCHEMA},
        batches=(Batch(1, 0, 5),),
        pending=pending,
    )
    after = apply(state, StateDiff(10, SHARD, "", 1, "", None, (SealPending(8),)))
    check_step(state, after)
    assert after.batches[-1] == Batch(
        10,
        5,
        8,
        0,
        ((piece(5, 6, "a1"), piece(7, 8, "a2")), (piece(5, 8, "a3"),), (piece(5, 8, "c1"),)),
    )
    assert after.pending == {
        "a": PendingBatch("a", "w", 8, 9, ((piece(8, 9, "a2"),), (piece(8, 9, "a3"),)), 2),
        "b": pending["b"],
    }


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[4] / "docs/how-to/write-and-seal.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert capsys.readouterr().out == "[{'id': 1, 'name': 'pump', '_diff': 1}]\n"


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_an_audit_reads_what_is_cut_and_pending_too(stores: Stores, settings: dict[str, Any]) -> None:
    client = locked(stores, compaction_fanin=2, **settings)
    writer = sealing(client)
    writer.write(updates(SPREAD))
    writer.seal(5)
    writer.write(updates([(7, "g", 20, 1)]))
    assert verify(client, SHARD).findings == ()
    client.maintain(SHARD)
    writer.seal(9)
    client.maintain(SHARD)
    assert verify(client, SHARD).findings == ()
    state = client.session.machine(SHARD).state
    pending = {id_: replace(batch, upper=90) for id_, batch in state.pending.items()}
    late = {
        id_: replace(batch, runs=tuple(tuple(replace(p, upper=80) for p in run) for run in batch.runs))
        for id_, batch in pending.items()
    }
    machine = client.session.machine(SHARD)
    machine.publish(Version(replace(state, pending=late), machine.version.digest))
    found = [finding.what for finding in verify(client, SHARD).findings]
    assert any("to 79" in what for what in found)


@pytest.mark.parametrize("full", [False, True])
def test_a_compaction_by_hand_merges_what_is_pending_too(stores: Stores, full: bool) -> None:
    client = locked(stores, compaction_fanin=3, **BLOBS)
    writer = sealing(client)
    given: list[Update] = [(key % 2, "a", key, 1) for key in range(9)]
    for update in given:
        writer.write(updates([update]))
    for upper in (1, 2, 3, 4):
        writer.seal(upper)
    done = compact_now(client, SHARD, full=full)
    assert done.batches_before == 4
    assert done.batches == 1 if full else done.batches < 4
    state = stores.state()
    assert len(state.pending) < 5
    writer.seal(9)
    found = client.reader(SHARD, purpose="test").snapshot(8).to_table()
    assert contents(found) == expected(given, 8)


def test_the_tools_tell_the_mode_and_what_is_pending(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/location"
    with PersistClient.open(url) as client, client.exclusive("job"):
        sealing(client).write(updates(SPREAD))
        client.writer(OTHER, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    told = [CliRunner().invoke(main, ["persist", "inspect", url, shard]).output for shard in (SHARD, OTHER)]
    assert "4 updates in 1 batch" in told[0]
    assert "WRITE_SEAL" in told[0]
    assert "pending" not in told[1]


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_in_doubt_whose_writer_and_batch_are_gone_is_written_once(
    stores: Stores, landed: bool
) -> None:
    """Upkeep of another process drops its silent writer and merges what is pending, before it looks."""
    client = locked(stores, plan := _Stopped(landed), compaction_fanin=2)
    sealing(client).write(rows(1))
    writer = sealing(client)

    def meanwhile() -> None:
        other = stores.open(compaction_fanin=2, lease_s=900.0)
        other.maintain(SHARD)
        stores.clock.sleep(901)
        other.maintain(SHARD)
        assert (len(stores.state().pending), len(stores.state().writers)) == (1, 0)

    plan.meanwhile = meanwhile
    writer.write(rows(2))
    sealing(client).seal(1)
    found = contents(client.reader(SHARD, purpose="test").snapshot(0).to_table())
    assert found == {(1, "x"): 1, (2, "x"): 1}


class _Stopped:
    """The next commit has no answer, and `meanwhile` happens before anybody asks what became of it."""

    def __init__(self, landed: bool) -> None:
        self.meanwhile: Callable[[], None] | None = None
        self._fault = Fault.INDETERMINATE_AFTER if landed else Fault.INDETERMINATE_BEFORE
        self._in_doubt = False

    def decide(self, operation: Operation) -> Fault:
        if self.meanwhile is None:
            return Fault.NONE
        if commits(operation) and not self._in_doubt:
            self._in_doubt = True
            return self._fault
        if self._in_doubt:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return Fault.NONE
