"""The adapter for the Apache Spark Kubernetes operator, `spark.apache.org/v1`.

An application has no state at first. Then it goes through Submitted, DriverRequested, DriverStarted,
DriverReady, several Running... states, and an outcome (Succeeded, Failed and others). Its last state is
ResourceReleased or TerminatedWithoutReleaseResources. These don't show the outcome, but the history before
them does.
"""

from typing import ClassVar, Final

from holdfast_operator.engine.followed import EACH, Fields
from holdfast_operator.engine.kube import ResourceType
from holdfast_operator.sparkapps.adapter import AppPhase, Launch
from holdfast_operator.sparkapps.objects import (
    Json,
    ObjectAdapter,
    followed_fields,
    metadata_of,
    pod_settings,
    pod_template,
    program,
)
from holdfast_operator.sparkapps.sizing import driver_overhead, executor_overhead, spark_memory

APACHE_APPLICATIONS: Final = ResourceType("spark.apache.org", "v1", "sparkapplications")

_ENDS: Final = frozenset({"ResourceReleased", "TerminatedWithoutReleaseResources"})
_PHASES: Final = {
    "": AppPhase.PENDING,
    "Submitted": AppPhase.PENDING,
    "ScheduledToRestart": AppPhase.PENDING,
    "DriverRequested": AppPhase.PENDING,
    "DriverStarted": AppPhase.RUNNING,
    "DriverReady": AppPhase.RUNNING,
    "InitializedBelowThresholdExecutors": AppPhase.RUNNING,
    "RunningHealthy": AppPhase.RUNNING,
    "RunningWithPartialCapacity": AppPhase.RUNNING,
    "RunningWithBelowThresholdExecutors": AppPhase.RUNNING,
    "Succeeded": AppPhase.SUCCEEDED,
    "Failed": AppPhase.FAILED,
    "SchedulingFailure": AppPhase.FAILED,
    "DriverEvicted": AppPhase.FAILED,
    "DriverStartTimedOut": AppPhase.FAILED,
    "DriverReadyTimedOut": AppPhase.FAILED,
    "ExecutorsStartTimedOut": AppPhase.FAILED,
}
_STATE: Final[Fields] = {
    "currentStateSummary": None,
    "message": None,
    "lastObservedDriverStatus": {
        "containerStatuses": {"state": {"terminated": {"exitCode": None, "reason": None}}}
    },
}
_PYTHON: Final = "org.apache.spark.deploy.PythonRunner"


class ApacheAdapter(ObjectAdapter):
    """SparkApplications of the Apache Spark Kubernetes operator."""

    name: ClassVar[str] = "apache"
    type_: ClassVar[ResourceType] = APACHE_APPLICATIONS
    fields: ClassVar[Fields] = followed_fields(
        {"currentState": _STATE, "stateTransitionHistory": {EACH: _STATE}}
    )
    what: ClassVar[str] = "SparkApplications (spark.apache.org/v1)"
    remedy: ClassVar[str] = "install the Apache Spark Kubernetes operator"

    def body(self, launch: Launch) -> Json:
        """Returns the SparkApplication of an attempt."""
        return application(launch)

    def phase_of(self, body: Json) -> tuple[AppPhase, str]:
        """Returns the phase and message from `status.currentState`, or from the state before a final one."""
        status = body.get("status", {})
        state = status.get("currentState") or {}
        said = state.get("currentStateSummary", "")
        if said in _ENDS:
            history = status.get("stateTransitionHistory") or {}
            before = [history[number] for number in sorted(history, key=int)]
            state = next((each for each in reversed(before) if _summary(each) not in _ENDS), state)
            said = _summary(state)
            if _PHASES.get(said) not in {AppPhase.SUCCEEDED, AppPhase.FAILED}:
                # Its pods are gone, and the outcome is unknown.
                return AppPhase.FAILED, f"it ended after {said or 'nothing'}"
        phase = _PHASES.get(said, AppPhase.UNCLEAR)
        match phase:
            case AppPhase.FAILED:
                return phase, f"{said}: {_reason(state)}"
            case AppPhase.UNCLEAR:
                return phase, said
            case _:
                return phase, ""


def application(launch: Launch) -> Json:
    """Returns the SparkApplication of one attempt."""
    template = launch.template
    start = template.start_deadline_seconds * 1000
    return {
        "apiVersion": f"{APACHE_APPLICATIONS.group}/{APACHE_APPLICATIONS.version}",
        "kind": "SparkApplication",
        "metadata": metadata_of(launch),
        "spec": {
            "runtimeVersions": {"sparkVersion": template.spark_version},
            "deploymentMode": "ClusterMode",
            "mainClass": _PYTHON,
            "pyFiles": f"local://{program(launch)}",
            "driverArgs": list(launch.arguments),
            "sparkConf": _settings(launch),
            "applicationTolerations": {
                "restartConfig": {"restartPolicy": "Never"},
                "resourceRetainPolicy": "Never",
                "ttlAfterStopMillis": template.ttl_seconds * 1000,
                "applicationTimeoutConfig": {"driverStartTimeoutMillis": start},
            },
            "driverSpec": {"podTemplateSpec": pod_template(launch, "driver")},
            "executorSpec": {"podTemplateSpec": pod_template(launch, "executor")},
        },
    }


def _settings(launch: Launch) -> dict[str, str]:
    """Returns the Spark settings. Fields of the template take precedence over its `sparkConf`."""
    template = launch.template
    overheads = {
        "spark.driver.memoryOverhead": driver_overhead(template),
        "spark.executor.memoryOverhead": executor_overhead(template),
    }
    return {
        **template.spark_conf,
        **pod_settings(template),
        "spark.kubernetes.container.image": template.image,
        "spark.kubernetes.container.image.pullPolicy": template.image_pull_policy,
        "spark.kubernetes.authenticate.driver.serviceAccountName": template.service_account,
        "spark.driver.cores": str(template.driver.cores),
        "spark.driver.memory": spark_memory(template.driver.memory),
        "spark.executor.instances": str(template.executor.instances),
        "spark.executor.cores": str(template.executor.cores),
        "spark.executor.memory": spark_memory(template.executor.memory),
        **{name: told for name, told in overheads.items() if told is not None},
    }


def _summary(state: Json) -> str:
    return str(state.get("currentStateSummary", ""))


def _reason(state: Json) -> str:
    """Returns the message of a failure. The driver's container knows more than the Spark operator."""
    pod = state.get("lastObservedDriverStatus") or {}
    for each in pod.get("containerStatuses") or []:
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"exit code {ended['exitCode']}, {ended.get('reason') or 'no reason given'}"
    return str(state.get("message") or "no message")
