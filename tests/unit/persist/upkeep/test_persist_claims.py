"""Compactions are claimed in the state, so that two processes do not repeat the same work."""

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Determinate, HandleExpired, Indeterminate
from holdfast.persist import CompactionTask, PersistClient
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.state.command import ExpireHandles, Handle
from holdfast.persist.state.machine import commit
from holdfast.persist.state.state import Batch, CompactionClaim
from holdfast.persist.upkeep.compaction import claim_compaction, compact, most_unclaimed
from testbed.faults import Fault, Operation
from unit.persist.open_stores import SCHEMA, SHARD, Stores, contents, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0, "compaction_fanin": 4}
LEASE: dict[str, Any] = {**BLOBS, "lease_s": 100.0}


def write(client: PersistClient, count: int, *, first: int = 0) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(rows(time), time, time + 1)


def check_contents(stores: Stores, count: int) -> None:
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    expected = Counter({(key, "x"): 1 for key in range(count)})
    assert contents(reader.snapshot(count - 1).to_table()) == expected


def claimed(client: PersistClient) -> CompactionTask:
    task = client.compactions.claim(SHARD, purpose="job")
    assert task is not None
    return task


def test_a_claim_is_made_here_done_there_and_installed_anywhere(stores: Stores) -> None:
    write(stores.open(**BLOBS), 5)
    task = claimed(stores.open(**BLOBS))
    (claim,) = stores.state().claims.values()
    assert (claim.id, claim.writer_id, claim.batch_ids) == (task.claim_id, task.writer.id, task.batch_ids)
    assert stores.state().writers[task.writer.id].purpose == "job"
    worker = stores.open(**BLOBS)
    parts = worker.compactions.merge(pickle.loads(pickle.dumps(task)))
    assert stores.open().compactions.install(task, pickle.loads(pickle.dumps(parts)))
    state = stores.state()
    assert (len(state.batches), state.claims) == (1, {})
    assert stores.open().compactions.install(task, parts), "applied is remembered"
    check_contents(stores, 5)


def test_what_is_claimed_is_left_to_who_claimed_it(stores: Stores) -> None:
    write(stores.open(**BLOBS), 5)
    task = claimed(stores.open(**BLOBS))
    other = stores.open(**BLOBS)
    assert other.compactions.claim(SHARD, purpose="other") is None
    other.maintain(SHARD)
    assert [batch.id for batch in stores.state().batches] == [*task.batch_ids]
    write(other, 4, first=5)
    second = claimed(other)
    assert not {*task.batch_ids} & {*second.batch_ids}
    other.compactions.release(second)
    other.maintain(SHARD)
    assert [batch.level for batch in stores.state().batches] == [0] * 5 + [1]
    assert len(stores.state().claims) == 1
    check_contents(stores, 9)


def test_of_two_who_claim_at_once_one_works(stores: Stores) -> None:
    first = stores.open(**BLOBS)
    write(first, 5)
    first.session.machine(SHARD).refresh()

    class Meanwhile:
        armed = True
        uploads = 0

        def decide(self, operation: Operation) -> Fault:
            if self.armed and operation.name == "consensus.compare_and_set":
                self.armed = False
                first.maintain(SHARD)
            self.uploads += operation.name == "blob.put"
            return Fault.NONE

    plan = Meanwhile()
    stores.open(plan, **BLOBS).maintain(SHARD)
    assert plan.uploads == 0
    assert len(stores.state().batches) == 1
    check_contents(stores, 5)


def test_a_claim_dies_with_the_lease_of_its_writer(stores: Stores) -> None:
    write(stores.open(**LEASE), 5)
    task = claimed(stores.open(**LEASE))
    watcher = stores.open(**LEASE)
    for _ in range(3):
        stores.clock.sleep(80)
        watcher.maintain(SHARD)
        assert stores.open(**LEASE).compactions.renew(task)
    watcher.maintain(SHARD)
    stores.clock.sleep(101)
    watcher.maintain(SHARD)
    state = stores.state()
    assert (len(state.batches), state.claims) == (1, {})
    assert task.writer.id not in state.writers
    assert not stores.open(**LEASE).compactions.renew(task)
    check_contents(stores, 5)


def test_a_result_is_dropped_where_others_were_faster(stores: Stores) -> None:
    write(stores.open(**LEASE), 5)
    slow = stores.open(**LEASE)
    task = claimed(slow)
    parts = slow.compactions.merge(task)
    slow.compactions.release(task)
    stores.open(**LEASE).maintain(SHARD)
    before = stores.state().batches
    assert not slow.compactions.install(task, parts)
    assert stores.state().batches == before
    assert not {part.blob_key for part in parts} & stores.blobs()
    with pytest.raises(HandleExpired, match="are gone"):
        slow.compactions.merge(task)
    check_contents(stores, 5)


