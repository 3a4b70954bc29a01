"""A catalog moves between its two stores and back, on a real API server, SQLite and files."""

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.move.detach import detach
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.migration_status import MigrationStatus, migration_status
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.one_store import stash_catalog
from testbed.children import patched
from testbed.errors import KubectlError
from testbed.wrongclock import clock_patch

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]


def migration(name: str = "move", **spec: Any) -> dict[str, Any]:
    """A CatalogMigration of the Catalog `demo`."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "CatalogMigration",
        "metadata": {"name": name},
        "spec": {"catalogRef": {"name": "demo"}, "target": "Persist", **spec},
    }


def stash_of(world: Any) -> dict[str, str]:
    return {"url": f"sqlite://{world.folder}/stash.sqlite"}


def patch(world: Any, what: str, **spec: Any) -> None:
    world.patch(what, json.dumps({"spec": spec}))


def closed(world: Any, organization: str) -> LinkedCatalog:
    """The catalog as an application has it: both stores, not open."""
    client = world.store(world.volume(organization))
    return linked_catalog(stash_catalog(stash_of(world)["url"]), persist_catalog(client, organization))


def stands(world: Any, organization: str) -> MigrationStatus:
    return migration_status(closed(world, organization))


def phase(world: Any, value: str, name: str = "move") -> dict[str, Any]:
    world.wait_for(f"catmig/{name}", ".status.phase", value)
    return dict(world.status(f"catmig/{name}"))


def move_id(world: Any, name: str = "move") -> str:
    """The name of a migration in the catalog's own records."""
    body = world.get(f"catmig/{name}")
    assert body["status"]["migrationId"] == f"{body['metadata']['uid']}/{world.namespace}/{name}"
    return str(body["status"]["migrationId"])


def items_of(world: Any, organization: str) -> int:
    with closed(world, organization).open(OpenMode.READ_ONLY) as found:
        return int(found.object_counts()["items"])


def test_there_and_back_again(world: Any, make_catalog: Make, make_collection: Make) -> None:
    operator = world.start()
    there = make_catalog(backend="Stash", stash=stash_of(world))
    organization = there["spec"]["organizationId"]
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    assert world.status("catalog/demo")["sourceOfTruth"] == "Stash"
    with pytest.raises(KubectlError, match="can't be removed while it is linked"):
        patch(world, "catalog/demo", stash=None, backend="Persist")

    world.apply(migration("look", dryRun=True))
    plan = "\n".join(phase(world, "Planned", "look")["plan"])
    assert "the source of truth is Stash" in plan
    assert "step 6. set the stash tombstone to true" in plan
    assert stands(world, organization).records == {}

    world.apply(migration())
    world.objects.wait_until("catmig/move", "Completed")
    status = phase(world, "Completed")
    assert (status["sourceOfTruth"], status["strategy"]) == ("Persist", "OneTombstone")
    assert status["step"] == "6. set the stash tombstone to true"
    assert status["stashEpoch"] == status["persistEpoch"]
    assert status["objects"]["items"]["rows"] == 1
    assert status["rows"] == sum(each["rows"] for each in status["objects"].values())
    assert world.condition("catmig/move", "Verified")["reason"] == "ContentsEqual"
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Persist")
    world.wait_ready("catalog/demo", "catmig/move")
    assert {each["message"].split(" (")[0] for each in world.events("MigrationStep", 6)} >= {
        "done: 1. open the stash catalog",
        "done: 5. replace the contents of the persist catalog",
        "done: 6. set the stash tombstone to true",
    }
    assert operator.metric("holdfast_migration_steps_total") == 6.0
    table = world.kubectl("get", "catmig,cat", "-o", "wide")
    assert "6. set the stash tombstone to true" in table

    # The catalog goes on where it is, and what is written there comes back.
    world.apply(make_collection("more"))
    world.wait_ready("storagecollection/more")
    patch(world, "catmig/move", rollback=True)
    world.objects.wait_until("catmig/move", "RolledBack")
    assert phase(world, "RolledBack")["sourceOfTruth"] == "Stash"
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Stash")
    world.wait_ready("catalog/demo", "storagecollection/more")
    assert items_of(world, organization) == 2
    name = move_id(world)
    assert stands(world, organization).records == {name: Record.ROLLED_BACK}

    # An id that is done does nothing, whoever brings it.
    epoch = world.status("catalog/demo")["epoch"]
    world.apply(migration("again", migrationId=name))
    assert phase(world, "RolledBack", "again")["sourceOfTruth"] == "Stash"
    assert world.status("catalog/demo")["epoch"] == epoch
    world.apply(migration("across", migrationId=name, target="Stash"))
    assert "already has the target Persist" in world.wait_stalled("catmig/across", "Conflict")
    for change, message in (
        ({"rollback": False}, "rollback can't be undone"),
        ({"target": "Stash"}, "only suspend and rollback can change"),
        ({"migrationId": "other"}, "only suspend and rollback can change"),
        ({"timeout": "1h"}, "only suspend and rollback can change"),
    ):
        with pytest.raises(KubectlError, match=message):
            patch(world, "catmig/move", **change)
    world.delete(*(f"catmig/{name}" for name in ("look", "move", "again", "across")))
    assert operator.child.poll() is None


