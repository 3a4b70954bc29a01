"""How each adapter starts an attempt on the cluster, what it learns of it, and which adapter is used."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast_operator import container
from holdfast_operator.api.names import Kind
from holdfast_operator.api.spark import SparkPod, SparkTemplate
from holdfast_operator.engine.followed import only
from holdfast_operator.engine.kube import (
    EVENTS,
    Forbidden,
    Kube,
    KubeError,
    NotServed,
    ObjectKey,
    ResourceType,
)
from holdfast_operator.sparkapps import apache, job, kubeflow
from holdfast_operator.sparkapps.adapter import (
    AppPhase,
    AppState,
    Launch,
    LaunchRefused,
    NotInstalled,
    PassedOver,
    SecretFiles,
)
from holdfast_operator.sparkapps.apache import APACHE_APPLICATIONS, ApacheAdapter
from holdfast_operator.sparkapps.choice import AdapterName, adapter, followed
from holdfast_operator.sparkapps.job import JOBS, PODS, JobAdapter
from holdfast_operator.sparkapps.kubeflow import SPARK_APPLICATIONS, KubeflowAdapter
from holdfast_operator.sparkapps.limits import TemplateLimits
from holdfast_operator.sparkapps.objects import ObjectAdapter, application_name, unfinished_of

Json = dict[str, Any]

JOB = "7a0c2f3e-0000-5000-8000-000000000001"
OWNER = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "flights.2013.with-a-name-that-is-rather-long")
LAUNCH = Launch(
    owner=OWNER,
    owner_uid="uid-1",
    job_kind="snapshot",
    job_id=JOB,
    attempt=2,
    arguments=('{"as_of":41}',),
    template=SparkTemplate(spark_conf={"spark.sql.a": "b"}),
)
MADE: Json = {"uid": "u", "creationTimestamp": "2026-01-02T00:00:00Z"}
OFFLINE = Kube(ApiClient())
ADAPTERS = [KubeflowAdapter(OFFLINE), ApacheAdapter(OFFLINE), JobAdapter(OFFLINE)]
each_adapter = pytest.mark.parametrize("each", ADAPTERS, ids=lambda each: each.name)


def with_template(**template: Any) -> Launch:
    return replace(LAUNCH, template=SparkTemplate.model_validate(template))


def seen(each: ObjectAdapter, **status: Any) -> AppState:
    body = each.body(LAUNCH)
    body = {**body, "metadata": body["metadata"] | MADE, "status": status}
    state = each.app_state(body)
    assert state is not None
    # Nothing is read but what is kept of objects that a watch follows.
    assert each.app_state(only(body, each.fields)) == state
    return state


def containers(body: Json) -> list[Json]:
    """What becomes containers: of driver and executor, or the one of both."""
    spec = body["spec"]
    if body["kind"] == "Job":
        return list(spec["template"]["spec"]["containers"])
    return [pod["containers"][0] for pod in pods(body)]


def pod_templates(body: Json) -> list[Json]:
    """The templates of pods: of driver and executor, or the one of both."""
    spec = body["spec"]
    if body["kind"] == "Job":
        return [spec["template"]]
    if "driverSpec" in spec:
        return [spec[role]["podTemplateSpec"] for role in ("driverSpec", "executorSpec")]
    return [spec[role]["template"] for role in ("driver", "executor")]


def pods(body: Json) -> list[Json]:
    """What becomes of a SparkApplication the specs of pods: of the driver, and of executors."""
    spec = body["spec"]
    if "driverSpec" in spec:
        return [spec[role]["podTemplateSpec"]["spec"] for role in ("driverSpec", "executorSpec")]
    return [spec[role]["template"]["spec"] for role in ("driver", "executor")]


def pod_specs(body: Json) -> list[Json]:
    """The specs of pods: of driver and executor, or the one of both."""
    return [template["spec"] for template in pod_templates(body)]


@each_adapter
def test_an_attempt_is_found_by_its_labels_and_owned_by_its_object(each: ObjectAdapter) -> None:
    metadata = each.body(LAUNCH)["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("StorageCollection", OWNER.name, "uid-1")
    assert all(len(value) <= 63 for value in metadata["labels"].values())
    state = seen(each)
    assert (state.job_id, state.attempt, state.kind, state.via) == (JOB, 2, "snapshot", each.name)
    assert state.created == datetime(2026, 1, 2, tzinfo=UTC)
    names = {application_name(OWNER, "snapshot", job, n) for job in (JOB, "x") for n in (1, 2)}
    assert len(names) == 4
    assert all(len(name) <= 50 for name in names)


@each_adapter
def test_an_object_of_somebody_else_is_no_attempt(each: ObjectAdapter) -> None:
    body = each.body(LAUNCH)
    assert each.app_state({**body, "metadata": body["metadata"] | MADE | {"labels": {}}}) is None


@each_adapter
def test_secrets_are_named_and_never_carried(each: ObjectAdapter) -> None:
    given = with_template(envSecretRef={"name": "more"})
    for part in containers(each.body(given)):
        assert part["envFrom"] == [{"secretRef": {"name": "more"}}]
    for part in containers(each.body(LAUNCH)):
        assert "envFrom" not in part


STORE_KEYS = SecretFiles("shop.stores", ("PGUSER", "PGPASSWORD"), shared=True)


@each_adapter
def test_the_keys_of_the_stores_are_files_in_each_pod_and_no_variables(each: ObjectAdapter) -> None:
    body = each.body(replace(LAUNCH, store_keys=STORE_KEYS))
    for pod in pod_specs(body):
        (part,) = pod["containers"]
        assert {"name": "HOLDFAST_STORE_KEYS", "value": "/etc/holdfast/store-keys"} in part["env"]
        assert all("valueFrom" not in one for one in part["env"])
        (mount,) = (one for one in part["volumeMounts"] if one["mountPath"] == "/etc/holdfast/store-keys")
        assert mount["readOnly"] is True
        (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
        # A missing key keeps the pod from starting. Any user whom a template chooses may read the files.
        assert volume["secret"] == {
            "secretName": "shop.stores",
            "items": [{"key": "PGUSER", "path": "PGUSER"}, {"key": "PGPASSWORD", "path": "PGPASSWORD"}],
            "defaultMode": 0o444,
            "optional": False,
        }
    assert str(body).count("PGPASSWORD") == 2 * len(pod_specs(body))
    assert "HOLDFAST_STORE_KEYS" not in str(each.body(LAUNCH))


@each_adapter
def test_the_keys_of_secrets_are_files_of_those_who_need_them(each: ObjectAdapter) -> None:
    files = (SecretFiles("registry.v1", ("password",), shared=False), SecretFiles("kafka", ("a", "b"), True))
    body = each.body(replace(LAUNCH, files=files))
    for role, spec in zip(("driver", "executor"), pod_specs(body), strict=False):
        (part,) = spec["containers"]
        assert {"name": "HOLDFAST_SECRETS", "value": "/etc/holdfast/secrets"} in part["env"]
        volumes = {one["name"]: one["secret"] for one in spec["volumes"] if "secret" in one}
        mounts = [one for one in part["volumeMounts"] if one["name"] in volumes]
        found = {one["mountPath"]: volumes[one["name"]] for one in mounts}
        wanted = {"kafka": ["a", "b"]} | ({"registry.v1": ["password"]} if role == "driver" else {})
        assert found.keys() == {f"/etc/holdfast/secrets/{name}" for name in wanted}
        assert all(one["readOnly"] for one in mounts)
        assert all("." not in name for name in volumes)
        for secret in found.values():
            assert [item["key"] for item in secret["items"]] == wanted[secret["secretName"]]
            # A pod never waits for ever: its job says what is missing.
            assert secret["optional"] is True
    for part in containers(each.body(LAUNCH)):
        assert "HOLDFAST_SECRETS" not in str(part)


@each_adapter
def test_every_pod_is_of_the_restricted_profile(each: ObjectAdapter) -> None:
    body = each.body(LAUNCH)
    for part in containers(body):
        assert part["securityContext"]["allowPrivilegeEscalation"] is False
        assert part["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert part["securityContext"]["readOnlyRootFilesystem"] is True
    text = str(body)
    assert "'runAsNonRoot': True" in text
    assert "privileged" not in text


@each_adapter
def test_a_pod_can_write_to_its_temporary_folder_though_its_root_is_read_only(each: ObjectAdapter) -> None:
    def temporary(body: dict[str, Any]) -> list[list[str]]:
        """For each pod, the kinds of the volumes that its template mounts at /tmp."""
        found = []
        for spec in pod_specs(body):
            kinds = {
                one["name"]: next(key for key in one if key != "name") for one in spec.get("volumes", ())
            }
            mounts = spec["containers"][0].get("volumeMounts", ())
            found.append([kinds[one["name"]] for one in mounts if one["mountPath"].rstrip("/") == "/tmp"])
        return found

    assert {tuple(kinds) for kinds in temporary(each.body(LAUNCH))} == {("emptyDir",)}
    volume = {"name": "big", "mountPath": "/tmp/", "claimName": "big"}
    body = each.body(with_template(pod={"volumes": [volume]}))
    # Spark mounts it. A second volume at the same path would be refused.
    mounted = ("persistentVolumeClaim",) if body["kind"] == "Job" else ()
    assert {tuple(kinds) for kinds in temporary(body)} == {mounted}
    if body["kind"] != "Job":
        settings = {"spark.kubernetes.driver.volumes.emptyDir.big.mount.path": "/tmp"}
        body = each.body(with_template(sparkConf=settings))
        assert temporary(body) == [[], ["emptyDir"]]


def test_nobody_restarts_an_attempt_but_we() -> None:
    assert kubeflow.application(LAUNCH)["spec"]["restartPolicy"] == {"type": "Never"}
    tolerations = apache.application(LAUNCH)["spec"]["applicationTolerations"]
    assert tolerations["restartConfig"] == {"restartPolicy": "Never"}
    spec = job.job(LAUNCH)["spec"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_what_is_over_goes_after_a_day() -> None:
    assert kubeflow.application(LAUNCH)["spec"]["timeToLiveSeconds"] == 86400
    assert apache.application(LAUNCH)["spec"]["applicationTolerations"]["ttlAfterStopMillis"] == 86400_000
    assert job.job(LAUNCH)["spec"]["ttlSecondsAfterFinished"] == 86400


def test_the_program_of_a_job_is_in_the_image() -> None:
    spec = kubeflow.application(LAUNCH)["spec"]
    assert (spec["mode"], spec["type"]) == ("cluster", "Python")
    assert spec["mainApplicationFile"] == "local:///opt/holdfast/jobs/snapshot.py"
    spec = apache.application(LAUNCH)["spec"]
    assert spec["pyFiles"] == "local:///opt/holdfast/jobs/snapshot.py"
    assert spec["mainClass"] == "org.apache.spark.deploy.PythonRunner"
    assert (spec["driverArgs"], spec["deploymentMode"]) == (['{"as_of":41}'], "ClusterMode")
    (pod_container,) = containers(job.job(LAUNCH))
    assert pod_container["args"][0] == "driver"
    assert pod_container["args"][-2:] == ["/opt/holdfast/jobs/snapshot.py", '{"as_of":41}']


def overheads(**template: Any) -> tuple[Any, Any]:
    """What the pods of driver and executors get beside their heap."""
    spec = kubeflow.application(with_template(**template))["spec"]
    told = spec["driver"].get("memoryOverhead"), spec["executor"].get("memoryOverhead")
    settings = apache.application(with_template(**template))["spec"]["sparkConf"]
    if "sparkConf" not in template:
        names = ("spark.driver.memoryOverhead", "spark.executor.memoryOverhead")
        assert tuple(settings.get(name) for name in names) == told
    return told


def test_pods_have_room_for_the_python_process_of_each_core() -> None:
    """Each takes up to 600 MiB outside of the JVM, which has 384 MiB or a tenth of the heap."""
    assert overheads() == ("1024m", "1024m")
    assert overheads(executor={"cores": 4, "memory": "2Gi"}) == ("1024m", f"{384 + 4 * 640}m")
    assert overheads(executor={"cores": 2, "memory": "8Gi"}, driver={"memory": "10Gi"}) == (
        f"{1024 + 640}m",
        f"{819 + 2 * 640}m",
    )


def test_what_the_template_says_of_memory_stays() -> None:
    told = {"cores": 4, "memoryOverhead": "3Gi"}
    assert overheads(executor=told, driver={"memoryOverhead": "700Mi"}) == ("700m", "3072m")
    assert overheads(sparkConf={"spark.executor.memoryOverhead": "2g"}) == ("1024m", None)
    assert overheads(sparkConf={"spark.driver.memoryOverheadFactor": "0.9"}) == (None, "1024m")
    assert overheads(sparkConf={"spark.kubernetes.memoryOverheadFactor": "0.9"}) == (None, None)
    assert overheads(sparkConf={"spark.executor.pyspark.memory": "2g"}) == ("1024m", None)


def test_a_template_becomes_settings_for_apaches_operator_and_wins_over_its_own_settings() -> None:
    launch = with_template(
        image="registry/spark:1",
        sparkConf={"spark.executor.instances": "99", "spark.sql.a": "b", "spark.driver.memoryOverhead": "9g"},
        executor={"instances": 3, "cores": 2, "memory": "4Gi"},
    )
    settings = apache.application(launch)["spec"]["sparkConf"]
    assert settings["spark.executor.instances"] == "3"
    assert (settings["spark.executor.cores"], settings["spark.executor.memory"]) == ("2", "4096m")
    assert settings["spark.kubernetes.container.image"] == "registry/spark:1"
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] == "holdfast-spark"
    assert (settings["spark.sql.a"], settings["spark.driver.memoryOverhead"]) == ("b", "9g")


def test_the_pod_of_a_plain_job_is_driver_and_executor_in_one() -> None:
    launch = with_template(
        driver={"memory": "1Gi"},
        executor={"cores": 4, "memory": "2Gi", "memoryOverhead": "3Gi"},
        sparkConf={"spark.sql.a": "b", "spark.driver.memory": "9g", "spark.driver.host": "there"},
        attemptDeadline="2h",
    )
    spec = job.job(launch)["spec"]
    (pod_container,) = containers(job.job(launch))
    words = pod_container["args"]
    assert words[words.index("--master") + 1] == "local[4,4]"
    assert words[words.index("--driver-memory") + 1] == "3072m"
    assert "spark.sql.a=b" in words
    assert "spark.driver.host=127.0.0.1" in words
    assert not any("9g" in word for word in words)
    memory = f"{3072 + 1024 + 3072}Mi"
    assert pod_container["resources"] == {
        "requests": {"cpu": "4", "memory": memory},
        "limits": {"memory": memory},
    }
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False
    assert "activeDeadlineSeconds" not in job.job(LAUNCH)["spec"]
    fewer = with_template(sparkConf={"spark.kubernetes.driver.request.cores": "200m"})
    assert containers(job.job(fewer))[0]["resources"]["requests"]["cpu"] == "200m"


PLACED = with_template(
    pod={
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "volumes": [
            {"name": "out", "mountPath": "/out", "claimName": "snapshots"},
            {"name": "scratch", "mountPath": "/tmp", "sizeLimit": "20Gi"},
            {"name": "in", "mountPath": "/in", "claimName": "feeds", "readOnly": True},
        ],
    }
)
TOLERATED = [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}]


@pytest.mark.parametrize("application", [kubeflow.application, apache.application])
def test_nodes_and_volumes_are_settings_for_a_spark_operator(application: Callable[[Launch], Json]) -> None:
    body = application(PLACED)
    settings = body["spec"]["sparkConf"]
    assert settings["spark.kubernetes.node.selector.disk"] == "fast"
    for role in ("driver", "executor"):
        stem = f"spark.kubernetes.{role}.volumes"
        assert {
            name.removeprefix(f"{stem}."): value for name, value in settings.items() if name.startswith(stem)
        } == {
            "persistentVolumeClaim.out.mount.path": "/out",
            "persistentVolumeClaim.out.mount.readOnly": "false",
            "persistentVolumeClaim.out.options.claimName": "snapshots",
            "emptyDir.scratch.mount.path": "/tmp",
            "emptyDir.scratch.mount.readOnly": "false",
            "emptyDir.scratch.options.sizeLimit": "20Gi",
            "persistentVolumeClaim.in.mount.path": "/in",
            "persistentVolumeClaim.in.mount.readOnly": "true",
            "persistentVolumeClaim.in.options.claimName": "feeds",
        }
    for pod in pods(body):
        assert pod["tolerations"] == TOLERATED
        assert pod["securityContext"]["fsGroup"] == 65532
    assert not any("tolerations" in pod for pod in pods(application(LAUNCH)))
    assert "fsGroup" not in str(application(LAUNCH))


def test_nodes_and_volumes_are_those_of_the_pod_of_a_plain_job() -> None:
    pod = job.job(PLACED)["spec"]["template"]["spec"]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"disk": "fast"}, TOLERATED)
    assert pod["securityContext"]["fsGroup"] == 65532
    (pod_container,) = pod["containers"]
    mounts = {each["name"]: (each["mountPath"], each["readOnly"]) for each in pod_container["volumeMounts"]}
    assert mounts == {"out": ("/out", False), "scratch": ("/tmp", False), "in": ("/in", True)}
    assert pod["volumes"] == [
        {"name": "out", "persistentVolumeClaim": {"claimName": "snapshots", "readOnly": False}},
        {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}},
        {"name": "in", "persistentVolumeClaim": {"claimName": "feeds", "readOnly": True}},
    ]
    plain = job.job(LAUNCH)["spec"]["template"]["spec"]
    assert plain["volumes"] == [{"name": "holdfast-tmp", "emptyDir": {}}]
    assert not {"nodeSelector", "tolerations"} & plain.keys()


POD = {
    "labels": {"yunikorn.apache.org/queue": "root.night"},
    "annotations": {"scheduling.volcano.sh/queue-name": "night"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
                ]
            }
        }
    },
    "schedulerName": "volcano",
    "priorityClassName": "batch",
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {"runAsUser": 1000, "runAsGroup": 1001, "fsGroup": 1002, "supplementalGroups": [7]},
}
QUEUED = with_template(
    pod=POD,
    metadata={
        "labels": {"kueue.x-k8s.io/queue-name": "night"},
        "annotations": {"yunikorn.apache.org/queue": "a"},
    },
)


@each_adapter
def test_pods_and_applications_have_what_the_pod_template_says(each: ObjectAdapter) -> None:
    body, plain = each.body(QUEUED), each.body(LAUNCH)
    assert body["metadata"]["labels"] == {
        **plain["metadata"]["labels"],
        "kueue.x-k8s.io/queue-name": "night",
    }
    assert body["metadata"]["annotations"] == {"yunikorn.apache.org/queue": "a"}
    assert "annotations" not in plain["metadata"]
    templates = pod_templates(body)
    for template, before in zip(templates, pod_templates(plain), strict=True):
        assert template["metadata"]["labels"] == {**before["metadata"]["labels"], **POD["labels"]}
        assert template["metadata"]["annotations"] == POD["annotations"]
        spec, context = template["spec"], template["spec"]["securityContext"]
        for name in ("affinity", "schedulerName", "priorityClassName", "imagePullSecrets"):
            assert spec[name] == POD[name]
            assert name not in before["spec"]
        assert {name: context[name] for name in POD["securityContext"]} == POD["securityContext"]
        assert {**context, **before["spec"]["securityContext"]} == context


@each_adapter
def test_labels_of_the_operator_win(each: ObjectAdapter) -> None:
    """The API server refuses these names, but an object may have them from before."""
    own = SparkPod.model_construct(**SparkPod().__dict__ | {"labels": {"holdfast.dev/attempt": "9"}})
    body = each.body(replace(LAUNCH, template=SparkTemplate().model_copy(update={"pod": own})))
    for template in pod_templates(body):
        assert template["metadata"]["labels"]["holdfast.dev/attempt"] == "2"


@pytest.mark.spark
def test_the_image_makes_a_driver_of_what_a_plain_job_tells_it() -> None:
    """The role `driver` is asked of Spark's own launcher, as in the pod."""
    (pod_container,) = containers(job.job(LAUNCH))
    assert pod_container["args"][0] == "driver"
    environ = {**os.environ, **{each["name"]: each["value"] for each in pod_container["env"]}}
    command = container.driver_command(pod_container["args"][1:], environ, container.find(environ))
    assert "-Xmx2048m" in command
    submit = command[command.index("org.apache.spark.deploy.SparkSubmit") + 1 :]
    assert submit[submit.index("--master") + 1] == "local[1,4]"
    assert submit[submit.index("--deploy-mode") + 1] == "client"
    assert {"spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.sql.a=b"} <= {*submit}
    assert submit[-2:] == ["/opt/holdfast/jobs/snapshot.py", *LAUNCH.arguments]


