"""The steps of a migration, as its resource and its Events show them."""

from typing import Any

import pytest

from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from holdfast.console.drawing.migration import timeline
from holdfast.console.facts.migration import StepState, migration, ordered

Json = dict[str, Any]
START = 1767323045000


def body(status: Json | None = None, **spec: Any) -> Json:
    return {
        "kind": "CatalogMigration",
        "metadata": {
            "namespace": "a",
            "name": "move",
            "uid": "u",
            "creationTimestamp": "2026-01-02T03:04:00Z",
        },
        "spec": {"catalogRef": {"name": "demo"}, "target": "Persist", **spec},
        "status": status or {},
    }


def done(step: int, at: str, target: Backend = Backend.PERSIST, epoch: int = 4) -> Json:
    text = str(STEPS[Strategy.ONE_TOMBSTONE, target][step - 1])
    return {"reason": "MigrationStep", "message": f"done: {text} (epoch {epoch})", "eventTime": at}


RUNNING: Json = {
    "phase": "Migrating",
    "step": "2. open the persist catalog",
    "strategy": "OneTombstone",
    "sourceOfTruth": "Stash",
    "stashEpoch": 4,
    "persistEpoch": 3,
    "rows": 12,
    "bytes": 3456,
    "objects": {"item": {"rows": 12, "bytes": 3456}},
    "startTime": "2026-01-02T03:04:05Z",
    "deadline": "2026-01-02T03:14:05Z",
    "conditions": [{"type": "Ready", "status": "False", "reason": "MigrationRunning", "message": "step 3"}],
}


def test_steps_have_the_times_of_their_events() -> None:
    events = [
        done(1, "2026-01-02T03:04:06.500000Z"),
        done(2, "2026-01-02T03:04:08Z"),
        {"reason": "Other", "message": "done: 3. x (epoch 4)", "eventTime": "2026-01-02T03:04:09Z"},
    ]
    found = migration(body(RUNNING), None, events)
    assert [(each.number, each.state, each.at_ms, each.took_ms) for each in found.steps[:4]] == [
        (1, StepState.DONE, START + 1500, 1500),
        (2, StepState.DONE, START + 3000, 1500),
        (3, StepState.NEXT, None, None),
        (4, StepState.WAITING, None, None),
    ]
    assert found.steps[0].text == "open the stash catalog"
    assert found.progress == (2, 6)
    assert [(each.name, each.is_truth, each.is_target, each.epoch) for each in found.stores] == [
        ("Stash", True, False, 4),
        ("Persist", False, True, 3),
    ]
    assert (found.rows, found.objects[0].bytes, found.trouble) == (12, 3456, "step 3")
    drawn = timeline(found)
    assert drawn is not None
    assert 'aria-label="2 of 6 steps are done"' in drawn
    assert [drawn.count(f'class="{kind}-part"') for kind in ("done", "next", "waiting")] == [2, 1, 3]
    assert "1 \N{MIDDLE DOT} 1.5 s<" in drawn


def test_without_events_the_times_are_unknown() -> None:
    found = migration(body(RUNNING))
    assert [each.state for each in found.steps[:3]] == [StepState.DONE, StepState.DONE, StepState.NEXT]
    assert {each.at_ms for each in found.steps} == {None}
    assert " s<" not in str(timeline(found))


def test_a_rollback_goes_the_other_way_and_has_times_of_its_own() -> None:
    status = {
        **RUNNING,
        "phase": "RollingBack",
        "step": "1. open the stash catalog",
        "sourceOfTruth": "Persist",
    }
    events = [
        done(4, "2026-01-02T03:04:06Z"),
        done(1, "2026-01-02T03:05:06Z", Backend.STASH),
    ]
    found = migration(body(status, rollback=True), None, events)
    assert found.is_rollback
    assert [each.is_target for each in found.stores] == [True, False]
    assert found.steps[3].text == "read the persist catalog"
    assert [each.at_ms is not None for each in found.steps[:4]] == [True, False, False, False]


def test_a_migration_that_was_there_already_needed_few_steps() -> None:
    status = {
        **RUNNING,
        "phase": "Completed",
        "step": "3. see whether persist is the source of truth already",
    }
    found = migration(body(status))
    assert [each.state for each in found.steps[2:4]] == [StepState.DONE, StepState.SKIPPED]
    assert found.progress == (6, 6)
    assert (found.is_over, found.trouble) == (True, "")


def test_a_new_migration_shows_what_it_will_do() -> None:
    found = migration(body())
    assert (found.phase, found.truth, found.steps[0].state) == ("New", "", StepState.NEXT)
    assert len(found.steps) == 6


@pytest.mark.parametrize(
    ("stalled", "begins"), [("True", "kubectl holdfast rollback"), ("False", "kubectl holdfast status")]
)
def test_a_stalled_migration_has_the_command_that_ends_it(stalled: str, begins: str) -> None:
    condition = {"type": "Stalled", "status": stalled, "reason": "ContentsDiffer", "message": "they differ"}
    found = migration(body({**RUNNING, "phase": "Stalled", "conditions": [condition]}))
    assert found.command.startswith(begins)


def test_the_shadow_is_that_of_the_catalog() -> None:
    shadow = {
        "type": "ShadowDiverged",
        "status": "Unknown",
        "reason": "ShadowOutOfDate",
        "message": "it lacks 3",
    }
    catalog = {"status": {"conditions": [{**shadow, "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}
    found = migration(body(RUNNING, verify="Shadow", shadowFor="90s"), catalog)
    assert found.shadow is not None
    assert (found.shadow.status, found.shadow.message, found.shadow_for) == ("Unknown", "it lacks 3", "90s")


def test_a_takeover_is_told_in_words() -> None:
    fence = {
        "time": "2026-01-02T03:04:05Z",
        "holder": "pod-2, operator",
        "epoch": 9,
        "generation": 1,
        "reopen": "",
    }
    found = migration(body({**RUNNING, "fencedBy": [fence]}))
    assert found.fenced_by == ("pod-2, operator took it over with epoch 9 at 2026-01-02T03:04:05Z",)


def test_those_that_run_come_first_and_then_the_newest() -> None:
    old, new = body({"phase": "Completed"}), body({"phase": "Completed"})
    old["metadata"] |= {"name": "old", "creationTimestamp": "2025-01-02T03:04:00Z"}
    new["metadata"]["name"] = "new"
    runs = body(RUNNING)
    runs["metadata"]["creationTimestamp"] = "2024-01-02T03:04:00Z"
    assert [each.name for each in ordered([migration(old), migration(new), migration(runs)])] == [
        "move",
        "new",
        "old",
    ]
