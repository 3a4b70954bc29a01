"""The adapter for the Kubeflow Spark operator, `sparkoperator.k8s.io/v1beta2`.

An application has no state at first. Then it has SUBMITTED, RUNNING, SUCCEEDING, COMPLETED, FAILING, FAILED,
SUBMISSION_FAILED, or a state that leads to one of them. It stays SUBMITTED forever if an image can't be
pulled.

Secrets, security contexts and tolerations are in pod templates, which the Spark operator passes to Spark. It
also has separate fields for them, but those need its webhook, which may be disabled.
"""

from typing import ClassVar, Final

from holdfast_operator.engine.followed import Fields
from holdfast_operator.engine.kube import ResourceType
from holdfast_operator.sparkapps.adapter import AppPhase, Launch
from holdfast_operator.sparkapps.objects import (
    Json,
    ObjectAdapter,
    followed_fields,
    metadata_of,
    pod_metadata,
    pod_settings,
    pod_template,
    program,
)
from holdfast_operator.sparkapps.sizing import driver_overhead, executor_overhead, spark_memory

SPARK_APPLICATIONS: Final = ResourceType("sparkoperator.k8s.io", "v1beta2", "sparkapplications")

_PHASES: Final = {
    "": AppPhase.PENDING,
    "SUBMITTED": AppPhase.PENDING,
    "PENDING_RERUN": AppPhase.PENDING,
    "INVALIDATING": AppPhase.PENDING,
    "SUSPENDING": AppPhase.PENDING,
    "SUSPENDED": AppPhase.PENDING,
    "RESUMING": AppPhase.PENDING,
    "RUNNING": AppPhase.RUNNING,
    "SUCCEEDING": AppPhase.RUNNING,
    "FAILING": AppPhase.RUNNING,
    "COMPLETED": AppPhase.SUCCEEDED,
    "FAILED": AppPhase.FAILED,
    "SUBMISSION_FAILED": AppPhase.FAILED,
}


class KubeflowAdapter(ObjectAdapter):
    """SparkApplications of the Kubeflow Spark operator."""

    name: ClassVar[str] = "kubeflow"
    type_: ClassVar[ResourceType] = SPARK_APPLICATIONS
    fields: ClassVar[Fields] = followed_fields({"applicationState": {"state": None, "errorMessage": None}})
    what: ClassVar[str] = "SparkApplications (sparkoperator.k8s.io/v1beta2)"
    remedy: ClassVar[str] = "install the Kubeflow Spark operator"

    def body(self, launch: Launch) -> Json:
        """Returns the SparkApplication of an attempt."""
        return application(launch)

    def phase_of(self, body: Json) -> tuple[AppPhase, str]:
        """Returns the phase and message from `status.applicationState`."""
        state = body.get("status", {}).get("applicationState", {})
        said = state.get("state", "")
        return _PHASES.get(said, AppPhase.UNCLEAR), state.get("errorMessage") or (
            "" if said in _PHASES else said
        )


def application(launch: Launch) -> Json:
    """Returns the SparkApplication of one attempt."""
    template = launch.template
    return {
        "apiVersion": f"{SPARK_APPLICATIONS.group}/{SPARK_APPLICATIONS.version}",
        "kind": "SparkApplication",
        "metadata": metadata_of(launch),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": template.image,
            "imagePullPolicy": template.image_pull_policy,
            "sparkVersion": template.spark_version,
            "mainApplicationFile": f"local://{program(launch)}",
            "arguments": list(launch.arguments),
            "restartPolicy": {"type": "Never"},
            "timeToLiveSeconds": template.ttl_seconds,
            "sparkConf": {**template.spark_conf, **pod_settings(template)},
            "driver": {
                "cores": template.driver.cores,
                "memory": spark_memory(template.driver.memory),
                **_overhead(driver_overhead(template)),
                "serviceAccount": template.service_account,
                "labels": pod_metadata(launch)["labels"],
                "template": pod_template(launch, "driver"),
            },
            "executor": {
                "instances": template.executor.instances,
                "cores": template.executor.cores,
                "memory": spark_memory(template.executor.memory),
                **_overhead(executor_overhead(template)),
                "labels": pod_metadata(launch)["labels"],
                "template": pod_template(launch, "executor"),
            },
        },
    }


def _overhead(told: str | None) -> Json:
    # Leave the field out, because it takes precedence over the settings.
    return {} if told is None else {"memoryOverhead": told}
