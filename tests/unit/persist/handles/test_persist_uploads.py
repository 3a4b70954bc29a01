"""Uploads of other processes for one append: it names them, or they are swept, but never too early."""

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pytest

from holdfast.errors import BadInput, Determinate, HandleExpired, UpperMismatch
from holdfast.persist import PersistClient, Upload, UploadTicket, WriteHandle
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.multi_write import LONGEST_UPLOAD_S, InFlight
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.machine import commit
from testbed.faults import Fault, Operation
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, updates

LEASE_S = 900.0
PARTS = {"part_target_bytes": 256}


@pytest.fixture
def writer(stores: Stores) -> WriteHandle:
    return stores.open().writer(SHARD, SCHEMA, purpose="driver")


def elsewhere(stores: Stores, ticket: UploadTicket, keys: range, *, time: int = 4) -> Upload:
    """A task of another process: sorts and uploads, and answers in bytes that travel."""
    client = stores.open(**PARTS)
    with client.writer(SHARD, SCHEMA, purpose="task").batch_builder() as builder:
        builder.add(updates([(key, f"v{key}", time, 1) for key in reversed(keys)]))
        told = client.upload(pickle.loads(pickle.dumps(ticket)), builder.updates())
    found = pickle.loads(pickle.dumps(told))
    assert isinstance(found, Upload)
    return found


def swept(client: PersistClient) -> set[str]:
    found = sweep(client, older_than_s=0.0, delete=True)
    return {orphan.key for each in found for orphan in each.orphans}


def expire(stores: Stores) -> None:
    """All writers were silent for a whole lease."""
    machine = stores.open().session.machine(SHARD)
    writers = machine.refresh().writers.values()
    commit([(machine, ExpireHandles((), tuple((each.id, each.heartbeats) for each in writers)))])


def test_what_others_uploaded_is_appended_in_one_step(stores: Stores, writer: WriteHandle) -> None:
    ticket = writer.upload_ticket()
    uploads = [elsewhere(stores, ticket, keys) for keys in (range(50), range(50, 60), range(0))]
    assert [each.rows for each in uploads] == [50, 10, 0]
    assert len(uploads[0].run) > 1
    assert all(part.blob_key for each in uploads for part in each.run)
    assert stores.state().upper == 0
    writer.commit(writer.prepare_uploads(uploads, 0, 5))
    state = stores.state()
    assert (state.upper, [len(batch.runs) for batch in state.batches]) == (5, [1])
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(4).to_table()) == Counter({(key, f"v{key}"): 1 for key in range(60)})
    writer.close()
    expire(stores)
    stores.clock.sleep(LONGEST_UPLOAD_S)
    assert swept(stores.open()) == set()


def test_uploads_are_no_orphans_while_the_writer_says_that_it_lives(
    stores: Stores, writer: WriteHandle
) -> None:
    """However old they are: others watch its lease, and it is the driver that beats, not the tasks."""
    first = elsewhere(stores, writer.upload_ticket(), range(30))
    upkeep = stores.open(maintenance="inline")
    for _ in range(200):
        stores.clock.sleep(LEASE_S / 2)
        writer.keep_alive()
        upkeep.maintain(SHARD)
    assert LEASE_S / 2 * 200 > LONGEST_UPLOAD_S
    assert swept(stores.open()) == set()
    writer.commit(writer.prepare_uploads([first], 0, 5))
    assert stores.state().upper == 5


def test_uploads_of_a_driver_that_died_are_swept_and_can_not_be_appended(
    stores: Stores, writer: WriteHandle
) -> None:
    left = elsewhere(stores, writer.upload_ticket(), range(30))
    prepared = writer.prepare_uploads([left], 0, 5)
    upkeep = stores.open(maintenance="inline")
    for _ in range(4):
        upkeep.maintain(SHARD)
        stores.clock.sleep(LEASE_S)
    assert stores.state().writers == {}
    assert swept(stores.open()) == {part.blob_key for part in left.run}
    with pytest.raises(HandleExpired, match="sent no heartbeat for too long"):
        writer.commit(prepared)
    with pytest.raises(HandleExpired):
        writer.keep_alive()
    assert stores.state().upper == 0
    with pytest.raises(HandleExpired, match="sent no heartbeat for too long: its uploads"):
        writer.prepare_uploads([left], 0, 5)


def test_what_a_task_uploads_twice_or_too_late_goes_when_the_writer_has_gone(
    stores: Stores, writer: WriteHandle
) -> None:
    ticket = writer.upload_ticket()
    twice, once = elsewhere(stores, ticket, range(30)), elsewhere(stores, ticket, range(30))
    writer.commit(writer.prepare_uploads([once], 0, 5))
    late = elsewhere(stores, ticket, range(30))
    assert swept(stores.open()) == set()
    expire(stores)
    lost = {part.blob_key for each in (twice, late) for part in each.run}
    assert swept(stores.open()) == lost
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(4).to_table()) == Counter({(key, f"v{key}"): 1 for key in range(30)})


def test_what_lost_against_another_writer_goes_when_it_is_abandoned(
    stores: Stores, writer: WriteHandle
) -> None:
    prepared = writer.prepare_uploads([elsewhere(stores, writer.upload_ticket(), range(30))], 0, 5).keep()
    stores.open().writer(SHARD, SCHEMA, purpose="other").seal(2)
    with pytest.raises(UpperMismatch):
        writer.commit(prepared)
    assert stores.parts() == set(prepared.uploaded)
    prepared.abandon()
    assert stores.parts() == set()