@pytest.mark.parametrize("unseen", [False, True], ids=["seen", "unseen"])
@pytest.mark.long
def test_a_migration_that_is_created_again_under_its_name_runs(
    world: Any, make_catalog: Make, unseen: bool
) -> None:
    operator = world.start()
    there = make_catalog(backend="Stash", stash=stash_of(world))
    world.apply(there)
    world.wait_ready("catalog/demo")
    for name, target in (("move", "Persist"), ("back", "Stash")):
        world.apply(migration(name, target=target))
        assert phase(world, "Completed", name)["sourceOfTruth"] == target
    first = world.get("catmig/move")
    if unseen:
        # The operator sees only the second resource: it never hears that the first one is gone.
        os.kill(operator.child.pid, signal.SIGSTOP)
    world.delete("catmig/move")
    world.apply(migration("move"))
    if unseen:
        os.kill(operator.child.pid, signal.SIGCONT)
    status = phase(world, "Completed")
    assert world.get("catmig/move")["metadata"]["uid"] != first["metadata"]["uid"]
    assert status["sourceOfTruth"] == "Persist"
    assert status["step"] == "6. set the stash tombstone to true"
    assert status["migrationId"] != first["status"]["migrationId"]
    stand = stands(world, there["spec"]["organizationId"])
    assert (stand.truth, stand.records[status["migrationId"]]) == (Backend.PERSIST, Record.DONE)


