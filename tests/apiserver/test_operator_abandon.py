"""What blocks a deletion, and how a user unblocks it. No timeout ever does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import CollectionState
from holdfast_operator.api.names import FINALIZER
from testbed import build
from testbed.children import patched, plain_path
from testbed.faultyapi import FaultyApi

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'
AHEAD = """
from datetime import UTC, datetime, timedelta
from holdfast_operator.engine.clock import SystemClock

SystemClock.wall = lambda self: datetime.now(UTC) + timedelta(hours=1)
"""
"""Makes the clock of a host an hour ahead."""


def abandon(world: Any, what: str) -> tuple[int, str]:
    """Run `kubectl holdfast abandon`; the exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_operator.kubectl.main", "abandon", what, "-n", world.namespace],
        env=world.cluster.environment(
            {"PATH": "/usr/bin:/bin", "KUBECTL": str(build.kubectl()), "PYTHONPATH": plain_path()}
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def finalizers(world: Any, what: str) -> list[str]:
    return list(world.get(what)["metadata"].get("finalizers", []))


@pytest.mark.long
def test_a_clock_that_is_ahead_leaves_no_data_behind(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    world.start(environment=patched(tmp_path / "ahead", AHEAD))
    there = make_catalog(deletionPolicy="Delete")
    world.apply(there, make_collection(deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    collection_id = world.status("storagecollection/flights")["collectionId"]
    shard = world.status("catalog/demo")["shardId"]
    world.delete("catalog/demo", "storagecollection/flights", wait=False)
    world.wait_gone("storagecollection/flights")
    world.wait_gone("catalog/demo")
    url = world.volume(there["spec"]["organizationId"])
    with world.controller(url) as controller:
        assert controller.describe(collection_id).state is CollectionState.DROPPED
    with world.store(url) as client:
        assert client.inspect(shard).finalized
    assert world.objects.list("events", fieldSelector="reason=DeletionIncomplete") == []


@pytest.mark.long
def test_a_deletion_waits_for_its_store_until_somebody_abandons_the_data(
    world: Any, make_catalog: Make, tmp_path: Path
) -> None:
    operator = world.start()
    nowhere = {"blob": (tmp_path / "blobs").as_uri(), "consensus": "postgresql://127.0.0.1:1/none"}
    world.apply(make_catalog(storage=nowhere, deletionPolicy="Delete"))
    world.wait_stalled("catalog/demo", "StoreUnreachable")
    assert abandon(world, "catalog/demo")[0] == 2
    # Of another resource that had this name.
    world.patch("catalog/demo", '{"metadata":{"annotations":{"holdfast.dev/abandon":"another-uid"}}}')
    world.delete("catalog/demo", wait=False)
    world.objects.wait_for_any("catalog/demo", ".status.deletion.lastFailure")
    command = f"kubectl holdfast abandon catalog/demo -n {world.namespace}"
    # From the first try that failed it says why it waits, since when, and how to end that.
    first = world.condition("catalog/demo", "Stalled")
    assert first["message"].endswith(command)
    assert (
        f"which has failed since {first['lastTransitionTime']}; the deletion continues when it"
        in first["message"]
    )
    assert world.status("catalog/demo")["deletion"]["storeFailedSeconds"] < 600
    described = world.kubectl("describe", "catalog/demo")
    assert command in described
    world.settle(
        lambda: any(command in each["message"] for each in world.events("StoreUnreachable")),
        lambda: str(world.events("StoreUnreachable")),
    )
    # For ten minutes it failed.
    failed = json.dumps({"status": {"deletion": {"storeFailedSeconds": 600}}})
    operator.child.kill()
    world.kubectl("patch", "catalog/demo", "--subresource=status", "--type=merge", "-p", failed)
    second = world.start()

    def told() -> str:
        return str(world.condition("catalog/demo", "Stalled")["message"])

    world.settle(lambda: told().endswith(command) and "continues when it" not in told(), told)
    assert f"which has failed since {first['lastTransitionTime']}" in told(), "a restart forgets nothing"
    second.wait_for_looks(2)
    assert world.status("catalog/demo")["deletion"]["storeFailedSeconds"] == 600
    warnings = [line["message"] for line in second.lines() if line["level"] == "warning"]
    assert len([text for text in warnings if text.startswith("StoreUnreachable")]) <= 1
    code, said = abandon(world, "catalog/demo")
    assert (code, "its data stays where it is" in said) == (0, True), said
    world.wait_gone("catalog/demo")
    (event,) = world.events("DeletionIncomplete")
    assert "abandoned by the annotation holdfast.dev/abandon: a catalog, if there is one," in event["message"]
    assert "the last attempt to delete failed: " in event["message"]
    assert "127.0.0.1" in event["message"]


@pytest.mark.long
def test_a_collection_without_its_catalog_waits_for_it_or_for_somebodys_word(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start()
    there = make_catalog()
    names = ("flights", "more")
    world.apply(there, *(make_collection(name, deletionPolicy="Delete") for name in names))
    world.wait_ready("catalog/demo", *(f"storagecollection/{name}" for name in names))
    ids = [world.status(f"storagecollection/{name}")["collectionId"] for name in names]
    world.wait_for("catalog/demo", ".metadata.finalizers", [FINALIZER])
    operator.child.kill()
    # Somebody takes the finalizer off by hand.
    world.delete("catalog/demo", wait=False)
    world.patch("catalog/demo", '{"metadata":{"finalizers":null}}')
    world.wait_gone("catalog/demo")
    world.delete("storagecollection/flights", "storagecollection/more", wait=False)
    world.start()
    for name in names:
        message = world.wait_stalled(f"storagecollection/{name}", "CatalogNotFound")
        assert message.endswith(f"kubectl holdfast abandon collection/{name} -n {world.namespace}")
    assert abandon(world, "collection/more")[0] == 0
    world.wait_gone("storagecollection/more")
    (event,) = world.events("DeletionIncomplete")
    assert "collection holdfast.public.more and its data stay" in event["message"]
    world.apply(there)
    world.wait_gone("storagecollection/flights")
    with world.controller(world.volume(there["spec"]["organizationId"])) as controller:
        states = [controller.describe(each).state for each in ids]
    assert states == [CollectionState.DROPPED, CollectionState.ACTIVE]


@pytest.mark.parametrize("watching", [True, False])
@pytest.mark.long
def test_a_deletion_that_waits_for_a_catalog_sees_that_it_is_gone(
    world: Any, make_catalog: Make, make_collection: Make, *, watching: bool
) -> None:
    """The Catalog loses its finalizer while collections wait for it. Their next look finds out, not a resync.

    `kept` waits only because its status shows an attempt as running.
    """
    with FaultyApi(world.cluster, seed=0, rate=0.0) as api:
        world.start(through=api.cluster(world.folder))
        world.apply(
            make_catalog(), make_collection("kept"), make_collection("doomed", deletionPolicy="Delete")
        )
        world.wait_ready("catalog/demo", "coll/kept", "coll/doomed")
        world.patch("catalog/demo", '{"spec":{"suspend":true}}')
        for name in ("kept", "doomed"):
            world.wait_for(f"coll/{name}", READY_REASON, "CatalogNotReady")
        job = {"jobId": "j1", "attempt": 1, "state": "Running", "requestId": "r1"}
        running = json.dumps({"status": {"compactionJob": job}})
        world.kubectl("patch", "coll/kept", "--subresource=status", "--type=merge", "-p", running)
        world.wait_for("coll/kept", ".metadata.finalizers", [FINALIZER])
        world.delete("coll/kept", "coll/doomed", wait=False)
        for name in ("kept", "doomed"):
            world.wait_for(f"coll/{name}", READY_REASON, "WaitingForCatalog")
        command = f"kubectl holdfast abandon collection/doomed -n {world.namespace}"
        assert world.condition("coll/doomed", "Ready")["message"].endswith(command)
        if not watching:
            api.refuse("watch=true", "drop")
            api.cut()
        world.delete("catalog/demo", wait=False)
        world.patch("catalog/demo", '{"metadata":{"finalizers":null}}')
        world.wait_gone("catalog/demo")
        world.wait_gone("coll/kept")
        assert world.wait_stalled("coll/doomed", "CatalogNotFound").endswith(command)
        assert abandon(world, "collection/doomed")[0] == 0
        world.wait_gone("coll/doomed")
        left = {each["involvedObject"]["name"] for each in world.events("DeletionIncomplete", 2)}
        assert left == {"kept", "doomed"}
        world.stop()


def test_what_keeps_its_data_goes_without_an_operator(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start()
    world.apply(make_catalog(), make_collection(), make_collection("gone", deletionPolicy="Delete"))
    world.wait_ready("catalog/demo", "storagecollection/flights", "storagecollection/gone")
    assert finalizers(world, "storagecollection/flights") == []
    # It has to outlive the one whose data is to be deleted, and no longer.
    world.wait_for("catalog/demo", ".metadata.finalizers", [FINALIZER])
    assert finalizers(world, "storagecollection/gone") == [FINALIZER]
    world.delete("storagecollection/gone")
    world.settle(lambda: not finalizers(world, "catalog/demo"), lambda: str(world.get("catalog/demo")))
    operator.child.kill()
    world.delete("catalog/demo", "storagecollection/flights")


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
@pytest.mark.long
def test_a_catalog_is_deleted_after_its_secret_or_waits_for_somebodys_word(
    world: Any, make_catalog: Make, restarted: bool
) -> None:
    """A namespace that is being deleted loses its Secrets first."""
    operator = world.start()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"user": "u"}}
    stash = {"url": f"sqlite://{world.folder}/stash.sqlite", "credentialsSecretRef": {"name": "keys"}}
    there = make_catalog(deletionPolicy="Delete", stash=stash)
    world.apply(secret, there)
    world.wait_ready("catalog/demo")
    shard = world.status("catalog/demo")["shardId"]
    if restarted:
        operator.child.kill()
    world.kubectl("delete", "secret", "keys")
    world.delete("catalog/demo", wait=False)
    if restarted:
        world.start()
        message = world.wait_stalled("catalog/demo", "SecretNotFound")
        assert message.endswith(f"kubectl holdfast abandon catalog/demo -n {world.namespace}")
        assert abandon(world, "catalog/demo")[0] == 0
    world.wait_gone("catalog/demo")
    with world.store(world.volume(there["spec"]["organizationId"])) as client:
        assert client.inspect(shard).finalized is not restarted
