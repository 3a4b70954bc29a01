"""`kubectl holdfast` as users run it: kubectl starts it, and it calls a real API server."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed import build
from testbed.children import plain_path
from testbed.helm import find, template
from testbed.hooks import account_kubeconfig

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
ROWS = [{"id": number, "note": "row"} for number in range(20)]


@dataclass(frozen=True)
class Answer:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Plugin:
    """Runs `kubectl holdfast` in the namespace of a world."""

    def __init__(self, world: Any, folder: Path) -> None:
        self.world = world
        self.folder = folder
        command = folder / "kubectl-holdfast"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast_operator.kubectl.main "$@"\n')
        command.chmod(0o755)
        path = f"{folder}:{build.kubectl().parent}:/usr/bin:/bin"
        self.env = world.cluster.environment(
            {"PATH": path, "HOME": str(folder), "PYTHONPATH": plain_path(), "COLUMNS": "140"}
        )

    def __call__(self, *arguments: str, columns: int = 140, kubeconfig: str | None = None) -> Answer:
        where = () if "-A" in arguments or "-n" in arguments else ("-n", self.world.namespace)
        done = subprocess.run(
            [build.kubectl(), "holdfast", *arguments, *where],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=self.folder,
            env={**self.env, "COLUMNS": str(columns), "KUBECONFIG": kubeconfig or self.env["KUBECONFIG"]},
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def done(self, *arguments: str) -> Answer:
        """The same of what has to work."""
        answer = self(*arguments)
        assert answer.code == 0, answer
        return answer


@pytest.fixture(scope="module")
def plugin(module_world: Any, make_catalog: Make, make_collection: Make, tmp_path_factory: Any) -> Plugin:
    """With an operator, a catalog on persist, a linked one in its stash, and collections of the first."""
    folder = tmp_path_factory.mktemp("plugin")
    linked = make_catalog(
        "linked",
        storage={"url": (folder / "linked").as_uri()},
        stash={"url": f"sqlite://{folder}/linked.db"},
        backend="Stash",
    )
    manual = make_collection("manual", handover={"policy": "Manual"})
    lost = make_collection("lost", catalogRef={"name": "nowhere"})
    module_world.start()
    module_world.apply(make_catalog(), linked, make_collection(), manual, lost)
    module_world.wait_ready("catalog/demo", "catalog/linked", "coll/flights", "coll/manual")
    module_world.wait_for("coll/lost", '.status.conditions[?(@.type=="Ready")].reason', "CatalogNotFound")
    return Plugin(module_world, folder)


def test_status_is_one_picture_of_all_that_is_there(plugin: Plugin) -> None:
    narrow = plugin("status", columns=80).out
    assert all(len(line) <= 80 for line in narrow.splitlines())
    assert [line.split()[:2] for line in narrow.splitlines() if line.startswith(("demo", "linked"))] == [
        ["demo", "Ready"],
        ["linked", "Ready"],
    ]
    assert "  collection/lost: Stalled CatalogNotFound\n    there is no Catalog 'nowhere'" in narrow
    wide = plugin.done("status", "-A").out
    assert f"{plugin.world.namespace}  demo" in wide
    told = plugin.done("status", "-o", "json").json
    assert {kind: [each["name"] for each in found] for kind, found in told.items()} == {
        "catalogs": ["demo", "linked"],
        "catalogmigrations": [],
        "storagecollections": ["flights", "lost", "manual"],
        "collectionsnapshots": [],
    }
    one = plugin.done("status", "catalog/demo").out
    assert "connection    configmap/demo-connection" in one
    assert "flights" in one
    assert plugin.done("status", "coll/flights", "-o", "yaml").out.startswith("kind: StorageCollection\n")


def test_what_can_not_be_is_one_line_and_a_hint(plugin: Plugin, tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, list[str]]:
        answer = plugin(*arguments)
        assert answer.out == ""
        return answer.code, answer.err.splitlines()

    code, lines = said("status", "catalog/elsewhere")
    assert code == 2
    assert lines[0].startswith("kubectl holdfast: there is no catalog 'elsewhere' in namespace ")
    assert lines[1] == "  hint: there are catalog/demo, catalog/linked"
    code, lines = said("migrate", "elsewhere", "--to", "persist")
    assert (code, len(lines)) == (2, 2)
    code, lines = said("migrate", "demo", "--to", "stash")
    assert (code, "has no stash" in lines[0]) == (2, True)
    code, lines = said("handover", "flights")
    assert (code, "spec.handover.policy is WhenCaughtUp" in lines[0]) == (2, True)
    code, lines = said("snapshot", "flights")
    assert (code, lines[1]) == (2, "  hint: give one: --destination file:///folder")
    code, lines = said("migrate", "linked", "--to", "persist", "--timeout", "soon")
    assert (code, len(lines)) == (2, 1)
    assert "spec.timeout" in lines[0]
    code, lines = said("status", "--context", "nowhere")
    assert (code, 'context "nowhere" does not exist' in lines[0]) == (2, True)
    answer = plugin("status", kubeconfig="/nowhere")
    assert (answer.code, len(answer.err.splitlines())) == (2, 2)
    assert "localhost:8080 was refused" in answer.err
    assert "$KUBECONFIG" in answer.err
    # As somebody who may do nothing.
    nobody = account_kubeconfig(plugin.world.cluster, plugin.world.namespace, "default", tmp_path)
    code, lines = said("status", "--kubeconfig", str(nobody))
    assert (code, "forbidden" in lines[0], "can-i" in lines[1]) == (2, True, True)


@pytest.mark.long
def test_a_catalog_is_moved_and_moved_back(plugin: Plugin) -> None:
    planned = plugin.done("migrate", "linked", "--to", "persist", "--dry-run-migration", "--wait")
    assert "  step 6. set the stash tombstone to true" in planned.err.splitlines()
    assert plugin.world.status("catalog/linked")["sourceOfTruth"] == "Stash"
    moved = plugin.done("migrate", "linked", "--to", "persist", "--name", "move", "--wait")
    assert moved.out == "catalogmigration.holdfast.dev/move created\n"
    assert "done: the source of truth is Persist; " in moved.err
    plugin.world.wait_for("catalog/linked", ".status.sourceOfTruth", "Persist")
    # What the ConfigMap says follows it.
    data = ".data.HOLDFAST_SOURCE_OF_TRUTH"
    plugin.world.wait_for("configmaps/linked-connection", data, "Persist")
    again = plugin("migrate", "linked", "--to", "persist")
    assert (again.code, "is already in Persist" in again.err) == (1, True)
    back = plugin.done("rollback", "migration/move", "--wait")
    assert "done: the source of truth is Stash; " in back.err
    plugin.world.wait_for("configmaps/linked-connection", data, "Stash")
    told = plugin.done("status", "move", "-o", "json").json
    assert (told["state"], told["status"]["phase"]) == ("Ready", "RolledBack")


def test_a_rendition_takes_over_by_hand(plugin: Plugin) -> None:
    world = plugin.world
    organization = world.get("catalog/demo")["spec"]["organizationId"]
    id_ = world.status("coll/manual")["collectionId"]
    with world.controller(world.volume(organization)) as controller:
        controller.writer(id_, purpose="application").append(ROWS, 0, 10)
    nothing = plugin("handover", "manual")
    assert (nothing.code, "has no next rendition" in nothing.err) == (2, True)
    world.patch("coll/manual", '{"spec":{"rendition":{"shards":3}}}')
    world.wait_for("coll/manual", '.status.renditions[?(@.id=="spec-2")].phase', "CaughtUp")
    status = plugin("status", columns=80).out
    assert "collection/manual: Reconciling WaitingForHandover" in status
    done = plugin.done("handover", "manual", "--wait")
    assert "done: spec-2 is the active rendition since " in done.err
    assert world.status("coll/manual")["activeRendition"] == "spec-2"
    again = plugin("handover", "manual", "--to", "spec-2")
    assert (again.code, "is already active" in again.err) == (1, True)
    assert plugin.done("holds", "manual", "-o", "json").json == []


def test_a_snapshot_is_an_object_and_a_compaction_an_annotation(plugin: Plugin) -> None:
    world = plugin.world
    place = (plugin.folder / "snapshots").as_uri()
    made = plugin.done("snapshot", "flights", "--destination", place, "--name", "one", "--as-of", "7")
    assert made.out == "collectionsnapshot.holdfast.dev/one created\n"
    told = plugin.done("snapshot", "flights", "--destination", place, "-o", "json").json
    assert told["metadata"]["name"].startswith("flights-")
    twice = plugin("snapshot", "flights", "--destination", place, "--name", "one")
    assert (twice.code, "already exists" in twice.err) == (2, True)
    waited = plugin("snapshot", "flights", "--destination", place, "--name", "two", "--wait")
    assert (waited.code, "StorageNotShared: Spark pods can't" in waited.err) == (1, True)
    told = plugin.done("status", "snapshot/two").out
    assert "collection" in told
    assert "StorageNotShared" in told
    world.delete("collsnap/one", "collsnap/two", f"collsnap/{_name(world)}")
    version = world.get("coll/flights")["metadata"]["generation"]
    waited = plugin("compact", "flights", "--wait")
    assert (waited.code, "StorageNotShared: Spark pods can't" in waited.err) == (1, True)
    flights = world.get("coll/flights")
    assert flights["metadata"]["annotations"]["holdfast.dev/compact"].startswith("manual-")
    # Nothing that may be in Git has changed.
    assert flights["metadata"]["generation"] == version


def _name(world: Any) -> str:
    (left,) = (
        each["metadata"]["name"] for each in world.objects.list("collsnap") if "-" in each["metadata"]["name"]
    )
    return str(left)


def test_a_catalog_is_made_of_another_one(plugin: Plugin) -> None:
    done = plugin.done("restore", "catalog/copy", "--from", "demo", "--wait")
    assert "done: the catalog was new and was filled with " in done.err
    plugin.world.wait_ready("catalog/copy")
    shown = plugin.done("dump", "copy").out
    url = plugin.world.volume(plugin.world.get("catalog/copy")["spec"]["organizationId"])
    assert shown.startswith(f"holdfast catalog dump --persist {url} --organization-id ")
    # The command does what it says.
    env = {**os.environ, "PYTHONPATH": plain_path()}
    words = [sys.executable, "-c", "from holdfast.cli import main; main()", *shown.split()[1:]]
    subprocess.run(words, check=True, cwd=plugin.folder, env=env, timeout=300)
    assert "audit_log" in (plugin.folder / "copy.dump.json").read_text()
    fence = plugin.done("fence", "copy").out
    epoch = plugin.world.status("catalog/copy")["epoch"]
    assert fence.endswith(f"--above {epoch}\n")


SECRETS = (
    "hunter2-userinfo",
    "hunter2-parameter",
    "hunter2-env",
    "hunter2-flag",
    "hunter2-annotation",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJob2xkZmFzdCJ9.c2lnbmF0dXJl",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "hunter2-in-a-secret",
    "hunter2-escaped",
)


@pytest.mark.helm
@pytest.mark.long
def test_a_report_has_everything_but_secrets(plugin: Plugin) -> None:
    user, parameter, env, flag, note, token, key_id, key, hidden, escaped = SECRETS
    world, url = plugin.world, f"postgresql://holdfast:{user}@db/holdfast"
    values = {
        "serviceAccount": {"create": False},
        "storage": {"letAllNamespacesUseOwnCredentialsAnywhere": True},
        "extraArgs": [f"--stash={url}", "--password", flag, f"--header=Authorization: Bearer {token}"],
        "extraEnv": [
            {"name": "PGPASSWORD", "value": env},
            {"name": "AWS_ACCESS_KEY_ID", "value": key_id},
            {"name": "STORE", "value": f"s3://bucket/x?aws_secret_access_key={parameter}"},
            {"name": "OTHER", "value": f"postgresql://h/d?options=-c%20x.password%3D{escaped}"},
            {"name": "HARMLESS", "value": f"repeats {env} and {key}"},
            {"name": "KEPT", "valueFrom": {"secretKeyRef": {"name": "stores-secret", "key": "password"}}},
        ],
    }
    installed = find(template("holdfast-operator", values, name="planted"), "Deployment")
    installed["metadata"]["annotations"] = {"team/api-key": note}
    name = installed["metadata"]["name"]
    world.apply(
        installed,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "stores-secret"},
            "stringData": {"password": hidden},
        },
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "planted"},
            "involvedObject": {
                "apiVersion": "holdfast.dev/v1alpha1",
                "kind": "Catalog",
                "name": "demo",
                "namespace": world.namespace,
            },
            "reason": "Planted",
            "message": f"can't reach {url} with key {key}, token={token}; {note}",
        },
    )
    world.patch("coll/lost", json.dumps({"metadata": {"annotations": {"note": f"see {url}, {flag}"}}}))
    world.wait_for(f"deployments/{name}", ".status.observedGeneration", 1)
    done = plugin.done("report", "-o", "bundle.tar.gz", "--operator-namespace", world.namespace)
    assert done.out.startswith("bundle.tar.gz: ")
    with tarfile.open(plugin.folder / "bundle.tar.gz") as archive:
        files = {
            each.name.removeprefix("holdfast-report/"): archive.extractfile(each).read().decode()  # type: ignore[union-attr]
            for each in archive.getmembers()
        }
    text = "\n".join(files.values())
    assert [secret for secret in SECRETS if secret in text] == []
    assert "managedFields" not in text
    assert "last-applied-configuration" not in text
    there = {
        "index.txt",
        *(
            f"resources/{kind}.json"
            for kind in ("catalogs", "catalogmigrations", "storagecollections", "collectionsnapshots")
        ),
        *("status.txt", "events.json", "connections.json", "crds.json", "versions.json"),
        *("operator/deployments.json", f"operator/{world.namespace}/pods.json"),
    }
    assert there <= files.keys()
    catalogs = {each["metadata"]["name"]: each for each in json.loads(files["resources/catalogs.json"])}
    assert catalogs["demo"]["spec"] == world.get("catalog/demo")["spec"]
    assert catalogs["demo"]["status"]["conditions"]
    assert "Planted" in files["events.json"]
    (operator,) = json.loads(files["operator/deployments.json"])
    (found,) = operator["spec"]["template"]["spec"]["containers"]
    assert found["args"][0] == "run"
    assert "--stash=postgresql://***@db/holdfast" in found["args"]
    assert found["env"][-1]["valueFrom"]["secretKeyRef"] == {"key": "password", "name": "stores-secret"}
    # Nobody runs pods here: there is nothing to ask for metrics, and the index says so.
    missing = files["index.txt"].partition("Missing:")[2]
    assert "/metrics.txt: " in missing
    assert f"operator/{world.namespace}/{name}/lease.json: " in missing
    assert "the operator: " not in missing
    # No Secret was asked for: nothing in a whole bundle of somebody who may read all is one.
    assert '"kind": "Secret"' not in text