@pytest.mark.long
def test_an_operator_that_was_killed_is_replaced_in_the_middle(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    # The migration has ten minutes, by the clock of the API server.
    first = world.start(environment=patched(tmp_path / "clock", clock_patch(-1200)))
    there = make_catalog(backend="Stash", stash=stash_of(world), migrationStrategy="TwoTombstones")
    organization = there["spec"]["organizationId"]
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    world.apply(migration())
    first.wait_until_it_says("did step 3.")
    first.child.kill()
    assert stands(world, organization).truth is not None
    second = world.start()
    phase(world, "Completed")
    assert second.said("did step 1.") or first.said("did step 7.")
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Persist")
    world.wait_ready("catalog/demo", "storagecollection/flights")
    assert items_of(world, organization) == 1
    found = stands(world, organization)
    assert (found.running, found.records) == (None, {move_id(world): Record.DONE})


READY_REASON = '.status.conditions[?(@.type=="Ready")].reason'


def begun(world: Any, organization: str, migration_id: str, target: Backend, steps: int) -> None:
    """A process that began a migration, and died after so many steps."""
    with BackendMigration(
        closed(world, organization), migration_id=migration_id, target=target, timeout_s=3600, holder="dead"
    ) as move:
        for _ in range(steps):
            assert move.advance() is not None


@pytest.mark.long
def test_what_another_process_began_is_waited_for_finished_and_undone(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start()
    there = make_catalog(backend="Stash", stash=stash_of(world))
    organization = there["spec"]["organizationId"]
    world.apply(there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    begun(world, organization, "there", Backend.PERSIST, 5)
    # The operator's own handle is fenced by that, which isn't a fight.
    world.wait_for("catalog/demo", READY_REASON, "MigrationInProgress")
    assert "there" in world.condition("catalog/demo", "Ready")["message"]
    world.apply(migration("late"), migration("there", migrationId="there", suspend=True))
    assert "there" in world.wait_stalled("catmig/late", "Conflict")
    assert phase(world, "Suspended", "there")["sourceOfTruth"] == "Stash"
    patch(world, "catmig/there", suspend=False)
    assert phase(world, "Completed", "there")["sourceOfTruth"] == "Persist"
    # Its turn, and nothing to move.
    phase(world, "Completed", "late")
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Persist")
    world.wait_ready("catalog/demo", "storagecollection/flights")

    # Deleted in the middle: it is taken back, and a Catalog waits for that.
    begun(world, organization, "back", Backend.STASH, 4)
    world.apply(migration("back", migrationId="back", target="Stash", suspend=True))
    phase(world, "Suspended", "back")
    world.delete("catalog/demo", wait=False)
    world.wait_for("catalog/demo", READY_REASON, "WaitingForMigrations")
    world.delete("catmig/back")
    found = stands(world, organization)
    assert (found.truth, found.running) == (Backend.PERSIST, None)
    assert found.records == {"there": Record.DONE, move_id(world, "late"): Record.DONE}
    world.delete("storagecollection/flights")
    world.wait_gone("catalog/demo")
    assert items_of(world, organization) == 1
    assert operator.child.poll() is None


@pytest.mark.long
def test_every_change_is_made_in_both_stores_before_the_truth_moves(
    world: Any, make_catalog: Make, make_collection: Make
) -> None:
    operator = world.start()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"user": "u"}}
    stash = {**stash_of(world), "credentialsSecretRef": {"name": "keys"}}
    there = make_catalog(backend="Stash", stash=stash)
    organization = there["spec"]["organizationId"]
    world.apply(secret, there, make_collection())
    world.wait_ready("catalog/demo", "storagecollection/flights")
    # As long as nobody ends it.
    world.apply(migration(verify="Shadow", shadowFor="1h"))
    assert phase(world, "Shadowing")["step"] == "5. replace the contents of the persist catalog"
    world.wait_ready("catalog/demo")
    # With other credentials it begins again, and still every change is made in both stores.
    epoch = world.status("catalog/demo")["epoch"]
    world.apply({**secret, "stringData": {"user": "other"}})
    world.settle(
        lambda: world.status("catalog/demo")["epoch"] > epoch, lambda: str(world.status("catalog/demo"))
    )
    phase(world, "Shadowing")
    world.wait_ready("catalog/demo")
    world.apply(make_collection("more"), migration("late"))
    world.wait_ready("storagecollection/more")
    assert "CatalogMigration" in world.wait_stalled("catmig/late", "Conflict")
    world.delete("catmig/late")
    found = stands(world, organization)
    assert found.truth is Backend.STASH
    assert found.stash.version == found.persist.version
    world.delete("catmig/move")
    world.wait_ready("catalog/demo", "storagecollection/more")
    assert stands(world, organization).running is None
    # Once more, to its end.
    world.apply(migration(verify="Shadow", shadowFor="1s"))
    assert phase(world, "Completed")["sourceOfTruth"] == "Persist"
    assert world.condition("catmig/move", "Verified")["status"] == "True"
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Persist")
    world.wait_ready("catalog/demo", "storagecollection/more")
    assert items_of(world, organization) == 2
    assert operator.child.poll() is None


@contextmanager
def locked(world: Any) -> Iterator[None]:
    """Nobody can write to the stash: a step that needs to is held up."""
    with closing(sqlite3.connect(f"{world.folder}/stash.sqlite", timeout=60, isolation_level=None)) as stash:
        stash.execute("BEGIN IMMEDIATE")
        yield


def opened_again(operator: Any, times: int) -> None:
    """Wait until the operator has opened the catalog so often: it waits for no lock then."""
    limit = time.monotonic() + 60
    while sum("opened for writing at epoch" in line["message"] for line in operator.lines()) < times:
        assert time.monotonic() < limit, "the catalog is not opened again"
        threading.Event().wait(0.05)


@pytest.mark.long
def test_a_step_in_flight_is_waited_for_before_anything_else_is_done(world: Any, make_catalog: Make) -> None:
    operator = world.start()
    there = make_catalog(backend="Stash", stash=stash_of(world))
    organization = there["spec"]["organizationId"]
    world.apply(there)
    world.wait_ready("catalog/demo")
    with locked(world):
        world.apply(migration())
        operator.wait_until_it_says("move: begins step 1.")
        patch(world, "catmig/move", rollback=True)
        operator.wait_for_looks(3)
        assert not operator.said("move: did step 1.")
    assert phase(world, "RolledBack")["sourceOfTruth"] == "Stash"
    opened_again(operator, 2)
    with locked(world):
        world.apply(migration("deleted"))
        operator.wait_until_it_says("deleted: begins step 1.")
        world.delete("catmig/deleted", wait=False)
    world.wait_gone("catmig/deleted")
    opened_again(operator, 3)
    with locked(world):
        world.apply(migration("late", timeout="1s"))
        world.objects.wait_for_any("catmig/late", ".status.deadline")
        deadline = datetime.fromisoformat(world.status("catmig/late")["deadline"])
        while datetime.now(UTC) <= deadline:
            threading.Event().wait(0.1)
    world.wait_stalled("catmig/late", "MigrationTimedOut")
    found = stands(world, organization)
    assert found.truth is Backend.STASH
    assert found.records[move_id(world)] is Record.ROLLED_BACK
    # Nobody is shut out any more.
    world.wait_ready("catalog/demo")
    world.delete("catmig/late")
    assert stands(world, organization).running is None
    assert operator.child.poll() is None


@pytest.mark.long
def test_a_catalog_that_a_database_process_writes_is_moved_while_that_is_down(
    world: Any, make_catalog: Make
) -> None:
    there = make_catalog(access="Observed", stash=stash_of(world))
    organization = there["spec"]["organizationId"]
    catalog = closed(world, organization)
    with catalog.open(OpenMode.WRITABLE, deploy_generation=4, holder="database", purpose="serving") as mine:
        mine.ensure_item("holdfast", "public", "orders")
    world.start()
    world.apply(there, migration(target="Stash", verify="None"))
    phase(world, "Completed")
    world.wait_for("catalog/demo", ".status.sourceOfTruth", "Stash")
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["deployGeneration"] == 4
    assert world.condition("catmig/move", "Verified")["reason"] == "NotCompared"
    with catalog.open(OpenMode.WRITABLE, deploy_generation=4, holder="database", purpose="serving") as mine:
        assert mine.object_counts()["items"] == 1
        world.wait_for("catalog/demo", ".status.epoch", mine.fence_token().epoch)


def secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"PGUSER": "me"}}


