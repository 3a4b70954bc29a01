"""The adapter for clusters without a Spark operator: a plain `batch/v1` Job with one pod that runs Spark.

Driver and executor are one process (Spark's local mode), so there is exactly one executor. The Job should
never start a second pod. If Kubernetes does so anyway, this does no harm, because only one attempt can
commit.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from holdfast_operator.api.spark import SparkTemplate, SparkVolume
from holdfast_operator.engine.followed import Fields
from holdfast_operator.engine.kube import EVENTS, Forbidden, NotServed, ObjectKey, ResourceType
from holdfast_operator.sparkapps.adapter import ATTEMPT_DEADLINE, AppPhase, AppState, Launch, overran
from holdfast_operator.sparkapps.objects import (
    CONTAINER_SECURITY,
    TMP,
    TMP_VOLUME,
    Json,
    ObjectAdapter,
    application_name,
    followed_fields,
    in_a_line,
    metadata_of,
    pod_fields,
    pod_metadata,
    program,
    secret_environment,
    secret_volumes,
    selector,
)
from holdfast_operator.sparkapps.sizing import one_pod_heap, one_pod_memory

JOBS: Final = ResourceType("batch", "v1", "jobs")
PODS: Final = ResourceType("", "v1", "pods")
NOT_OF_SPARK: Final = "!spark-role"
"""The label selector for pods that are neither drivers nor executors of a Spark operator."""

_CONTAINER: Final = "spark"
_TRIES_OF_A_TASK: Final = 4
"""Spark's default on a cluster. In local mode, the default is one."""
_NO_POD: Final = (
    "its pod can't be made; kubectl describe job {} shows why, such as a ServiceAccount that isn't there"
)
_NOT_MADE: Final = "FailedCreate"
"""The reason of the Events of a Job whose pod is refused."""
_IN_FRONT: Final = re.compile(
    r'^(\(combined from similar events\): )?(Error creating: )?(pods "[^"]*" is forbidden: )?'
)
"""What comes before the cause in such an Event. The name of the pod differs each time."""
_USED: Final = re.compile(r", used: \S+(?=, limited: )")
"""The use of a quota. It changes whenever others use it, and so would the status."""
_OVERRAN: Final = "DeadlineExceeded"
_ALONE: Final = "127.0.0.1"
"""Driver and executor are one process, so nobody else needs to reach it."""


_CONDITION: Final[Fields] = dict.fromkeys(("type", "status", "reason", "message"))
_EXCUSE: Final[Fields] = dict.fromkeys(("reason", "message", "exitCode"))
POD_FIELDS: Final = followed_fields(
    {
        **dict.fromkeys(("phase", "reason", "message")),
        "containerStatuses": {"state": {"waiting": _EXCUSE, "terminated": _EXCUSE}},
        "conditions": _CONDITION,
    }
)
"""All that `pod_reason` reads of a pod."""


class JobAdapter(ObjectAdapter):
    """Jobs with Spark in local mode."""

    name: ClassVar[str] = "job"
    type_: ClassVar[ResourceType] = JOBS
    fields: ClassVar[Fields] = followed_fields(
        {
            **dict.fromkeys(("startTime", "active", "ready", "failed", "succeeded")),
            "uncountedTerminatedPods": None,
            "conditions": _CONDITION,
        },
        spec={"activeDeadlineSeconds": None},
    )
    what: ClassVar[str] = "Jobs (batch/v1)"
    remedy: ClassVar[str] = "ask the administrator of the cluster to serve batch/v1"
    by_spark_operator: ClassVar[bool] = False

    def objection(self, template: SparkTemplate) -> str | None:
        """Objects to more than one executor."""
        if template.executor.instances == 1:
            return None
        return (
            f"executor.instances is {template.executor.instances}, but a plain Job is one pod that has one "
            "executor: set it to 1 and raise executor.cores, or install a Spark operator"
        )

    def body(self, launch: Launch) -> Json:
        """Returns the Job of an attempt."""
        return job(launch)

    def phase_of(self, body: Json) -> tuple[AppPhase, str]:
        """Returns the phase and message from its conditions, or otherwise from its counters."""
        status = body.get("status", {})
        for each in status.get("conditions") or []:
            if each.get("status") == "True" and each.get("type") == "Complete":
                return AppPhase.SUCCEEDED, ""
            if each.get("status") == "True" and each.get("type") == "Failed":
                if each.get("reason") == _OVERRAN:
                    return AppPhase.FAILED, overran(body["spec"]["activeDeadlineSeconds"])
                return AppPhase.FAILED, f"{each.get('reason', 'Failed')}: {each.get('message', '')}"
        uncounted = any((status.get("uncountedTerminatedPods") or {}).values())
        if status.get("ready") or status.get("failed") or status.get("succeeded") or uncounted:
            # Even if the pod has ended, the Job is over only when its conditions show it.
            return AppPhase.RUNNING, ""
        if "startTime" in status and not status.get("active"):
            return AppPhase.PENDING, _NO_POD.format(body["metadata"]["name"])
        return AppPhase.PENDING, ""

    async def observe(self, owner: ObjectKey, owner_uid: str, *, fresh: bool = False) -> tuple[AppState, ...]:
        """Returns the Jobs that an object owns, with the messages of their pods if these explain more."""
        found = await super().observe(owner, owner_uid, fresh=fresh)
        if not any(state.phase in {AppPhase.PENDING, AppPhase.FAILED} for state in found):
            return found
        states = tuple([await self._with_refusal(owner.namespace, state) for state in found])
        try:
            labels = f"{selector(owner, owner_uid)},{NOT_OF_SPARK}"
            pods = await self.kube.list(PODS, owner.namespace, labels=labels, fresh=fresh)
        except (Forbidden, NotServed):
            return states
        reasons = {uid: why for pod in pods for uid in _owners(pod) if (why := pod_reason(pod))}
        return tuple(_explained(state, reasons.get(state.uid)) for state in states)

    async def _with_refusal(self, namespace: str, state: AppState) -> AppState:
        """Returns a state whose message says what refuses the Job's pod, if anything does.

        Only the Job's Events show that. Kubernetes tries again by itself.
        """
        if state.message != _NO_POD.format(state.name):
            return state
        fields = f"involvedObject.uid={state.uid},reason={_NOT_MADE}"
        try:
            events, _ = await self.kube.list_pages(EVENTS, namespace, fields=fields)
        except Forbidden:
            return state
        why = refusal_of(events)
        return state if why is None else replace(state, message=in_a_line(f"its pod is refused: {why}"))


