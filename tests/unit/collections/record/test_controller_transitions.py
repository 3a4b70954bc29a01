"""The controller's transitions, on a state that is built from their own commits."""

from dataclasses import replace
from typing import TypeVar

import pytest

from holdfast.collections.record import transitions
from holdfast.collections.record.jobs import JobRecord, JobState, job_id
from holdfast.collections.record.spec import CollectionInfo, CollectionSpec, CollectionState
from holdfast.collections.record.state import (
    ControllerState,
    Outcome,
    Record,
    RecordCommit,
    RecordNoOp,
    RecordReject,
    record_id,
)
from holdfast.collections.record.transitions import COMMANDS_KEPT_MS, Origin, ShardIds
from holdfast.errors import (
    BadInput,
    CollectionInUse,
    CollectionNotFound,
    Fenced,
    HoldfastError,
    UniquenessViolation,
)
from holdfast.persist.rows.schema import Schema

T = TypeVar("T")
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string"})
SPEC = CollectionSpec("c1", "db.flights", SCHEMA, shards=2)
SHARDS = ShardIds("m1", ("d1", "d2"))


def origin(command_id: str, at_ms: int = 0) -> Origin:
    return Origin(command_id, "test", "host", "", at_ms)


def do(state: ControllerState, outcome: Outcome[T]) -> T:
    assert isinstance(outcome, RecordCommit), outcome
    tables: dict[str, Record] = {**state.collections, **state.commands, **state.jobs}
    replaced = [tables[record_id(record)] for record in outcome.puts if record_id(record) in tables]
    state.apply([*replaced, *outcome.removals], outcome.puts)
    return outcome.result


def refused(outcome: Outcome[T]) -> HoldfastError:
    assert isinstance(outcome, RecordReject), outcome
    return outcome.error


@pytest.fixture
def state() -> ControllerState:
    return ControllerState()


def created(state: ControllerState, spec: CollectionSpec = SPEC, command: str = "k1") -> CollectionInfo:
    return do(state, transitions.create_collection(state, spec, SHARDS, origin(command)))


def test_a_collection_is_created_once_whatever_the_command(state: ControllerState) -> None:
    info = created(state)
    for command in ("k1", "k2"):
        again = transitions.create_collection(state, SPEC, ShardIds("m9", ("d9",)), origin(command))
        assert again == RecordNoOp(info)
    assert info.renditions[0].shards == ("d1", "d2")
    assert info.hash_columns == ("id",)


def test_another_spec_under_the_same_id_is_refused_showing_the_difference(state: ControllerState) -> None:
    created(state)
    for command in ("k1", "k2"):
        other = CollectionSpec("c1", "db.flights", SCHEMA, shards=4)
        error = refused(transitions.create_collection(state, other, SHARDS, origin(command)))
        assert isinstance(error, BadInput)
        assert "shards is 2, requested 4" in str(error)


def test_a_command_id_stands_for_one_command(state: ControllerState) -> None:
    created(state)
    other = CollectionSpec("c2", "db.other", SCHEMA)
    assert "k1" in str(refused(transitions.create_collection(state, other, SHARDS, origin("k1"))))
    assert "k1" in str(refused(transitions.begin_drop(state, "c1", origin("k1"))))


def test_a_live_name_is_taken_until_its_collection_is_dropped(state: ControllerState) -> None:
    created(state)
    other = CollectionSpec("c2", "db.flights", SCHEMA)
    assert isinstance(
        refused(transitions.create_collection(state, other, SHARDS, origin("k2"))), UniquenessViolation
    )
    do(state, transitions.begin_drop(state, "c1", origin("k3")))
    assert isinstance(
        refused(transitions.create_collection(state, other, SHARDS, origin("k2"))), UniquenessViolation
    )
    do(state, transitions.finish_drop(state, "c1", 7))
    assert created(state, other, "k2").collection_id == "c2"
    assert state.find("db.flights").collection_id == "c2"
    assert state.find("c1").state is CollectionState.DROPPED


def test_an_id_is_never_used_again(state: ControllerState) -> None:
    created(state)
    do(state, transitions.begin_drop(state, "c1", origin("k2")))
    do(state, transitions.finish_drop(state, "c1", 7))
    error = refused(transitions.create_collection(state, SPEC, SHARDS, origin("k3")))
    assert "was dropped" in str(error)
    replayed = transitions.create_collection(state, SPEC, SHARDS, origin("k1"))
    assert isinstance(replayed, RecordNoOp)
    assert replayed.result.dropped


