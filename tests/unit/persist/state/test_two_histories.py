"""The consensus store goes back in time under live clients. No client mixes the two histories."""

import itertools
import pickle
from collections.abc import Callable, Iterator

import pytest

from holdfast.errors import CLOSED, CorruptBlob, Determinate, HandleExpired, LogRegressed, UpperMismatch
from holdfast.persist import PersistClient
from holdfast.persist.admin.accept import accept
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.admin.verify import verify
from holdfast.persist.ids import rollup_key
from holdfast.persist.rows.part import checksum
from holdfast.persist.state.codec import encode_state
from holdfast.persist.state.command import AddRollup, CondemnOrphans, Handle
from holdfast.persist.state.cuts import MOST_DIGESTS, decode_digests, encode_digests, known_digest
from holdfast.persist.state.divergence import lines_of, markers_of, why_keep
from holdfast.persist.state.machine import commit
from holdfast.persist.state.state import Rollup
from holdfast.persist.stores import BlobMeta, Entry, LogRow, MemoryConsensus
from holdfast.persist.upkeep.compaction import claim_compaction, install, merge_task
from holdfast.persist.upkeep.garbage import MOST_ROLLUPS, ROLLUPS_S
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

BLOBS = {"inline_max_bytes": 0}


@pytest.fixture
def stores() -> Stores:
    return Stores()


def append(client: PersistClient, *times: int, shard: str = SHARD, value: str = "x") -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in times:
            writer.compare_and_append(rows(time, value=value), time, time + 1)


def copied(consensus: MemoryConsensus) -> MemoryConsensus:
    """A standby that has all that the store has now."""
    copy = MemoryConsensus()
    copy._logs.update({key: list(log) for key, log in consensus._logs.items()})
    return copy


def promote(stores: Stores, standby: MemoryConsensus) -> None:
    """What is in the standby is what every client finds from now on."""
    stores.consensus._logs.clear()
    stores.consensus._logs.update({key: list(log) for key, log in standby._logs.items()})


def doubt(stores: Stores) -> str:
    """Why a process of its own would delete nothing of the shard."""
    machine = stores.open().session.machine(SHARD)
    machine.refresh()
    return why_keep(machine)


def forked(stores: Stores, **settings: object) -> tuple[PersistClient, PersistClient]:
    """A has 0 to 9 acknowledged, the standby 0 to 7; B appended 8 to 11 to the standby."""
    a = stores.open(**settings)
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, 8, 9, value="a")
    promote(stores, standby)
    b = stores.open(**settings)
    append(b, *range(8, 12), value="b")
    return a, b


@pytest.mark.parametrize("settings", [{}, BLOBS], ids=["inline", "blobs"])
def test_a_client_of_the_lost_history_neither_reads_nor_writes(stores: Stores, settings: dict) -> None:  # type: ignore[type-arg]
    a, b = forked(stores, **settings)
    with pytest.raises(LogRegressed, match="another version") as raised:
        a.recent_upper(SHARD)
    assert "recover" in raised.value.hint
    with pytest.raises(LogRegressed):
        append(a, 12, value="a")
    with pytest.raises(LogRegressed):
        a.maintain(SHARD)
    assert contents(b.reader(SHARD, purpose="r").snapshot(11).to_table()) == {
        **{(time, "x"): 1 for time in range(8)},
        **{(time, "b"): 1 for time in range(8, 12)},
    }


@pytest.mark.parametrize("written_to", [False, True])
def test_the_error_says_in_one_line_what_happened_and_what_to_do(stores: Stores, written_to: bool) -> None:
    a = stores.open()
    append(a, *range(8))
    standby, kept = copied(stores.consensus), a.session.machine(SHARD).state.seqno
    append(a, 8, 9)
    known = a.session.machine(SHARD).state.seqno
    promote(stores, standby)
    if written_to:
        append(stores.open(), *range(8, 12), value="b")
    now = stores.consensus.heads([SHARD])[SHARD].seqno
    assert (now > known) == written_to
    other = f"another version {known}"
    for call in (lambda: a.recent_upper(SHARD), lambda: append(a, 12)):
        with pytest.raises(LogRegressed) as raised:
            call()
        error = raised.value
        assert str(error) == (
            f"the log of {SHARD} in {stores.consensus.description} went back to an older state: this client"
            f" saw version {known}, and the store now has"
            f" {other if written_to else f'version {kept} as its newest'}"
        )
        assert error.hint.startswith("nothing is deleted until you choose; ")
        assert error.hint.endswith("run: holdfast persist recover URL --accept")
        assert error.__notes__ == [f"hint: {error.hint}"]
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.hint, again.actual) == (str(error), error.hint, error.actual)