@pytest.mark.long
def test_a_namespace_goes_with_its_migrations_though_its_secrets_go_first(
    world: Any, make_catalog: Make
) -> None:
    operator = world.start()
    there = make_catalog(
        backend="Stash", stash={**stash_of(world), "credentialsSecretRef": {"name": "stash"}}
    )
    organization = there["spec"]["organizationId"]
    world.apply(secret("stash"), there, migration("undone"))
    world.objects.wait_until("catmig/undone", "Completed")
    patch(world, "catmig/undone", rollback=True)
    phase(world, "RolledBack", "undone")
    world.apply(migration("done"))
    phase(world, "Completed", "done")
    begun(world, organization, "begun", Backend.STASH, 4)
    world.apply(migration("begun", migrationId="begun", target="Stash", suspend=True))
    phase(world, "Suspended", "begun")

    # What has begun needs the stores, and says who may give up; nothing else does.
    world.kubectl("delete", "secret/stash")
    world.delete("catmig/begun", "catalog/demo", wait=False)
    message = world.wait_stalled("catmig/begun", "SecretNotFound")
    world.settle(
        lambda: "holdfast abandon migration/begun" in world.condition("catmig/begun", "Stalled")["message"],
        lambda: message,
    )
    assert "begun" in world.condition("catalog/demo", "Reconciling")["message"]
    world.apply(secret("stash"))
    world.wait_gone("catmig/begun")
    assert stands(world, organization).running is None
    world.wait_gone("catalog/demo")

    world.apply(there)
    world.wait_ready("catalog/demo")
    world.kubectl("delete", "secret/stash")
    world.objects.delete_namespace()
    for name in ("catmig/done", "catmig/undone", "catalog/demo"):
        world.wait_gone(name)
    missed = {line["object"] for line in operator.lines() if "SecretNotFound" in line["message"]}
    assert missed - {f"Catalog {world.namespace}/demo"} == {f"CatalogMigration {world.namespace}/begun"}


