"""The control plane of the test bed is a real one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import ControlPlaneError, KubectlError
from testbed.kube import ControlPlane
from testbed.objects import Objects
from testbed.process import ended

pytestmark = pytest.mark.kube


def test_an_object_is_kept_and_read_back(namespace: str, control_plane: ControlPlane) -> None:
    control_plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "kept", "namespace": namespace},
            "data": {"flights": "336776"},
        }
    )
    with Objects(control_plane, namespace) as objects:
        assert objects.get("configmaps/kept")["data"] == {"flights": "336776"}


def test_rbac_decides(namespace: str, control_plane: ControlPlane) -> None:
    def may(verb: str) -> bool:
        asked = {"verb": verb, "resource": "configmaps", "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": f"system:serviceaccount:{namespace}:reader", "resourceAttributes": asked},
        }
        options = ("create", "-f", "-", "-o", "jsonpath={.status.allowed}")
        return control_plane.kubectl(*options, stdin=json.dumps(review)) == "true"

    assert not may("get")
    control_plane.kubectl("create", "role", "r", "--verb=get", "--resource=configmaps", "-n", namespace)
    control_plane.kubectl(
        *("create", "rolebinding", "r", "--role=r"), f"--serviceaccount={namespace}:reader", "-n", namespace
    )
    # The authorizer hears of a binding through a watch, so a moment later.
    assert any(may("get") for _ in range(50))
    assert not may("delete")


def test_a_service_account_token_is_a_way_in(namespace: str, control_plane: ControlPlane) -> None:
    token = control_plane.kubectl("create", "token", "default", "-n", namespace).strip()
    told = control_plane.kubectl("auth", "whoami", "-o", "json", "--token", token)
    assert json.loads(told)["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"


@pytest.mark.long
def test_a_deleted_namespace_takes_its_objects_along(control_plane: ControlPlane, namespace: str) -> None:
    name = f"{namespace}-short"
    control_plane.kubectl("create", "namespace", name)
    control_plane.kubectl("create", "configmap", "gone", "-n", name)
    control_plane.kubectl("delete", "namespace", name, "--timeout=60s")
    with pytest.raises(KubectlError, match="not found"):
        control_plane.kubectl("get", "configmap", "gone", "-n", name)


@pytest.mark.long
def test_no_process_outlives_a_control_plane_whose_owner_is_killed(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    if not control_plane.ours:
        pytest.skip("the cluster is not ours to kill")
    program = (
        "import sys, signal\n"
        "from pathlib import Path\n"
        "from testbed.kube import ControlPlane\n"
        "plane = ControlPlane.start(folder=Path(sys.argv[1]))\n"
        "print(*(child.pid for child in plane._children), flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as owner:
        assert owner.stdout is not None
        children = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(children) == 3
        handles = [os.pidfd_open(pid) for pid in children]
        owner.kill()
    for handle in handles:
        assert ended(handle), "a process is still there"


def test_a_kubeconfig_that_is_not_there_is_an_error_not_a_boot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ControlPlaneError, match="KUBECONFIG"):
        ControlPlane.from_environment()


def test_a_named_kubeconfig_is_used_and_left_alone(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with ControlPlane.from_environment() as other:
        assert not other.ours
        assert other.server == control_plane.server
    assert "default" in control_plane.kubectl("get", "namespaces", "-o", "name")


@pytest.mark.long
def test_up_serves_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "testbed", "up", "--folder", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == f"export KUBECONFIG={tmp_path / 'kubeconfig'}\n"
        with Objects(ControlPlane(kubeconfig=tmp_path / "kubeconfig", server=""), "default") as objects:
            assert objects.find("serviceaccount/default") is not None
        up.terminate()
        assert up.wait(60) == 0
    assert (tmp_path / "kube-apiserver.log").exists()
