"""A Catalog with a stash as its shadow: equal, diverged and rebuilt. No password is ever shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import ITEMS, SYSTEM_CONFIGURATIONS
from holdfast.catalog.stores.stash import StashStore

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
DIVERGED = '.status.conditions[?(@.type=="ShadowDiverged")]'
PASSWORD = "planted-p@ssword-7f3a"


def items_in(url: str) -> int:
    """As they are stored in a stash, whichever store is the truth."""
    store = StashStore(url, read_only=True)
    try:
        return sum(row.kind == ITEMS.kind for row in store.rows(store.upper() - 1))
    finally:
        store.close()


def test_a_shadow_tells_a_difference_and_no_secret(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/stash.sqlite"
    nowhere = "postgresql://127.0.0.1:1/nowhere?connect_timeout=2"
    world.kubectl("create", "secret", "generic", "keys", f"--from-literal=password={PASSWORD}")
    operator = world.start()
    world.apply(
        make_catalog(shadow=True, stash={"url": url}),
        make_catalog("far", shadow=True, stash={"url": nowhere, "credentialsSecretRef": {"name": "keys"}}),
        make_collection(),
    )
    world.wait_ready("catalog/demo", "storagecollection/flights")
    world.wait_for("catalog/demo", f"{DIVERGED}.reason", "ShadowInStep")
    # A stash that doesn't answer may be the source of truth.
    assert "127.0.0.1" in world.wait_stalled("catalog/far", "StoreUnreachable")
    world.wait_for("catalog/demo", ".status.objectCounts.items", 1)
    assert items_in(url) == 1
    row = encode(
        SYSTEM_CONFIGURATIONS,
        pb.SystemConfigurationKey(name="planted"),
        pb.SystemConfigurationValue(value="x"),
    )
    store = StashStore(url)
    store.append([RowUpdate(row, 1)], store.upper())
    store.close()
    world.wait_for("catalog/demo", f"{DIVERGED}.status", "True")
    assert str(tmp_path / "stash.sqlite") in world.condition("catalog/demo", "ShadowDiverged")["message"]
    assert len(world.events("ShadowDiverged")) == 1
    # The catalog goes on, and is shadowed again when somebody says so.
    world.apply(make_collection("more"))
    world.wait_ready("storagecollection/more", "catalog/demo")
    world.kubectl("annotate", "catalog/demo", "holdfast.dev/reopen=1", "holdfast.dev/truth=Stash")
    world.wait_for("catalog/demo", f"{DIVERGED}.status", "False")
    assert items_in(url) == 2
    # What was said of the truth has no part in what is linked already.
    # The annotation may be in Git, so it stays.
    world.wait_for("catalog/demo", ".status.handledTruth", "Stash")
    annotations = world.get("catalog/demo")["metadata"]["annotations"]
    assert annotations["holdfast.dev/truth"] == "Stash"
    assert len(world.events("TruthTaken")) == 1
    assert world.status("catalog/demo")["sourceOfTruth"] == "Persist"
    # It can be moved like any other, is shadowed in what it was in then, and ends to be.
    world.apply(
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "CatalogMigration",
            "metadata": {"name": "move"},
            "spec": {"catalogRef": {"name": "demo"}, "target": "Stash"},
        }
    )
    world.wait_ready("catmig/move")
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Stash")
    world.wait_for("catalog/demo", f"{DIVERGED}.reason", "ShadowInStep")
    world.patch("catalog/demo", '{"spec":{"shadow":false}}')
    world.wait_for("catalog/demo", ".status.observedGeneration", 2)
    world.wait_ready("catalog/demo")
    assert not [
        each for each in world.status("catalog/demo")["conditions"] if each["type"] == "ShadowDiverged"
    ]
    assert operator.child.poll() is None
    shown = operator.log.read_text() + world.kubectl("get", "catalogs,events", "-o", "yaml")
    assert PASSWORD not in shown
    assert "planted-p%40" not in shown