@pytest.mark.long
def test_a_link_that_was_ended_lets_the_stash_go(world: Any, make_catalog: Make) -> None:
    world.start()
    there = make_catalog(stash=stash_of(world))
    organization = there["spec"]["organizationId"]
    world.apply(there)
    world.wait_ready("catalog/demo")
    link = world.status("catalog/demo")["link"]
    patch(world, "catalog/demo", suspend=True)
    world.wait_for("catalog/demo", READY_REASON, "Suspended")
    assert world.status("catalog/demo")["link"] == link
    detach(closed(world, organization), holder="me", purpose="end of a link")
    patch(world, "catalog/demo", suspend=False)
    world.wait_stalled("catalog/demo", "LinkConflict")
    assert "link" not in world.status("catalog/demo")
    assert world.status("catalog/demo")["organizationId"] == organization
    patch(world, "catalog/demo", stash=None)
    world.wait_ready("catalog/demo")
    assert world.status("catalog/demo")["sourceOfTruth"] == "Persist"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"target": "Elsewhere"}, "Unsupported value"),
    ({"verify": "Guess"}, "Unsupported value"),
    ({"timeout": "soon"}, "spec.timeout"),
    ({"migrationId": "a b"}, "spec.migrationId"),
    ({"shadowFor": "5m"}, "shadowFor needs verify Shadow"),
    ({"dryRun": True, "rollback": True}, "a dry run has nothing to roll back"),
]


def test_what_makes_no_migration_is_refused(world: Any) -> None:
    # One call for all: it goes on after each that is refused.
    with pytest.raises(KubectlError) as refused:
        world.apply(*(migration(f"m{number}", **spec) for number, (spec, _) in enumerate(REFUSED)))
    answers = str(refused.value).split('CatalogMigration.holdfast.dev "')
    for number, (spec, message) in enumerate(REFUSED):
        (answer,) = (each for each in answers if each.startswith(f'm{number}"'))
        assert message in answer, spec


def test_what_can_not_be_moved_says_why(world: Any, make_catalog: Make) -> None:
    world.start()
    alone = make_catalog("alone")
    elsewhere = {"url": "postgresql://127.0.0.1:1/nowhere?connect_timeout=2"}
    both = make_catalog(stash=elsewhere)
    world.apply(
        alone,
        both,
        migration("nowhere", catalogRef={"name": "missing"}),
        migration("one", catalogRef={"name": "alone"}),
        migration("deaf"),
    )
    assert "create it" in world.wait_stalled("catmig/nowhere", "CatalogNotFound")
    assert "set its spec.stash" in world.wait_stalled("catmig/one", "CatalogNotLinked")
    world.wait_stalled("catmig/deaf", "StoreUnreachable")
    # A stash that doesn't answer may be the source of truth.
    world.wait_stalled("catalog/demo", "StoreUnreachable")
    world.wait_ready("catalog/alone")
    world.delete("catmig/nowhere", "catmig/one")