def test_a_task_that_fails_leaves_nothing(stores: Stores, writer: WriteHandle) -> None:
    ticket = writer.upload_ticket()
    done = elsewhere(stores, ticket, range(10))

    class FullAfterTwo:
        puts = 0

        def decide(self, operation: Operation) -> Fault:
            self.puts += operation.name == "blob.put"
            return Fault.DETERMINATE if self.puts > 2 and operation.name == "blob.put" else Fault.NONE

    def pieces() -> Iterator[pa.RecordBatch]:
        table = updates([(key, f"v{key}", 4, 1) for key in range(100)])
        yield from table.cast(SCHEMA.arrow_updates).to_batches()

    with pytest.raises(Determinate):
        stores.open(FullAfterTwo(), **PARTS).upload(ticket, pieces())
    assert stores.parts() == {part.blob_key for part in done.run}
    stores.open().discard([done])
    assert stores.parts() == set()


def test_few_rows_are_a_blob_too_so_that_many_tasks_do_not_fill_the_state(
    stores: Stores, writer: WriteHandle
) -> None:
    ticket = writer.upload_ticket()
    rows = updates([(1, "v1", 4, 1)]).cast(SCHEMA.arrow_updates)
    (part,) = stores.open().upload(ticket, rows.to_batches()).run
    assert (part.inline, {part.blob_key}) == (None, stores.parts())


def test_what_is_not_for_this_shard_or_these_times_is_refused(stores: Stores, writer: WriteHandle) -> None:
    other = stores.open().writer(OTHER, SCHEMA, purpose="test")
    upload = elsewhere(stores, writer.upload_ticket(), range(3), time=7)
    with pytest.raises(BadInput, match=f"an upload for {SHARD} can't be appended to {OTHER}"):
        other.prepare_uploads([upload], 0, 8)
    with pytest.raises(BadInput, match=r"times from 7 to 7, expected times in \[0, 7\)"):
        writer.prepare_uploads([upload], 0, 7)
    assert stores.state().upper == 0


def test_a_writer_that_is_handed_on_appends_in_another_process_while_tasks_say_that_it_lives(
    stores: Stores,
) -> None:
    planner = stores.open()
    ticket = planner.writer(SHARD, SCHEMA, purpose="plan").hand_on(lease_s=LEASE_S)
    # What the planning process does at its end is no end of the writer.
    planner.close()
    uploads = [elsewhere(stores, ticket, range(20))]
    upkeep, task = stores.open(maintenance="inline"), stores.open()
    for _ in range(10):
        stores.clock.sleep(LEASE_S / 2)
        task.keep_alive(ticket, purpose="task")
        upkeep.maintain(SHARD)
    committing = stores.open()
    assert [table.num_rows for table in committing.uploaded(uploads[0])] == [
        part.rows for part in uploads[0].run
    ]
    writer = committing.writer_of(ticket, purpose="commit")
    writer.commit(writer.prepare_uploads(uploads, 0, 5))
    # Nothing that it has appended goes with it, however late somebody gives it up.
    task.give_up(ticket, uploads)
    stores.clock.sleep(LONGEST_UPLOAD_S)
    upkeep.maintain(SHARD)
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(4).to_table()) == Counter({(key, f"v{key}"): 1 for key in range(20)})


@pytest.mark.parametrize("end", ["silent", "given up"])
def test_a_writer_that_was_handed_on_and_has_ended_is_not_made_anew(stores: Stores, end: str) -> None:
    ticket = stores.open().writer(SHARD, SCHEMA, purpose="plan").hand_on(lease_s=LEASE_S)
    uploads = [elsewhere(stores, ticket, range(20))]
    early = stores.open().writer_of(ticket, purpose="zombie")
    prepared = early.prepare_uploads(uploads, 0, 5)
    client = stores.open()
    if end == "silent":
        expire(stores)
    else:
        client.give_up(ticket, uploads)
        assert client.session.machine(SHARD).refresh().garbage.keys() == {
            part.blob_key for part in uploads[0].run
        }
        client.give_up(ticket, uploads)
    with pytest.raises(HandleExpired):
        client.keep_alive(ticket, purpose="task")
    with pytest.raises(HandleExpired):
        early.commit(prepared)
    late = client.writer_of(ticket, purpose="commit")
    with pytest.raises(HandleExpired):
        late.prepare_uploads(uploads, 0, 5)
    assert stores.state().upper == 0


def test_of_threads_that_commit_one_prepared_append_one_succeeds(
    stores: Stores, writer: WriteHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores.open() as client:
        prepared = writer.prepare_uploads([elsewhere(stores, writer.upload_ticket(), range(30))], 0, 5)
        both, begin = threading.Barrier(2), InFlight.begin

        def begin_late(in_flight: InFlight) -> None:
            # The other thread comes between the check and what follows it.
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            begin(in_flight)

        monkeypatch.setattr(InFlight, "begin", begin_late)
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(client.multi_write, [prepared]) for _ in range(2)]
            errors = [call.exception() for call in calls]
        assert sorted(type(error) for error in errors if error is not None) == [BadInput]
        assert writer.upper() == 5
        assert set(prepared.uploaded) == stores.parts() != set()