def test_a_plain_job_has_one_executor() -> None:
    assert JobAdapter(OFFLINE).objection(SparkTemplate()) is None
    objection = JobAdapter(OFFLINE).objection(SparkTemplate.model_validate({"executor": {"instances": 3}}))
    assert objection is not None
    assert "executor.instances is 3" in objection
    assert "install a Spark operator" in objection


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (None, AppPhase.PENDING),
        ("SUBMITTED", AppPhase.PENDING),
        ("RUNNING", AppPhase.RUNNING),
        ("SUCCEEDING", AppPhase.RUNNING),
        ("COMPLETED", AppPhase.SUCCEEDED),
        ("FAILING", AppPhase.RUNNING),
        ("FAILED", AppPhase.FAILED),
        ("SUBMISSION_FAILED", AppPhase.FAILED),
        ("UNKNOWN", AppPhase.UNCLEAR),
        ("ENLIGHTENED", AppPhase.UNCLEAR),
    ],
)
def test_the_states_of_kubeflows_operator(state: str | None, phase: AppPhase) -> None:
    status = {} if state is None else {"applicationState": {"state": state, "errorMessage": "a\n  b"}}
    found = seen(ADAPTERS[0], **status)
    assert (found.phase, found.message) == (phase, "a b" if state else "")


