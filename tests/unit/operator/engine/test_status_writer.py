"""The status contract: transition times, generations, foreign conditions, no needless write."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.api.names import ConditionType, Kind, Reason
from holdfast_operator.engine.events import Note, event, event_name, transitions
from holdfast_operator.engine.health import Health, Phase, WantedCondition, health_conditions
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status_writer import conditions, merge_patch, next_status, phase_of
from holdfast_operator.engine.steps import SUSPENDED, ready, reconciling, stalled

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
STALLED = stalled(Reason.SECRET_NOT_FOUND, "create it")


def statuses(health: Health) -> tuple[str, ...]:
    return tuple(condition.status for condition in health_conditions(health))


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (ready("fine"), ("True", "False", "False")),
        (reconciling(Reason.CATALOG_NOT_READY, "wait"), ("False", "True", "False")),
        (STALLED, ("False", "False", "True")),
        (SUSPENDED, ("False", "False", "False")),
    ],
)
def test_ready_reconciling_and_stalled_of_each_phase(health: Health, expected: tuple[str, ...]) -> None:
    assert statuses(health) == expected


@pytest.mark.parametrize(
    "health",
    [
        ready("fine"),
        reconciling(Reason.STORE_UNREACHABLE, "x"),
        stalled(Reason.INVALID_SPEC, "x"),
        SUSPENDED,
    ],
)
def test_a_phase_is_read_back_from_what_was_shown(health: Health) -> None:
    assert phase_of({"conditions": conditions([], health_conditions(health), 1, NOW)}) is health.phase
    assert phase_of({}) is Phase.RECONCILING


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = conditions([], health_conditions(STALLED), 1, NOW)
    other_reason = conditions(
        first, health_conditions(stalled(Reason.CATALOG_NOT_FOUND, "make it")), 2, LATER
    )
    assert [c["lastTransitionTime"] for c in other_reason] == ["2026-01-02T03:04:05Z"] * 3
    assert {c["reason"] for c in other_reason} == {"CatalogNotFound"}
    assert {c["observedGeneration"] for c in other_reason} == {2}
    mended = {c["type"]: c for c in conditions(first, health_conditions(ready("fine")), 2, LATER)}
    assert mended["Ready"]["lastTransitionTime"] == "2026-01-02T04:04:05Z"
    assert mended["Stalled"]["lastTransitionTime"] == "2026-01-02T04:04:05Z"
    assert mended["Reconciling"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_other_peoples_conditions_stay_and_ours_that_are_over_go() -> None:
    foreign = {"type": "BackedUp", "status": "True", "reason": "Nightly"}
    snapshot = WantedCondition(
        ConditionType.SCHEDULED_SNAPSHOT_COMPLETED, "True", Reason.SNAPSHOT_SUCCEEDED, "done"
    )
    before = conditions([foreign], (*health_conditions(ready("fine")), snapshot), 1, NOW)
    assert [c["type"] for c in before] == [
        "Ready",
        "Reconciling",
        "Stalled",
        "ScheduledSnapshotCompleted",
        "BackedUp",
    ]
    after = conditions(before, health_conditions(ready("fine")), 1, LATER)
    assert [c["type"] for c in after] == ["Ready", "Reconciling", "Stalled", "BackedUp"]
    assert after[-1] == foreign


def test_the_same_again_is_no_write() -> None:
    status = next_status({"observedGeneration": -1}, {"upper": 3}, health_conditions(ready("fine")), 1, NOW)
    assert (
        merge_patch(status, next_status(status, {"upper": 3}, health_conditions(ready("fine")), 1, LATER))
        == {}
    )
    moved = merge_patch(status, next_status(status, {"upper": 4}, health_conditions(ready("fine")), 1, LATER))
    assert moved == {"upper": 4}


def test_a_field_that_is_left_out_disappears() -> None:
    old = {"observedGeneration": 1, "epoch": 4, "objectCounts": {"roles": 1, "items": 2}, "conditions": []}
    new = {"observedGeneration": 2, "objectCounts": {"roles": 3}, "conditions": []}
    assert merge_patch(old, new) == {
        "epoch": None,
        "observedGeneration": 2,
        "objectCounts": {"items": None, "roles": 3},
    }


values = st.recursive(
    st.integers(0, 3) | st.sampled_from(["a", "b"]) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("pqr"), values, max_size=3)


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396, in its own words."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@given(objects, objects)
def test_a_merge_patch_makes_the_new_of_the_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch(old, new)
    assert merged(old, patch) == new
    assert (patch == {}) == (old == new)


def test_events_only_on_transitions() -> None:
    assert transitions([], STALLED, ()) == [Note(Reason.SECRET_NOT_FOUND, "create it", warning=True)]
    shown = conditions([], health_conditions(STALLED), 1, NOW)
    assert transitions(shown, STALLED, ()) == []
    assert transitions(shown, ready("fine"), ()) == [Note(Reason.AVAILABLE, "fine")]
    assert transitions(shown, reconciling(Reason.CATALOG_NOT_READY, "wait"), ()) == []
    running = WantedCondition(
        ConditionType.SCHEDULED_SNAPSHOT_COMPLETED, "Unknown", Reason.SNAPSHOT_RUNNING, "attempt 1 runs"
    )
    fine = conditions([], health_conditions(ready("fine")), 1, NOW)
    assert transitions(fine, ready("fine"), (running,)) == [Note(Reason.SNAPSHOT_RUNNING, "attempt 1 runs")]
    both = conditions(fine, (*health_conditions(ready("fine")), running), 1, NOW)
    assert transitions(both, ready("fine"), (running,)) == []


def test_every_failed_attempt_is_told_once() -> None:
    first = WantedCondition(
        ConditionType.SCHEDULED_SNAPSHOT_COMPLETED, "Unknown", Reason.SNAPSHOT_RETRYING, "attempt 1 failed"
    )
    second = replace(first, message="attempt 2 failed")
    shown = conditions([], (*health_conditions(ready("fine")), first), 1, NOW)
    assert transitions(shown, ready("fine"), (first,)) == []
    assert transitions(shown, ready("fine"), (second,)) == [Note(second.reason, second.message)]


def test_the_name_of_an_event_is_one_for_any_name_of_an_object() -> None:
    for name in ("demo", "x" * 253, "x" * 199 + "-y", "x" * 199 + ".y"):
        made = event_name(ObjectKey(Kind.CATALOG, "ns", name), NOW)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", made)
        assert len(made) <= 253


def test_neither_a_status_nor_an_event_tells_a_secret() -> None:
    """Also where the message is cut within the URL that holds it."""
    for padding in (0, 1000):
        said = stalled(
            Reason.STORE_UNREACHABLE, "x" * padding + " postgres://me:geheim-und-lang@host/db?password=geheim"
        )
        for condition in conditions([], health_conditions(said), 1, NOW):
            assert "geheim" not in condition["message"]
        key = ObjectKey(Kind.CATALOG, "ns", "demo")
        note = Note(said.reason, said.message, warning=True)
        assert "geheim" not in event(key, "u", note, "name", NOW, "pod")["message"]


def test_no_text_of_a_status_is_longer_than_it_may_be_at_any_depth() -> None:
    url = "s3://" + "u" * 2043
    fields = {
        "holder": "h" * 2_000_000,
        "list": [{"purpose": "p" * 5000, "url": url, "since": 3}],
        "no": True,
    }
    status = next_status({}, fields, health_conditions(ready("m" * 2_000_000)), 1, NOW)
    assert status["holder"] == "h" * 4095 + "…"
    (held,) = status["list"]
    assert (len(held["purpose"]), held["url"], held["since"]) == (4096, url, 3)
    assert status["no"] is True
    assert {len(each["message"]) for each in status["conditions"]} == {1}
    again = next_status(status, fields, health_conditions(ready("m" * 2_000_000)), 1, LATER)
    assert merge_patch(status, again) == {}


def test_a_message_that_is_cut_shows_it() -> None:
    (said, *_) = conditions([], health_conditions(ready("because " * 200)), 1, NOW)
    assert (len(said["message"]), said["message"][-1]) == (1024, "…")
