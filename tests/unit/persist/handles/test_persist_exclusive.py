"""The write lock of a location: who has it, who gets it next, and what happens to those who lost it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Determinate,
    Fenced,
    FenceRegressed,
    Indeterminate,
    LockHeld,
    NotWritable,
    VersionTooNew,
)
from holdfast.persist import PersistClient
from holdfast.persist.state.codec import seal_frame
from holdfast.persist.state.lock import LOCK_KEY, LOCK_MAGIC, LockRow, decode_lock, encode_lock
from holdfast.persist.stores import Entry, Expect, Location, MemoryConsensus, Put
from testbed.faults import Fault, FaultyConsensus, Operation, ProcessDeath, ScriptedPlan
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

Open = Callable[[], PersistClient]


def takes_lock(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set" and operation.keys == (LOCK_KEY,)


def appends(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set" and SHARD in operation.keys


def head(stores: Stores) -> LockRow:
    return decode_lock(stores.consensus.heads([LOCK_KEY])[LOCK_KEY])


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def processes(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Open:
    if request.param == "memory":
        return stores.open
    if request.param == "sqlite":
        return lambda: PersistClient.open(f"file://{tmp_path}")
    url = request.getfixturevalue("postgres_url")
    return lambda: PersistClient.open(blob=f"file://{tmp_path}", consensus=url)


def test_the_lock_on_every_store(processes: Open) -> None:
    crashed, again, foreign = processes(), processes(), processes()
    crashed.exclusive("ingest", purpose="orders")
    old = crashed.writer(SHARD, SCHEMA, purpose="test")
    old.compare_and_append(rows(1), 0, 1)
    with pytest.raises(LockHeld, match=r"row 1 of 'ingest' for 'orders' on host .+ since \d{4}-"):
        foreign.exclusive("reports")
    lock = again.exclusive("ingest", purpose="orders")
    writer = again.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(2), 1, 2)
    with pytest.raises(Fenced, match=r"took over the location: it holds row 2.*had row 1 of 'ingest'"):
        old.compare_and_append(rows(3), 2, 3)
    lock.close()
    with foreign.exclusive("reports"):
        foreign.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(4), 2, 3)
        with pytest.raises(Fenced):
            old.compare_and_append(rows(3), 3, 4)
    assert foreign.recent_upper(SHARD) == 3
    for client in (crashed, again, foreign):
        client.close()


@pytest.mark.parametrize("sees", ["its own cache", "a newer version"])
def test_a_late_commit_of_a_fenced_process_fails_cleanly(stores: Stores, sees: str) -> None:
    crashed, again = stores.open(), stores.open()
    crashed.exclusive("job")
    old = crashed.writer(SHARD, SCHEMA, purpose="test")
    old.compare_and_append(rows(1), 0, 1)
    again.exclusive("job")
    if sees == "a newer version":
        again.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(2), 1, 2)
    before = stores.stored()
    for upper in (1, 2):
        with pytest.raises(Fenced):
            old.compare_and_append(rows(3), upper, upper + 1)
    with pytest.raises(Fenced):
        crashed.reader(SHARD, purpose="a lease is a commit too")
    with pytest.raises(Fenced):
        crashed.critical_since(SHARD, purpose="test")
    with pytest.raises(Fenced):
        crashed.finalize(SHARD)
    crashed.close()
    assert stores.stored() == before


def test_a_fenced_process_is_told_also_where_there_is_nothing_to_commit(stores: Stores) -> None:
    crashed, again = stores.open(), stores.open()
    crashed.exclusive("job")
    old = crashed.writer(SHARD, SCHEMA, purpose="test")
    old.seal(5)
    hold = crashed.critical_since(SHARD, purpose="test")
    again.exclusive("job")
    with pytest.raises(Fenced):
        hold.downgrade(0)


def test_a_fenced_append_leaves_no_blobs(stores: Stores) -> None:
    crashed, again = stores.open(inline_max_bytes=0), stores.open()
    crashed.exclusive("job")
    old = crashed.writer(SHARD, SCHEMA, purpose="test")
    old.compare_and_append(rows(1), 0, 1)
    again.exclusive("job")
    parts = stores.parts()
    with pytest.raises(Fenced):
        old.compare_and_append(rows(2), 1, 2)
    assert stores.parts() == parts


class SlowConsensus(FaultyConsensus):
    """The armed compare-and-set gets no answer, and takes effect when the test says so."""

    def __init__(self, inner: MemoryConsensus) -> None:
        super().__init__(inner, ScriptedPlan({}))
        self.inner = inner
        self.armed = False
        self.late: list[tuple[Sequence[Put], Sequence[Expect]]] = []

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        if self.armed:
            self.armed = False
            self.late.append((puts, expect))
            raise Indeterminate("no answer")
        return super().compare_and_set(puts, expect)

    def land(self) -> bool:
        return self.inner.compare_and_set(*self.late.pop())


def test_an_attempt_under_the_old_lock_never_lands(stores: Stores) -> None:
    slow = SlowConsensus(stores.consensus)
    config = stores.open(retry_deadline_s=0.0).config
    crashed = PersistClient(
        Location(stores.blob, slow, stores.location_id), config=config, clock=stores.clock
    )
    crashed.exclusive("job")
    old = crashed.writer(SHARD, SCHEMA, purpose="test")
    old.compare_and_append(rows(1), 0, 1)
    slow.armed = True
    with pytest.raises(Indeterminate):
        old.compare_and_append(rows(2), 1, 2)
    stores.open().exclusive("job")
    assert not slow.land()
    assert stores.state().upper == 1


class Meanwhile:
    """The outcome of the first append stays unknown, and the lock moves before it is looked at again."""

    def __init__(self, what: Callable[[], object], *, landed: bool) -> None:
        self.armed = False
        self._what = what
        self._landed = landed
        self._due = False

    def decide(self, operation: Operation) -> Fault:
        if self._due:
            self._due = False
            self._what()
        if not self.armed or not appends(operation):
            return Fault.NONE
        self.armed, self._due = False, True
        return Fault.INDETERMINATE_AFTER if self._landed else Fault.INDETERMINATE_BEFORE


@pytest.mark.parametrize("landed", [False, True])
def test_an_append_in_doubt_is_settled_when_the_lock_moves(stores: Stores, landed: bool) -> None:
    plan = Meanwhile(lambda: stores.open().exclusive("job"), landed=landed)
    client = stores.open(plan, inline_max_bytes=0)
    client.exclusive("job")
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 1)
    plan.armed = True
    if landed:
        writer.compare_and_append(rows(2), 1, 2)
    else:
        with pytest.raises(Fenced) as fenced:
            writer.compare_and_append(rows(2), 1, 2)
        assert isinstance(fenced.value.__cause__, Indeterminate)
    assert stores.state().upper == (2 if landed else 1)
    with pytest.raises(Fenced):
        writer.compare_and_append(rows(3), 2, 3)


def test_who_is_dead_for_good_is_taken_over(stores: Stores) -> None:
    dead = stores.open()
    dead.exclusive("old cluster")
    new = stores.open()
    with pytest.raises(LockHeld, match="'old cluster'") as held:
        new.exclusive("new cluster")
    assert "take_over=True" in held.value.hint
    new.exclusive("new cluster", take_over=True)
    new.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    with pytest.raises(Fenced):
        dead.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(2), 1, 2)
    with pytest.raises(LockHeld, match="'new cluster'"):
        stores.open().exclusive("old cluster")


def test_a_fenced_client_is_so_until_it_takes_the_lock_again(stores: Stores) -> None:
    first, second = stores.open(), stores.open()
    lost = first.exclusive("job")
    writer = first.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 1)
    second.exclusive("job").close()
    with pytest.raises(Fenced):
        writer.compare_and_append(rows(2), 1, 2)
    lost.close()
    assert head(stores).seqno == 3, "who lost the lock can't give it up"
    with pytest.raises(Fenced):
        writer.compare_and_append(rows(2), 1, 2)
    third = stores.open()
    third.exclusive("job")
    first.exclusive("job")
    writer.compare_and_append(rows(2), 1, 2)
    with pytest.raises(Fenced):
        third.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(3), 2, 3)


def test_a_commit_while_the_lock_is_given_up_fences_nobody_for_good(stores: Stores) -> None:
    class Between:
        """Commits when the release is durable, before the call that made it has returned."""

        def decide(self, operation: Operation) -> Fault:
            if not takes_lock(operation) or writer is None:
                return Fault.NONE
            row = decode_lock(stores.consensus.heads([LOCK_KEY])[LOCK_KEY])
            free = LockRow(row.seqno + 1, "job", "", "ship", row.wall_ms + 1, b"t" * 16, released=True)
            stores.consensus.compare_and_set([Put(LOCK_KEY, free.seqno, encode_lock(free))])
            with pytest.raises(Fenced):
                writer.compare_and_append(rows(2), 1, 2)
            return Fault.NONE

    writer = None
    client = stores.open(Between())
    lock = client.exclusive("job")
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 1)
    lock.close()
    writer.compare_and_append(rows(2), 1, 2)


def test_the_lock_is_given_up_with_the_client(stores: Stores) -> None:
    with stores.open() as client:
        client.exclusive("one")
    assert head(stores).released
    client = stores.open()
    lock = client.exclusive("two")
    lock.close()
    lock.close()
    assert head(stores).seqno == 4
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)


def test_who_does_not_use_the_lock_is_not_kept_out(stores: Stores) -> None:
    holder, free = stores.open(), stores.open()
    holder.exclusive("job")
    one, two = (c.writer(SHARD, SCHEMA, purpose="test") for c in (holder, free))
    one.compare_and_append(rows(1), 0, 1)
    two.compare_and_append(rows(2), 1, 2)
    other = holder.writer(OTHER, SCHEMA, purpose="test")
    holder.multi_write([one.prepare_append(rows(3), 2, 3), other.prepare_append(rows(3), 0, 3)])
    found = stores.open().reader(SHARD, purpose="test").snapshot(2).to_table()
    assert contents(found) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.DETERMINATE],
        [Fault.INDETERMINATE_BEFORE],
        [Fault.INDETERMINATE_AFTER],
        [Fault.INDETERMINATE_BEFORE, Fault.DETERMINATE, Fault.INDETERMINATE_AFTER],
    ],
)
def test_taking_and_giving_up_are_settled(stores: Stores, faults: list[Fault]) -> None:
    client = stores.open(ScriptedPlan(dict(enumerate(faults)), matches=takes_lock))
    client.exclusive("job")
    assert head(stores).seqno == 1
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
    again = stores.open(ScriptedPlan({n + 1: fault for n, fault in enumerate(faults)}, matches=takes_lock))
    again.exclusive("job").close()
    assert (head(stores).seqno, head(stores).released) == (3, True)


def test_a_lock_in_doubt_is_told_as_such(stores: Stores) -> None:
    errors = {1: Fault.INDETERMINATE_AFTER} | dict.fromkeys(range(2, 40), Fault.DETERMINATE)
    plan = ScriptedPlan(errors, matches=lambda operation: LOCK_KEY in operation.keys)
    client = stores.open(plan, retry_deadline_s=0.02)
    with pytest.raises(Indeterminate):
        client.exclusive("job")
    again = stores.open(ScriptedPlan({}))
    again.exclusive("job")
    assert head(stores).seqno == 2


def test_a_crash_while_taking_the_lock_leaves_it_to_the_same_id(stores: Stores) -> None:
    with pytest.raises(ProcessDeath):
        stores.open(ScriptedPlan({0: Fault.DEATH_AFTER}, matches=takes_lock)).exclusive("job")
    with pytest.raises(LockHeld):
        stores.open().exclusive("other")
    stores.open().exclusive("job")


def test_a_race_for_the_lock_has_one_winner(stores: Stores) -> None:
    class Rival:
        def __init__(self) -> None:
            self.calls = 0

        def decide(self, operation: Operation) -> Fault:
            if takes_lock(operation) and not self.calls:
                self.calls = 1
                stores.open().exclusive("rival")
            return Fault.NONE

    with pytest.raises(LockHeld, match="'rival'"):
        stores.open(Rival()).exclusive("job")
    with pytest.raises(LockHeld):
        stores.open(retry_deadline_s=0.0).exclusive("job")


def test_the_log_of_the_lock_does_not_grow(stores: Stores) -> None:
    for _ in range(5):
        stores.open().exclusive("job")
    assert len(stores.consensus.scan(LOCK_KEY, 0, 100)) == 1
    failing = ScriptedPlan({0: Fault.DETERMINATE}, matches=lambda o: o.name == "consensus.truncate")
    stores.open(failing).exclusive("job")
    assert [entry.seqno for entry in stores.consensus.scan(LOCK_KEY, 0, 100)] == [5, 6]


def test_what_can_not_be_meant(stores: Stores) -> None:
    client = stores.open()
    for wrong in ("", "  ", "x" * 201, None, 7):
        with pytest.raises(BadInput, match="reentrance id"):
            client.exclusive(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotWritable):
        stores.open(mode="read").exclusive("job")
    assert LOCK_KEY not in stores.consensus.list_keys()
    client.exclusive("job")
    with pytest.raises(BadInput, match="already"):
        client.exclusive("job")
    stores.open().exclusive("job")
    client.exclusive("job")
    assert head(stores).seqno == 3


def test_a_store_that_went_back_is_noticed(stores: Stores) -> None:
    client = stores.open()
    for _ in range(3):
        client.exclusive("job").close()
    client.exclusive("job")
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(rows(1), 0, 1)
    older = stores.consensus = MemoryConsensus()
    client.location.consensus._inner = older  # type: ignore[attr-defined]
    older.compare_and_set([Put(LOCK_KEY, 1, encode_lock(LockRow(1, "job", "", "ship", 1, b"t" * 16)))])
    with pytest.raises(FenceRegressed, match="restored from an older state"):
        client.writer(OTHER, SCHEMA, purpose="test").compare_and_append(rows(2), 0, 1)
    with pytest.raises(FenceRegressed, match="restored from an older state"):
        writer.compare_and_append(rows(2), 1, 2)
    assert stores.consensus.list_keys() == [LOCK_KEY]


def test_rows_that_are_not_what_was_written(stores: Stores) -> None:
    row = LockRow(7, "job", "orders", "ship", 1_700_000_000_000, bytes(range(16)))
    data = encode_lock(row)
    assert decode_lock(Entry(7, data)) == row
    for at in range(len(data)):
        with pytest.raises(CorruptBlob, match="lock log 7"):
            decode_lock(Entry(7, data[:at]))
        with pytest.raises(CorruptBlob, match="lock log 7"):
            decode_lock(Entry(7, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
    with pytest.raises(CorruptBlob, match=r"expected row 8.*row 7"):
        decode_lock(Entry(8, data))
    old = pb.ExclusiveLock(reentrance_id="job", token=b"t" * 16).SerializeToString()
    assert decode_lock(Entry(3, seal_frame(LOCK_MAGIC, old))).seqno == 3
    with pytest.raises(CorruptBlob):
        decode_lock(Entry(7, seal_frame(LOCK_MAGIC, b"\xff")))
    unknown = pb.ExclusiveLock(reentrance_id="job").SerializeToString() + b"\xfa\x01\x01x"
    with pytest.raises(VersionTooNew, match="lock log 7"):
        decode_lock(Entry(7, seal_frame(LOCK_MAGIC, unknown)))
    stores.consensus.compare_and_set([Put(LOCK_KEY, 1, b"nonsense, and long enough for a frame")])
    with pytest.raises(CorruptBlob, match="lock log 1"):
        stores.open().exclusive("job")


class Refusing(MemoryConsensus):
    """A store whose index has lost the head of the lock: it refuses the next row, and its reads look well."""

    refuses = False

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        return not self.refuses and super().compare_and_set(puts, expect)


@pytest.mark.parametrize("deadline_s", [0.0, 0.5])
def test_a_store_that_refuses_the_lock_while_nothing_moves_is_corrupt(deadline_s: float) -> None:
    stores = Stores()
    broken = Refusing()
    broken._logs.update(stores.consensus._logs)
    stores.consensus = broken
    client = stores.open(retry_deadline_s=deadline_s)
    for _ in range(2):  # without a row before, and after one
        broken.refuses = True
        with pytest.raises(
            CorruptBlob, match=r"expected row .* a refused append, although no other process wrote"
        ):
            client.exclusive("job")
        broken.refuses = False
        lock = client.exclusive("job")
        broken.refuses = True
        with pytest.raises(CorruptBlob, match="although no other process wrote"):
            lock.close()
        broken.refuses = False
        assert not head(stores).released
        lock.close()
        assert head(stores).released


def test_a_lock_that_others_take_each_time_has_moved() -> None:
    stores = Stores()
    other = stores.open()

    class Racing(MemoryConsensus):
        racing = True

        def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
            if self.racing and puts[0].key == LOCK_KEY:
                self.racing = False
                other.exclusive("job").close()
                self.racing = True
            return super().compare_and_set(puts, expect)

    racing = Racing()
    racing._logs = stores.consensus._logs
    stores.consensus = racing
    with pytest.raises(Determinate, match="moved at the same moment"):
        stores.open(retry_deadline_s=0.0).exclusive("job")
