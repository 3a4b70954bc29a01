"""A wait of a test finds the same value in an object as kubectl does."""

from typing import Any

import pytest

from testbed.objects import at_path, is_so

BODY: dict[str, Any] = {
    "metadata": {"generation": 3},
    "status": {
        "epoch": 7,
        "fencedBy": [{"epoch": 4}, {"epoch": 6}],
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Available", "observedGeneration": 3},
            {"type": "Stalled", "status": "True", "observedGeneration": 2},
            {"type": "Verified", "status": "False", "observedGeneration": 3},
        ],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".status.epoch", [7]),
        (".status.nothing", []),
        (".status.fencedBy[-1:].epoch", [6]),
        ('.status.conditions[?(@.type=="Ready")].reason', ["Available"]),
        ('.status.conditions[?(@.type=="Verified")].reason', []),
        ('.status.conditions[?(@.type=="Other")].status', []),
    ],
)
def test_a_path_leads_to_what_is_there(path: str, found: list[object]) -> None:
    assert at_path(BODY, path) == found
    assert at_path(None, path) == []


@pytest.mark.parametrize("path", ["status", ".status[*]", '.status[?(@.type=="Ready"]'])
def test_a_path_that_is_not_understood_is_an_error(path: str) -> None:
    with pytest.raises(AssertionError, match="not understood"):
        at_path(BODY, path)


def test_a_condition_counts_for_the_generation_that_is_there_now() -> None:
    assert is_so(BODY, "Ready")
    assert not is_so(BODY, "Stalled")
    assert not is_so(BODY, "Verified")
    assert not is_so(BODY, "Other")
    assert not is_so(None, "Ready")
    conditions = [{"type": "Ready", "status": "True"}]
    body = {**BODY, "status": {"conditions": conditions, "observedGeneration": 2}}
    assert not is_so(body, "Ready")
    assert is_so({**BODY, "status": {"conditions": conditions}}, "Ready")