def test_a_result_is_refused_once_its_writer_was_silent_for_too_long(stores: Stores) -> None:
    """A day later its parts are gone: the claim must not come back, nor the result get in."""
    write(stores.open(**LEASE), 5)
    asleep = stores.open(**LEASE)
    task = claimed(asleep)
    parts = asleep.compactions.merge(task)
    other = stores.open(gc_grace_s=3600.0, **BLOBS)
    machine = other.session.machine(SHARD)
    beats = machine.refresh().writers[task.writer.id].heartbeats
    commit([(machine, ExpireHandles((), ((task.writer.id, beats),)))])
    stores.clock.sleep(25 * 3600)
    (swept,) = sweep(other, delete=True)
    assert {orphan.key for orphan in swept.orphans} == {part.blob_key for part in parts}
    assert not asleep.compactions.renew(task)
    assert not asleep.compactions.install(task, parts)
    check_contents(stores, 5)


def test_a_claim_outlives_the_clients_that_made_it_and_work_on_it(stores: Stores) -> None:
    write(stores.open(**BLOBS), 5)
    with stores.open(**BLOBS) as driver:
        task = claimed(driver)
    with stores.open(**BLOBS) as worker:
        worker.compactions.renew(task)
        parts = worker.compactions.merge(task)
    stores.clock.sleep(25 * 3600)
    (swept,) = sweep(stores.open(**BLOBS), delete=True)
    assert not swept.orphans
    assert stores.open(**BLOBS).compactions.install(task, parts)
    assert task.writer.id not in stores.state().writers
    check_contents(stores, 5)


def test_a_result_that_is_in_stays_where_it_is_given_again_in_vain(stores: Stores) -> None:
    write(stores.open(**BLOBS), 5)
    task = claimed(stores.open(**BLOBS))
    parts = stores.open(**BLOBS).compactions.merge(task)

    class Lost:
        lost = False

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.clock_ms" and self.lost:
                return Fault.DETERMINATE
            if operation.name == "consensus.compare_and_set":
                self.lost = True
                return Fault.INDETERMINATE_AFTER
            return Fault.NONE

    client = stores.open(Lost(), retry_deadline_s=0.0, **BLOBS)
    with pytest.raises(Indeterminate):
        client.compactions.install(task, parts)
    with pytest.raises(Determinate):
        client.compactions.install(task, parts)
    check_contents(stores, 5)


def test_small_batches_that_become_a_blob_have_a_writer_while_it_is_uploaded(stores: Stores) -> None:
    write(stores.open(), 5)
    seen: list[bool] = []

    class Watched:
        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.put":
                (key,) = operation.keys
                seen.append(key.split("/")[1] in stores.state().writers)
            return Fault.NONE

    stores.open(Watched(), **BLOBS).maintain(SHARD)
    assert (seen, len(stores.state().batches)) == ([True], 1)
    assert "upkeep" not in {writer.purpose for writer in stores.state().writers.values()}
    check_contents(stores, 5)


def test_a_merge_of_small_batches_is_dropped_where_its_writer_was_silent(stores: Stores) -> None:
    """It sleeps for a day between its upload and its commit, and the sweeper has taken what it uploaded."""
    write(stores.open(), 5)

    class Asleep:
        armed = True

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.clock_ms" and self.armed:
                self.armed = False
                other = stores.open(gc_grace_s=3600.0, lease_s=100.0)
                machine = other.session.machine(SHARD)
                writers = machine.refresh().writers.values()
                silent = tuple((writer.id, writer.heartbeats) for writer in writers)
                commit([(machine, ExpireHandles((), silent))])
                stores.clock.sleep(25 * 3600)
                (swept,) = sweep(other, delete=True)
                assert len(swept.orphans) == 1
            return Fault.NONE

    plan = Asleep()
    stores.open(plan, **BLOBS).maintain(SHARD)
    assert not plan.armed
    check_contents(stores, 5)


def test_a_long_merge_renews_its_claim(stores: Stores) -> None:
    write(stores.open(**LEASE), 5)

    class Slow:
        def decide(self, operation: Operation) -> Fault:
            if operation.name == "blob.open_input":
                stores.clock.sleep(30)
            return Fault.NONE

    worker = stores.open(Slow(), **LEASE)
    task = claimed(worker)
    beats = stores.state().writers[task.writer.id].heartbeats
    worker.compactions.merge(task)
    assert stores.state().writers[task.writer.id].heartbeats > beats


