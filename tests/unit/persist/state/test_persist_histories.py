"""Recovery of a store that went back in time and was written to: it finds both histories, chooses none."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput, CorruptBlob, LogRegressed
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.recoverable import Choice
from holdfast.persist.admin.verify import verify
from holdfast.persist.config import Maintenance
from holdfast.persist.ids import rollup_seqno
from holdfast.persist.state.codec import decode_state, encode_state
from holdfast.persist.state.history import contradiction
from holdfast.persist.stores import Location, MemoryConsensus
from holdfast.persist.upkeep.garbage import collect_garbage
from holdfast.persist.upkeep.rollup import write_rollup
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows


def write(client: PersistClient, first: int, count: int, value: str, shard: str = SHARD) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time, value=value), time, time + 1)


def closed(stores: Stores, *appends: tuple[int, int, str], **settings: Any) -> None:
    client = stores.open(**settings)
    for first, count, value in appends:
        write(client, first, count, value)
    client.close()
    stores.clock.sleep(1)


def values(stores: Stores, consensus: MemoryConsensus) -> list[str]:
    config = PersistConfig(maintenance="off", debug_validate=True)
    client = PersistClient(Location.of(stores.blob, consensus, create=False), config=config)
    assert verify(client, SHARD).findings == ()
    table = client.reader(SHARD, purpose="test").snapshot(client.recent_upper(SHARD) - 1).to_table()
    return [value for _, value in sorted(contents(table))]


def copied(stores: Stores) -> Callable[[], None]:
    """Copy the consensus store; what this returns puts the copy in its place."""
    logs = {key: list(log) for key, log in stores.consensus._logs.items()}

    def restore() -> None:
        stores.consensus._logs.clear()
        stores.consensus._logs.update({key: list(log) for key, log in logs.items()})

    return restore


def forked(stores: Stores, **settings: Any) -> None:
    """Ten versions in both histories, 20 in the lost one, 3 in the log's."""
    closed(stores, (0, 10, "both"), **settings)
    restore = copied(stores)
    closed(stores, (10, 20, "lost"), **settings)
    restore()
    write(stores.open(**settings), 10, 3, "log")


@pytest.mark.parametrize("maintenance", ["background", "inline", "off"])
def test_each_client_that_closes_leaves_all_that_it_wrote(stores: Stores, maintenance: Maintenance) -> None:
    for first in range(5):
        closed(stores, (first, 1, "x"), maintenance=maintenance)
    lost = MemoryConsensus()
    (shard,) = Recovery(stores.blob, lost, clock=stores.clock).run().shards
    assert shard.upper == 5
    assert values(stores, lost) == ["x"] * 5


def test_many_clients_that_close_leave_a_short_log_and_few_blobs(stores: Stores) -> None:
    for first in range(20):
        closed(stores, (first, 1, "x"), maintenance="inline", rollup_every=8, compaction_fanin=100)
    assert len(stores.consensus._logs[SHARD]) <= 12
    assert len(stores.blobs()) <= 6