def said(*summaries: str, **fields: Any) -> Json:
    """The status of Apache's operator after these states; `fields` are of the last one that isn't an end."""
    ends = {"ResourceReleased", "TerminatedWithoutReleaseResources"}
    states: list[Json] = [{"currentStateSummary": each, "message": f"on {each}"} for each in summaries]
    last = next((each for each in reversed(states) if each["currentStateSummary"] not in ends), {})
    last |= fields
    history = {str(number): each for number, each in enumerate(states)}
    return {"currentState": states[-1], "stateTransitionHistory": history}


KILLED = {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}


@pytest.mark.parametrize(
    ("status", "phase", "message"),
    [
        ({}, AppPhase.PENDING, ""),
        (said("Submitted"), AppPhase.PENDING, ""),
        (said("Submitted", "DriverRequested"), AppPhase.PENDING, ""),
        (said("Submitted", "DriverStarted"), AppPhase.RUNNING, ""),
        (said("DriverReady"), AppPhase.RUNNING, ""),
        (said("RunningHealthy"), AppPhase.RUNNING, ""),
        (said("RunningWithPartialCapacity"), AppPhase.RUNNING, ""),
        (said("Succeeded"), AppPhase.SUCCEEDED, ""),
        (said("RunningHealthy", "Succeeded", "ResourceReleased"), AppPhase.SUCCEEDED, ""),
        (said("Failed", "ResourceReleased"), AppPhase.FAILED, "Failed: on Failed"),
        (
            said("Failed", "TerminatedWithoutReleaseResources", lastObservedDriverStatus=KILLED),
            AppPhase.FAILED,
            "Failed: exit code 137, OOMKilled",
        ),
        (said("DriverEvicted"), AppPhase.FAILED, "DriverEvicted: on DriverEvicted"),
        (said("SchedulingFailure", "ResourceReleased"), AppPhase.FAILED, "SchedulingFailure: on Sched"),
        (said("RunningHealthy", "ResourceReleased"), AppPhase.FAILED, "it ended after RunningHealthy"),
        (said("ResourceReleased"), AppPhase.FAILED, "it ended after"),
        ({"currentState": {"currentStateSummary": "ResourceReleased"}}, AppPhase.FAILED, "it ended after"),
        (said("Transcended"), AppPhase.UNCLEAR, "Transcended"),
    ],
)
def test_the_states_of_apaches_operator(status: Json, phase: AppPhase, message: str) -> None:
    found = seen(ADAPTERS[1], **status)
    assert found.phase is phase
    assert found.message.startswith(message)
    assert bool(found.message) == bool(message)


