"""The ConfigMap with a catalog's connection: the operator creates it, keeps it, and never takes another's."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.persist import PersistClient
from testbed.objects import Objects

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
CONFIG = "configmaps/demo-connection"


def wait_for_data(world: Any, wanted: dict[str, str]) -> dict[str, Any]:
    """Wait until the ConfigMap of `demo` says this; the object."""
    objects: Objects = world.objects

    def found() -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in objects.list("configmaps")}

    world.settle(
        lambda: found().get("demo-connection", {}).get("data") == wanted, lambda: json.dumps(found())
    )
    return found()["demo-connection"]


@pytest.mark.long
def test_a_pod_opens_the_catalog_with_what_its_config_map_says(
    world: Any, make_catalog: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_catalog()
    organization = made["spec"]["organizationId"]
    wanted = {
        "HOLDFAST_ORGANIZATION_ID": organization,
        "HOLDFAST_SOURCE_OF_TRUTH": "Persist",
        "HOLDFAST_URL": world.volume(organization),
    }
    operator = world.start()
    world.apply(made)
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["connection"] == {"configMap": "demo-connection"}
    found = wait_for_data(world, wanted)
    labels = {"app.kubernetes.io/managed-by": "holdfast-operator", "app.kubernetes.io/name": "holdfast"}
    assert found["metadata"]["labels"] == labels
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Catalog", world.get("catalog/demo")["metadata"]["uid"])
    assert {each["manager"] for each in found["metadata"]["managedFields"]} == {"holdfast-operator"}

    # What its annotation says, word by word, with its values in the environment.
    for name, value in found["data"].items():
        monkeypatch.setenv(name, value)
    names = {"os": os, "persist_catalog": persist_catalog, "PersistClient": PersistClient}
    openable = eval(found["metadata"]["annotations"]["holdfast.dev/open-with"], names)
    with openable.open(OpenMode.READ_ONLY, holder="pod", purpose="test") as opened:
        assert opened.fence_token().epoch == world.status("catalog/demo")["epoch"]

    # So does the page that tells of it.
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "open-a-catalog-from-a-pod.md").read_text()
    (block,) = re.findall(r"^```python[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown: list[dict[str, int]] = []
    exec(compile(block, "page", "exec"), {"print": shown.append})
    assert shown[0]["databases"] == 1

    # At rest nothing is written, nor by the next operator.
    version = found["metadata"]["resourceVersion"]
    operator.wait_for_looks(4)
    operator.child.stop()
    following = world.start()
    world.wait_for("catalog/demo", ".status.epoch", 2)
    following.wait_for_looks(4)
    assert world.get(CONFIG)["metadata"]["resourceVersion"] == version

    # What others change of ours is as before soon; what they add stays.
    edit = {
        "metadata": {"annotations": {"holdfast.dev/open-with": None, "team": "shop"}, "labels": {"a": "b"}},
        "data": {"HOLDFAST_URL": "file:///elsewhere", "HOLDFAST_GONE": "x", "EXTRA": "kept"},
    }
    world.patch(CONFIG, json.dumps(edit))
    repaired = wait_for_data(world, {**wanted, "EXTRA": "kept"})
    assert repaired["metadata"]["labels"] == {**labels, "a": "b"}
    before = found["metadata"]["annotations"]
    assert repaired["metadata"]["annotations"] == {**before, "team": "shop"}
    world.delete(CONFIG)
    assert wait_for_data(world, wanted)["metadata"]["uid"] != found["metadata"]["uid"]

    world.delete("catalog/demo")
    world.wait_gone(CONFIG)


def test_a_config_map_of_somebody_else_is_left_alone(world: Any, make_catalog: Make) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "yes"}}
    world.apply({**theirs, "metadata": {"name": "demo-connection"}})
    version = world.get(CONFIG)["metadata"]["resourceVersion"]
    world.start()
    world.apply(make_catalog())
    world.wait_ready("catalog/demo")
    mark = '.status.conditions[?(@.type=="ConnectionPublished")]'
    world.wait_for("catalog/demo", f"{mark}.reason", "NameTaken")
    said = world.condition("catalog/demo", "ConnectionPublished")["message"]
    assert said == (
        "ConfigMap 'demo-connection' belongs to somebody else, so the operator can't publish how to open "
        "the catalog; delete or rename that ConfigMap"
    )
    (event,) = world.events("NameTaken")
    assert (event["type"], event["message"]) == ("Warning", said)
    world.operators[-1].wait_for_looks(4)
    assert world.get(CONFIG)["metadata"]["resourceVersion"] == version
    assert "connection" not in world.status("catalog/demo")
    # The message says what to do.
    world.delete(CONFIG)
    world.wait_for("catalog/demo", ".status.connection.configMap", "demo-connection")
    types = [each["type"] for each in world.status("catalog/demo")["conditions"]]
    assert "ConnectionPublished" not in types


def test_a_refused_config_map_keeps_no_catalog_from_being_ready(world: Any, make_catalog: Make) -> None:
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "full"},
            "spec": {"hard": {"configmaps": "1"}},
        }
    )
    world.wait_for("resourcequotas/full", ".status.used.configmaps", "1")
    world.start()
    world.apply(make_catalog())
    # Ready all the same: who has it open goes on.
    world.wait_ready("catalog/demo")
    mark = '.status.conditions[?(@.type=="ConnectionPublished")]'
    world.wait_for("catalog/demo", f"{mark}.reason", "Forbidden")
    assert "exceeded quota" in world.condition("catalog/demo", "ConnectionPublished")["message"]
    world.delete("resourcequotas/full")
    world.wait_for("catalog/demo", ".status.connection.configMap", "demo-connection")