def test_an_append_of_the_lost_history_loses(stores: Stores) -> None:
    """The number is free in both histories, so that only the bytes before it tell them apart."""
    a = stores.open()
    writer = a.writer(SHARD, SCHEMA, purpose="a")
    writer.compare_and_append(rows(0), 0, 1)
    standby = copied(stores.consensus)
    writer.compare_and_append(rows(1, value="a"), 1, 2)
    promote(stores, standby)
    append(stores.open(), 1, value="b")
    while stores.consensus.heads([SHARD])[SHARD].seqno > a.session.machine(SHARD).state.seqno:
        stores.consensus._logs[SHARD].pop()
    before = copied(stores.consensus)
    with pytest.raises(LogRegressed):
        writer.compare_and_append(rows(2, value="a"), 2, 3)
    assert stores.consensus._logs == before._logs


def test_all_handles_of_the_client_end_and_a_new_client_goes_on(stores: Stores) -> None:
    a, _ = forked(stores)
    append(a, 0, shard=OTHER)
    reader = a.reader(OTHER, purpose="other shard")
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)
    with pytest.raises(LogRegressed):
        reader.snapshot(0).to_table()
    with pytest.raises(LogRegressed):
        append(a, 1, shard=OTHER)
    append(stores.open(), 12)
    a.close()


def test_a_multi_write_with_a_condition_alone_on_the_forked_shard_loses(stores: Stores) -> None:
    a, _ = forked(stores)
    other = a.writer(OTHER, SCHEMA, purpose="a")
    other.compare_and_append(rows(0), 0, 1)
    step = [other.prepare_append(rows(1), 1, 2), a.prepare_expect_upper(SHARD, 10)]
    with pytest.raises((LogRegressed, UpperMismatch)):
        a.multi_write(step)
    assert stores.open().recent_upper(OTHER) == 1


@pytest.mark.parametrize("lost", [1, 2, 300])
def test_an_idle_client_that_was_overtaken_by_a_cut_still_tells_the_histories_apart(
    stores: Stores, lost: int
) -> None:
    a = stores.open()
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, *range(8, 8 + lost))
    promote(stores, standby)
    b = stores.open(maintenance="inline", rollup_every=5, compaction_fanin=3, debug_validate=False)
    append(b, *range(8, 8 + lost + 40), value="b")
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > a.session.machine(SHARD).state.seqno
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)


@pytest.mark.long
def test_idle_for_ten_thousand_versions_nothing_ends(stores: Stores) -> None:
    idle, young = stores.open(), stores.open()
    append(idle, 0)
    append(young, 1)
    idle.recent_upper(SHARD)
    client = stores.open(maintenance="inline", debug_validate=False)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(2, 5000):
        writer.compare_and_append(rows(time), time, time + 1)
    assert young.recent_upper(SHARD) == 5000
    for time in range(5000, 10_002):
        writer.compare_and_append(rows(time), time, time + 1)
    assert idle.recent_upper(SHARD) == young.recent_upper(SHARD) == 10_002
    append(idle, 10_002)
    kept = list(stores.blob.list(f"{SHARD}/c"))
    assert len(kept) == 1
    assert kept[0].size <= 8 * MOST_DIGESTS + 64


def test_without_a_proof_the_handles_of_an_idle_client_expire(stores: Stores) -> None:
    idle = stores.open()
    append(idle, 0)
    client = stores.open(maintenance="inline", rollup_every=5)
    append(client, *range(1, 40))
    for meta in list(stores.blob.list(f"{SHARD}/c")):
        stores.blob.delete(meta.key)
    with pytest.raises(HandleExpired, match="no longer has version"):
        idle.recent_upper(SHARD)
    assert list(markers_of(stores.blob, SHARD)) == []


@pytest.mark.parametrize("cuts", [0, 1, 3])
def test_an_idle_client_goes_on_after_a_failover_took_back_a_cut(stores: Stores, cuts: int) -> None:
    """It knows no lost row, and the blob of the anchor is gone: the cut that was lost has deleted it."""
    idle, ended = stores.open(), stores.open()
    append(idle, 0)
    settings = {"maintenance": "inline", "rollup_every": 5, "compaction_fanin": 3}
    a = stores.open(**settings, gc_grace_s=1000.0, retain_for_s=1000.0)
    append(a, *range(1, 20))
    standby = copied(stores.consensus)
    anchor = standby.scan(SHARD, 0, 1)[0].seqno
    assert anchor > idle.session.machine(SHARD).state.seqno
    append(a, *range(20, 40), value="a")
    assert ended.recent_upper(SHARD) == 40
    kept = [meta.key for meta in stores.blob.list(f"{SHARD}/c")]
    assert len(kept) == 1
    assert f"/c{anchor}-" not in kept[0]
    promote(stores, standby)

    b = stores.open(maintenance="off")
    for rollup in [meta.key for meta in stores.blob.list(f"{SHARD}/v")]:
        # Only a person's decision lets the promoted history be cut; here the lost one wrote no rollup.
        if rollup not in {each.blob_key for each in b.session.machine(SHARD).refresh().rollups.values()}:
            stores.blob.delete(rollup)
    b = stores.open(**settings)
    for number in range(cuts):
        append(b, *range(20 + 10 * number, 30 + 10 * number), value="b")
    assert (stores.consensus.scan(SHARD, 0, 1)[0].seqno > anchor) == (cuts > 0)
    assert idle.recent_upper(SHARD) == 20 + 10 * cuts
    with pytest.raises(LogRegressed):
        ended.recent_upper(SHARD)