def test_a_history_of_more_than_ten_states_is_read_in_the_order_of_its_numbers() -> None:
    states = ["Submitted", *["RunningHealthy", "RunningWithBelowThresholdExecutors"] * 5, "Succeeded"]
    assert seen(ADAPTERS[1], **said(*states, "ResourceReleased")).phase is AppPhase.SUCCEEDED


NO_POD = (
    f"its pod can't be made; kubectl describe job {application_name(OWNER, 'snapshot', JOB, 2)} shows why, "
    "such as a ServiceAccount that isn't there"
)


def condition(kind: str, status: str = "True") -> list[Json]:
    return [{"type": kind, "status": status, "reason": "PodFailurePolicy", "message": "exit code 7"}]


@pytest.mark.parametrize(
    ("status", "phase", "message"),
    [
        ({}, AppPhase.PENDING, ""),
        ({"startTime": "2026-01-02T00:00:00Z"}, AppPhase.PENDING, NO_POD),
        ({"startTime": "2026-01-02T00:00:00Z", "active": 1}, AppPhase.PENDING, ""),
        ({"active": 1, "ready": 0}, AppPhase.PENDING, ""),
        ({"active": 1, "ready": 1}, AppPhase.RUNNING, ""),
        ({"uncountedTerminatedPods": {"succeeded": ["u"]}}, AppPhase.RUNNING, ""),
        ({"uncountedTerminatedPods": {}, "active": 1}, AppPhase.PENDING, ""),
        ({"succeeded": 1, "conditions": condition("SuccessCriteriaMet")}, AppPhase.RUNNING, ""),
        ({"succeeded": 1, "conditions": condition("Complete")}, AppPhase.SUCCEEDED, ""),
        ({"failed": 1, "conditions": condition("FailureTarget")}, AppPhase.RUNNING, ""),
        ({"failed": 1, "conditions": condition("Failed")}, AppPhase.FAILED, "PodFailurePolicy: exit code 7"),
        ({"active": 1, "conditions": condition("Failed", "False")}, AppPhase.PENDING, ""),
    ],
)
def test_the_states_of_a_plain_job(status: Json, phase: AppPhase, message: str) -> None:
    found = seen(ADAPTERS[2], **status)
    assert (found.phase, found.message) == (phase, message)


