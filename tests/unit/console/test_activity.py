"""What happened, in one list."""

from dataclasses import replace
from typing import Any

from holdfast.collections import JobRecord, JobState
from holdfast.collections.record.state import CommandKind, CommandRecord
from holdfast.console.facts.activity import (
    MOST_ENTRIES,
    MOST_TEXT,
    ActivitySource,
    ObjectName,
    newest,
    of_commands,
    of_conditions,
    of_events,
    of_jobs,
    parse_name,
    related,
    result_text,
    slot_text,
)

Json = dict[str, Any]


def resource(kind: str, name: str, namespace: str = "a", **spec: Any) -> Json:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def event(at: str, **more: Any) -> Json:
    about = {"kind": "Catalog", "namespace": "a", "name": "demo"}
    return {"involvedObject": about, "reason": "Available", "message": "fine", "eventTime": at, **more}


def test_an_event_has_its_last_time_its_count_and_who_posted_it() -> None:
    (once,) = of_events([event("2026-01-02T03:04:05.000006Z", reportingInstance="operator-1", type="Normal")])
    assert (once.at_ms, once.source, once.about) == (
        1767323045000,
        ActivitySource.EVENT,
        ObjectName("Catalog", "a", "demo"),
    )
    assert (once.what, once.text, once.by, once.is_warning, once.times) == (
        *("Available", "fine", "operator-1"),
        *(False, 1),
    )
    again = event(
        "2026-01-02T03:04:05Z",
        type="Warning",
        count=7,
        lastTimestamp="2026-01-02T03:05:05Z",
        series={"count": 7, "lastObservedTime": "2026-01-02T03:05:05.5Z"},
    )
    (found,) = of_events([again])
    assert (found.at_ms - once.at_ms, found.times, found.is_warning) == (60_500, 7, True)
    assert list(of_events([event("yesterday")])) == []


def test_a_condition_tells_its_last_change() -> None:
    body = resource("Catalog", "demo")
    condition = {"type": "Ready", "status": "False", "reason": "Opening", "message": "since a minute"}
    body["status"] = {"conditions": [{**condition, "lastTransitionTime": "2026-01-02T03:04:05Z"}, condition]}
    (found,) = of_conditions([body])
    assert (found.what, found.text) == ("Ready is False", "Opening: since a minute")


def test_a_command_tells_who_when_and_with_which_token() -> None:
    given = CommandRecord(
        *("c1", CommandKind.HAND_OVER, "id-1", "holdfast.table (ada, pid 7)", "host-1"),
        *("epoch 3 of generation 0 (me, test)", 1000, {"to": "r2"}),
    )
    known = {"id-1": ObjectName("StorageCollection", "a", "flights")}
    (found,) = of_commands([given], known)
    assert (found.at_ms, found.what, found.text, found.about) == (1000, "hand over", "to r2", known["id-1"])
    assert (found.by, found.token) == (
        "holdfast.table (ada) on host-1",
        "epoch 3 of generation 0 (me, test)",
    )
    kept = replace(given, kind=CommandKind.RETAIN_COLLECTION, result={"retain_ms": 2_592_000_000})
    assert [each.text for each in of_commands([kept], known)] == ["retain 30d"]
    (unknown,) = of_commands([given], {})
    assert unknown.about == ObjectName("collection", "", "id-1")


def test_a_job_tells_its_start_and_its_end() -> None:
    job = JobRecord(
        "j", "id-1", "compact", "now", 2, JobState.FAILED, started_ms=5, finished_ms=9, error="full"
    )
    started, failed = of_jobs([job], {})
    assert (started.at_ms, started.what, started.text) == (5, "compact started", "now, attempt 2")
    assert (failed.at_ms, failed.what, failed.text, failed.is_warning) == (
        *(9, "compact failed"),
        *("now, attempt 2: full", True),
    )


def test_results_and_slots_are_for_people() -> None:
    result = {"rows": 36003, "upper": 1796012836433, "recipe": "COPY", "at": 7, "comments": {"id": "x"}}
    assert result_text(result) == (
        "rows 36,003, upper 2026-11-30 04:27:16.433 UTC, recipe copy, at 7, comments id"
    )
    assert slot_text("bb63255f57726e2afb82af9d3f7687d9") == "bb63255f5…"
    job = JobRecord("j", "id-1", "write", "ab" * 16, 1, JobState.DONE, started_ms=5, finished_ms=5)
    assert [each.text for each in of_jobs([job], {})] == ["ababababa…"] * 2


def test_no_password_and_no_control_character_is_shown_and_texts_are_bounded() -> None:
    message = "can't open postgresql://me:planted@db/x\n\x1b[31m" + "x" * 5000
    (found,) = of_events([event("2026-01-02T03:04:05Z", message=message)])
    assert "planted" not in found.text
    assert found.text.isprintable()
    assert len(found.text) < MOST_TEXT + 20


def test_the_newest_come_first_and_are_bounded() -> None:
    jobs = [
        JobRecord(f"j{at}", "x", "compact", "s", 1, JobState.RUNNING, started_ms=at)
        for at in range(1, MOST_ENTRIES + 50)
    ]
    found = newest(of_jobs(jobs, {}))
    assert [each.at_ms for each in found[:2]] == [MOST_ENTRIES + 49, MOST_ENTRIES + 48]
    assert len(found) == MOST_ENTRIES


def test_what_refers_to_an_object_is_related_to_it() -> None:
    bodies = [
        resource("Catalog", "demo"),
        resource("StorageCollection", "flights", catalogRef={"name": "demo"}),
        resource("StorageCollection", "others", catalogRef={"name": "other"}),
        resource("StorageCollection", "flights", "b", catalogRef={"name": "demo"}),
        resource("CatalogMigration", "move", catalogRef={"name": "demo"}),
        resource("CollectionSnapshot", "nightly", collectionRef={"name": "flights"}),
    ]
    found = related(ObjectName("Catalog", "a", "demo"), bodies)
    assert {str(each) for each in found} == {
        "Catalog/a/demo",
        "StorageCollection/a/flights",
        "CatalogMigration/a/move",
        "CollectionSnapshot/a/nightly",
    }
    assert related(ObjectName("collection", "", "x"), bodies) == {ObjectName("collection", "", "x")}


def test_a_name_is_read_as_it_is_written() -> None:
    for name in (ObjectName("Catalog", "a", "demo"), ObjectName("collection", "", "orders")):
        assert parse_name(str(name)) == name
    for text in ("", "demo", "a//b", "/x", "a/b/c/d"):
        assert parse_name(text) is None
