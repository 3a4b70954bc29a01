"""The first open for writing upgrades a catalog at any readable version, in every kind of store."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.catalogs import EMBEDDED, HOLDER, Catalogs, make_catalogs, writable
from holdfast.catalog import OpenMode, config
from holdfast.catalog.dump import dump_json
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from testbed.drawncatalogs import catalogs as drawn_catalogs
from testbed.oldcatalogs import rows_of, upgraded
from testbed.oldstores import begin, but_fence, contents

VERSIONS = range(MIN_VERSION, CATALOG_VERSION + 1)


@pytest.mark.parametrize("kind", EMBEDDED)
def test_any_catalog_of_any_version_is_upgraded_as_its_steps_say(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        nonlocal number
        number += 1
        version = data.draw(st.sampled_from(VERSIONS))
        rows = data.draw(drawn_catalogs(version))
        (folder := tmp_path / str(number)).mkdir()
        catalogs = make_catalogs(kind, folder, request)
        try:
            begin(catalogs.behind(), rows)
            expected = but_fence(upgraded(rows, version))
            with catalogs.openable().open(OpenMode.SAVEPOINT, **HOLDER) as tried:
                assert shown_contents(tried.dump()) == shown_contents(dump_json(expected))
            assert contents(catalogs.behind()) == but_fence(rows)
            with writable(catalogs.openable()) as catalog:
                assert catalog.catalog_version == CATALOG_VERSION
            assert contents(catalogs.behind()) == expected
        finally:
            catalogs.close()

    number = 0
    check()


def shown_contents(dump: str) -> dict[str, Any]:
    """What a dump shows of the catalog itself: neither its fence token, nor how its store is linked."""
    found: dict[str, Any] = json.loads(dump)
    del found["fence_token"]
    names = [entry["key"]["key"] for entry in found["config"]]
    found["config"] = [
        entry
        for name, entry in zip(names, found["config"], strict=True)
        if name == config.USER_VERSION or not config.is_reserved(name)
    ]
    assert found["config"]
    return found


@pytest.mark.parametrize("version", [14])
def test_every_kind_of_store_is_upgraded(catalogs: Catalogs, version: int) -> None:
    rows: tuple[Row, ...] = tuple(rows_of(version, items=12))
    catalogs.openable().load(rows, **HOLDER)
    assert catalogs.openable().config("user_version") == version
    with writable(catalogs.openable()) as catalog:
        assert catalog.catalog_version == CATALOG_VERSION
        assert shown_contents(catalog.dump()) == shown_contents(dump_json(upgraded(rows, version)))
    with catalogs.openable("read").open(OpenMode.READ_ONLY) as reader:
        assert reader.object_counts()["items"] == 12