def container_status(**state: Json) -> Json:
    return {"status": {"phase": "Pending", "containerStatuses": [{"name": "spark", "state": state}]}}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({}, None),
        (container_status(waiting={"reason": "ContainerCreating"}), None),
        (container_status(running={}), None),
        (
            container_status(waiting={"reason": "ErrImagePull", "message": "no\nsuch"}),
            "ErrImagePull: no such",
        ),
        (
            container_status(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            "its driver ended with exit code 137, OOMKilled",
        ),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}, "Evicted: disk"),
        (
            {
                "status": {
                    "phase": "Pending",
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "cpu",
                        }
                    ],
                }
            },
            "Unschedulable: cpu",
        ),
    ],
)
def test_what_a_pod_says_of_why_it_does_not_run(pod: Json, reason: str | None) -> None:
    assert job.pod_reason(pod) == reason
    assert job.pod_reason(only(pod, job.POD_FIELDS)) == reason


QUOTA = "exceeded quota: full, requested: pods=1,requests.cpu=1, used: pods=2,requests.cpu=3, limited: pods=2"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            f'Error creating: pods "x-1-abcde" is forbidden: {QUOTA}',
            "exceeded quota: full, requested: pods=1,requests.cpu=1, limited: pods=2",
        ),
        (
            '(combined from similar events): Error creating: pods "x" is forbidden: violates "it"',
            'violates "it"',
        ),
        (
            'Error creating: admission webhook "w" denied the request: no',
            'admission webhook "w" denied the request: no',
        ),
    ],
)
def test_what_refuses_a_pod_is_told_without_what_changes_at_each_try(message: str, reason: str) -> None:
    events = [
        {"lastTimestamp": "2026-01-02T00:00:05Z", "message": message},
        {"lastTimestamp": "2026-01-02T00:00:01Z", "message": "an earlier one"},
    ]
    assert job.refusal_of(events) == reason
    assert job.refusal_of([]) is None


