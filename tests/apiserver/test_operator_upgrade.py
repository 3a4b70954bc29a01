"""Catalogs of other formats: upgraded if the user asks for it, and reported if they cannot be opened."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import CATALOG_VERSION, catalog_shard_id, persist_catalog
from holdfast.catalog.config import USER_VERSION
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import CONFIGS
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.cli import main
from testbed.oldcatalogs import rows_of

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
OLD = 15


def plant(world: Any, organization: str) -> None:
    """A catalog as an older Holdfast left it."""
    with world.store(world.volume(organization)) as client:
        closed = persist_catalog(client, organization)
        closed.load(rows_of(OLD, items=20), holder="old", purpose="test")


def set_version(world: Any, organization: str, old: int, new: int) -> None:
    """Write another version into the store, as a newer Holdfast would."""
    rows = [
        encode(CONFIGS, pb.ConfigKey(key=USER_VERSION), pb.ConfigValue(value=each)) for each in (old, new)
    ]
    with world.store(world.volume(organization)) as client:
        store = CatalogShard(client, catalog_shard_id(organization), purpose="test")
        store.append([RowUpdate(rows[0], -1), RowUpdate(rows[1], 1)], store.upper())
        store.close()


def test_old_catalogs_are_upgraded_when_that_is_wanted(world: Any, make_catalog: Make) -> None:
    automatic, manual = make_catalog(), make_catalog("careful", upgradePolicy="Manual")
    for there in (automatic, manual):
        plant(world, there["spec"]["organizationId"])
    operator = world.start()
    world.apply(automatic, manual)
    message = world.wait_stalled("catalog/careful", "UpgradePending")
    assert f"format version {OLD}, this operator writes version {CATALOG_VERSION}" in message
    assert "objects passes" in message
    status = world.status("catalog/careful")
    assert (status["catalogVersion"], status["epoch"]) == (OLD, 1)
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["catalogVersion"] == CATALOG_VERSION
    assert [e["involvedObject"]["name"] for e in world.events("CatalogUpgraded")] == ["demo"]
    # An approval of another version is none.
    world.kubectl("annotate", "catalog/careful", f"holdfast.dev/approve-upgrade={CATALOG_VERSION + 1}")
    operator.wait_for_looks(4)
    assert world.status("catalog/careful")["catalogVersion"] == OLD
    approval = f"holdfast.dev/approve-upgrade={CATALOG_VERSION}"
    world.kubectl("annotate", "--overwrite", "catalog/careful", approval)
    world.wait_ready("catalog/careful")
    assert world.status("catalog/careful")["catalogVersion"] == CATALOG_VERSION
    (event,) = (e for e in world.events("CatalogUpgraded") if e["involvedObject"]["name"] == "careful")
    assert f"from format version {OLD} to {CATALOG_VERSION}" in event["message"]
    assert operator.metric("holdfast_catalog_upgrade_rows") > 0
    organization = manual["spec"]["organizationId"]
    with world.store(world.volume(organization)) as client:
        closed = persist_catalog(client, organization)
        (kept,) = closed.kept_dumps()
        assert kept.version == OLD
        assert f"--as-of {kept.time}" in event["message"]
    command = shlex.split(event["message"].partition("stays readable: ")[2])
    dumped = CliRunner().invoke(main, command[1:])
    assert dumped.exit_code == 0, dumped.output
    assert f'{{"key": {{"key": "user_version"}}, "value": {{"value": "{OLD}"}}}}' in dumped.stdout


def test_a_catalog_that_is_too_new_is_left_alone_until_it_is_not(world: Any, make_catalog: Make) -> None:
    there = make_catalog()
    organization = there["spec"]["organizationId"]
    with world.store(world.volume(organization)) as client:
        persist_catalog(client, organization).initialize(holder="test", purpose="test")
    set_version(world, organization, CATALOG_VERSION, 99)
    operator = world.start()
    world.apply(there)
    message = world.wait_stalled("catalog/demo", "VersionTooNew")
    assert "version 99" in message
    status = world.status("catalog/demo")
    assert (status["catalogVersion"], status["epoch"]) == (99, 1)
    set_version(world, organization, 99, CATALOG_VERSION)
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["epoch"] == 2
    assert operator.child.poll() is None