def job(launch: Launch) -> Json:
    """Returns the Job of one attempt."""
    template = launch.template
    deadline = template.attempt_deadline_seconds
    return {
        "apiVersion": f"{JOBS.group}/{JOBS.version}",
        "kind": "Job",
        "metadata": metadata_of(launch),
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": template.ttl_seconds,
            **({} if deadline is None else {"activeDeadlineSeconds": deadline}),
            # With this policy the condition shows the exit code, and not only that the backoff limit was
            # reached.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": _CONTAINER, "operator": "NotIn", "values": [0]},
                    }
                ]
            },
            "template": {"metadata": pod_metadata(launch), "spec": _pod(launch)},
        },
    }


def pod_reason(pod: Json) -> str | None:
    """Returns why a pod doesn't run or has failed, or None if it doesn't show this."""
    status = pod.get("status", {})
    for each in status.get("containerStatuses") or []:
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return in_a_line(f"{waiting['reason']}: {waiting.get('message') or 'no message'}")
        if ended.get("exitCode"):
            return f"its driver ended with exit code {ended['exitCode']}, {ended.get('reason') or 'Error'}"
    if status.get("phase") == "Failed":
        return in_a_line(f"{status.get('reason') or 'Failed'}: {status.get('message') or 'no message'}")
    for each in status.get("conditions") or []:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return in_a_line(
                f"{each.get('reason') or 'Unschedulable'}: {each.get('message') or 'no message'}"
            )
    return None


def refusal_of(events: Sequence[Json]) -> str | None:
    """Returns what refuses the pod of a Job, as the last of its Events says, or None if there are none."""
    if not events:
        return None
    last = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return _USED.sub("", _IN_FRONT.sub("", last.get("message") or ""))


def _pod(launch: Launch) -> Json:
    template = launch.template
    cores = template.executor.cores
    settings = {**template.spark_conf, "spark.driver.host": _ALONE}
    memory = f"{one_pod_memory(template)}Mi"
    environment = secret_environment(launch)
    secrets, mounts = secret_volumes(launch)
    volumes = template.pod.volumes
    if not any(each.mount_path.rstrip("/") == TMP for each in volumes):
        volumes = (*volumes, SparkVolume.model_construct(name=TMP_VOLUME, mount_path=TMP))
    cpu = template.spark_conf.get("spark.kubernetes.driver.request.cores", str(cores))
    return {
        "restartPolicy": "Never",
        "serviceAccountName": template.service_account,
        # The pod doesn't use the API server.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **pod_fields(template),
        **({"nodeSelector": dict(template.pod.node_selector)} if template.pod.node_selector else {}),
        "containers": [
            {
                "name": _CONTAINER,
                "image": template.image,
                "imagePullPolicy": template.image_pull_policy,
                "args": [
                    "driver",
                    *("--master", f"local[{cores},{_TRIES_OF_A_TASK}]"),
                    *(
                        "--name",
                        application_name(launch.owner, launch.job_kind, launch.job_id, launch.attempt),
                    ),
                    *("--driver-memory", f"{one_pod_heap(template)}m"),
                    *(
                        part
                        for key, value in sorted(settings.items())
                        if key != "spark.driver.memory"
                        for part in ("--conf", f"{key}={value}")
                    ),
                    program(launch),
                    *launch.arguments,
                ],
                **environment,
                "env": [*environment.get("env", ()), {"name": "SPARK_DRIVER_BIND_ADDRESS", "value": _ALONE}],
                "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    *(
                        {"name": each.name, "mountPath": each.mount_path, "readOnly": each.read_only}
                        for each in volumes
                    ),
                    *mounts,
                ],
            }
        ],
        "volumes": [*(_volume(each) for each in volumes), *secrets],
    }


def _volume(volume: SparkVolume) -> Json:
    if volume.claim_name is not None:
        claim = {"claimName": volume.claim_name, "readOnly": volume.read_only}
        return {"name": volume.name, "persistentVolumeClaim": claim}
    limit = {} if volume.size_limit is None else {"sizeLimit": volume.size_limit}
    return {"name": volume.name, "emptyDir": limit}


def _owners(pod: Json) -> list[Any]:
    return [each.get("uid") for each in pod["metadata"].get("ownerReferences", [])]


def _explained(state: AppState, why: str | None) -> AppState:
    match state.phase:
        # If the deadline ended the Job, its pod shows only that it was terminated.
        case AppPhase.PENDING | AppPhase.FAILED if why is not None and ATTEMPT_DEADLINE not in state.message:
            return replace(state, message=why)
        case _:
            return state