def test_digests_of_another_history_are_no_proof(stores: Stores) -> None:
    """Without the blob of the anchor, a blob that has another row in its place is not asked."""
    idle = stores.open()
    append(idle, 0)
    client = stores.open(maintenance="inline", rollup_every=5)
    append(client, *range(1, 20))
    (kept,) = [meta.key for meta in stores.blob.list(f"{SHARD}/c")]
    data = stores.blob.get(kept)
    assert data is not None
    first, packed = decode_digests(data, kept)
    stores.blob.delete(kept)
    other = packed[:-1] + bytes([packed[-1] ^ 1])
    stores.blob.put(f"{SHARD}/c99-1.00", encode_digests(first, other + packed[:8]))
    with pytest.raises(HandleExpired):
        idle.recent_upper(SHARD)
    stores.blob.put(f"{SHARD}/c99-1.00", encode_digests(first, packed + packed[:8]))
    assert idle.recent_upper(SHARD) == 20


@pytest.mark.parametrize("finalized", [False, True])
def test_a_cut_that_meets_a_failover_needs_the_row_that_names_the_rollup(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, finalized: bool
) -> None:
    """The standby has the version of the rollup, and not the one that names it: its rows are all it has."""
    a = stores.open(rollup_every=4)
    append(a, *range(6))
    truncate = stores.consensus.truncate
    if finalized:
        a.finalize(SHARD)

    def late(key: str, seqno: int, known: LogRow | None = None) -> int:
        while stores.consensus._logs[SHARD][-1].seqno > seqno - finalized:
            stores.consensus._logs[SHARD].pop()
        return truncate(key, seqno, known)

    monkeypatch.setattr(stores.consensus, "truncate", late)
    with pytest.raises(LogRegressed):
        a.maintain(SHARD)
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno == 1
    assert stores.open().recent_upper(SHARD) == (CLOSED if finalized else 6)


def test_digests_are_kept_over_many_cuts(stores: Stores) -> None:
    client = stores.open(maintenance="inline", rollup_every=5)
    seen = {}
    for time in range(60):
        append(client, time)
        seen.update(dict(stores.consensus.digests(SHARD, 0, 10**6)))
    first = stores.consensus.scan(SHARD, 0, 1)[0].seqno
    assert first > 50
    for seqno, digest in seen.items():
        assert known_digest(client.location, SHARD, seqno) == digest
    assert known_digest(client.location, SHARD, max(seen) + 1) is None


def test_a_client_that_met_another_history_leaves_a_marker_that_blocks_deletion(stores: Stores) -> None:
    settings = {**BLOBS, "maintenance": "inline", "rollup_every": 4, "compaction_fanin": 3}
    a, b = forked(stores, maintenance="off", **BLOBS)
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)
    (marker,) = markers_of(stores.blob, SHARD)
    assert (marker.shard_id, marker.recoveries, marker.hostname) == (SHARD, 0, "ship")
    before = stores.blobs()
    assert any("two histories" in finding.what for finding in verify(b, SHARD).findings)
    collector = stores.open(**settings)
    append(collector, *range(12, 40), value="b")
    collector.maintain(SHARD)
    assert before <= stores.blobs()
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno == 1
    assert "knew version" in collector.session.machine(SHARD).kept_because
    assert b.recent_upper(SHARD) == 40

    stores.blob.delete(marker.key)
    collector.maintain(SHARD)
    assert not before <= stores.blobs()
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 1


def test_a_reader_raises_and_leaves_no_marker(stores: Stores) -> None:
    a = stores.open()
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, 8)
    append(a, 0, shard=OTHER)
    reader = stores.open(mode="read")
    assert reader.recent_uppers([SHARD, OTHER]) == {SHARD: 9, OTHER: 1}
    promote(stores, standby)
    with pytest.raises(LogRegressed, match="this client saw version") as raised:
        reader.recent_upper(SHARD)
    assert "nothing is deleted" not in raised.value.hint, "it has left no marker that would keep anything"
    for shard in (SHARD, OTHER):
        assert list(markers_of(stores.blob, shard)) == []