class Serving(Kube):
    """Serves some types, each empty at first."""

    def __init__(self, *types: ResourceType) -> None:
        super().__init__(ApiClient())
        self.there: dict[str, list[Json]] = {type_.path("ns"): [] for type_ in types}
        self.refusal: Callable[[str], KubeError] = NotServed

    async def request(
        self, method: str, path: str, *, query: Any = None, body: Json | None = None, keep: Any = None
    ) -> Json:
        if method == "DELETE":
            folder, _, name = path.rpartition("/")
            self.there[folder] = [each for each in self.there[folder] if each["metadata"]["name"] != name]
            return {}
        if path not in self.there:
            raise self.refusal(path)
        if method == "POST" and body is not None:
            self.there[path].append({**body, "metadata": body["metadata"] | MADE})
        return {"items": list(map(keep, self.there[path])) if method == "GET" else []}

    def number(self, type_: ResourceType) -> int:
        return len(self.there[type_.path("ns")])


def observe(chosen: Any) -> tuple[AppState, ...]:
    return tuple(asyncio.run(chosen.observe(OWNER, "uid-1")))


def test_a_plain_job_that_its_deadline_ended_says_which_and_not_how_its_pod_died() -> None:
    template = LAUNCH.template.model_copy(update={"attempt_deadline": "1m"})
    kube = Serving(JOBS, job.PODS)
    asyncio.run(JobAdapter(kube).launch(replace(LAUNCH, template=template)))
    (made,) = kube.there[JOBS.path("ns")]
    over = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "Job was active"}
    pod = container_status(terminated={"exitCode": 143, "reason": "Error"})
    kube.there[job.PODS.path("ns")] = [{**pod, "metadata": {"ownerReferences": [{"uid": MADE["uid"]}]}}]
    told = []
    for conditions in ([over], condition("Failed")):
        made["status"] = {"failed": 1, "conditions": conditions}
        told += [(app.phase, app.message) for app in observe(JobAdapter(kube))]
    assert told == [
        (AppPhase.FAILED, "it did not end within 60 s (attemptDeadline)"),
        (AppPhase.FAILED, "its driver ended with exit code 143, Error"),
    ]


def test_a_plain_job_without_a_pod_names_what_refuses_it_if_the_role_may_read_its_events() -> None:
    kube = Serving(JOBS, job.PODS)
    kube.refusal = Forbidden
    asyncio.run(JobAdapter(kube).launch(LAUNCH))
    (made,) = kube.there[JOBS.path("ns")]
    made["status"] = {"startTime": "2026-01-02T00:00:00Z"}
    told = [app.message for app in observe(JobAdapter(kube))]
    kube.there[EVENTS.path("ns")] = []
    told += [app.message for app in observe(JobAdapter(kube))]
    refusal = f'Error creating: pods "x" is forbidden: {QUOTA}'
    kube.there[EVENTS.path("ns")] = [{"metadata": {}, "message": refusal}]
    told += [app.message for app in observe(JobAdapter(kube))]
    made["status"]["active"] = 1
    told += [app.message for app in observe(JobAdapter(kube))]
    quota = "exceeded quota: full, requested: pods=1,requests.cpu=1, limited: pods=2"
    assert told == [NO_POD, NO_POD, f"its pod is refused: {quota}", ""]


