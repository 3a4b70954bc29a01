"""Appends of unknown outcome, and other bad luck of a writer."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    HandleExpired,
    HoldfastError,
    Indeterminate,
    LogRegressed,
    NoLocation,
    StoreUnreachable,
    UpperMismatch,
)
from holdfast.persist import PersistClient, PersistConfig, WriteHandle
from holdfast.persist.state.codec import DIFF_MAGIC, FORMAT_VERSION, seal_frame
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.machine import commit
from holdfast.persist.stores import Consensus, Expect, Location, Put
from testbed.faults import Fault, FaultyConsensus, Operation, ProcessDeath, ScriptedPlan
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, Stores, contents, rows

BLOBS: dict[str, Any] = {"inline_max_bytes": 0}


def commits(operation: Operation) -> bool:
    return operation.name == "consensus.compare_and_set"


def uploads(operation: Operation) -> bool:
    return operation.name == "blob.put"


def deletes(operation: Operation) -> bool:
    return operation.name == "blob.delete"


class Meanwhile:
    """Something happens just before, or just after, the first commit; the outcome stays unknown."""

    def __init__(self, what: Callable[[], None], *, landed: bool) -> None:
        self.armed = False
        self._what = what
        self._landed = landed
        self._after = False

    def decide(self, operation: Operation) -> Fault:
        if self._after:
            self._after = False
            self._what()
        if not self.armed or not commits(operation):
            return Fault.NONE
        self.armed = False
        if self._landed:
            self._after = True
            return Fault.INDETERMINATE_AFTER
        self._what()
        return Fault.INDETERMINATE_BEFORE


def registered(client: PersistClient, shard: str = SHARD) -> WriteHandle:
    writer = client.writer(shard, SCHEMA, purpose="test")
    writer.compare_and_append(rows(0), 0, 1)
    return writer


def found(stores: Stores, shard: str = SHARD) -> dict[tuple[int, str], int]:
    upper = stores.state(shard).upper
    return dict(contents(stores.open().reader(shard, purpose="test").snapshot(upper - 1).to_table()))


@pytest.mark.parametrize("settings", [{}, BLOBS])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.DETERMINATE],
        [Fault.INDETERMINATE_BEFORE],
        [Fault.INDETERMINATE_AFTER],
        [
            Fault.INDETERMINATE_BEFORE,
            Fault.DETERMINATE,
            Fault.INDETERMINATE_BEFORE,
            Fault.INDETERMINATE_AFTER,
        ],
    ],
)
def test_an_append_is_settled_and_is_in_once(
    stores: Stores, faults: list[Fault], settings: dict[str, Any]
) -> None:
    plan = ScriptedPlan(dict(enumerate(faults)), matches=commits)
    client = stores.open(plan, **settings)
    one, two = (client.writer(shard, SCHEMA, purpose="test") for shard in (SHARD, OTHER))
    client.multi_write([one.prepare_append(rows(1), 0, 5), two.prepare_append(rows(2), 0, 5)])
    assert found(stores) == {(1, "x"): 1}
    assert found(stores, OTHER) == {(2, "x"): 1}
    one.compare_and_append(rows(3), 5, 6)
    assert found(stores) == {(1, "x"): 1, (3, "x"): 1}


@pytest.mark.parametrize("landed", [False, True])
def test_an_append_that_can_not_be_settled_spends_its_handle_and_keeps_its_parts(
    stores: Stores, landed: bool
) -> None:
    fault = Fault.INDETERMINATE_AFTER if landed else Fault.INDETERMINATE_BEFORE
    plan = ScriptedPlan({2: fault}, matches=commits)
    client = stores.open(plan, retry_deadline_s=0.0, **BLOBS)
    writer = registered(client)
    with pytest.raises(Indeterminate):
        writer.compare_and_append(rows(1), 1, 5)
    assert len(stores.parts()) == 2
    assert found(stores) == ({(0, "x"): 1, (1, "x"): 1} if landed else {(0, "x"): 1})
    with pytest.raises(HandleExpired, match="the outcome of an earlier append is unknown"):
        writer.compare_and_append(rows(2), 5, 6)
    anew = client.writer(SHARD, SCHEMA, purpose="test")
    anew.compare_and_append(rows(2), anew.upper(), 9)
    assert (2, "x") in found(stores)


def test_an_append_that_lost_while_it_was_in_doubt_is_known_to_have_lost(stores: Stores) -> None:
    other = stores.open()
    plan = Meanwhile(
        lambda: other.writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(9), 1, 4), landed=False
    )
    writer = registered(stores.open(plan, **BLOBS))
    plan.armed = True
    with pytest.raises(UpperMismatch, match="is 4, expected 1"):
        writer.compare_and_append(rows(1), 1, 5)
    assert found(stores) == {(0, "x"): 1, (9, "x"): 1}
    writer.compare_and_append(rows(1), 4, 5)


def test_an_append_that_won_before_others_went_on_is_known_to_have_won(stores: Stores) -> None:
    other = stores.open()
    plan = Meanwhile(
        lambda: other.writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(9), 5, 7), landed=True
    )
    writer = registered(stores.open(plan, **BLOBS))
    plan.armed = True
    writer.compare_and_append(rows(1), 1, 5)
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (9, "x"): 1}


def test_a_first_append_that_lost_is_known_to_have_lost_although_its_writer_has_no_entry(
    stores: Stores,
) -> None:
    other = stores.open()
    plan = Meanwhile(
        lambda: other.writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(9), 0, 4), landed=False
    )
    writer = stores.open(plan).writer(SHARD, SCHEMA, purpose="test")
    plan.armed = True
    with pytest.raises(UpperMismatch):
        writer.compare_and_append(rows(1), 0, 5)
    writer.compare_and_append(rows(1), 4, 5)
    assert found(stores) == {(1, "x"): 1, (9, "x"): 1}


def test_a_multi_write_that_won_is_known_by_any_of_its_records(stores: Stores) -> None:
    """A part of its effect may be gone by the time: the hold that it moved was released."""
    other = stores.open()
    plan = Meanwhile(lambda: other.critical_since(OTHER, purpose="backup").release(), landed=True)
    client = stores.open(plan)
    one = registered(client)
    registered(client, OTHER)
    hold = client.critical_since(OTHER, purpose="backup")
    plan.armed = True
    client.multi_write(
        [one.prepare_append(rows(1), 1, 5), hold.prepare_downgrade(0), hold.prepare_downgrade(1)]
    )
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1}
    assert stores.state(OTHER).critical_readers == {}


def unreadable(stores: Stores) -> None:
    """A newer Holdfast writes the next version."""
    head = stores.consensus.heads([SHARD])[SHARD]
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr("holdfast.persist.state.codec.FORMAT_VERSION", FORMAT_VERSION + 1)
        data = seal_frame(DIFF_MAGIC, b"")
    assert stores.consensus.compare_and_set([Put(SHARD, head.seqno + 1, data)])


def test_an_append_stays_in_doubt_where_the_newest_version_can_not_be_read(stores: Stores) -> None:
    plan = Meanwhile(lambda: unreadable(stores), landed=True)
    writer = registered(stores.open(plan, **BLOBS))
    plan.armed = True
    with pytest.raises(Indeterminate):
        writer.compare_and_append(rows(1), 1, 5)
    assert len(stores.parts()) == 2


def test_what_a_refused_append_uploaded_is_deleted_or_leaked_but_never_hides_the_reason(
    stores: Stores,
) -> None:
    plan = ScriptedPlan({0: Fault.DETERMINATE, 2: Fault.INDETERMINATE_BEFORE}, matches=deletes)
    writer = registered(stores.open(plan, **BLOBS))
    live = stores.parts()
    for leaked in (1, 1, 2):
        with pytest.raises(UpperMismatch):
            writer.compare_and_append(rows(1), 7, 8)
        assert len(stores.parts() - live) == leaked


def test_an_upload_of_unknown_outcome_is_repeated(stores: Stores) -> None:
    script = {0: Fault.INDETERMINATE_AFTER, 1: Fault.INDETERMINATE_BEFORE, 2: Fault.DETERMINATE}
    client = stores.open(ScriptedPlan(script, matches=uploads), **BLOBS)
    client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 5)
    assert found(stores) == {(1, "x"): 1}
    assert len(stores.parts()) == 1


def test_an_upload_that_fails_in_the_middle_leaves_nothing(stores: Stores) -> None:
    plan = ScriptedPlan({2: Fault.DETERMINATE}, matches=uploads)
    client = stores.open(plan, retry_deadline_s=0.0, part_target_bytes=32, **BLOBS)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with pytest.raises(Determinate):
        writer.compare_and_append(rows(*range(10)), 0, 5)
    assert stores.parts() == set()
    assert stores.state().upper == 0
    writer.compare_and_append(rows(*range(10)), 0, 5)
    assert len(stores.parts()) > 3


def test_a_writer_is_known_before_its_first_upload(stores: Stores) -> None:
    client = stores.open(ScriptedPlan({0: Fault.DEATH_AFTER}, matches=uploads), **BLOBS)
    writer = client.writer(SHARD, SCHEMA, purpose="short life")
    with pytest.raises(ProcessDeath):
        writer.compare_and_append(rows(1), 0, 5)
    (orphan,) = stores.parts()
    assert orphan.split("/")[1] in stores.state().writers


def test_upkeep_that_fails_does_not_make_an_append_look_failed(stores: Stores) -> None:
    def upkeep(operation: Operation) -> bool:
        return operation.name in {"blob.put", "consensus.truncate"}

    plan = ScriptedPlan(dict.fromkeys(range(1000), Fault.DETERMINATE), matches=upkeep)
    client = stores.open(plan, maintenance="inline", rollup_every=2, retry_deadline_s=0.0)
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(20):
        writer.compare_and_append(rows(time), time, time + 1)
    assert plan.seen > 10
    assert len(found(stores)) == 20
    with pytest.raises(Determinate):
        client.maintain(SHARD)


@pytest.mark.parametrize("death", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER])
def test_a_process_that_dies_in_a_commit_leaves_a_whole_version(stores: Stores, death: Fault) -> None:
    client = stores.open(ScriptedPlan({4: death}, matches=commits), **BLOBS)
    one, two = registered(client), registered(client, OTHER)
    with pytest.raises(ProcessDeath):
        client.multi_write([one.prepare_append(rows(1), 1, 5), two.prepare_append(rows(2), 1, 5)])
    landed = death is Fault.DEATH_AFTER
    assert ((1, "x") in found(stores)) == ((2, "x") in found(stores, OTHER)) == landed


def test_a_command_with_nothing_to_do_asks_whether_that_is_still_so(stores: Stores) -> None:
    """The cache of this process is behind: what it believes to be there was taken away."""
    client, other = stores.open(), stores.open()
    registered(client)
    client.critical_since(SHARD, purpose="backup")
    other.critical_since(SHARD, purpose="backup").release()
    client.critical_since(SHARD, purpose="backup")
    assert len(stores.state().critical_readers) == 1

    gone = client.critical_since(SHARD, purpose="gone")
    gone.release()
    other.critical_since(SHARD, purpose="gone")
    gone.release()
    assert len(stores.state().critical_readers) == 1


def test_a_rejection_is_checked_against_the_newest_version(stores: Stores) -> None:
    client, other = stores.open(), stores.open()
    writer = registered(client)
    other.writer(SHARD, SCHEMA, purpose="other").seal(6)
    writer.compare_and_append(rows(1), 6, 7)
    assert writer.upper() == 7


def test_reads_are_tried_again_within_the_deadline(stores: Stores) -> None:
    def reads(operation: Operation) -> bool:
        return operation.name in {"blob.get", "consensus.heads", "consensus.scan"}

    registered(stores.open(**BLOBS))
    script = dict.fromkeys((0, 2, 3, 6), Fault.DETERMINATE)
    reader = stores.open(ScriptedPlan(script, matches=reads), mode="read").reader(SHARD, purpose="test")
    assert contents(reader.snapshot(0).to_table()) == {(0, "x"): 1}
    down = ScriptedPlan(dict.fromkeys(range(1000), Fault.DETERMINATE), matches=reads)
    started = stores.clock.now_s
    with pytest.raises(HoldfastError):
        stores.open(down, mode="read").reader(SHARD, purpose="test")
    assert 0 < stores.clock.now_s - started <= 0.5


def test_a_table_of_no_rows_is_a_seal(stores: Stores) -> None:
    writer = registered(stores.open(**BLOBS))
    empty: pa.Table = rows()
    writer.compare_and_append(empty, 1, 5)
    assert len(stores.parts()) == 1
    assert stores.state().upper == 5


def test_an_append_whose_record_went_while_it_was_in_doubt_never_looks_refused(stores: Stores) -> None:
    """It is in; its entry was dropped before its writer came to look."""
    other = stores.open()

    def forget() -> None:
        other.writer(SHARD, SCHEMA, purpose="other").compare_and_append(rows(9), 5, 7)
        writers = other.session.machine(SHARD).state.writers.values()
        silent = tuple((writer.id, writer.heartbeats) for writer in writers if writer.purpose == "test")
        commit([(other.session.machine(SHARD), ExpireHandles((), silent))])

    plan = Meanwhile(forget, landed=True)
    writer = registered(stores.open(plan, **BLOBS))
    plan.armed = True
    writer.compare_and_append(rows(1), 1, 5)
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1, (9, "x"): 1}


@pytest.mark.parametrize("how", ["close", "client"])
def test_an_append_in_doubt_keeps_the_record_of_its_writer(stores: Stores, how: str) -> None:
    plan = ScriptedPlan({2: Fault.INDETERMINATE_AFTER}, matches=commits)
    client = stores.open(plan, retry_deadline_s=0.0, **BLOBS)
    writer = registered(client)
    with pytest.raises(Indeterminate):
        writer.compare_and_append(rows(1), 1, 5)
    writer.close()
    if how == "client":
        client.close()
    else:
        client.maintain(SHARD)
    (entry,) = stores.state().writers.values()
    assert (entry.purpose, entry.last_upper) == ("test", 5)


class LandsLate(FaultyConsensus):
    """The first commit has an unknown outcome and lands when `land` is called. Later calls raise `error`.

    If `refuses` is set, the store refuses later commits, and its check of the pages raises `error`.
    """

    def __init__(self, inner: Consensus, error: HoldfastError, *, refuses: bool) -> None:
        super().__init__(inner, ScriptedPlan({}))
        self.armed = False
        self._late: list[tuple[Sequence[Put], Sequence[Expect]]] = []
        self._error = error
        self._refuses = refuses

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        if not self.armed:
            return super().compare_and_set(puts, expect)
        if not self._late:
            self._late.append((puts, expect))
            raise Indeterminate("the answer is lost")
        if self._refuses:
            return False
        raise self._error

    def check_integrity(self) -> None:
        raise self._error

    def land(self) -> bool:
        return self._inner.compare_and_set(*self._late[0])


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        CorruptBlob("the log", "a row", "nothing"),
        LogRegressed("the log", "version 3", "version 2"),
        NoLocation("the file is empty"),
        StoreUnreachable("there is no connection"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_later_error_hides_that_the_outcome_is_unknown(
    stores: Stores, error: HoldfastError, refuses: bool
) -> None:
    consensus = LandsLate(stores.consensus, error, refuses=refuses)
    location = Location(stores.blob, consensus, stores.location_id)
    config = PersistConfig(maintenance="off", retry_deadline_s=0.5, inline_max_bytes=0)
    writer = registered(PersistClient(location, mode="write", config=config, clock=stores.clock))
    consensus.armed = True
    with pytest.raises(Indeterminate) as raised:
        writer.compare_and_append(rows(1), 1, 2)
    assert type(raised.value.__cause__) is type(error)
    assert consensus.land()
    assert found(stores) == {(0, "x"): 1, (1, "x"): 1}
