"""Commands on a catalog before its upgrade show and check it, and change nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, OBJECT_TYPES, OpenMode
from unit.cli.catalogs import Place, make_place

GOLDEN = Path(__file__).parents[2] / "catalog" / "golden"
OLD = range(MIN_VERSION, CATALOG_VERSION)


def old_dump(version: int) -> dict[str, list[dict[str, Any]]]:
    """A small catalog of a version, as its golden rows have such objects."""
    golden = json.loads((GOLDEN / f"v{version}.json").read_text())
    some = {row["type"]: {"key": row["key"], "value": row["value"]} for row in golden}
    found: dict[str, list[dict[str, Any]]] = {row.name: [] for row in OBJECT_TYPES.values()}
    for name in ("settings", "databases", "system_configurations", "audit_log", "storage_usage"):
        found[name] = [some[name]]
    found["config"] = [{"key": {"key": "user_version"}, "value": {"value": str(version)}}]
    return found


@pytest.fixture(params=["persist in files", "stash in a file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place(request.param, tmp_path, request)
    yield made
    made.close()


@pytest.mark.parametrize("version", OLD)
def test_an_old_catalog_is_dumped_and_loaded_as_it_is(place: Place, version: int) -> None:
    old = old_dump(version)
    loaded = place.run("load", "-", text=json.dumps(old))
    assert loaded.exit_code == 0, loaded.output
    shown = json.loads(place.dump())
    assert shown.pop("fence_token")[0]["value"]["epoch"] == "1"
    del old["fence_token"]
    assert shown == old


@pytest.mark.parametrize("version", OLD)
def test_an_old_catalog_is_checked_but_neither_changed_nor_upgraded(place: Place, version: int) -> None:
    place.run("load", "-", text=json.dumps(old_dump(version)))
    before = place.stored()
    checked = place.run("upgrade-check", "--cluster-replica-sizes", '["1"]')
    assert checked.exit_code == 0, checked.output
    assert (
        f"can be upgraded from version {version} to {CATALOG_VERSION}; 7 objects are valid" in checked.stdout
    )
    for change in (
        ("edit", "settings", '{"name": "n"}', '{"value": "1"}'),
        ("delete", "settings", '{"name": "catalog_content_version"}'),
    ):
        refused = place.run(*change)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"at version {version}, and must be upgraded to {CATALOG_VERSION}" in refused.stderr
    assert place.run("init").stdout.startswith("already initialized")
    assert place.run("epoch").stdout == "1\n"
    assert place.stored() == before
    raised = place.run("fence", "--at-least", "5")
    assert "epoch 1 of generation 0 -> epoch 5 of generation 0" in raised.stdout
    with place.openable().open(OpenMode.WRITABLE, holder="db", purpose="upgrades") as catalog:
        assert (catalog.catalog_version, catalog.fence_token().epoch) == (CATALOG_VERSION, 6)
    assert f"is at version {CATALOG_VERSION}" in place.run("upgrade-check").stdout
