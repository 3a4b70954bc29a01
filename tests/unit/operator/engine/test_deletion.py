"""For how long a deletion failed: only what was tried counts, and only somebody's word ends it otherwise."""

from typing import Any

import pytest

from holdfast_operator.api.names import FINALIZER, Kind, Reason
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.deletion import LIMIT, Deletions, deletion_of, left_at_once
from holdfast_operator.engine.kube import ObjectKey
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
    assert COMMAND not in first.health.message
    for _ in range(4):
        clock.now += 20
        failed(deletions, status)
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
    assert status["deletion"]["lastFailure"] == "no answer"


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