@pytest.mark.parametrize(
    ("served", "name", "expected"),
    [
        ((SPARK_APPLICATIONS, APACHE_APPLICATIONS, JOBS), "auto", "kubeflow"),
        ((APACHE_APPLICATIONS, JOBS), "auto", "apache"),
        ((JOBS,), "auto", "job"),
        ((SPARK_APPLICATIONS, APACHE_APPLICATIONS, JOBS), "apache", "apache"),
        ((SPARK_APPLICATIONS, APACHE_APPLICATIONS, JOBS), "job", "job"),
    ],
)
def test_the_first_that_is_served_launches(
    served: tuple[ResourceType, ...], name: str, expected: str
) -> None:
    chosen = adapter(Serving(*served), AdapterName(name), TemplateLimits())
    assert observe(chosen) == ()
    asyncio.run(chosen.launch(LAUNCH))
    assert [app.via for app in observe(chosen)] == [expected]


@pytest.mark.parametrize("refusal", [NotServed, Forbidden])
def test_what_is_asked_for_and_not_there_is_told(refusal: Callable[[str], KubeError]) -> None:
    kube = Serving()
    kube.refusal = refusal
    for name, words in (
        ("kubeflow", "sparkoperator.k8s.io"),
        ("apache", "spark.apache.org"),
        ("job", "batch/v1"),
    ):
        with pytest.raises(NotInstalled, match=words):
            observe(adapter(kube, AdapterName(name), TemplateLimits()))
    with pytest.raises(NotInstalled, match=r"sparkoperator.*spark\.apache.*batch/v1"):
        observe(adapter(kube, AdapterName.AUTO, TemplateLimits()))


def test_what_runs_is_counted_over_all_adapters_and_objects() -> None:
    kube = Serving(SPARK_APPLICATIONS, JOBS)
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    other = ObjectKey(Kind.STORAGE_COLLECTION, "ns", "other")
    asyncio.run(chosen.launch(LAUNCH))
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    asyncio.run(JobAdapter(kube).launch(replace(LAUNCH, owner=other)))
    asyncio.run(JobAdapter(kube).launch(replace(LAUNCH, job_kind="ingest")))

    def counted() -> Counter[ObjectKey]:
        return Counter(each.owner for each in asyncio.run(chosen.unfinished(["ns"])))

    assert counted() == {OWNER: 2, other: 1}
    assert unfinished_of(LAUNCH) in asyncio.run(chosen.unfinished(["ns"]))
    first, *_ = kube.there[SPARK_APPLICATIONS.path("ns")]
    first["status"] = {"applicationState": {"state": "COMPLETED"}}
    assert counted() == {OWNER: 1, other: 1}


def test_switched_off_nothing_is_asked_of_the_cluster() -> None:
    chosen = adapter(Serving(), AdapterName.NONE, TemplateLimits())
    with pytest.raises(NotInstalled, match="are disabled"):
        observe(chosen)
    with pytest.raises(NotInstalled, match="are disabled"):
        asyncio.run(chosen.launch(LAUNCH))
    assert followed(AdapterName.NONE) == {}


def test_an_attempt_stays_with_the_adapter_that_launched_it() -> None:
    """Also when a Spark operator is installed while a plain Job runs."""
    kube = Serving(JOBS, PODS)
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    asyncio.run(chosen.launch(LAUNCH))
    kube.there[SPARK_APPLICATIONS.path("ns")] = []
    (app,) = observe(chosen)
    assert app.via == "job"
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    assert (kube.number(JOBS), kube.number(SPARK_APPLICATIONS)) == (1, 1)
    asyncio.run(chosen.cancel(OWNER, app))
    assert (kube.number(JOBS), kube.number(SPARK_APPLICATIONS)) == (0, 1)


def test_an_adapter_that_goes_away_leaves_everything_undecided() -> None:
    """Its applications may run: that others are served is no reason to take them for gone."""
    kube = Serving(SPARK_APPLICATIONS, JOBS)
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    del kube.there[SPARK_APPLICATIONS.path("ns")]
    with pytest.raises(NotInstalled, match="Kubeflow"):
        observe(chosen)


@pytest.mark.parametrize("served", [(SPARK_APPLICATIONS, JOBS), (APACHE_APPLICATIONS, JOBS)])
def test_definitions_without_their_operator_lead_to_plain_jobs(served: tuple[ResourceType, ...]) -> None:
    """The first attempt waits for nobody; the next ones don't."""
    kube, (first, _) = Serving(*served), served
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    asyncio.run(chosen.launch(LAUNCH))
    (made,) = kube.there[first.path("ns")]
    made["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
    (app,) = observe(chosen)
    assert app.message == "", "an operator needs some time"
    made["metadata"] |= MADE
    (app,) = observe(chosen)
    assert (app.phase, app.via) == (AppPhase.PENDING, "kubeflow" if first is SPARK_APPLICATIONS else "apache")
    assert "no Spark operator has noticed it" in app.message
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    assert (kube.number(first), kube.number(JOBS)) == (1, 1)
    # In another namespace there may be an operator, and a plain Job can't have two executors.
    big = with_template(executor={"instances": 2})
    assert chosen.objection(big.template) is None
    asyncio.run(chosen.launch(replace(big, attempt=4)))
    assert (kube.number(first), kube.number(JOBS)) == (2, 1)
    # Its operator is there after all.
    for each in kube.there[first.path("ns")]:
        each["status"] = {"any": "thing"}
    assert all(app.message != "no Spark operator has noticed it" for app in observe(chosen))
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=5)))
    assert (kube.number(first), kube.number(JOBS)) == (3, 1)


