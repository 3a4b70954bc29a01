"""The three kinds of objects that the stand-in runs drivers for, each with its fields and its status.

- `KUBEFLOW`: SparkApplications of the Kubeflow operator. The other kinds are translated to it.
- `APACHE`: SparkApplications of the Apache operator. Its status is a history, and ends without a verdict.
- `PODS`: pods of plain Jobs. The stand-in is their kubelet. The real controller manages the Jobs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from testbed import sparkstatus
from testbed.sparkstatus import State

Json = dict[str, Any]

_PYTHON: Final = "org.apache.spark.deploy.PythonRunner"
_OURS: Final = "app.kubernetes.io/managed-by=holdfast-operator"


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be said of an application."""

    state: State
    message: str = ""
    code: int = 0
    """With which its driver ended."""
    stuck: bool = False
    """Whether it will stay so for ever."""


@dataclass(frozen=True, slots=True)
class Target:
    """An object that can be deleted."""

    group: str
    version: str
    plural: str
    name: str
    uid: str


class Face(ABC):
    """One kind of objects."""

    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    labels: ClassVar[str] = ""
    """The selector of those that are served."""

    @abstractmethod
    def spec(self, found: Mapping[str, Any]) -> Json:
        """What to run, as the spec of Kubeflow's SparkApplication says it."""

    @abstractmethod
    def state(self, found: Mapping[str, Any]) -> str:
        """The state that an object is in, as Kubeflow's operator has it; empty for none."""

    @abstractmethod
    def statuses(self, found: Mapping[str, Any], report: Report, step: int, now: datetime) -> Sequence[Json]:
        """The merge patches of the status, one after the other; `step` is how many there were before."""

    def target(self, found: Mapping[str, Any]) -> Target:
        """What is deleted where an application vanishes."""
        metadata = found["metadata"]
        return Target(self.group, self.version, self.plural, metadata["name"], metadata["uid"])


class Kubeflow(Face):
    """SparkApplications of the Kubeflow operator."""

    group = sparkstatus.GROUP
    version = sparkstatus.VERSION
    plural = sparkstatus.PLURAL

    def spec(self, found: Mapping[str, Any]) -> Json:
        spec = found["spec"]
        driver = spec.get("driver", {})
        pod = driver.get("template", {}).get("spec", {})
        (container,) = pod.get("containers", ()) or ({},)
        return {**spec, "driver": {**container, "volumes": pod.get("volumes", ()), **driver}}

    def state(self, found: Mapping[str, Any]) -> str:
        return str(found.get("status", {}).get("applicationState", {}).get("state", ""))

    def statuses(self, found: Mapping[str, Any], report: Report, step: int, now: datetime) -> Sequence[Json]:
        name = found["metadata"]["name"]
        return [sparkstatus.status_patch(name, found["spec"], report.state, report.message, now=now)]


class Apache(Face):
    """SparkApplications of the Apache operator."""

    group = "spark.apache.org"
    version = "v1"
    plural = "sparkapplications"

    _SAID: ClassVar[Mapping[State, Sequence[str]]] = {
        State.SUBMITTED: ("Submitted", "DriverRequested"),
        State.RUNNING: ("DriverStarted", "DriverReady", "RunningHealthy"),
        State.SUCCEEDING: ("Succeeded",),
        State.COMPLETED: ("ResourceReleased",),
        State.FAILING: ("Failed",),
        State.FAILED: ("ResourceReleased",),
        State.SUBMISSION_FAILED: ("SchedulingFailure",),
    }

    def spec(self, found: Mapping[str, Any]) -> Json:
        spec = found["spec"]
        tolerations = spec.get("applicationTolerations", {})
        pod = spec.get("driverSpec", {}).get("podTemplateSpec", {}).get("spec", {})
        container: Json = next(iter(pod.get("containers", ())), {})
        settings = spec.get("sparkConf", {})
        memory = settings.get("spark.driver.memory")
        ttl = tolerations.get("ttlAfterStopMillis", -1)
        return {
            "type": "Python" if spec.get("mainClass") == _PYTHON else spec.get("mainClass"),
            "mode": "cluster" if spec.get("deploymentMode", "ClusterMode") == "ClusterMode" else "client",
            "restartPolicy": {"type": tolerations.get("restartConfig", {}).get("restartPolicy", "Never")},
            "mainApplicationFile": spec.get("pyFiles", ""),
            "arguments": spec.get("driverArgs", []),
            "sparkConf": settings,
            "driver": {
                **container,
                "volumes": pod.get("volumes", ()),
                **({"memory": memory} if memory else {}),
            },
            "executor": {"instances": int(settings.get("spark.executor.instances", 1))},
            **({"timeToLiveSeconds": ttl / 1000} if ttl >= 0 else {}),
        }

    def state(self, found: Mapping[str, Any]) -> str:
        said = found.get("status", {}).get("currentState", {}).get("currentStateSummary", "")
        return State.COMPLETED if said in self._SAID[State.COMPLETED] else str(said)

    def statuses(self, found: Mapping[str, Any], report: Report, step: int, now: datetime) -> Sequence[Json]:
        at = now.isoformat().replace("+00:00", "Z")
        patches = []
        for number, said in enumerate(self._SAID[report.state], step):
            state = {"currentStateSummary": said, "lastTransitionTime": at, "message": report.message}
            patches.append({"currentState": state, "stateTransitionHistory": {str(number): state}})
        return patches