@pytest.mark.parametrize("written_to", [False, True])
def test_the_first_error_leaves_a_marker_for_every_shard_that_lost_rows(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, written_to: bool
) -> None:
    """The client ends with the first shard, so it can't notice the loss of the others later."""
    lost, kept = [SHARD, OTHER, SHARD[:-1] + "8"], SHARD[:-1] + "9"
    a = stores.open()
    for shard in (*lost, kept):
        append(a, *range(3), shard=shard)
    standby = copied(stores.consensus)
    for shard in lost:
        append(a, 3, shard=shard, value="a")
    known = {shard: a.session.machine(shard).version for shard in lost}
    promote(stores, standby)
    if written_to:
        b = stores.open()
        for shard in (*lost, kept):
            append(b, 3, 4, shard=shard, value="b")
    reads: list[set[str]] = []
    heads = stores.consensus.heads

    def counted(keys, *rest):  # type: ignore[no-untyped-def]
        reads.append({*keys})
        return heads(keys, *rest)

    monkeypatch.setattr(stores.consensus, "heads", counted)
    a.session.history.name_shards({lost[1]: "the other one"})
    with pytest.raises(LogRegressed, match=SHARD):
        a.recent_upper(SHARD)
    assert reads == [{SHARD}, {*lost, kept} - {SHARD}]
    for shard in lost:
        (marker,) = markers_of(stores.blob, shard)
        assert (marker.seqno, marker.known) == (known[shard].seqno, known[shard].digest)
        assert marker.of == ("the other one" if shard == lost[1] else "")
        log = stores.consensus.heads([shard])[shard]
        assert (marker.head, marker.found is not None) == (log.seqno, written_to)
        machine = stores.open().session.machine(shard)
        machine.refresh()
        assert "knew version" in why_keep(machine)
    assert list(markers_of(stores.blob, kept)) == []


