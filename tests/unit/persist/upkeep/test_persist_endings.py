"""Finalized shards, closed writers and closed clients leave nothing behind."""

import gc
import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.upkeep.garbage import garbage_due
from holdfast.persist.upkeep.leases import MOST_WRITERS
from testbed.faults import Fault, Operation
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, HandClock, Stores, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}


def write(client: PersistClient, count: int, shard: str = SHARD) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in range(count):
            writer.compare_and_append(rows(time), time, time + 1)


def log_rows(stores: Stores) -> int:
    return len(stores.consensus.scan(SHARD, 0, 10**6))


def check_tombstone(stores: Stores) -> None:
    """One small rollup and the rows of its own commit are left, and upkeep has nothing more to do."""
    state = stores.state()
    assert state.finalized
    assert state.garbage == {}
    assert stores.blobs() == {rollup.blob_key for rollup in state.rollups.values()}
    assert sum(rollup.size_bytes for rollup in state.rollups.values()) < 600
    assert log_rows(stores) <= 2
    before = stores.stored()
    stores.open().maintain(SHARD)
    assert stores.stored() == before


@pytest.mark.parametrize("settings", [{}, BLOBS])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 10, 11, 40])
def test_a_finalized_shard_shrinks_to_one_tombstone(
    stores: Stores, settings: dict[str, Any], count: int
) -> None:
    client = stores.open(maintenance="inline", rollup_every=8, **settings)
    write(client, count)
    client.finalize(SHARD)
    check_tombstone(stores)


def test_upkeep_of_a_finalized_shard_by_another_process_does_it_all(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 40)
    client.finalize(SHARD)
    assert len(stores.parts()) == 40
    stores.open().maintain(SHARD)
    check_tombstone(stores)


def test_what_is_freed_later_waits_for_its_grace_and_is_not_looked_for_before(stores: Stores) -> None:
    client = stores.open(maintenance="inline", gc_grace_s=60.0, **BLOBS)
    write(client, 5)
    client.finalize(SHARD)
    machine = client.session.machine(SHARD)
    assert len(stores.parts()) == 5
    assert log_rows(stores) <= 2
    stores.clock.sleep(59)
    assert not garbage_due(machine.state, client.config, client.clock.wall_ms())
    stores.clock.sleep(1)
    assert garbage_due(machine.state, client.config, client.clock.wall_ms())
    client.maintain(SHARD)
    assert not garbage_due(machine.state, client.config, client.clock.wall_ms())
    assert stores.parts() == set()
    # The last rollup has replaced one that a lagging standby may name.
    assert len(stores.blobs()) == 2
    stores.clock.sleep(60)
    assert garbage_due(machine.state, client.config, client.clock.wall_ms())
    client.maintain(SHARD)
    check_tombstone(stores)


def background(stores: Stores, clock: HandClock | None = None, **settings: Any) -> PersistClient:
    config = PersistConfig(**{"gc_grace_s": 0.0, "retry_deadline_s": 0.5, **settings})
    return PersistClient(stores.open().location, config=config, clock=clock)


def test_the_thread_frees_what_a_finalized_shard_held(stores: Stores) -> None:
    with background(stores, **BLOBS) as client:
        write(client, 40)
        client.finalize(SHARD)
    check_tombstone(stores)


def wait_for(condition: Callable[[], bool]) -> None:
    waiting = Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    pytest.fail("it did not happen in 10 s")


def test_the_thread_looks_again_at_garbage_that_waits(stores: Stores) -> None:
    with background(stores, lease_s=0.04, gc_grace_s=0.2, **BLOBS) as client:
        write(client, 3)
        client.finalize(SHARD)
        assert len(stores.parts()) == 3
        stores.clock.sleep(0.2)
        wait_for(lambda: stores.parts() == set())