class Pods(Face):
    """Pods of plain Jobs, which hold the whole of Spark."""

    group = ""
    version = "v1"
    plural = "pods"
    labels = _OURS

    def spec(self, found: Mapping[str, Any]) -> Json:
        (container,) = found["spec"]["containers"]
        role, *words = container["args"]
        options, rest = _options(words)
        memory = options.get("--driver-memory")
        settings = dict(each.split("=", 1) for each in options.get("--conf", ()))
        return {
            "type": "Python" if role == "driver" else role,
            "mode": "cluster",
            "restartPolicy": {"type": found["spec"]["restartPolicy"]},
            "mainApplicationFile": f"local://{rest[0]}",
            "arguments": rest[1:],
            "sparkConf": settings,
            "driver": {
                **container,
                "volumes": found["spec"].get("volumes", ()),
                **({"memory": memory[-1]} if memory else {}),
            },
        }

    def state(self, found: Mapping[str, Any]) -> str:
        status = found.get("status", {})
        match status.get("phase"):
            case "Succeeded" | "Failed":
                return State.COMPLETED
            case "Running":
                return State.RUNNING
            case _:
                return State.SUBMITTED if status.get("containerStatuses") else ""

    def statuses(self, found: Mapping[str, Any], report: Report, step: int, now: datetime) -> Sequence[Json]:
        (container,) = found["spec"]["containers"]
        at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        state: Json
        ended: Json = {"exitCode": report.code, "startedAt": at, "finishedAt": at}
        match report.state:
            case State.SUBMITTED if report.stuck:
                phase, state = "Pending", {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            case State.SUBMITTED:
                phase, state = "Pending", {"waiting": {"reason": "ContainerCreating"}}
            case State.RUNNING:
                phase, state = "Running", {"running": {"startedAt": at}}
            case State.COMPLETED:
                phase, state = "Succeeded", {"terminated": {**ended, "reason": "Completed"}}
            case State.FAILED:
                failed = {**ended, "exitCode": report.code or 1, "reason": "Error"}
                phase, state = "Failed", {"terminated": failed}
            case _:
                # A pod goes from running to its end at once.
                return []
        runs = report.state is State.RUNNING
        told = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": runs,
            "started": runs,
            "restartCount": 0,
            "state": state,
        }
        ready = {"type": "Ready", "status": str(runs), "lastTransitionTime": at}
        return [{"phase": phase, "startTime": at, "conditions": [ready], "containerStatuses": [told]}]

    def target(self, found: Mapping[str, Any]) -> Target:
        owners = found["metadata"]["ownerReferences"]
        job = next(each for each in owners if each["kind"] == "Job")
        return Target("batch", "v1", "jobs", job["name"], job["uid"])


def _options(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options of a `spark-submit`, each with its values, and what follows them."""
    options: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("--"):
        options.setdefault(rest[0], []).append(rest[1])
        del rest[:2]
    return options, rest


KUBEFLOW: Final = Kubeflow()
APACHE: Final = Apache()
PODS: Final = Pods()