def test_shards_that_can_not_be_compared_keep_their_blobs_and_hide_no_error(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = forked(stores)
    append(a, 0, shard=OTHER)
    heads = stores.consensus.heads

    def failing(keys, *rest):  # type: ignore[no-untyped-def]
        if OTHER in keys:
            raise Determinate("the store can't be reached")
        return heads(keys, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(stores.consensus, "heads", failing)
        with pytest.raises(LogRegressed, match=SHARD) as raised:
            a.recent_upper(SHARD)
    assert raised.value.hint.startswith("nothing is deleted until you choose; ")
    (marker,) = markers_of(stores.blob, OTHER)
    assert (marker.found, marker.head) == (None, 0)
    assert doubt(stores) != ""
    machine = stores.open().session.machine(OTHER)
    machine.refresh()
    assert why_keep(machine) == "", "its log has the row"


def test_a_blob_store_that_refuses_other_markers_hides_no_error(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = SHARD[:-1] + "9"
    a = stores.open()
    standby = copied(stores.consensus)
    for shard in (SHARD, OTHER, third):
        append(a, 0, shard=shard)
    promote(stores, standby)
    put = stores.blob.put

    def refusing(key: str, data: bytes) -> None:
        if key.startswith(OTHER):
            raise Determinate("the store can't be reached")
        put(key, data)

    monkeypatch.setattr(stores.blob, "put", refusing)
    with pytest.raises(LogRegressed, match=SHARD) as raised:
        a.recent_upper(SHARD)
    assert any("can't be reached" in note for note in raised.value.__notes__)
    assert [len(list(markers_of(stores.blob, shard))) for shard in (SHARD, OTHER, third)] == [1, 0, 1]


def test_markers_are_written_for_a_limited_time(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    a = stores.open()
    standby = copied(stores.consensus)
    shards = [f"{SHARD[:-2]}{number}" for number in range(10, 40)]
    for shard in shards:
        append(a, 0, shard=shard)
    promote(stores, standby)
    put = stores.blob.put

    def slow(key: str, data: bytes) -> None:
        stores.clock.now_s += 3
        put(key, data)

    monkeypatch.setattr(stores.blob, "put", slow)
    with pytest.raises(LogRegressed, match=shards[0]) as raised:
        a.recent_upper(shards[0])
    assert any("took more than 10 s" in note for note in raised.value.__notes__)
    assert 3 <= sum(len(list(markers_of(stores.blob, shard))) for shard in shards) <= 6


def test_a_marker_of_a_confused_client_does_not_block(stores: Stores) -> None:
    """The client saw a lagging copy for a moment; the log has the row that it knew."""
    a = stores.open()
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, 8)
    newest = copied(stores.consensus)
    promote(stores, standby)
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)
    promote(stores, newest)
    assert [*markers_of(stores.blob, SHARD)] != []
    assert doubt(stores) == ""


def test_a_rollup_of_the_lost_history_blocks_deletion(stores: Stores) -> None:
    a = stores.open(rollup_every=4)
    append(a, *range(4))
    standby = copied(stores.consensus)
    append(a, 4, 5, value="a")
    a.maintain(SHARD)
    promote(stores, standby)
    assert "the log ends at version" in doubt(stores)
    append(stores.open(), *range(4, 12), value="b")
    assert "differs from the log" in doubt(stores)


def test_two_versions_of_one_time_are_told_apart(stores: Stores) -> None:
    """A host with a fast clock wrote before the failover, so the next versions have equal times in both.

    Neither of the two versions has a writer: each is a reader's lease.
    """
    a = stores.open()
    stores.clock.now_s += 1000
    append(a, *range(4))
    stores.clock.now_s -= 1000
    standby = copied(stores.consensus)
    a.reader(SHARD, purpose="of a")
    lost = stores.state()
    stores.blob.put(rollup_key(SHARD, lost.seqno), encode_state(lost))
    assert doubt(stores) == ""
    promote(stores, standby)
    b = stores.open()
    b.reader(SHARD, purpose="of b")
    promoted = stores.state()
    assert (promoted.seqno, promoted.wall_ms) == (lost.seqno, lost.wall_ms)
    assert "differs from the log" in doubt(stores)
    append(b, 4)
    assert "differs from the log" in doubt(stores)


def test_a_rollup_of_the_lost_history_blocks_although_the_log_was_cut(stores: Stores) -> None:
    """The row of its version is gone, and its batches contradict those of the log."""
    a = stores.open(**BLOBS)
    append(a, *range(4))
    standby = copied(stores.consensus)
    append(a, 4, 5, value="a")
    lost = stores.state()
    promote(stores, standby)
    b = stores.open(**BLOBS, rollup_every=4, compaction_fanin=100)
    append(b, *range(4, 9), value="b")
    b.maintain(SHARD)
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > lost.seqno
    stores.blob.put(rollup_key(SHARD, lost.seqno), encode_state(lost))
    assert "differs from the log" in doubt(stores)


def test_every_version_of_a_history_may_leave_a_rollup(stores: Stores) -> None:
    """Writers may die after each upload of a rollup, whatever the version changed; none blocks."""
    client = stores.open(**BLOBS, rollup_every=1000, compaction_fanin=3)
    machine, keys = client.session.machine(SHARD), set()

    def leave(*_: object) -> None:
        state = machine.state
        key = rollup_key(SHARD, state.seqno)
        stores.blob.put(key, encode_state(state))
        keys.add(key)

    machine.tell = leave
    append(client, *range(4))
    reader = client.reader(SHARD, purpose="r")
    hold = client.critical_since(SHARD, purpose="hold")
    append(client, *range(4, 8))
    client.writer(SHARD, SCHEMA, purpose="empty").compare_and_append(None, 8, 12)
    client.maintain(SHARD)
    reader.allow_compaction(5)
    hold.downgrade(5)
    client.compactions.claim(SHARD, purpose="claim", full=True)
    reader.close()
    hold.release()
    client.maintain(SHARD)
    assert len(keys) > 15
    assert doubt(stores) == ""
    client.finalize(SHARD)
    assert doubt(stores) == ""


def test_a_blocked_shard_is_looked_at_ever_more_rarely(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = forked(stores, **BLOBS)
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)
    looked: list[float] = []
    listed = stores.blob.list

    def counted(prefix: str) -> Iterator[BlobMeta]:
        if prefix == f"{SHARD}/f":
            looked.append(stores.clock.now_s)
        return listed(prefix)

    monkeypatch.setattr(stores.blob, "list", counted)
    client = stores.open(**BLOBS, maintenance="inline", rollup_every=4, compaction_fanin=3)
    writer = client.writer(SHARD, SCHEMA, purpose="busy")
    for time in range(12, 212):
        writer.compare_and_append(rows(time), time, time + 1)
        stores.clock.now_s += 1.0
    assert client.session.machine(SHARD).kept_because
    assert 4 <= len(looked) <= 9
    (marker,) = markers_of(stores.blob, SHARD)
    stores.blob.delete(marker.key)
    # A call by a person looks at once.
    client.maintain(SHARD)
    assert client.session.machine(SHARD).kept_because == ""
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 1


def test_the_rollup_of_a_writer_that_died_does_not_block(stores: Stores) -> None:
    client = stores.open()
    append(client, *range(6))
    state = stores.state()
    stores.blob.put(rollup_key(SHARD, state.seqno), encode_state(state))
    append(client, 6)
    assert doubt(stores) == ""


def test_a_collector_of_the_lost_history_deletes_and_cuts_nothing(stores: Stores) -> None:
    """Its garbage is alive in the history that the store has now."""
    settings = {**BLOBS, "rollup_every": 4, "compaction_fanin": 3}
    a = stores.open(**settings, gc_grace_s=1000.0)
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, 8, 9)
    a.maintain(SHARD)
    assert a.session.machine(SHARD).state.garbage
    promote(stores, standby)
    append(stores.open(**settings), *range(8, 12), value="b")
    before, log = stores.blobs(), list(stores.consensus._logs[SHARD])
    stores.clock.now_s += 2000
    with pytest.raises(LogRegressed):
        a.maintain(SHARD)
    assert {key for key in stores.blobs() if "/f" not in key} == before
    assert stores.consensus._logs[SHARD] == log


def test_a_compaction_of_the_lost_history_replaces_nothing(stores: Stores) -> None:
    """A process without a memory of the log, such as a Spark task, installs what was merged before."""
    a = stores.open(**BLOBS)
    append(a, *range(8))
    standby = copied(stores.consensus)
    append(a, 8, 9, 10, value="a")
    machine = a.session.machine(SHARD)
    claimed = claim_compaction(machine, Handle("w1", "t", "h", 1000), machine.state.batches[-3:])
    assert claimed is not None
    parts = merge_task(machine, claimed)
    promote(stores, standby)
    b = stores.open(**BLOBS)
    append(b, 8, 9, 10, value="b")
    fresh = stores.open().session.machine(SHARD)
    with pytest.raises(HandleExpired):
        merge_task(fresh, pickle.loads(pickle.dumps(claimed)))
    assert not install(fresh, claimed, parts)
    assert contents(b.reader(SHARD, purpose="r").snapshot(10).to_table())[8, "b"] == 1


class Refusing(MemoryConsensus):
    """A store whose index has lost the head: it refuses every append, and its reads look well."""

    refuses = False

    def compare_and_set(self, puts, expect=()) -> bool:  # type: ignore[no-untyped-def]
        return not self.refuses and super().compare_and_set(puts, expect)


def test_a_store_that_refuses_while_nothing_moves_is_corrupt() -> None:
    stores = Stores()
    broken = Refusing()
    broken._logs.update(stores.consensus._logs)
    stores.consensus = broken
    client = stores.open()
    append(client, 0)
    broken.refuses = True
    with pytest.raises(CorruptBlob, match="although no other process wrote"):
        append(client, 1)
    broken.refuses = False
    append(client, 1)


class Promoting(MemoryConsensus):
    """A store that refuses three appends, each time with a row that the promoted server then hasn't."""

    failovers = 3

    def compare_and_set(self, puts, expect=()) -> bool:  # type: ignore[no-untyped-def]
        if self.failovers == 3:
            return super().compare_and_set(puts, expect)
        self.failovers += 1
        return False

    def line(self) -> str | None:
        return f"line{self.failovers}"


def test_an_append_goes_on_after_failovers_that_took_back_what_refused_it() -> None:
    stores = Stores()
    promoting = Promoting()
    promoting._logs.update(stores.consensus._logs)
    stores.consensus = promoting
    client = stores.open(retry_deadline_s=0.0)
    append(client, 0)
    promoting.failovers = 0
    append(client, 1)
    assert promoting.failovers == 3


def test_two_shards_are_seen_as_of_one_moment(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer keeps the uppers of two shards equal; nobody ever sees them differ."""
    writer, reader = stores.open(debug_validate=False), stores.open(debug_validate=False, mode="read")
    one = writer.writer(SHARD, SCHEMA, purpose="one")
    two = writer.writer(OTHER, SCHEMA, purpose="two")
    writer.multi_write([one.prepare_append(rows(0), 0, 1), two.prepare_append(rows(0), 0, 1)])
    assert reader.recent_uppers([SHARD, OTHER]) == {SHARD: 1, OTHER: 1}

    def move(*times: int) -> None:
        for time in times:
            steps = [each.prepare_append(rows(time), time, time + 1) for each in (one, two)]
            writer.multi_write(steps)

    move(1, 2)
    scan, scans = stores.consensus.scan, itertools.count()

    def overtaken(key: str, from_seqno: int, limit: int) -> list[Entry]:
        """The writer commits twice more between the reads of the first shard and of the second."""
        found = scan(key, from_seqno, limit)
        if next(scans) == 0:
            move(3, 4)
        return found

    monkeypatch.setattr(stores.consensus, "scan", overtaken)
    uppers = reader.recent_uppers([SHARD, OTHER])
    assert uppers == {SHARD: 3, OTHER: 3}
    assert next(scans) >= 2


def test_the_digests_of_a_cut_that_crashed_half_way_are_swept(stores: Stores) -> None:
    client = stores.open(maintenance="inline", rollup_every=5)
    append(client, *range(40))
    stores.blob.put(f"{SHARD}/c3-40.00000000", b"of an earlier cut")
    stores.clock.now_s += 1e6
    (swept,) = sweep(client, delete=True)
    assert [orphan.key for orphan in swept.orphans] == [f"{SHARD}/c3-40.00000000"]
    assert f"{SHARD}/c3-40.00000000" not in stores.blobs()
    assert len(list(stores.blob.list(f"{SHARD}/c"))) == 1


def test_an_accepted_history_is_collected_again(stores: Stores) -> None:
    a, _ = forked(stores, rollup_every=4, **BLOBS)
    with pytest.raises(LogRegressed):
        a.recent_upper(SHARD)
    collector = stores.open(maintenance="inline", rollup_every=4, compaction_fanin=3, **BLOBS)
    append(collector, *range(12, 20), value="b")
    assert collector.session.machine(SHARD).kept_because
    accept(collector.session.machine(SHARD))
    collector.maintain(SHARD)
    assert collector.session.machine(SHARD).kept_because == ""
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 1
    assert len(contents(collector.reader(SHARD, purpose="r").snapshot(19).to_table())) == 20


def meanwhile(stores: Stores, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Do `work` once, when somebody begins to list the rollups of the shard."""
    listed, left = stores.blob.list, [work]

    def late(prefix: str) -> Iterator[BlobMeta]:
        if prefix == f"{SHARD}/v" and left:
            left.pop()()
        return listed(prefix)

    monkeypatch.setattr(stores.blob, "list", late)


def uploaded(stores: Stores) -> tuple[Rollup, bytes]:
    """A rollup of the newest version that its writer has put, and not recorded yet."""
    state = stores.state()
    data = encode_state(state)
    rollup = Rollup(state.seqno, rollup_key(SHARD, state.seqno), len(data), checksum(data))
    stores.blob.put(rollup.blob_key, data)
    return rollup, data


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_rollup_that_a_writer_writes_meanwhile_is_of_this_history(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    """It is newer than the head that was read before the rollups were listed."""
    looker, writer = stores.open(rollup_every=1), stores.open(rollup_every=1)
    append(writer, *range(3))
    machine = looker.session.machine(SHARD)
    times = iter(range(3, 100))
    written: list[str] = []

    def write() -> None:
        append(writer, next(times))
        if is_recorded:
            writer.maintain(SHARD)
        else:
            written.append(uploaded(stores)[0].blob_key)

    machine.refresh()
    meanwhile(stores, monkeypatch, write)
    assert why_keep(machine) == ""
    meanwhile(stores, monkeypatch, write)
    assert verify(looker, SHARD).findings == ()
    meanwhile(stores, monkeypatch, write)
    accept(machine)
    state = stores.state()
    assert {*written, *(each.blob_key for each in state.rollups.values())} <= stores.blobs()
    assert not {*written} & state.garbage.keys()
    meanwhile(stores, monkeypatch, write)
    looker.maintain(SHARD)
    assert machine.kept_because == ""
    assert len(contents(stores.open().reader(SHARD, purpose="r").snapshot(6).to_table())) == 7


def test_an_accepted_history_makes_garbage_of_foreign_rollups(stores: Stores) -> None:
    """They wait as garbage does, they stop no sweep, and a later rollup of this history comes before."""
    a = stores.open()
    append(a, *range(4))
    standby = copied(stores.consensus)
    append(a, 4, 5, value="a")
    early, _ = uploaded(stores)
    append(a, *range(6, 40), value="a")
    late, _ = uploaded(stores)
    promote(stores, standby)
    b = stores.open(retain_for_s=1000.0, rollup_every=4)
    append(b, *range(4, 12), value="b")
    foreign = {early.blob_key, late.blob_key}
    head = stores.state().seqno
    assert early.seqno < head < late.seqno
    accept(b.session.machine(SHARD))
    state = stores.state()
    assert foreign <= stores.blobs()
    assert foreign <= state.garbage.keys()
    assert state.latest_rollup is not None
    assert state.latest_rollup.seqno == head
    assert doubt(stores) == ""
    assert [each.refused for each in sweep(b)] == [""]
    b.maintain(SHARD)
    assert foreign <= stores.blobs()
    stores.clock.now_s += 1000
    b.maintain(SHARD)
    assert not foreign & stores.blobs()
    assert len(contents(b.reader(SHARD, purpose="r").snapshot(11).to_table())) == 12


def test_a_rollup_that_was_condemned_is_never_recorded(stores: Stores) -> None:
    client = stores.open(gc_grace_s=1000.0)
    append(client, *range(4))
    rollup, _ = uploaded(stores)
    machine = client.session.machine(SHARD)
    assert commit([(machine, CondemnOrphans(((rollup.blob_key, 0),)))]) == [(rollup.blob_key,)]
    assert commit([(machine, AddRollup(rollup, 0))]) == [False]
    assert stores.state().rollups == {}


def test_a_commit_that_landed_returns_where_its_line_can_not_be_recorded(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would let the writer delete the parts that the new version names."""
    client = stores.open(**BLOBS)
    monkeypatch.setattr(stores.consensus, "line", lambda: "line1")
    listed = stores.blob.list
    is_down = True

    def failing(prefix: str):  # type: ignore[no-untyped-def]
        if prefix == "lines/" and is_down:
            raise Determinate("the store can't be reached")
        return listed(prefix)

    monkeypatch.setattr(stores.blob, "list", failing)
    append(client, 0)
    assert contents(stores.open().reader(SHARD, purpose="r").snapshot(0).to_table()) == {(0, "x"): 1}
    is_down = False
    assert lines_of(stores.blob) == []
    append(client, 1)
    assert [each.line for each in lines_of(stores.blob)] == ["line1"]


def test_a_claim_survives_an_append_without_updates(stores: Stores) -> None:
    """It extends the last batch that was claimed, whose contents stay."""
    client = stores.open(**BLOBS)
    append(client, *range(4))
    machine = client.session.machine(SHARD)
    claimed = claim_compaction(machine, Handle("w1", "t", "h", 1000), machine.state.batches)
    assert claimed is not None
    parts = merge_task(machine, claimed)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append([], 4, 9)
    assert install(machine, claimed, parts)
    assert len(contents(client.reader(SHARD, purpose="r").snapshot(8).to_table())) == 4


def rollups_of(stores: Stores) -> list[str]:
    return sorted(key for key in stores.blobs() if "/v" in key)


def test_a_standby_that_lacks_the_newest_rollup_is_readable(stores: Stores) -> None:
    """The promoted log names an older rollup, and has no rows below it."""
    settings = {"gc_grace_s": 60.0, "rollup_every": 8}
    a = stores.open(**settings)
    append(a, *range(20))
    a.maintain(SHARD)
    standby = copied(stores.consensus)
    append(a, *range(20, 40), value="a")
    a.maintain(SHARD)
    stores.clock.sleep(59)
    a.maintain(SHARD)
    promote(stores, standby)
    assert stores.consensus.scan(SHARD, 0, 1)[0].seqno > 1
    b = stores.open(**settings)
    append(b, 20, value="b")
    assert len(contents(b.reader(SHARD, purpose="r").snapshot(20).to_table())) == 21


def test_a_standby_that_lacks_the_last_rollup_of_a_dropped_shard_is_readable(stores: Stores) -> None:
    settings = {"gc_grace_s": 60.0, **BLOBS}
    a = stores.open(**settings)
    append(a, *range(10))
    a.maintain(SHARD)
    a.finalize(SHARD)
    for _ in range(8):
        a.maintain(SHARD)
        standby = copied(stores.consensus)
        stores.clock.sleep(59)
        a.maintain(SHARD)
        newest = copied(stores.consensus)
        promote(stores, standby)
        assert stores.state().finalized
        promote(stores, newest)
    before = stores.stored()
    stores.clock.sleep(61)
    a.maintain(SHARD)
    assert stores.stored() == before


def test_few_replaced_rollups_wait_long(stores: Stores) -> None:
    """So that the list of them does not make the state of a busy shard large."""
    a = stores.open(gc_grace_s=3600.0, rollup_every=1)

    def replaced() -> int:
        return len(rollups_of(stores)) - 1

    for time in range(2 * MOST_ROLLUPS):
        append(a, time)
        a.maintain(SHARD)
    kept = replaced()
    assert kept >= 2 * MOST_ROLLUPS - 1
    stores.clock.sleep(ROLLUPS_S - 1)
    a.maintain(SHARD)
    assert replaced() >= kept
    stores.clock.sleep(1)
    a.maintain(SHARD)
    assert MOST_ROLLUPS <= replaced() <= MOST_ROLLUPS + 3
    newest = stores.state().latest_rollup
    assert newest is not None
    stores.clock.sleep(3600 - ROLLUPS_S - 1)
    a.maintain(SHARD)
    assert MOST_ROLLUPS <= replaced() <= MOST_ROLLUPS + 3
    stores.clock.sleep(62)
    a.maintain(SHARD)
    assert replaced() <= 4
