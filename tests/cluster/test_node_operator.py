"""The operator on a real node: killed and frozen leaders, upgrades, a closed network, a drain, the end.

All tests use one release, one after another.
"""

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from cluster.release import RELEASE, SYSTEM, WAIT, Installed, release, until
from holdfast_operator.api.names import OPERATORS
from testbed.errors import HelmError, KubectlError
from testbed.images import OPERATOR, PYTHON
from testbed.node import NAME, NodeCluster
from testbed.policies import Enforcement
from testbed.takeover import check_takeover

pytestmark = [pytest.mark.node, pytest.mark.helm, pytest.mark.s3, pytest.mark.postgres]

Json = dict[str, Any]

CONNECTS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
except TimeoutError:
    print("dropped")
else:
    print("connected")
"""


@pytest.fixture(scope="module")
def installed(node: NodeCluster) -> Iterator[Installed]:
    with release(node) as there:
        yield there


def test_what_is_written_on_this_machine_shows_in_the_cluster(installed: Installed) -> None:
    upper = installed.append(1, 2)
    path = "storagecollection/flights"
    until(lambda: int(installed.get(path)["status"]["upper"]) >= upper, "the status has the upper")


def test_the_release_passes_its_own_test(installed: Installed) -> None:
    assert "Phase:          Succeeded" in installed.helm("test", RELEASE)


def test_a_standby_acts_when_the_leader_is_killed(installed: Installed) -> None:
    installed.both_run()
    killed = installed.leader()
    installed.node.kill(installed.pods()[killed]["metadata"]["uid"], "holdfast_operator")
    left = installed.lease()
    # Started again in its pod it would lead as before, at once.
    installed.kubectl("delete", "pod", killed, "--grace-period=0", "--force")
    installed.apply(installed.collection("after-the-kill"))
    installed.wait_ready("storagecollection/after-the-kill")
    check_takeover(left, installed.lease())


def test_a_leader_that_was_frozen_ends_cleanly_and_stands_by(installed: Installed) -> None:
    installed.both_run()
    frozen = installed.leader()
    uid = installed.pods()[frozen]["metadata"]["uid"]
    installed.node.freeze(uid)
    try:
        left = installed.lease()
        installed.apply(installed.collection("after-the-freeze"))
        installed.wait_ready("storagecollection/after-the-freeze")
    finally:
        installed.node.thaw(uid)
    check_takeover(left, installed.lease())
    successor = installed.leader()
    wait_started_again(installed, frozen)
    # By the Lease: it didn't get to the fence in the store.
    assert "another operator may act" in installed.kubectl("logs", frozen, "--previous")
    assert installed.leader() == successor
    installed.wait_ready("catalog/demo", "storagecollection/flights")


def wait_started_again(installed: Installed, pod: str) -> None:
    """Wait until a pod's container, which ended cleanly, is there again, for the first time."""

    def again() -> bool:
        told = installed.container(pod)
        return bool(told["restartCount"]) and bool(told["ready"])

    until(again, f"{pod} is there again")
    told = installed.container(pod)
    ended = told["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert (told["restartCount"], list(told["state"])) == (1, ["running"])


def test_a_fenced_pod_takes_the_catalog_back_by_its_lease_and_without_one_ends_cleanly(
    installed: Installed,
) -> None:
    installed.both_run()
    leader = installed.leader()
    restarts = installed.container(leader)["restartCount"]
    taken_back(installed, installed.take())
    assert (installed.leader(), installed.container(leader)["restartCount"]) == (leader, restarts)

    # Of operators without a Lease there is one at a time.
    installed.scale(0)
    installed.upgrade(replicas=1, leaderElection={"enabled": False})
    (alone,) = installed.pods()
    installed.wait_ready("catalog/demo")
    epoch = installed.take()
    wait_started_again(installed, alone)
    assert "another operator has taken over" in installed.kubectl("logs", alone, "--previous")
    taken_back(installed, epoch)
    installed.scale(0)
    installed.upgrade()


def taken_back(installed: Installed, epoch: int) -> None:
    """Wait until the operator writes again, after another who wrote at an epoch."""
    until(lambda: int(installed.get("catalog/demo")["status"]["epoch"]) == epoch + 1, "it is taken back")
    installed.wait_ready("catalog/demo", "storagecollection/flights")


def test_an_upgrade_to_the_same_changes_nothing_and_one_to_another_hands_over(installed: Installed) -> None:
    installed.both_run()
    kinds = "catalogs,storagecollections"
    before = {each["metadata"]["uid"]: each["status"] for each in installed.get(kinds)["items"]}
    pods = set(installed.pods())
    installed.upgrade()
    assert set(installed.pods()) == pods
    installed.upgrade(podAnnotations={"changed": "yes"})
    installed.both_run()
    assert not pods & set(installed.pods())
    installed.apply(installed.collection("after-the-upgrade"))
    installed.wait_ready("catalog/demo", "storagecollection/flights", "storagecollection/after-the-upgrade")
    after = {each["metadata"]["uid"]: each["status"] for each in installed.get(kinds)["items"]}
    assert before.keys() < after.keys()
    assert all(after[uid].get("collectionId") == status.get("collectionId") for uid, status in before.items())


def ask(installed: Installed, pod: str, address: str, port: int) -> str:
    """What becomes of a connection that is made in a pod of the release."""
    return installed.kubectl("exec", pod, "--", PYTHON, "-c", CONNECTS, address, str(port)).strip()


def other_pod(namespace: str) -> Json:
    """A pod that waits to be asked."""
    waits = {
        "name": "main",
        "image": OPERATOR,
        "imagePullPolicy": "Never",
        "command": ["tini", "-s", "--", "sleep", "infinity"],
    }
    metadata = {"name": "other", "namespace": namespace, "labels": {"app": "other"}}
    spec = {"containers": [waits], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_with_its_network_policy_the_operator_works_and_nothing_else_gets_through(
    installed: Installed, place: Any
) -> None:
    node = installed.node
    machine = [{"ipBlock": {"cidr": f"{node.address}/32"}}]
    stores = [{"port": installed.minio.port}, {"port": installed.postgres.port}]
    policy = {
        "enabled": True,
        "metricsFrom": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
                "podSelector": {"matchLabels": {"app": "scraper"}},
            }
        ],
        "apiServer": machine,
        "apiServerPorts": [urlsplit(node.plane.server).port],
        "stores": [{"to": machine, "ports": stores}],
    }
    place.apply(other_pod(place.namespace))
    place.wait_ready("other")

    def operator() -> tuple[str, str]:
        name = installed.leader()
        return name, installed.pods()[name]["status"]["podIP"]

    def scrape() -> str:
        _, address = operator()
        return str(place.kubectl("exec", "other", "--", PYTHON, "-c", CONNECTS, address, "8080")).strip()

    with socket.create_server((node.address, 0)) as elsewhere, Enforcement(node) as enforced:
        port = elsewhere.getsockname()[1]
        # As long as there is no policy all of it is free.
        assert (scrape(), ask(installed, operator()[0], node.address, port)) == ("connected", "connected")
        installed.upgrade(networkPolicy=policy, podAnnotations={"network": "closed"})
        installed.both_run()
        until(
            lambda: all(
                f"HF-{way}-{pod['status']['podIP']} " in enforced.in_force
                for pod in installed.pods().values()
                for way in "IE"
            ),
            "the policy is in force",
        )
        assert (scrape(), ask(installed, operator()[0], node.address, port)) == ("dropped", "dropped")
        assert ask(installed, operator()[0], node.address, installed.minio.port) == "connected"
        installed.apply(installed.collection("behind-the-policy"))
        installed.wait_ready("catalog/demo", "storagecollection/behind-the-policy")
        assert "Phase:          Succeeded" in installed.helm("test", RELEASE)
        place.kubectl("label", "pod", "other", "app=scraper", "--overwrite")
        until(lambda: scrape() == "connected", "who may scrape gets through")
        installed.set(networkPolicy={"enabled": False})


