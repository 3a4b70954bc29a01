"""For how long a deletion failed. Only tries count, and only a user ends it early."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast_operator.api.names import FINALIZER, Kind, Reason
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.deletion import LIMIT, Deletion, Deletions, deletion_of, left, left_at_once
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status_writer import shown
from holdfast_operator.engine.steps import Settle, reconciling, stalled

Json = dict[str, Any]
KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
DEAF = Settle(stalled(Reason.STORE_UNREACHABLE, "no answer"), retry=True)
COMMAND = "kubectl holdfast abandon catalog/demo -n ns"


class Clock(SystemClock):
    """A clock that stands until it is moved."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(seconds=self.now)


def body(policy: str = "Delete", status: Json | None = None, **annotations: str) -> Json:
    return {
        "metadata": {
            "uid": "u-1",
            "finalizers": [FINALIZER],
            # Long ago, by some clock: it says nothing.
            "deletionTimestamp": "2001-01-01T00:00:00Z",
            "annotations": {f"holdfast.dev/{name}": value for name, value in annotations.items()},
        },
        "spec": {"deletionPolicy": policy},
        "status": {"shardId": "s", **(status or {})},
    }


def failed(deletions: Deletions, status: Json, step: Settle = DEAF) -> Settle:
    """One more try that fails; `status` is as it is shown then."""
    done = deletions.account(KEY, body(status=status), step)
    assert done.fields is not None
    status.clear()
    status.update(done.fields)
    return done


def test_only_the_time_between_two_tries_that_failed_counts() -> None:
    clock, status = Clock(), dict[str, Any]()
    deletions = Deletions(clock)
    first = failed(deletions, status)
    assert status["deletion"] == {"storeFailedSeconds": 0, "lastFailure": "no answer"}
    assert status["shardId"] == "s"
    told = first.health.message
    assert told.startswith(
        "no answer; the deletion waits for the store, which has failed since 2026-01-02T03:04:05Z"
    )
    assert "the deletion continues when it responds" in told
    assert told.endswith(COMMAND)
    for _ in range(4):
        clock.now += 20
        assert failed(deletions, status).health.message == told, "it is written, and told, once"
    # The status isn't written at each try.
    assert status["deletion"]["storeFailedSeconds"] == 60
    # A process that is stopped tries nothing.
    clock.now += 100_000
    failed(deletions, status)
    assert status["deletion"]["storeFailedSeconds"] == 180
    # Nor does one that is down.
    deletions = Deletions(clock)
    clock.now += 100_000
    failed(deletions, status)
    assert status["deletion"]["storeFailedSeconds"] == 180
    # What goes well in between doesn't count either.
    waiting = Settle(reconciling(Reason.WAITING_FOR_COLLECTIONS, "waits"))
    failed(deletions, status, waiting)
    clock.now += 100
    failed(deletions, status)
    assert status["deletion"]["storeFailedSeconds"] == 180
    for _ in range(10):
        clock.now += 100
        last = failed(deletions, status)
    assert status["deletion"]["storeFailedSeconds"] == LIMIT
    assert last.health.message.endswith(COMMAND)
    assert "continues when it responds" not in last.health.message
    assert status["deletion"]["lastFailure"] == "no answer"


def test_since_when_it_fails_outlives_the_process_that_saw_it() -> None:
    stalled_before: Json = {
        "conditions": [{"type": "Stalled", "status": "True", "lastTransitionTime": "2025-12-31T23:59:59Z"}]
    }
    later = Deletions(Clock()).account(KEY, body(status=stalled_before), DEAF)
    assert "has failed since 2025-12-31T23:59:59Z" in later.health.message


