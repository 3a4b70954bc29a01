"""Dumps and loads a catalog at any readable version of the format unchanged, in every kind of store."""

import io
import json

import pytest

from conformance.catalogs import EMBEDDED, HOLDER, Catalogs
from holdfast.catalog import OpenMode, debug
from holdfast.catalog.dump import dump_json
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import BadInput, Deprecated, UpgradeNeeded, VersionTooNew
from testbed.oldcatalogs import rows_of, upgraded

each_version = pytest.mark.parametrize("version", range(MIN_VERSION, CATALOG_VERSION + 1))


def put(catalogs: Catalogs, rows: tuple[Row, ...]) -> None:
    """Make the catalog as a process of that version left it."""
    catalogs.behind().append([RowUpdate(row, 1) for row in rows], 0, take_hold=True)


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
@each_version
def test_a_catalog_is_dumped_at_the_version_that_it_has(catalogs: Catalogs, version: int) -> None:
    rows = tuple(rows_of(version, items=8))
    put(catalogs, rows)
    openable = catalogs.openable("read")
    assert openable.config("user_version") == version
    assert openable.dump() == dump_json(rows)
    items = json.loads(openable.dump())["items"]
    assert sorted(item["value"]["name"] for item in items) == [f"item {number}" for number in range(1, 9)]
    assert ("owner_id" in items[0]["value"]) == (version >= 18)
    if version < CATALOG_VERSION:
        with pytest.raises(UpgradeNeeded, match=f"at version {version}") as caught:
            openable.open(OpenMode.READ_ONLY)
        assert "upgrade-check" in caught.value.hint


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
@each_version
def test_a_dump_is_loaded_as_the_rows_that_it_was_made_of(catalogs: Catalogs, version: int) -> None:
    rows = tuple(rows_of(version, items=8))
    assert list(debug.rows_of_dump(io.StringIO(dump_json(rows)))) == [
        row for row in sorted(rows) if row.kind is not Kind.FENCE_TOKEN
    ]
    debug.load(catalogs.openable(), io.StringIO(dump_json(rows)), **HOLDER)
    store = catalogs.behind()
    stored = {row for row in store.rows(store.upper() - 1) if row.kind is not Kind.FENCE_TOKEN}
    assert stored == {row for row in rows if row.kind is not Kind.FENCE_TOKEN}


@pytest.mark.parametrize("catalogs", EMBEDDED[:1], indirect=True)
def test_the_past_is_dumped_at_the_version_of_then(catalogs: Catalogs) -> None:
    old = tuple(rows_of(15, items=4))
    put(catalogs, old)
    new = upgraded(old, 15)
    store = catalogs.behind()
    changes = [RowUpdate(row, -1) for row in old if row not in new]
    changes += [RowUpdate(row, 1) for row in new if row not in old]
    store.append(changes, store.upper())
    openable = catalogs.openable("read")
    assert openable.dump(0) == dump_json(old)
    assert openable.dump() == dump_json(new)
    with openable.open(OpenMode.READ_ONLY) as catalog:
        assert catalog.dump(0) == dump_json(old)


@pytest.mark.parametrize(
    ("version", "error"), [(MIN_VERSION - 1, Deprecated), (CATALOG_VERSION + 1, VersionTooNew)]
)
def test_no_dump_of_a_version_out_of_reach(version: int, error: type[Exception]) -> None:
    dump = json.loads(dump_json(rows_of(CATALOG_VERSION, items=1)))
    dump["config"] = [{"key": {"key": "user_version"}, "value": {"value": str(version)}}]
    with pytest.raises(error):
        list(debug.rows_of_dump(io.StringIO(json.dumps(dump))))


def test_objects_of_another_version_than_the_dumps_are_refused() -> None:
    dump = json.loads(dump_json(rows_of(15, items=1)))
    dump["items"] = json.loads(dump_json(rows_of(18, items=1)))["items"]
    with pytest.raises(BadInput, match="not a value of items"):
        list(debug.rows_of_dump(io.StringIO(json.dumps(dump))))
    dump = json.loads(dump_json(rows_of(14, items=1)))
    dump["roles"][0]["key"]["id"] = {"user": "1"}
    with pytest.raises(BadInput, match="not a key of roles: field id"):
        list(debug.rows_of_dump(io.StringIO(json.dumps(dump))))
