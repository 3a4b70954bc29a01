"""The page of failure modes: each of its rows has tests, and names what these tests or the product name.

`docs/failures.toml` has the rows, from which `docs/generate.py` writes the page.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from holdfast_operator.api.names import ConditionType, Reason

ROOT: Final = Path(__file__).resolve().parents[3]
ROWS: Final[list[Mapping[str, Any]]] = [
    row for rows in tomllib.loads((ROOT / "docs" / "failures.toml").read_text()).values() for row in rows
]
NO_TROUBLE: Final = frozenset(
    {
        Reason.AVAILABLE,
        Reason.SUSPENDED,
        Reason.DELETING,
        Reason.ROLLING_OUT,
        Reason.CATALOG_OPENED,
        Reason.CATALOG_UPGRADED,
        Reason.RESTORED,
        Reason.SHADOW_IN_STEP,
        Reason.OBJECTS_DECLARED,
        Reason.TRUTH_TAKEN,
        Reason.MIGRATION_PLANNED,
        Reason.MIGRATION_RUNNING,
        Reason.MIGRATION_STEP,
        Reason.SHADOWING,
        Reason.ROLLING_BACK,
        Reason.MIGRATION_COMPLETED,
        Reason.ROLLED_BACK,
        Reason.CONTENTS_EQUAL,
        Reason.SNAPSHOT_SCHEDULED,
        Reason.SNAPSHOT_RUNNING,
        Reason.SNAPSHOT_SUCCEEDED,
        Reason.COMPACTION_SCHEDULED,
        Reason.COMPACTION_RUNNING,
        Reason.COMPACTION_SUCCEEDED,
        Reason.INGESTION_SCHEDULED,
        Reason.INGESTION_QUEUED,
        Reason.INGESTION_RUNNING,
        Reason.INGESTION_SUCCEEDED,
        Reason.SOURCE_CURRENT,
        Reason.NO_BAD_RECORDS,
        Reason.WITHIN_MAX_BYTES,
        Reason.HYDRATING_RENDITION,
        Reason.RETIRING_RENDITION,
        Reason.RENDITION_CREATED,
        Reason.HYDRATED,
        Reason.HANDED_OVER,
        Reason.RENDITION_DROPPED,
        Reason.COLUMNS_ADDED,
    }
)
"""Reasons of what goes well, or is under way. Every other reason has a row."""
REASONS: Final = {reason.value: reason for reason in Reason}
ALERTS: Final = set(yaml.safe_load((ROOT / "charts/holdfast-operator/alerts.yaml").read_text()))
NAMES: Final = {
    *(line.split()[0] for line in (ROOT / "tests/unit/kept/names.txt").read_text().splitlines() if line),
    *ALERTS,
    *(each.value for each in ConditionType),
}
_QUOTED: Final = re.compile(r"`([^`]+)`")


@cache
def parsed(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text()
    return text, ast.parse(text)


def proofs(row: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for named in row["tests"]:
        path, _, name = named.partition("::")
        yield ROOT / "tests" / path, name


def source(path: Path, name: str) -> str:
    """The source of a test, with what its module defines for all tests. Raises `KeyError`."""
    text, module = parsed(path)
    tests = {
        node.name: node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    tests.pop(name)
    lines = text.splitlines()
    for other in tests.values():
        first = min([other.lineno, *(node.lineno for node in other.decorator_list)])
        last = other.end_lineno or first
        lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def asserts(text: str, reason: Reason) -> bool:
    return re.search(rf"\bReason\.{reason.name}\b|\b{reason.value}\b", text) is not None


def named_in(row: Mapping[str, Any]) -> list[str]:
    return _QUOTED.findall(row["see"])


def test_every_reason_of_trouble_has_a_row() -> None:
    there = {REASONS[name] for row in ROWS for name in named_in(row) if name in REASONS}
    assert set(Reason) - NO_TROUBLE - there == set()
    assert NO_TROUBLE & there == set()


def test_every_alert_has_a_row() -> None:
    assert ALERTS - {name for row in ROWS for name in named_in(row)} <= {
        # Of the queue and of the number of stalled objects: no failure by itself.
        "HoldfastQueueStuck",
        "HoldfastObjectStalled",
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["fails"])
def test_a_row_is_what_its_tests_show(row: Mapping[str, Any]) -> None:
    texts = [source(path, name) for path, name in proofs(row)]
    assert texts
    # A text may be spread over two lines of a test, with a quote between them.
    joined = re.sub(r'"\s*f?"', "", "\n".join(texts))
    for named in named_in(row):
        if named in REASONS:
            assert any(asserts(text, REASONS[named]) for text in texts), named
        elif named not in NAMES:
            assert named.removeprefix(".status.") in joined, named


def test_what_a_row_lacks_is_found() -> None:
    path = Path(__file__).parents[1] / "operator" / "snapshots" / "test_plan.py"
    text = source(path, "test_what_is_shown")
    assert asserts(text, Reason.NO_DESTINATION)
    assert not asserts(text, Reason.RUNS_MISSED)
    assert "def test_nothing_starts_without_the_finalizer" not in text
    with pytest.raises(KeyError):
        source(path, "test_that_is_not_there")
