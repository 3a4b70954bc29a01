"""The adapter for the Kubeflow Spark operator, `sparkoperator.k8s.io/v1beta2`.

Its states: none yet, SUBMITTED, RUNNING, SUCCEEDING, COMPLETED, FAILING, FAILED, SUBMISSION_FAILED and a few
that lead to one of them. SUBMITTED can last for ever, where an image can't be pulled.
"""

import hashlib
import re
from datetime import datetime
from typing import Any, Final

from holdfast_operator.api.names import (
    API_VERSION,
    LABEL_ATTEMPT,
    LABEL_COLLECTION,
    LABEL_JOB,
    LABEL_JOB_KIND,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
)
from holdfast_operator.runtime.kube import (
    Exists,
    Forbidden,
    Invalid,
    Kube,
    NotServed,
    ObjectKey,
    ResourceType,
)
from holdfast_operator.sparkapps.adapter import (
    AppPhase,
    AppState,
    Launch,
    NotInstalled,
    Refused,
    SparkAdapter,
)
from holdfast_operator.sparkapps.sizing import driver_overhead, executor_overhead

Json = dict[str, Any]

SPARK_APPLICATIONS: Final = ResourceType("sparkoperator.k8s.io", "v1beta2", "sparkapplications")
JOBS_FOLDER: Final = "local:///opt/holdfast/jobs"
"""Where the image has the programs of the jobs."""

_MAX_LABEL: Final = 63
_MAX_STEM: Final = 24
_MAX_MESSAGE: Final = 500
_PHASES: Final = {
    "RUNNING": AppPhase.RUNNING,
    "SUCCEEDING": AppPhase.RUNNING,
    "FAILING": AppPhase.RUNNING,
    "UNKNOWN": AppPhase.RUNNING,
    "COMPLETED": AppPhase.SUCCEEDED,
    "FAILED": AppPhase.FAILED,
    "SUBMISSION_FAILED": AppPhase.FAILED,
}
_POD_SECURITY: Final[Json] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY: Final[Json] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    **_POD_SECURITY,
}


class KubeflowAdapter(SparkAdapter):
    """SparkApplications of the Kubeflow Spark operator."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def launch(self, launch: Launch) -> None:
        """Make the SparkApplication of an attempt."""
        body = application(launch)
        try:
            await self._kube.create(SPARK_APPLICATIONS, launch.owner.namespace, body)
        except Exists as error:
            # What an owner of this name left, who is gone, may be there for a while.
            there = await self.observe(launch.owner, launch.owner_uid)
            if (launch.job_id, launch.attempt) not in {(app.job_id, app.attempt) for app in there}:
                raise Refused(str(error)) from None
        except NotServed as error:
            raise NotInstalled(str(error)) from None
        except (Forbidden, Invalid) as error:
            raise Refused(str(error)) from None

    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        """The SparkApplications that an object owns."""
        labels = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_COLLECTION}={collection_label(owner, owner_uid)}"
        try:
            found = await self._kube.list(SPARK_APPLICATIONS, owner.namespace, labels=labels)
        except (NotServed, Forbidden) as error:
            raise NotInstalled(str(error)) from None
        states = [state for body in found if _owned(body, owner_uid) if (state := app_state(body))]
        return tuple(sorted(states, key=lambda state: (state.attempt, state.created)))

    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Delete the SparkApplication; its pods go with it."""
        await self._kube.delete(SPARK_APPLICATIONS, owner.namespace, app.name, uid=app.uid)


def application_name(owner: ObjectKey, job_kind: str, job_id: str, attempt: int) -> str:
    """The name of an attempt's application: short enough for the names that Spark derives from it."""
    stem = re.sub(r"[^a-z0-9-]", "-", owner.name)[:_MAX_STEM].strip("-")
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
    return f"{stem}-{job_kind}-{digest}-{attempt}"


def collection_label(owner: ObjectKey, owner_uid: str) -> str:
    """The value of `LABEL_COLLECTION`: the name where it is a label's, else the uid."""
    return owner.name if len(owner.name) <= _MAX_LABEL else owner_uid


def application(launch: Launch) -> Json:
    """The SparkApplication of one attempt."""
    template = launch.template
    labels = {
        LABEL_NAME: "holdfast",
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_COLLECTION: collection_label(launch.owner, launch.owner_uid),
        LABEL_JOB: launch.job_id,
        LABEL_JOB_KIND: launch.job_kind,
        LABEL_ATTEMPT: str(launch.attempt),
    }
    pod: Json = {
        "labels": labels,
        "podSecurityContext": _POD_SECURITY,
        "securityContext": _CONTAINER_SECURITY,
    }
    if launch.secrets:
        pod["envFrom"] = [{"secretRef": {"name": name}} for name in launch.secrets]
    return {
        "apiVersion": f"{SPARK_APPLICATIONS.group}/{SPARK_APPLICATIONS.version}",
        "kind": "SparkApplication",
        "metadata": {
            "name": application_name(launch.owner, launch.job_kind, launch.job_id, launch.attempt),
            "namespace": launch.owner.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": launch.owner.kind.value,
                    "name": launch.owner.name,
                    "uid": launch.owner_uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": template.image,
            "imagePullPolicy": template.image_pull_policy,
            "sparkVersion": template.spark_version,
            "mainApplicationFile": f"{JOBS_FOLDER}/{launch.job_kind}.py",
            "arguments": list(launch.arguments),
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": template.ttl_seconds,
            "sparkConf": dict(template.spark_conf),
            "driver": {
                "cores": template.driver.cores,
                "memory": template.driver.memory,
                **_overhead(driver_overhead(template)),
                "serviceAccount": template.service_account,
                **pod,
            },
            "executor": {
                "instances": template.executor.instances,
                "cores": template.executor.cores,
                "memory": template.executor.memory,
                **_overhead(executor_overhead(template)),
                **pod,
            },
        },
    }


def app_state(body: Json) -> AppState | None:
    """What a SparkApplication says; None for one that isn't an attempt of ours."""
    metadata = body["metadata"]
    labels = metadata.get("labels", {})
    state = body.get("status", {}).get("applicationState", {})
    try:
        attempt = int(labels[LABEL_ATTEMPT])
        job = labels[LABEL_JOB]
    except (KeyError, ValueError):
        return None
    return AppState(
        name=metadata["name"],
        uid=metadata["uid"],
        job_id=job,
        attempt=attempt,
        phase=_PHASES.get(state.get("state", ""), AppPhase.PENDING),
        message=" ".join(str(state.get("errorMessage") or "").split())[:_MAX_MESSAGE],
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
        kind=labels.get(LABEL_JOB_KIND, ""),
    )


def _overhead(told: str | None) -> Json:
    # It would win over the settings.
    return {} if told is None else {"memoryOverhead": told}


def _owned(body: Json, owner_uid: str) -> bool:
    return any(each.get("uid") == owner_uid for each in body["metadata"].get("ownerReferences", []))