def test_after_a_drain_and_an_uncordon_all_is_back_and_nothing_lost(installed: Installed) -> None:
    installed.both_run()
    kubectl = installed.node.plane.kubectl
    rows = installed.rows()
    installed.append(101)
    drain = ("drain", NAME, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=10")
    here = (f"--pod-selector={OPERATORS}",)

    # As configured: who asked for a budget keeps one operator, which acts.
    installed.set(podDisruptionBudget={"enabled": True})
    with pytest.raises(KubectlError, match="disruption budget"):
        kubectl(*drain, *here, "--timeout=15s")
    installed.apply(installed.collection("during-the-drain"))
    installed.wait_ready("storagecollection/during-the-drain")
    installed.append(102)

    # Without one the drain of the only node ends.
    installed.set(podDisruptionBudget={"enabled": False})
    kubectl(*drain, *here, "--timeout=180s")
    running = [pod for pod in installed.pods().values() if pod["status"]["phase"] == "Running"]
    assert running == []
    installed.apply(installed.collection("while-nobody-acts"))
    upper = installed.append(103)

    kubectl("uncordon", NAME)
    installed.both_run()
    path = "storagecollection/flights"
    until(lambda: int(installed.get(path)["status"]["upper"]) >= upper, "the status has the upper")
    installed.wait_ready("catalog/demo", path, "storagecollection/while-nobody-acts")
    installed.append(104)
    assert installed.rows() == sorted([*rows, *((each, f"row {each}") for each in (101, 102, 103, 104))])


def test_the_credentials_of_the_stores_are_nowhere_but_in_their_secret(installed: Installed) -> None:
    installed.both_run()
    kubectl = installed.node.plane.kubectl
    planted = [
        installed.secret[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD")
    ]
    forms = [*planted, *(base64.b64encode(each.encode()).decode() for each in planted)]
    ours = "catalogs,catalogmigrations,storagecollections"
    everything = f"{ours},pods,deployments,replicasets,jobs,configmaps,events,leases,services"
    told = {
        "objects": kubectl("get", everything, "-A", "-o", "json"),
        "descriptions": kubectl("describe", f"{ours},pods,deployments,secrets", "-n", SYSTEM),
        "release": installed.helm("get", "all", RELEASE),
        "command lines": installed.node.sandbox.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"),
        "logs": installed.kubectl("logs", "-l", OPERATORS, "--prefix", "--tail=-1"),
    }
    # Each of them is what it should be.
    assert "holdfast_operator.container" in told["command lines"]
    assert '"level": "debug"' in told["logs"].lower()
    assert {each["kind"] for each in json.loads(told["objects"])["items"]} >= {"Catalog", "Pod", "Event"}
    assert any(form in installed.kubectl("get", "secret/stores", "-o", "json") for form in forms)
    found = [(where, form[:4]) for where, text in told.items() for form in forms if form in text]
    assert found == []


def test_an_uninstall_waits_for_the_objects_and_leaves_none(installed: Installed) -> None:
    installed.both_run()
    # What keeps its data needs no operator to go; what takes it along does.
    doomed = installed.collection("doomed")
    doomed["spec"]["deletionPolicy"] = "Delete"
    installed.apply(doomed)
    installed.wait_ready("storagecollection/doomed")
    assert installed.get("storagecollection/doomed")["metadata"]["finalizers"]
    with pytest.raises(HelmError):
        installed.helm("uninstall", RELEASE)
    log = installed.kubectl("logs", f"job/{RELEASE}-predelete")
    assert ("doomed" in log, "flights" in log) == (True, False)
    installed.both_run()
    for kind in ("storagecollections", "catalogs"):
        installed.kubectl("delete", kind, "--all", "--timeout=180s")
    installed.helm("uninstall", RELEASE, *WAIT)
    until(lambda: installed.get("pods", "-l", OPERATORS)["items"] == [], "the operators are gone")
    assert installed.get("catalogs,storagecollections")["items"] == []
