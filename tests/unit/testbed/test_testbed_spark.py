"""How the stand-in of the Spark operator reads an object, without a cluster and without Spark."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.sparkdriver import (
    WaitingForConfigError,
    command,
    driver_environment,
    mount_secrets,
    refusal,
    target,
    within,
)
from testbed.sparkoperator import CRD_FILE
from testbed.sparkstatus import MISBEHAVE, Misbehaviour, State, annotated, exit_message, status_patch

NOW = datetime(2026, 11, 21, 12, 30, 15, 999, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "type": "Python",
    "mode": "cluster",
    "mainApplicationFile": "local:///opt/holdfast/jobs/snapshot.py",
    "arguments": ['{"as_of": 7}', "--fast"],
    "sparkConf": {"spark.master": "k8s://x", "spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "2"},
    "driver": {"memory": "512m"},
    "executor": {"instances": 2},
}


def lookup(kind: str, name: str) -> Mapping[str, str] | None:
    known = {("Secret", "keys"): {"user": "me", "password": "p"}, ("ConfigMap", "plain"): {"user": "them"}}
    return known.get((kind, name))


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("local:///opt/holdfast/jobs/snapshot.py", "module:holdfast.spark.jobs.snapshot"),
        ("local:///opt/holdfast/jobs/deep/er.py", "file:/opt/holdfast/jobs/deep/er.py"),
        ("local:///home/me/count.py", "file:/home/me/count.py"),
    ],
)
def test_the_jobs_of_the_image_are_modules_here(file: str, found: str) -> None:
    assert target(file) == found


def test_settings_that_keep_spark_local_win() -> None:
    words = [str(word) for word in command("snap", SPEC, master="local[3]", gate=Path("/w/gate"))]
    assert words[words.index("--master") + 1] == "local[3]"
    assert "spark.master=k8s://x" not in words
    assert "spark.ui.enabled=false" in words
    assert "spark.ui.enabled=true" not in words
    assert "spark.sql.shuffle.partitions=2" in words
    assert words[words.index("--driver-memory") + 1] == "512m"
    assert words[-4:] == ["/w/gate", "module:holdfast.spark.jobs.snapshot", '{"as_of": 7}', "--fast"]


def test_the_environment_of_a_driver_is_that_of_a_container() -> None:
    driver = {
        "envFrom": [{"configMapRef": {"name": "plain"}}, {"prefix": "S_", "secretRef": {"name": "keys"}}],
        "env": [
            {"name": "MODE", "value": "x"},
            {"name": "EMPTY"},
            {"name": "user", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "user"}}},
            {"name": "NOT", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k", "optional": True}}},
        ],
    }
    found = driver_environment(driver, lookup)
    assert found == {"MODE": "x", "EMPTY": "", "user": "me", "S_user": "me", "S_password": "p"}


@pytest.mark.parametrize(
    "driver",
    [
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]},
        {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "none"}}}]},
        {"envFrom": [{"secretRef": {"name": "none"}}]},
    ],
)
def test_a_driver_waits_for_what_its_environment_names(driver: dict[str, Any]) -> None:
    with pytest.raises(WaitingForConfigError, match="none"):
        driver_environment(driver, lookup)


def test_the_secrets_that_a_driver_mounts_are_files(tmp_path: Path) -> None:
    items = [{"key": "user", "path": "user"}, {"key": "no", "path": "no"}]
    driver = {
        "volumes": [{"name": "s", "secret": {"secretName": "keys", "items": items, "optional": True}}],
        "volumeMounts": [{"name": "s", "mountPath": "/etc/keys"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    mount_secrets(driver, lookup, tmp_path)
    found = within(tmp_path, {"KEYS": "/etc/keys", "OTHER": "/etc/none", "MODE": "x"})
    assert found == {"KEYS": str(tmp_path / "etc/keys"), "OTHER": "/etc/none", "MODE": "x"}
    assert [(each.name, each.read_text()) for each in Path(found["KEYS"]).iterdir()] == [("user", "me")]
    driver["volumes"][0]["secret"]["optional"] = False  # type: ignore[index]
    with pytest.raises(WaitingForConfigError, match="no"):
        mount_secrets(driver, lookup, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "Scala"},
        {"mode": "client"},
        {"restartPolicy": {"type": "Always"}},
        {"mainApplicationFile": "s3a://bucket/x.py"},
    ],
)
def test_what_cannot_be_run_truthfully_is_refused(wrong: dict[str, Any]) -> None:
    assert refusal(SPEC) is None
    assert refusal(SPEC | wrong) is not None


def test_a_status_grows_as_the_real_one_does() -> None:
    submitted = status_patch("snap", SPEC, State.SUBMITTED, now=NOW)
    assert submitted["applicationState"] == {"state": "SUBMITTED", "errorMessage": None}
    assert submitted["lastSubmissionAttemptTime"] == "2026-11-21T12:30:15Z"
    assert submitted["driverInfo"] == {"podName": "snap-driver"}
    running = status_patch("snap", SPEC, State.RUNNING, now=NOW)
    assert running["executorState"] == {"snap-exec-1": "RUNNING", "snap-exec-2": "RUNNING"}
    assert "terminationTime" not in running
    failed = status_patch("snap", SPEC, State.FAILED, exit_message(7), now=NOW)
    assert failed["applicationState"] == {
        "state": "FAILED",
        "errorMessage": "driver container failed with ExitCode: 7, Reason: Error",
    }
    assert failed["terminationTime"] == "2026-11-21T12:30:15Z"


@pytest.mark.parametrize("state", list(State))
def test_every_first_status_has_what_the_crd_requires(state: State) -> None:
    if state in (State.SUBMITTED, State.SUBMISSION_FAILED):
        assert "driverInfo" in status_patch("snap", SPEC, state, now=NOW)
    assert status_patch("snap", SPEC, state, now=NOW)["applicationState"]["state"] == state


def test_a_misbehaviour_is_asked_for_by_annotation() -> None:
    assert annotated({"metadata": {"name": "a"}}) is None
    assert annotated({"metadata": {"annotations": {MISBEHAVE: "twice"}}}) is Misbehaviour.TWICE
    with pytest.raises(ValueError, match="naughty"):
        annotated({"metadata": {"annotations": {MISBEHAVE: "naughty"}}})


def test_the_crd_has_the_columns_of_the_real_one() -> None:
    crd = yaml.safe_load(CRD_FILE.read_text())
    version = crd["spec"]["versions"][0]
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Suspend", "Status", "Attempts", "Start", "Finish", "Age"]
    assert version["subresources"] == {"status": {}}