def test_a_shard_that_ends_ends_its_claims(stores: Stores) -> None:
    client = stores.open(**BLOBS)
    write(client, 5)
    task = claimed(client)
    client.finalize(SHARD)
    assert stores.state().claims == {}
    assert not client.compactions.renew(task)
    with pytest.raises(HandleExpired):
        client.compactions.merge(task)


def test_small_batches_are_merged_without_a_claim(stores: Stores) -> None:
    client = stores.open(compaction_fanin=4)
    write(client, 5)
    before = stores.state().seqno
    client.maintain(SHARD)
    assert len(stores.state().batches) == 1
    assert stores.state().seqno - before <= 2


def test_a_claim_that_is_never_worked_on_leaves_few_batches(stores: Stores) -> None:
    """Whoever holds a claim, and does nothing, keeps as many batches as he claimed: the rest is merged."""
    client = stores.open(maintenance="inline", debug_validate=False, **BLOBS)
    write(client, 3)
    idle = stores.open(**{**BLOBS, "compaction_fanin": 3})
    assert idle.compactions.claim(SHARD, purpose="idle") is not None
    worst = 0
    for start in range(3, 303, 20):
        write(client, 20, first=start)
        worst = max(worst, len(stores.state().batches))
    assert worst <= 3 + 4 * 5
    check_contents(stores, 303)


@given(claimed=st.sets(st.integers(0, 9)), count=st.integers(0, 10), new=st.booleans())
def test_what_is_merged_next_to_claims_is_the_longest_part_of_the_rest(
    claimed: set[int], count: int, new: bool
) -> None:
    stores = Stores()
    client = stores.open(**BLOBS)
    write(client, 1)
    state = replace(
        client.session.machine(SHARD).refresh(),
        batches=tuple(Batch(id_, id_, id_ + 1, 0, ()) for id_ in range(count)),
        claims={"k1": CompactionClaim("k1", "w1", tuple(claimed))},
        since=int(new),
    )
    found = [batch.id for batch in most_unclaimed(state)]
    free = [
        [*range(start, end)]
        for start in range(count)
        for end in range(start + 1, count + 1)
        if claimed.isdisjoint(range(start, end)) and (new or end - start > 1)
    ]
    # The longest part, and the newest of equally long ones.
    assert found == max(free, key=lambda part: (len(part), part), default=[])
    assert most_unclaimed(replace(state, finalized=True)) == ()


def test_all_batches_that_no_other_compaction_has_are_merged_while_it_runs(stores: Stores) -> None:
    local = stores.open(**BLOBS)
    write(local, 4)
    jobs: list[CompactionTask | None] = []

    def meanwhile() -> None:
        if not jobs:
            other = stores.open(**BLOBS)
            with other.writer(SHARD, SCHEMA, purpose="test") as writer:
                for time in range(4, 7):
                    writer.compare_and_append(rows(time), time, time + 1)
            task = other.compactions.claim(SHARD, purpose="job", full=True)
            jobs.append(task)
            assert task is not None
            assert other.compactions.claim(SHARD, purpose="job", full=True) is None
            assert sorted(other.compactions.claimants(SHARD)) == ["job", "local"]
            assert other.compactions.install(task, other.compactions.merge(task))

    machine = local.session.machine(SHARD)
    assert compact(machine, local.session.new_handle("w", "local"), between=meanwhile)
    state = stores.state()
    assert [(batch.lower, batch.upper) for batch in state.batches] == [(0, 4), (4, 7)]
    assert not state.claims
    check_contents(stores, 7)


def test_a_claim_takes_what_is_left_if_another_one_comes_first(stores: Stores) -> None:
    write(stores.open(**BLOBS), 9)

    class Claiming:
        """Claims batches in the middle just before another claim is committed."""

        def __init__(self) -> None:
            self.before: list[int] = []

        def decide(self, operation: Operation) -> Fault:
            if operation.name == "consensus.compare_and_set" and not self.before:
                self.before = [batch.id for batch in stores.state().batches[2:4]]
                machine = stores.open(**BLOBS).session.machine(SHARD)
                wanted = machine.refresh().batches[2:4]
                handle = Handle("w1", "first", "host", 1000)
                assert claim_compaction(machine, handle, wanted) is not None
            return Fault.NONE

    first = Claiming()
    task = stores.open(first, **BLOBS).compactions.claim(SHARD, purpose="second", full=True)
    assert task is not None
    ids = [batch.id for batch in stores.state().batches]
    assert (ids[2:4], ids[4:]) == (first.before, [*task.batch_ids])
    assert len({*first.before, *task.batch_ids}) == 7
