"""A new Catalog is filled from a dump or another catalog. On failure, it says why and creates nothing."""

import os
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.catalog import IdKind, OpenMode, persist_catalog
from holdfast.cli import main

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
SOURCE = "99999999-2222-3333-4444-555555555555"
RESTORED = '.status.conditions[?(@.type=="Restored")].reason'


@pytest.mark.long
def test_a_catalog_comes_out_of_a_dump_or_of_another_one(
    world: Any, make_catalog: Make, tmp_path: Path
) -> None:
    with world.store((tmp_path / "source").as_uri()) as client:
        closed = persist_catalog(client, SOURCE)
        with closed.open(OpenMode.WRITABLE, holder="test", purpose="source") as catalog:
            catalog.ensure_item("holdfast", "public", "early")
            as_of = catalog.upper - 1
            catalog.allocate_ids(IdKind.USER_ITEM, 5)
            catalog.ensure_item("holdfast", "public", "late")
        good = closed.dump()
    dump = tmp_path / "volume" / world.namespace / "dump.json"
    dump.parent.mkdir(parents=True)
    dump.write_text(good[: len(good) // 2])
    world.start()
    new = make_catalog(restoreFrom={"dump": {"url": dump.as_uri()}})
    place = {"url": (tmp_path / "source").as_uri()}
    other = {"catalog": {"organizationId": SOURCE, "storage": place, "asOf": as_of}}
    world.apply(new, make_catalog("copy", restoreFrom=other), make_catalog("old"))
    message = world.wait_stalled("catalog/demo", "RestoreFailed")
    assert str(dump) in message
    assert "\n" not in message
    assert not (tmp_path / "volume" / world.namespace / new["spec"]["organizationId"]).exists()
    # Neither a dump nor a catalog of another namespace is read.
    theirs = tmp_path / "volume" / "theirs"
    theirs.mkdir()
    (theirs / "dump.json").write_text("SECRET")
    foreign: tuple[dict[str, Any], ...] = (
        {"dump": {"url": (theirs / "dump.json").as_uri()}},
        {"catalog": {"organizationId": SOURCE, "storage": {"url": theirs.as_uri()}}},
    )
    for asked in foreign:
        world.apply(make_catalog("thief", restoreFrom=asked))
        message = world.wait_stalled("catalog/thief", "LocationNotAllowed")
        assert f"this namespace has only what is below {tmp_path}/volume/{world.namespace};" in message
        world.delete("catalog/thief")
    dump.write_text(good)
    world.wait_ready("catalog/demo", "catalog/copy", "catalog/old")
    assert [world.status(f"catalog/{name}")["objectCounts"]["items"] for name in ("demo", "copy")] == [2, 1]
    world.wait_for("catalog/demo", RESTORED, "Restored")
    world.wait_for("catalog/copy", RESTORED, "Restored")
    assert f"as of {as_of}" in world.status("catalog/copy")["restoredFrom"]
    assert len(world.events("Restored", 2)) == 2
    # One that can't be opened any more tells what it was filled with, and when it is open again too.
    copy = world.get("catalog/copy")
    world.kubectl("annotate", "catalog/copy", "holdfast.dev/reopen=1")
    world.wait_for("catalog/copy", ".status.epoch", 3)
    organization = copy["spec"]["organizationId"]
    with world.store(world.volume(organization)) as client:
        world.go_back(client, organization, 1)
    _, command, _ = world.wait_stalled("catalog/copy", "FenceRegressed").split("`")
    assert world.status("catalog/copy")["restoredFrom"] == copy["status"]["restoredFrom"]
    raised = CliRunner().invoke(main, shlex.split(command)[1:])
    assert raised.exit_code == 0, raised.output
    world.wait_for("catalog/copy", ".status.epoch", 4)
    world.wait_for("catalog/copy", RESTORED, "Restored")
    # For one that is there already the field can't be set any more; one that was there before its resource:
    world.delete("catalog/old")
    world.apply(make_catalog("old", organizationId=SOURCE, storage=place, restoreFrom=other))
    world.wait_ready("catalog/old")
    world.wait_for("catalog/old", RESTORED, "RestoreIgnored")
    assert len(world.events("RestoreIgnored")) == 1


@pytest.mark.long
def test_a_restore_that_takes_long_is_shown_and_goes_on_until_nobody_asks_for_it(
    world: Any, make_catalog: Make, tmp_path: Path
) -> None:
    """The dumps are pipes: a restore goes on when somebody writes into its one."""
    with world.store((tmp_path / "source").as_uri()) as client:
        closed = persist_catalog(client, SOURCE)
        closed.open(OpenMode.WRITABLE, holder="test", purpose="source").close()
        good = closed.dump()
    folder = tmp_path / "volume" / world.namespace
    pipes = {name: folder / f"{name}.json" for name in ("demo", "gone", "stopped")}
    folder.mkdir(parents=True)
    for pipe in pipes.values():
        os.mkfifo(pipe)
    operator = world.start()
    new = {name: make_catalog(name, restoreFrom={"dump": {"url": pipes[name].as_uri()}}) for name in pipes}
    world.apply(*new.values())
    for name in pipes:
        world.wait_for(f"catalog/{name}", '.status.conditions[?(@.type=="Reconciling")].reason', "Restoring")
    assert (
        f"restoring dump {pipes['demo'].as_uri()} since"
        in world.condition("catalog/demo", "Ready")["message"]
    )
    writes = operator.metric("holdfast_status_writes_total")
    operator.wait_for_looks(6)
    assert operator.metric("holdfast_status_writes_total") == writes
    pipes["demo"].write_text(good)
    world.wait_ready("catalog/demo")
    world.wait_for("catalog/demo", RESTORED, "Restored")
    assert [e["involvedObject"]["name"] for e in world.events("CatalogOpened")] == ["demo"]
    # A deletion doesn't wait for it, and what it brings is closed again.
    world.delete("catalog/gone")
    pipes["gone"].write_text(good)
    operator.wait_until_it_says("it is no longer needed")
    assert len(world.events("CatalogOpened")) == 1
    os.kill(operator.child.pid, signal.SIGTERM)
    assert operator.child.wait(timeout=60) == 0
    assert operator.lines()[-1]["message"] == "stopped"
    assert not (tmp_path / "volume" / world.namespace / new["stopped"]["spec"]["organizationId"]).exists()
