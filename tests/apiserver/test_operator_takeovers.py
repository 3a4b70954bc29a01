"""Catalogs that can't be taken over: of a store that went back, and of one that never answers."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.durable import FenceToken, OpenMode, catalog_shard_id, persist_catalog
from holdfast.durable.preamble import read_preamble
from holdfast.durable.shard import CatalogShard

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]


def go_back(client: Any, organization: str, epoch: int) -> None:
    """What a restore of an older copy does to the fence token."""
    store = CatalogShard(client, catalog_shard_id(organization), purpose="test")
    seen = read_preamble(store, store.upper())
    store.append(seen.fence(FenceToken(0, epoch, "older", "copy")), seen.upper)
    store.close()


def test_what_can_not_be_taken_over_says_why_and_goes_on_by_itself(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    """A location that is told by a pipe hangs until somebody writes into it."""
    there, hung = make_catalog(), make_catalog("hung")
    organization = there["spec"]["organizationId"]
    elsewhere = world.volume(hung["spec"]["organizationId"])
    world.store(elsewhere).close()
    pipe = Path(elsewhere.removeprefix("file://")) / "blob" / "location.json"
    pipe.unlink()
    os.mkfifo(pipe)
    with world.store(world.volume(organization)) as client:
        for _ in range(3):
            closed = persist_catalog(client, organization)
            closed.open(OpenMode.WRITABLE, holder="test", purpose="before").close()
        operator = world.start("--store-deadline=2")
        world.apply(there, make_collection(), hung)
        world.wait_ready("catalog/demo", "storagecollection/flights")
        assert world.status("catalog/demo")["epoch"] == 4
        go_back(client, organization, 2)
    _, command, _ = world.wait_stalled("catalog/demo", "FenceRegressed").split("`")
    world.wait_for("catalog/demo", ".status.epoch", 2)
    # The list has one word of it; the message is in the conditions.
    one = ("get", "catalogs", "--field-selector=metadata.name=demo")
    heading, shown = world.kubectl(*one).splitlines()
    assert heading.split() == ["NAME", "READY", "EPOCH", "TRUTH", "VERSION", "UPPER", "AGE", "REASON"]
    assert (shown.split()[:4], shown.split()[-1]) == (["demo", "False", "2", "Persist"], "FenceRegressed")
    heading, shown = world.kubectl(*one, "-o", "wide").splitlines()
    assert heading.split()[-2:] == ["REASON", "ORGANIZATION"]
    assert shown.split()[-2:] == ["FenceRegressed", organization]
    # Nobody mended it: neither time nor a change of the resource lets it go on.
    world.kubectl("annotate", "catalog/demo", "holdfast.dev/reopen=1")
    operator.wait_for_looks(6)
    assert command in world.wait_stalled("catalog/demo", "FenceRegressed")
    raised = CliRunner().invoke(main, shlex.split(command)[1:])
    assert raised.exit_code == 0, raised.output
    world.wait_for("catalog/demo", ".status.epoch", 5)
    world.wait_ready("catalog/demo", "storagecollection/flights")
    assert operator.child.poll() is None
    assert "the store has not answered since 20" in world.wait_stalled("catalog/hung", "StoreUnreachable")
    shown = world.get("catalog/hung")["metadata"]["resourceVersion"]
    operator.wait_for_looks(6)
    assert world.get("catalog/hung")["metadata"]["resourceVersion"] == shown