def test_an_error_of_any_kind_does_not_end_the_thread(
    stores: Stores, caplog: pytest.LogCaptureFixture, own_records: Callable[[], list[logging.LogRecord]]
) -> None:
    class Broken:
        """A store that fails in a way that no store should."""

        failed = Event()

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.put":
                self.failed.set()
                raise TypeError("not a storage error")
            return Fault.NONE

    config = PersistConfig(lease_s=0.04, rollup_every=4, retry_deadline_s=0.5)
    plan = Broken()
    with caplog.at_level(logging.WARNING), PersistClient(stores.open(plan).location, config=config) as client:
        write(client, 2)
        reader = client.reader(SHARD, purpose="test")
        client.writer(SHARD, SCHEMA, purpose="more").seal(9)
        assert plan.failed.wait(10)

        def beats() -> int:
            return max(
                (r.heartbeats for r in client.session.machine(SHARD).state.leased_readers.values()), default=0
            )

        seen = beats()
        wait_for(lambda: beats() > seen + 2)
        reader.close()
    told = {record.getMessage() for record in own_records() if record.exc_info}
    assert "TypeError: not a storage error" in caplog.text
    assert told == {f"upkeep of {SHARD} failed", f"{SHARD} has no rollup of its newest version"}


def test_an_error_of_any_kind_after_a_commit_is_logged_once_and_not_raised(
    stores: Stores,
    caplog: pytest.LogCaptureFixture,
    own_records: Callable[[], list[logging.LogRecord]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The append has landed: a caller that gets an error would append again, or give up."""
    client = stores.open(maintenance="inline", rollup_every=4, debug_validate=False)
    put, failing = stores.blob.put, True

    def broken(key: str, data: bytes | memoryview) -> None:
        if failing:
            raise TypeError("not a storage error")
        put(key, data)

    monkeypatch.setattr(stores.blob, "put", broken)
    with caplog.at_level(logging.WARNING):
        write(client, 20)
        assert stores.state().upper == 20
        told = [record.getMessage() for record in own_records() if record.exc_info]
        assert told == [f"upkeep of {SHARD} failed"]
        failing = False
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(20), 20, 21)
        assert stores.state().rollups
        failing = True
        writer.compare_and_append(rows(21), 21, 22)
        client.close()
    told = [record.getMessage() for record in own_records() if record.exc_info]
    assert told == [f"upkeep of {SHARD} failed", f"{SHARD} has no rollup of its newest version"]


def test_an_append_returns_where_no_thread_can_be_started(
    stores: Stores, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has as many threads as it may have, or it ends."""

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with background(stores, rollup_every=4) as client, monkeypatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        write(client, 8)
        assert "can't start new thread" in caplog.text
        patched.undo()
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(8), 8, 9)
        wait_for(lambda: bool(stores.state().rollups))


def entries(stores: Stores, shard: str = SHARD) -> int:
    return len(stores.state(shard).writers)


def test_a_client_that_closes_takes_its_writers_with_it_and_leaves_rollups(stores: Stores) -> None:
    client = stores.open()
    write(client, 1)
    kept = client.writer(SHARD, SCHEMA, purpose="open to the end")
    kept.seal(5)
    write(client, 1, OTHER)
    assert (entries(stores), entries(stores, OTHER)) == (2, 1)
    before = [stores.state(shard).seqno for shard in (SHARD, OTHER)]
    client.close()
    assert (entries(stores), entries(stores, OTHER)) == (0, 0)
    # One commit drops the writers and records the rollups.
    assert [stores.state(shard).seqno for shard in (SHARD, OTHER)] == [seqno + 1 for seqno in before]
    assert [max(stores.state(shard).rollups) for shard in (SHARD, OTHER)] == before


def test_writers_that_were_closed_or_forgotten_go_with_the_next_upkeep(stores: Stores) -> None:
    client = stores.open()
    client.multi_write([client.prepare_create(SHARD, SCHEMA, purpose="creation")])
    closed, forgotten, kept = (client.writer(SHARD, SCHEMA, purpose=str(n)) for n in range(3))
    for time, writer in enumerate((closed, forgotten, kept)):
        writer.compare_and_append(rows(time), time, time + 1)
    del forgotten, writer
    gc.collect()
    prepared = closed.prepare_seal(3, 4)
    closed.close()
    assert entries(stores) == 4
    client.maintain(SHARD)
    assert [writer.purpose for writer in stores.state().writers.values()] == ["2"]
    uses: list[Callable[[], None]] = [
        lambda: client.multi_write([prepared]),
        lambda: closed.compare_and_append(rows(1), 3, 4),
    ]
    for use in uses:
        with pytest.raises(BadInput, match=r"this writer of .* is closed"):
            use()
    kept.compare_and_append(rows(3), 3, 4)


def test_processes_that_live_shorter_than_a_lease_leave_a_bounded_number_of_writers(stores: Stores) -> None:
    """They die without closing, so nobody ever sees a writer silent for a whole lease."""
    for time in range(200):
        client = stores.open(maintenance="inline", rollup_every=16, debug_validate=False)
        client.writer(SHARD, SCHEMA, purpose=str(time)).compare_and_append(rows(time), time, time + 1)
    left = [writer.purpose for writer in stores.state().writers.values()]
    assert len(left) <= MOST_WRITERS + 8
    assert left == [str(time) for time in range(200 - len(left), 200)]


def test_whatever_a_closed_client_is_asked_it_refuses_at_once(stores: Stores) -> None:
    client = stores.open(retry_deadline_s=1000.0)
    write(client, 3)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    reader = client.reader(SHARD, purpose="test")
    hold = client.critical_since(SHARD, purpose="test")
    snapshot, listen = reader.snapshot(2), reader.listen(1)
    prepared = writer.prepare_seal(3, 4)
    client.close()
    before = stores.stored()
    uses: list[Callable[[], object]] = [
        lambda: client.recent_upper(SHARD),
        lambda: client.exists(SHARD),
        client.shards,
        lambda: client.inspect(SHARD),
        lambda: client.maintain(SHARD),
        lambda: client.finalize(SHARD),
        lambda: client.writer(SHARD, SCHEMA, purpose="late"),
        lambda: client.reader(SHARD, purpose="late"),
        lambda: client.critical_since(SHARD, purpose="late"),
        lambda: client.multi_write([prepared]),
        reader.since,
        reader.upper,
        lambda: reader.snapshot(2),
        lambda: reader.snapshot_parts(2),
        lambda: reader.listen(2),
        lambda: reader.subscribe(2),
        snapshot.to_table,
        lambda: list(snapshot),
        lambda: listen.next(),
        lambda: next(iter(listen)),
        writer.upper,
        lambda: writer.compare_and_append(rows(3), 3, 4),
        lambda: writer.seal(4),
        lambda: hold.downgrade(2),
        hold.release,
    ]
    started = stores.clock.now_s
    for use in uses:
        with pytest.raises(BadInput, match=r"^this client of .* is closed\n"):
            use()
    reader.close()
    writer.close()
    client.close()
    assert stores.clock.now_s == started
    assert stores.stored() == before


def test_a_call_that_waits_for_a_store_ends_when_its_client_does(stores: Stores) -> None:
    class Down:
        """The store fails; while the call waits, its client is closed."""

        client: PersistClient | None = None

        def decide(self, operation: Operation) -> Fault:
            if self.client is None:
                return Fault.NONE
            self.client.close()
            return Fault.DETERMINATE

    plan = Down()
    client = stores.open(plan, retry_deadline_s=1000.0)
    plan.client = client
    with pytest.raises(BadInput, match="closed"):
        client.recent_upper(SHARD)
    assert stores.clock.now_s < 1001


def test_a_log_that_is_truncated_between_two_pages_is_read_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.persist.state.machine._SCAN_LIMIT", 4)
    client = stores.open(rollup_every=8)
    write(client, 7)

    class Truncates:
        """Upkeep comes after the first page."""

        pages = 0

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "consensus.scan":
                self.pages += 1
                if self.pages == 2:
                    upper = client.recent_upper(SHARD)
                    client.writer(SHARD, SCHEMA, purpose="more").compare_and_append(rows(9), upper, 9)
                    client.maintain(SHARD)
            return Fault.NONE

    newcomer = stores.open(Truncates(), mode="read")
    assert newcomer.recent_upper(SHARD) == 9
    assert newcomer.session.machine(SHARD).state == client.session.machine(SHARD).state


def test_a_machine_belongs_to_one_client_and_ends_with_it(stores: Stores) -> None:
    one, two = stores.open(), stores.open()
    write(one, 1)
    one.close()
    assert two.recent_upper(SHARD) == 1
