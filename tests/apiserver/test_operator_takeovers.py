"""Catalogs that the operator cannot take over: their store went back in time, or never responds."""

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.cli import main

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]


@pytest.mark.long
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
        world.go_back(client, organization, 2)
    _, command, _ = world.wait_stalled("catalog/demo", "FenceRegressed").split("`")
    # What the next process has to go by.
    assert world.status("catalog/demo")["epoch"] == 4
    # The list has one word of it; the message is in the conditions.
    one = ("get", "catalogs", "--field-selector=metadata.name=demo")
    heading, shown = world.kubectl(*one).splitlines()
    assert heading.split() == ["NAME", "READY", "EPOCH", "TRUTH", "VERSION", "UPPER", "AGE", "REASON"]
    assert (shown.split()[:4], shown.split()[-1]) == (["demo", "False", "4", "Persist"], "FenceRegressed")
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
    assert "the store has not responded since 20" in world.wait_stalled("catalog/hung", "StoreUnreachable")
    shown = world.get("catalog/hung")["metadata"]["resourceVersion"]
    operator.wait_for_looks(6)
    assert world.get("catalog/hung")["metadata"]["resourceVersion"] == shown


@pytest.mark.long
def test_an_older_copy_is_found_by_an_operator_that_was_not_there(world: Any, make_catalog: Make) -> None:
    there = make_catalog()
    organization = there["spec"]["organizationId"]
    store = Path(world.volume(organization).removeprefix("file://"))

    def kill() -> None:
        world.operators[-1].child.kill()

    def lasts() -> str:
        """It stays closed, also for the next process; what it says."""
        world.wait_stalled("catalog/demo", "FenceRegressed")
        world.operators[-1].wait_for_looks(4)
        kill()
        operator = world.start()
        operator.wait_until_it_says("started; watching")
        operator.wait_for_looks(4)
        assert world.status("catalog/demo")["epoch"] == 2
        return str(world.wait_stalled("catalog/demo", "FenceRegressed"))

    world.start()
    world.apply(there)
    world.wait_ready("catalog/demo")
    kill()
    shutil.copytree(store, world.folder / "copy")
    world.start()
    world.wait_for("catalog/demo", ".status.epoch", 2)
    kill()
    shutil.rmtree(store)
    shutil.copytree(world.folder / "copy", store)
    world.start()
    message = lasts()
    assert "the stored epoch is 1, but the catalog was open at 2: the store was restored from" in message
    _, command, _ = message.split("`")
    raised = CliRunner().invoke(main, shlex.split(command)[1:])
    assert raised.exit_code == 0, raised.output
    world.wait_for("catalog/demo", ".status.epoch", 3)
    world.wait_ready("catalog/demo")
    assert len(world.events("FenceRegressed")) == 1
    # A store that is gone is not made anew.
    kill()
    store.rename(world.folder / "away")
    world.start()
    message = world.wait_stalled("catalog/demo", "FenceRegressed")
    assert f"{store.as_uri()} no longer has a catalog of {organization}" in message
    world.operators[-1].wait_for_looks(4)
    assert not store.exists()
    assert world.status("catalog/demo")["epoch"] == 3
    (world.folder / "away").rename(store)
    world.wait_for("catalog/demo", ".status.epoch", 4)
    world.wait_ready("catalog/demo")
