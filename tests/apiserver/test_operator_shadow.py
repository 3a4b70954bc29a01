"""A Catalog with a stash as its shadow: in step, diverged and made anew; and no password is ever shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import OpenMode
from holdfast.durable.codec import Update, encode
from holdfast.durable.registry import SYSTEM_CONFIGURATIONS
from holdfast.durable.stash_store import StashStore, stash_catalog

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
DIVERGED = '.status.conditions[?(@.type=="ShadowDiverged")]'
PASSWORD = "planted-p@ssword-7f3a"


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
    world.wait_ready("catalog/demo", "storagecollection/flights", "catalog/far")
    world.wait_for("catalog/demo", f"{DIVERGED}.reason", "ShadowInStep")
    world.wait_for("catalog/far", f"{DIVERGED}.reason", "ShadowOutOfDate")
    world.wait_for("catalog/demo", ".status.objectCounts.items", 1)
    with stash_catalog(url, read_only=True).open(OpenMode.READ_ONLY) as found:
        assert found.object_counts()["items"] == 1
    row = encode(
        SYSTEM_CONFIGURATIONS,
        pb.SystemConfigurationKey(name="planted"),
        pb.SystemConfigurationValue(value="x"),
    )
    store = StashStore(url)
    store.append([Update(row, 1)], store.upper())
    store.close()
    world.wait_for("catalog/demo", f"{DIVERGED}.status", "True")
    assert str(tmp_path / "stash.sqlite") in world.condition("catalog/demo", "ShadowDiverged")["message"]
    assert len(world.events("ShadowDiverged")) == 1
    # The catalog goes on, and is shadowed again when somebody says so.
    world.apply(make_collection("more"))
    world.wait_ready("storagecollection/more", "catalog/demo")
    world.kubectl("annotate", "catalog/demo", "holdfast.dev/reopen=1")
    world.wait_for("catalog/demo", f"{DIVERGED}.status", "False")
    with stash_catalog(url, read_only=True).open(OpenMode.READ_ONLY) as found:
        assert found.object_counts()["items"] == 2
    assert operator.child.poll() is None
    shown = operator.log.read_text() + world.kubectl("get", "catalogs,events", "-o", "yaml")
    assert PASSWORD not in shown
    assert "planted-p%40" not in shown
