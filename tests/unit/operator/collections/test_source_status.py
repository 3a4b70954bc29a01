"""What the status of a collection says of its source."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.ingest.kept import SourceProgress
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.collections.status import source_conditions, source_fields
from holdfast_operator.engine.health import WantedCondition
from holdfast_operator.kubectl.collections import source_lines
from holdfast_operator.kubectl.picture import moment
from unit.operator.jobs.test_ingestion import FOLDER, TOPIC, spec, view

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def progress(*ends: tuple[str, int], complete_before: int = NOW_MS) -> SourceProgress:
    return SourceProgress(complete_before, (("0", 30), ("1", 12)), 42, 0, ends)


def lagging(of: StorageCollectionSpec, known: SourceProgress) -> WantedCondition:
    (found,) = (each for each in source_conditions(of, known, NOW) if each.type == "Lagging")
    return found


def test_a_topic_tells_how_many_messages_it_has_more() -> None:
    told = source_fields(view(spec(TOPIC)), progress(("0", 1_030)), {})["source"]
    assert told["behind"] == 1_000
    assert told["partitions"] == [
        {"partition": "0", "position": 30, "behind": 1_000},
        {"partition": "1", "position": 12},
    ]
    body: dict[str, Any] = {"spec": {"source": TOPIC}, "status": {"source": told}}
    lines = source_lines(body, NOW)
    assert "MESSAGES  42 read, 0 bad, 1,000 behind" in lines
    assert "0          30, 1,000 behind" in lines
    assert "1          12" in lines
    assert source_fields(view(spec(TOPIC)), progress(), {})["source"]["behind"] == 0


def test_a_suspended_source_tells_when_it_was_so_far_behind() -> None:
    told = source_fields(view(spec(TOPIC)), progress(), {})["source"]
    for suspended in ({"source": {**TOPIC, "run": {"suspend": True}}}, {"source": TOPIC, "suspend": True}):
        lines = source_lines({"spec": suspended, "status": {"source": told}}, NOW)
        assert f"MESSAGES  42 read, 0 bad, 0 behind as of {moment(NOW_MS)}" in lines


def test_other_sources_tell_no_such_number() -> None:
    told = source_fields(view(spec(FOLDER)), progress(), {})["source"]
    assert "behind" not in told
    assert told["messages"] == 42


@pytest.mark.parametrize(
    ("end", "late_ms", "status", "text"),
    [
        (1_030, 0, "False", "at most 300 s behind"),
        (1_031, 0, "True", "1001 messages behind its source, more than one step reads"),
        (30, 301_000, "True", "more than 300 s ago"),
    ],
)
def test_a_collection_that_is_far_behind_is_lagging(end: int, late_ms: int, status: str, text: str) -> None:
    of = spec(TOPIC, batch={"maxRows": 1_000})
    found = lagging(of, progress(("0", end), complete_before=NOW_MS - late_ms))
    expected = Reason.SOURCE_BEHIND if status == "True" else Reason.SOURCE_CURRENT
    assert (found.status, found.reason) == (status, expected)
    assert text in found.message


@pytest.mark.parametrize(
    ("errors", "status", "reason"),
    [
        (0, "False", Reason.NO_BAD_RECORDS),
        (1, "True", Reason.BAD_RECORDS),
        (3, "True", Reason.BAD_RECORDS),
    ],
)
def test_bad_records_are_counted_and_the_command_that_shows_them_is_named(
    errors: int, status: str, reason: Reason
) -> None:
    found = source_conditions(spec(TOPIC), replace(progress(), errors=errors), NOW)
    (collected,) = (each for each in found if each.type == "ErrorsCollected")
    assert (collected.status, collected.reason) == (status, reason)
    assert ("holdfast collection errors" in collected.message) is bool(errors)
    assert ("1 bad record stands" in collected.message) is (errors == 1)


def test_the_plugin_shows_odd_names_escaped() -> None:
    odd = SourceProgress(NOW_MS, (("a\n\x1b[31m", 30),), 42, 0, ())
    source = {**FOLDER, "files": {"path": "/in\x1b[32m"}}
    body: dict[str, Any] = {
        "spec": {"source": source},
        "status": {"source": source_fields(view(spec(FOLDER)), odd, {})["source"]},
    }
    lines = source_lines(body, NOW)
    assert lines[0] == "SOURCE    files /in\\x1b[32m"
    assert lines[-2:] == ["PARTITION    POSITION", "a\\n\\x1b[31m  30"]