def test_a_drop_that_did_not_begin_is_not_finished(state: ControllerState) -> None:
    created(state)
    assert isinstance(refused(transitions.finish_drop(state, "c1", 7)), BadInput)


def test_a_drop_is_done_once(state: ControllerState) -> None:
    created(state)
    do(state, transitions.begin_drop(state, "db.flights", origin("k2")))
    assert isinstance(transitions.begin_drop(state, "c1", origin("k2")), RecordNoOp)
    assert isinstance(transitions.begin_drop(state, "c1", origin("k3")), RecordNoOp)
    gone = do(state, transitions.finish_drop(state, "c1", 7))
    assert gone.dropped_ms == 7
    assert transitions.finish_drop(state, "c1", 8) == RecordNoOp(gone)


def test_commands_are_forgotten_after_thirty_days(state: ControllerState) -> None:
    created(state)
    second = CollectionSpec("c2", "b", SCHEMA)
    outcome = transitions.create_collection(state, second, SHARDS, origin("k2", COMMANDS_KEPT_MS))
    assert isinstance(outcome, RecordCommit)
    assert outcome.removals == ()
    do(state, transitions.create_collection(state, second, SHARDS, origin("k2", COMMANDS_KEPT_MS + 1)))
    assert list(state.commands) == ["k2"]


def test_a_drop_waits_for_jobs_that_run_unless_by_force(state: ControllerState) -> None:
    created(state)
    do(state, transitions.start_job(state, JOB))
    do(state, transitions.start_job(state, replace(JOB, job_id="another", object_id="c2")))
    do(state, transitions.begin_drop(state, "c1", origin("k2")))
    error = refused(transitions.finish_drop(state, "c1", 7))
    assert isinstance(error, CollectionInUse)
    assert str(error).endswith(f"in use by job {JOB.job_id} (snapshot 1, attempt 1)")
    assert "by force" in error.hint
    do(state, transitions.finish_drop(state, "c1", 8, force=True))
    ended = replace(JOB, state=JobState.FAILED, error="the collection was dropped", finished_ms=8)
    assert state.jobs[JOB.job_id] == ended
    assert state.jobs["another"].state is JobState.RUNNING


@pytest.mark.parametrize("how", ["is being", "was"])
def test_no_job_begins_for_what_is_dropped(state: ControllerState, how: str) -> None:
    created(state)
    do(state, transitions.start_job(state, JOB))
    do(state, transitions.fail_job(state, JOB.job_id, 1, "oops", 6))
    do(state, transitions.begin_drop(state, "c1", origin("k2")))
    if how == "was":
        do(state, transitions.finish_drop(state, "c1", 7))
    new = replace(JOB, job_id="new", slot="2")
    for outcome in (transitions.start_job(state, new), transitions.retry_job(state, JOB.job_id, 8)):
        error = refused(outcome)
        assert isinstance(error, CollectionNotFound)
        assert str(error) == f"collection db.flights (c1) {how} dropped"
    assert transitions.start_job(state, JOB) == RecordNoOp(state.jobs[JOB.job_id])


JOB = JobRecord(job_id("c1", "snapshot", "1"), "c1", "snapshot", "1", 1, JobState.RUNNING, {"as_of": 3})


def test_a_job_is_started_once_and_its_first_spec_stays(state: ControllerState) -> None:
    do(state, transitions.start_job(state, JOB))
    other = JobRecord(JOB.job_id, "c1", "snapshot", "1", 1, JobState.RUNNING, {"as_of": 9})
    assert transitions.start_job(state, other) == RecordNoOp(JOB)


def test_a_zombie_is_fenced(state: ControllerState) -> None:
    do(state, transitions.start_job(state, JOB))
    assert "is running" in str(refused(transitions.retry_job(state, JOB.job_id, 1)))
    second = do(state, transitions.retry_job(state, JOB.job_id, 1, abandoned=1))
    assert (second.attempt, second.state, second.spec) == (2, JobState.RUNNING, {"as_of": 3})
    assert isinstance(refused(transitions.finish_job(state, JOB.job_id, 1, {"rows": 1}, 2)), Fenced)
    assert isinstance(refused(transitions.fail_job(state, JOB.job_id, 1, "late", 2)), Fenced)
    assert transitions.retry_job(state, JOB.job_id, 1, abandoned=1) == RecordNoOp(second)
    done = do(state, transitions.finish_job(state, JOB.job_id, 2, {"rows": 2}, 3))
    assert (done.state, done.result, done.finished_ms) == (JobState.DONE, {"rows": 2}, 3)


