"""Every version of the format stays readable, and is written and upgraded as before."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.registry import BY_NAME, Kind
from holdfast.catalog.upgrade import STEPS, objects
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from testbed.oldcatalogs import StoredRows, protobuf_at

GOLDEN = Path(__file__).parent / "golden"
Json = dict[str, Any]


def load(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def stored(found: Json) -> Row:
    return Row(bytes.fromhex(found.get("tag", "") + found["key_hex"]), bytes.fromhex(found["value_hex"]))


each_version = pytest.mark.parametrize("version", range(MIN_VERSION, CATALOG_VERSION + 1))
each_step = pytest.mark.parametrize("source", STEPS)


@each_version
def test_golden_rows_are_written_as_they_were(version: int) -> None:
    rows = load(f"v{version}")
    kinds = {BY_NAME[found["type"]].kind for found in rows}
    assert kinds == {kind for kind in Kind if not protobuf_at(version, kind)} | set(
        objects.collections_of(version)
    )
    for found in rows:
        row = stored(found)
        assert row.kind is BY_NAME[found["type"]].kind
        assert objects.decode(version, row) == (found["key"], found["value"]), found
        assert objects.encode(version, row.kind, found["key"], found["value"]) == row, found


@each_step
def test_golden_catalogs_are_upgraded_as_they_were(source: int) -> None:
    golden = load(f"v{source}_to_v{source + 1}")
    rows = [stored(found) for found in golden["rows"]]
    updates = list(STEPS[source].updates(StoredRows(rows)))
    assert len(golden["retracted"]) + len(golden["added"]) == len(updates)
    assert rows
    for part, version, diff in (("retracted", source, -1), ("added", source + 1, 1)):
        assert [stored(found) for found in golden[part]] == sorted(
            update.row for update in updates if update.diff == diff
        )
        for found in golden[part]:
            assert objects.decode(version, stored(found)) == (found["key"], found["value"])


@each_version
def test_golden_rows_set_every_field(version: int) -> None:
    maker = Path(__file__).parents[2] / "fixtures" / "make_golden.py"
    spec = importlib.util.spec_from_file_location("make_golden", maker)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Those of version 15 are older than the program that makes them.
    made = {json.dumps(found) for found in module.golden_rows(version)}
    assert version == 15 or made == {json.dumps(found) for found in load(f"v{version}")}