def test_an_event_tells_once_that_a_deletion_waits_for_a_store_that_failed_before() -> None:
    reason = {"reason": "StoreUnreachable", "lastTransitionTime": "2025-12-31T23:59:59Z"}
    shown_before: Json = {
        "conditions": [
            {"type": "Ready", "status": "False", **reason},
            {"type": "Stalled", "status": "True", **reason},
        ]
    }
    deletions, status = Deletions(Clock()), dict(shown_before)
    (note,) = failed(deletions, status).notes
    assert (note.reason, note.warning) == (Reason.STORE_UNREACHABLE, True)
    assert note.message.endswith(COMMAND)
    assert failed(deletions, {**shown_before, **status}).notes == ()
    # What changes the conditions is told by them.
    assert failed(Deletions(Clock()), {}).notes == ()


def test_a_store_that_answered_in_between_fails_anew() -> None:
    clock = Clock()
    deletions = Deletions(clock)
    failed(deletions, {})
    deletions.account(KEY, body(), Settle(reconciling(Reason.WAITING_FOR_COLLECTIONS, "waits")))
    clock.now += 60
    assert "has failed since 2026-01-02T03:05:05Z" in failed(deletions, {}).health.message


def test_a_store_that_says_much_does_not_hide_the_way_out() -> None:
    loud = Settle(stalled(Reason.STORE_UNREACHABLE, "no answer " * 1000), retry=True)
    message = failed(Deletions(Clock()), {}, loud).health.message
    assert shown(message).endswith(COMMAND)
    assert len(message) <= 1024


def test_what_no_time_mends_shows_the_way_out_at_once() -> None:
    deletions = Deletions(Clock())
    gone = Settle(stalled(Reason.SECRET_NOT_FOUND, "there is no Secret"), retry=True)
    assert failed(deletions, {}, gone).health.message.endswith(COMMAND)
    kept = deletions.account(KEY, body("Retain"), gone)
    assert kept.health.message == "there is no Secret"
    living = body()
    del living["metadata"]["deletionTimestamp"]
    assert deletions.account(KEY, living, gone) is gone


@pytest.mark.parametrize(
    ("failure", "uid", "abandoned"),
    [("no answer", "u-1", True), ("", "u-1", False), ("no answer", "u-0", False), ("no answer", "", False)],
)
def test_it_is_abandoned_by_the_uid_and_after_a_try(failure: str, uid: str, abandoned: bool) -> None:
    status = {"deletion": {"storeFailedSeconds": 0, "lastFailure": failure}} if failure else {}
    assert deletion_of(body(status=status, abandon=uid)).abandoned is abandoned


def test_data_of_what_went_before_its_finalizer_was_there_is_named() -> None:
    at_once = body()
    del at_once["metadata"]["deletionTimestamp"]
    note = left_at_once(KEY, at_once)
    assert note is not None
    assert (note.reason, note.warning) == (Reason.DELETION_INCOMPLETE, True)
    assert "Catalog ns/demo was deleted right after" in note.message
    assert left_at_once(KEY, body()) is None
    assert left_at_once(KEY, {**at_once, "status": {}}) is None
    assert left_at_once(KEY, {**at_once, "spec": {"deletionPolicy": "Retain"}}) is None


def test_a_collection_that_waits_for_its_catalog_shows_the_whole_command_to_abandon_its_data() -> None:
    key = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights")
    waits = Settle(reconciling(Reason.WAITING_FOR_CATALOG, "deletion waits for Catalog 'demo'"))
    deletions = Deletions(Clock())
    step = deletions.account(key, body(), waits)
    assert step.health.message == (
        "deletion waits for Catalog 'demo'; to delete the resource and leave its data where it is, "
        "run: kubectl holdfast abandon collection/flights -n ns"
    )
    assert step.notes == ()
    assert deletions.account(key, body("Retain"), waits).health == waits.health


def test_the_event_about_abandoned_data_does_not_say_that_somebody_retries() -> None:
    failure = "the store is gone; the operator retries by itself; check the store and its credentials"
    note = left("catalog shop", Deletion(60, failure))
    assert "the store is gone" in note.message
    assert "retries" not in note.message