def test_a_done_job_stays_done(state: ControllerState) -> None:
    do(state, transitions.start_job(state, JOB))
    do(state, transitions.finish_job(state, JOB.job_id, 1, {}, 2))
    assert isinstance(refused(transitions.finish_job(state, JOB.job_id, 1, {}, 3)), Fenced)
    assert isinstance(refused(transitions.fail_job(state, JOB.job_id, 1, "late", 3)), Fenced)
    assert "is done" in str(refused(transitions.retry_job(state, JOB.job_id, 3, abandoned=1)))


def test_a_failed_job_can_be_tried_again(state: ControllerState) -> None:
    do(state, transitions.start_job(state, JOB))
    failed = do(state, transitions.fail_job(state, JOB.job_id, 1, "no memory", 2))
    assert (failed.state, failed.error) == (JobState.FAILED, "no memory")
    assert transitions.fail_job(state, JOB.job_id, 1, "again", 3) == RecordNoOp(failed)
    again = do(state, transitions.retry_job(state, JOB.job_id, 4))
    assert (again.attempt, again.state, again.error, again.started_ms) == (2, JobState.RUNNING, "", 4)


def test_jobs_that_are_over_are_forgotten_and_their_late_attempts_commit_nothing(
    state: ControllerState,
) -> None:
    other = replace(JOB, job_id=job_id("c1", "snapshot", "2"), slot="2")
    do(state, transitions.start_job(state, JOB))
    do(state, transitions.start_job(state, other))
    do(state, transitions.finish_job(state, JOB.job_id, 1, {}, 2))
    assert "(snapshot 2, attempt 1) is running" in str(
        refused(transitions.forget_jobs(state, [JOB.job_id, other.job_id]))
    )
    do(state, transitions.fail_job(state, other.job_id, 1, "no", 3))
    do(state, transitions.forget_jobs(state, [JOB.job_id, other.job_id, "never there"]))
    assert state.jobs == {}
    assert transitions.forget_jobs(state, [JOB.job_id]) == RecordNoOp(None)
    assert "there is no job" in str(refused(transitions.finish_job(state, other.job_id, 1, {}, 4)))


def test_only_what_failed_of_itself_counts(state: ControllerState) -> None:
    """By one and the same: what another failed at says nothing of this one."""
    id_, now = JOB.job_id, 9
    do(state, transitions.start_job(state, replace(JOB, by="spark")))
    counted = []
    for attempt, stopped in ((1, False), (2, True), (3, True), (4, False)):
        counted.append(
            do(state, transitions.fail_job(state, id_, attempt, "", now, stopped=stopped)).failures
        )
        do(state, transitions.retry_job(state, id_, now, by="spark"))
    assert counted == [1, 1, 1, 2]
    abandoned = do(state, transitions.retry_job(state, id_, now, abandoned=5, by="spark"))
    assert (abandoned.attempt, abandoned.failures, abandoned.by) == (6, 2, "spark")
    other = do(state, transitions.retry_job(state, id_, now, abandoned=6))
    assert (other.attempt, other.failures, other.by) == (7, 0, "")
    assert do(state, transitions.fail_job(state, id_, 7, "", now)).failures == 1
    assert do(state, transitions.retry_job(state, id_, now, by="spark")).failures == 0


def test_a_job_that_is_not_there_is_told(state: ControllerState) -> None:
    for outcome in (
        transitions.retry_job(state, "j", 1),
        transitions.finish_job(state, "j", 1, {}, 1),
        transitions.fail_job(state, "j", 1, "", 1),
    ):
        assert isinstance(refused(outcome), BadInput)


def test_job_ids_are_what_the_format_says() -> None:
    assert job_id("c1", "snapshot", "1") == "88abb03f-3fea-57e8-aa94-518edf09e6d9"
    of_a_uuid = job_id("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "snapshot", "1")
    assert of_a_uuid == "ac4a7172-04c3-5137-b30c-65620109f36e"
    with pytest.raises(BadInput, match="slash"):
        job_id("c1", "a/b", "1")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"collection_id": ""}, "collection id"),
        ({"name": "a\nb"}, "collection name"),
        ({"shards": 0}, "shards is 0"),
        ({"hash_columns": ("nope",)}, "hash column 'nope'"),
        ({"hash_columns": ("id", "id")}, "twice"),
    ],
)
def test_a_spec_without_meaning_is_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        CollectionSpec(**{"collection_id": "c", "name": "n", "schema": SCHEMA, **spec})  # type: ignore[arg-type]