def test_an_adapter_is_passed_over_in_a_namespace_until_an_application_shows_that_its_operator_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time alone shows nothing, and a restart forgets nothing while a plain Job is there that says it."""
    kube = Serving(SPARK_APPLICATIONS, JOBS)
    kube.there[SPARK_APPLICATIONS.path("far")] = []
    now = datetime.fromisoformat(MADE["creationTimestamp"])
    monkeypatch.setattr(kube, "server_time", lambda: now)
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    asyncio.run(chosen.launch(LAUNCH))
    apps = kube.there[SPARK_APPLICATIONS.path("ns")]
    now += timedelta(minutes=5)
    observe(chosen)
    asyncio.run(chosen.launch(replace(LAUNCH, owner=replace(OWNER, namespace="far"))))
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    assert (len(kube.there[SPARK_APPLICATIONS.path("far")]), kube.number(JOBS)) == (1, 1)
    apps.clear()
    now += timedelta(days=400)
    (made,) = observe(chosen)
    since = datetime.fromisoformat(MADE["creationTimestamp"])
    assert (made.via, made.passed_over) == ("job", (PassedOver("kubeflow", since),))
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=4)))
    restarted = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(restarted)
    asyncio.run(restarted.launch(replace(LAUNCH, attempt=5)))
    assert (len(apps), kube.number(JOBS)) == (0, 3)
    # Others' applications: one that nobody noticed either, and one that was noticed long ago.
    noticed = {"status": {"applicationState": {"state": "COMPLETED"}}}
    apps.append({"metadata": {"name": "a", "creationTimestamp": "2027-01-01T00:00:00Z"}})
    apps.append({"metadata": {"name": "b", "creationTimestamp": "2025-01-01T00:00:00Z"}, **noticed})
    for each in (chosen, restarted):
        asyncio.run(each.launch(replace(LAUNCH, attempt=6)))
    assert (len(apps), kube.number(JOBS)) == (2, 5)
    apps.append({"metadata": {"name": "c", "creationTimestamp": "2027-01-01T00:00:00Z"}, **noticed})
    for each in (chosen, restarted):
        asyncio.run(each.launch(replace(LAUNCH, attempt=7)))
    assert (len(apps), kube.number(JOBS)) == (5, 5)


@pytest.mark.parametrize(("answer", "kind"), [(KubeError, SPARK_APPLICATIONS), (Forbidden, JOBS)])
def test_an_attempt_whose_request_had_no_response_stays_with_its_adapter(
    answer: Callable[[str], KubeError], kind: ResourceType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object may be created late. With the same kind, its name then prevents a second one."""
    kube = Serving(SPARK_APPLICATIONS, JOBS)
    now = datetime.fromisoformat(MADE["creationTimestamp"])
    monkeypatch.setattr(kube, "server_time", lambda: now)
    chosen = adapter(kube, AdapterName.AUTO, TemplateLimits())
    observe(chosen)
    asyncio.run(chosen.launch(LAUNCH))
    apps = kube.there.pop(SPARK_APPLICATIONS.path("ns"))
    kube.refusal = answer
    with pytest.raises((KubeError, LaunchRefused)):
        asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    kube.refusal = NotServed
    kube.there[SPARK_APPLICATIONS.path("ns")] = apps
    # Nobody notices the first one, so the adapter is passed over for others.
    now += timedelta(minutes=2)
    observe(chosen)
    before = kube.number(kind)
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=3)))
    assert kube.number(kind) == before + 1
    jobs = kube.number(JOBS)
    asyncio.run(chosen.launch(replace(LAUNCH, attempt=4)))
    assert kube.number(JOBS) == jobs + 1


def test_what_a_pod_says_explains_a_job_that_waits() -> None:
    kube = Serving(JOBS, PODS)
    chosen = adapter(kube, AdapterName.JOB, TemplateLimits())
    observe(chosen)
    asyncio.run(chosen.launch(LAUNCH))
    (made,) = kube.there[JOBS.path("ns")]
    pod = container_status(waiting={"reason": "ErrImagePull", "message": "no such image"})
    kube.there[PODS.path("ns")] = [
        {"metadata": {"ownerReferences": [{"uid": made["metadata"]["uid"]}]}, **pod}
    ]
    (app,) = observe(chosen)
    assert (app.phase, app.message) == (AppPhase.PENDING, "ErrImagePull: no such image")
    made["status"] = {"active": 1, "ready": 1}
    (app,) = observe(chosen)
    assert (app.phase, app.message) == (AppPhase.RUNNING, "")
    # A role that has no pods makes the operator know less, not fail.
    del kube.there[PODS.path("ns")]
    made["status"] = {}
    (app,) = observe(chosen)
    assert (app.phase, app.message) == (AppPhase.PENDING, "")
