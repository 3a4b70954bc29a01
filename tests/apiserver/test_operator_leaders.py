"""Several operators share one Lease: one acts, and another takes over if it dies, freezes or is stopped."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.catalog import Catalog, OpenMode, persist_catalog
from testbed.takeover import check_takeover

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
LEASE = "lease/holdfast-operator"


def holder(world: Any) -> str:
    return str(world.get(LEASE)["spec"]["holderIdentity"])


def waits(operator: Any) -> None:
    """It is ready, and does nothing."""
    operator.wait_until_it_says("standing by")
    assert operator.get("/readyz") == "ok\n"
    assert operator.get("/healthz") == "ok\n"
    assert operator.metric("holdfast_leader") == 0
    assert operator.metric("holdfast_reconciles_total") == 0


@pytest.mark.long
def test_a_standby_acts_when_the_leader_is_killed_or_freezes(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    killed = world.start("--lease")
    world.apply(make_catalog(), make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    frozen = world.start("--lease")
    waits(frozen)

    killed.child.kill()
    left = world.get(LEASE)
    world.wait_for("catalog/demo", ".status.epoch", 2)
    check_takeover(left, world.get(LEASE))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    assert frozen.metric("holdfast_leader") == 1
    last = world.start("--lease")
    waits(last)

    os.kill(frozen.child.pid, signal.SIGSTOP)
    left = world.get(LEASE)
    world.wait_for("catalog/demo", ".status.epoch", 3)
    check_takeover(left, world.get(LEASE))
    world.wait_ready("catalog/demo", "storagecollection/flights")
    last.wait_for_looks(4)
    before = [world.get(what)["metadata"]["resourceVersion"] for what in ("catalog/demo", "coll/flights")]
    os.kill(frozen.child.pid, signal.SIGCONT)
    assert frozen.child.wait(timeout=60) == 0
    assert frozen.said("another operator may act")
    # By the Lease alone: it neither asked a store nor the API server.
    assert not frozen.said("taken over")
    last.wait_for_looks(4)
    after = [world.get(what)["metadata"]["resourceVersion"] for what in ("catalog/demo", "coll/flights")]
    assert after == before
    assert last.metric("holdfast_fenced_total") == 0
    assert world.status("catalog/demo")["epoch"] == 3


@pytest.mark.long
def test_a_leader_that_is_told_to_end_gives_the_lease_back(world: Any, make_catalog: Make) -> None:
    # None of these waits can be for the Lease to run out.
    flags = (
        "--lease=mine",
        "--lease-duration=3600",
        "--lease-renew-deadline=1800",
        "--lease-retry-period=0.5",
    )
    leader = world.start(*flags)
    world.apply(make_catalog())
    world.wait_ready("catalog/demo")
    standby = world.start(*flags)
    waits(standby)
    os.kill(leader.child.pid, signal.SIGTERM)
    assert leader.child.wait(timeout=60) == 0
    assert leader.lines()[-1]["message"] == "stopped"
    world.wait_for("catalog/demo", ".status.epoch", 2)
    os.kill(standby.child.pid, signal.SIGTERM)
    assert standby.child.wait(timeout=60) == 0
    assert world.get("lease/mine")["spec"]["holderIdentity"] == ""


@pytest.mark.long
def test_a_leader_that_is_fenced_goes_on_with_all_but_that_catalog(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    there = make_catalog()
    organization = there["spec"]["organizationId"]
    operator = world.start("--lease")
    world.apply(there, make_catalog("other"), make_collection())
    world.wait_ready("catalog/demo", "catalog/other", "storagecollection/flights")

    def take() -> Catalog:
        closed = persist_catalog(client, organization)
        return closed.open(OpenMode.WRITABLE, holder="nightly-job", purpose="a load of its own")

    with world.store(world.volume(organization)) as client:
        for number in range(2):
            take()
            world.wait_for("catalog/demo", ".status.epoch", 2 * number + 3)
            world.wait_ready("catalog/demo", "storagecollection/flights")
            assert len(world.status("catalog/demo")["fencedBy"]) == number + 1
        mine = take()
        message = world.wait_stalled("catalog/demo", "FencedByOther")
        assert "nightly-job, a load of its own (epoch 6)" in message
        operator.wait_for_looks(4)
        mine.confirm_leadership()
        mine.close()
    assert world.status("catalog/other")["epoch"] == 1
    assert operator.metric("holdfast_fenced_total") == 3
    world.patch("catalog/demo", '{"metadata":{"annotations":{"holdfast.dev/reopen":"1"}}}')
    world.wait_for("catalog/demo", ".status.epoch", 7)
    world.wait_ready("catalog/demo", "storagecollection/flights")
    # The Lease is another's, and this one is fenced before it hears of that: it ends, and writes nothing.
    world.objects.patch(LEASE, {"spec": {"holderIdentity": "somebody"}})
    assert operator.child.wait(timeout=60) == 0
    assert operator.said("another operator may act")
    assert holder(world) == "somebody"