def test_a_client_closes_in_bounded_time_however_many_shards_it_wrote(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = stores.open()
    for number in range(12):
        write(client, 0, 1, "x", f"s00000000-0000-4000-8000-{number:012}")
    put = stores.blob.put

    def slowly(key: str, data: bytes | memoryview) -> None:
        stores.clock.sleep(1)
        put(key, data)

    monkeypatch.setattr(stores.blob, "put", slowly)
    before = stores.clock.monotonic()
    with caplog.at_level(logging.WARNING, logger="holdfast.persist.upkeep.maintainer"):
        client.close()
    assert stores.clock.monotonic() - before <= 6
    assert "of 12 shards have no rollup" in caplog.text


def test_a_store_that_was_written_to_after_it_went_back_has_two_histories(stores: Stores) -> None:
    forked(stores)
    recovery = Recovery(stores.blob, stores.consensus, clock=stores.clock)
    (shard,) = recovery.plan.shards
    assert shard.undecided
    assert (shard.seqno, shard.problem) == (None, "two histories")
    assert [(each.source, each.upper) for each in shard.histories] == [("log", 13), ("rollup", 30)]
    assert not recovery.plan.complete
    before = stores.stored()
    with pytest.raises(BadInput, match="two histories"):
        recovery.run()
    assert stores.stored() == before


@pytest.mark.parametrize(
    ("of_all", "found"), [("log", ["both"] * 10 + ["log"] * 3), ("newest", ["both"] * 10 + ["lost"] * 20)]
)
@pytest.mark.parametrize(
    "settings", [{}, {"inline_max_bytes": 0, "maintenance": "inline", "retain_for_s": 1e6}]
)
def test_the_history_that_was_chosen_comes_back(
    stores: Stores, of_all: Any, found: list[str], settings: dict[str, Any]
) -> None:
    forked(stores, **settings)
    Recovery(stores.blob, stores.consensus, clock=stores.clock, choice=Choice(of_all)).run()
    assert values(stores, stores.consensus) == found
    # The other one is decided about: it is not asked for again.
    assert Recovery(stores.blob, stores.consensus, clock=stores.clock).plan.healthy
    lost = MemoryConsensus()
    Recovery(stores.blob, lost, clock=stores.clock).run()
    assert values(stores, lost) == found


def test_a_history_that_the_log_outgrew_is_found_too(stores: Stores) -> None:
    forked(stores)
    write(stores.open(), 13, 40, "log")
    (shard,) = Recovery(stores.blob, stores.consensus, clock=stores.clock).plan.shards
    assert shard.undecided
    assert [each.upper for each in shard.histories] == [53, 30]


def test_two_histories_without_a_log(stores: Stores) -> None:
    forked(stores)
    closed(stores, (13, 4, "log"))
    lost = MemoryConsensus()
    (shard,) = Recovery(stores.blob, lost, clock=stores.clock).plan.shards
    by_upper = {each.upper: each.seqno for each in shard.histories}
    assert shard.undecided
    assert set(by_upper) == {17, 30}
    with pytest.raises(BadInput, match="can't be restored: the shard has no such version"):
        Recovery(stores.blob, lost, clock=stores.clock, choice=Choice("log"))
    Recovery(stores.blob, lost, clock=stores.clock, choice=Choice(None, {SHARD: by_upper[17]})).run()
    assert values(stores, lost) == ["both"] * 10 + ["log"] * 7


def test_an_older_copy_that_nobody_wrote_to_is_of_one_history(stores: Stores) -> None:
    closed(stores, (0, 10, "x"))
    restore = copied(stores)
    for first in range(10, 60, 10):
        closed(stores, (first, 10, "x"), maintenance="inline", inline_max_bytes=0, compaction_fanin=4)
    restore()
    (shard,) = Recovery(stores.blob, stores.consensus, clock=stores.clock).run().shards
    assert (shard.undecided, shard.upper) == (False, 60)


def test_each_version_of_a_long_history_can_have_come_from_each_before(stores: Stores) -> None:
    client = stores.open(maintenance="inline", compaction_fanin=3, rollup_every=5)
    versions = []
    for time in range(40):
        write(client, time, 1, "x")
        client.reader(SHARD, purpose="test").close()
        versions.append(client.session.machine(SHARD).state)
    write(client, 0, 1, "x", OTHER)
    for number, older in enumerate(versions):
        for newer in versions[number + 1 :]:
            assert contradiction(older, newer) == ""


def broken(stores: Stores, *, marked: bool, compacted: bool) -> None:
    """The rollup that the promoted log names is gone. Three rows were written to that log since."""
    a, c = stores.open(rollup_every=8, compaction_fanin=8 if compacted else 1000), stores.open()
    write(a, 0, 12, "both")
    a.maintain(SHARD)
    c.recent_upper(SHARD)
    restore = copied(stores)
    write(a, 12, 20, "lost")
    a.maintain(SHARD)
    stores.clock.sleep(1)
    restore()
    write(c, 12, 3, "log")
    if marked:
        with pytest.raises(LogRegressed):
            a.recent_upper(SHARD)
    with pytest.raises(CorruptBlob):
        stores.state()


@pytest.mark.parametrize("evidence", ["times", "marker", "digests", "batches"])
def test_a_log_that_can_not_be_replayed_may_have_two_histories(stores: Stores, evidence: str) -> None:
    broken(stores, marked=evidence == "marker", compacted=evidence != "batches")
    if evidence != "times":
        # Hosts' clocks disagree: the lost versions seem to be later ones.
        newest = max((key for key in stores.blobs() if "/v" in key), key=lambda key: rollup_seqno(key) or 0)
        data = stores.blob.get(newest)
        assert data is not None
        state = decode_state(data, newest)
        stores.blob.put(newest, encode_state(replace(state, wall_ms=state.wall_ms + 10_000)))
    if evidence in ("marker", "batches"):
        for key in [key for key in stores.blobs() if "/c" in key]:
            stores.blob.delete(key)
    before = stores.stored()
    (shard,) = Recovery(stores.blob, stores.consensus, clock=stores.clock).plan.shards
    head = stores.consensus.heads([SHARD])[SHARD].seqno
    assert shard.undecided
    assert [(each.source, each.upper, each.whole) for each in shard.histories] == [
        ("log", 15, False),
        ("rollup", 32, True),
    ]
    assert shard.histories[0].seqno == head
    assert f"to {head} of its log can't be replayed" in shard.problem
    with pytest.raises(BadInput, match="there are two histories of 1 shard"):
        Recovery(stores.blob, stores.consensus, clock=stores.clock).run()
    with pytest.raises(BadInput, match="can't be restored"):
        Recovery(stores.blob, stores.consensus, clock=stores.clock, choice=Choice("log"))
    assert stores.stored() == before
    Recovery(stores.blob, stores.consensus, clock=stores.clock, choice=Choice("newest")).run()
    assert values(stores, stores.consensus) == ["both"] * 12 + ["lost"] * 20


def test_the_rows_of_a_log_are_replayed_on_another_rollup(stores: Stores) -> None:
    """The commit that records the newer rollup is lost, and the older rollup is gone."""
    a, c = stores.open(rollup_every=8, compaction_fanin=1000), stores.open()
    write(a, 0, 12, "both")
    a.maintain(SHARD)
    write(a, 12, 20, "both")
    c.recent_upper(SHARD)
    restore = copied(stores)
    write_rollup(a.session.machine(SHARD))
    collect_garbage(a.session.machine(SHARD))
    stores.clock.sleep(1)
    restore()
    write(c, 32, 3, "log")
    with pytest.raises(CorruptBlob):
        stores.state()
    recovery = Recovery(stores.blob, stores.consensus, clock=stores.clock)
    (shard,) = recovery.plan.shards
    assert not shard.healthy
    assert not recovery.plan.complete
    assert (shard.seqno, shard.upper) == (shard.head, 35)
    recovery.run()
    assert values(stores, stores.consensus) == ["both"] * 32 + ["log"] * 3
