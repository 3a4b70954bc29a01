"""The status of a SparkApplication of the Kubeflow Spark operator: names, states, and ways to fail.

The states are those of the real operator, in its order: none, SUBMITTED, RUNNING, SUCCEEDING and COMPLETED
(or FAILING and FAILED). A submission that fails goes from none to SUBMISSION_FAILED, and without a retry to
FAILED. No pods exist: `driverInfo.podName` and `executorState` contain the names that they would have.
"""

import uuid
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

GROUP: Final = "sparkoperator.k8s.io"
VERSION: Final = "v1beta2"
PLURAL: Final = "sparkapplications"
MISBEHAVE: Final = "testbed.holdfast.dev/misbehave"
"""Annotation of a SparkApplication whose value is a `Misbehaviour`."""


class Misbehaviour(StrEnum):
    """What the stand-in does to one application instead of serving it."""

    HANG = "hang"
    """SUBMITTED for ever, as with an image that can't be pulled; no driver runs."""
    VANISH = "vanish"
    """The object is deleted once it is RUNNING; no driver runs."""
    LOSE_DRIVER = "lose-driver"
    """The driver is killed before it does anything, and the state stays RUNNING."""
    LIE = "lie"
    """COMPLETED, and no driver ever ran."""
    LIE_FAILED = "lie-failed"
    """The driver does all its work and ends well; the state is FAILED."""
    TWICE = "twice"
    """Two drivers run at once; the state follows the first."""


class State(StrEnum):
    """`status.applicationState.state`, as far as it is written here."""

    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    SUCCEEDING = "SUCCEEDING"
    COMPLETED = "COMPLETED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    SUBMISSION_FAILED = "SUBMISSION_FAILED"


TERMINAL: Final = frozenset({State.COMPLETED, State.FAILED})
"""The states that stay."""


def annotated(application: Mapping[str, Any]) -> Misbehaviour | None:
    """The misbehaviour that an application's annotation asks for; raises `ValueError` for an unknown one."""
    asked = application["metadata"].get("annotations", {}).get(MISBEHAVE)
    return None if asked is None else Misbehaviour(asked)


def status_patch(
    name: str, spec: Mapping[str, Any], state: State, message: str = "", *, now: datetime
) -> dict[str, Any]:
    """What entering `state` changes in the status of an application, as a merge patch."""
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    patch: dict[str, Any] = {"applicationState": {"state": state.value, "errorMessage": message or None}}
    if state in (State.SUBMITTED, State.SUBMISSION_FAILED):
        patch |= {"submissionAttempts": 1, "lastSubmissionAttemptTime": at, "terminationTime": None}
    if state is State.SUBMISSION_FAILED:
        patch |= {"driverInfo": {}}
    if state is State.SUBMITTED:
        patch |= {
            "driverInfo": {"podName": f"{name}-driver"},
            "executionAttempts": 1,
            "submissionID": str(uuid.uuid4()),
        }
    if state is State.RUNNING:
        patch |= {
            "sparkApplicationId": f"spark-{uuid.uuid4().hex}",
            "executorState": _executors(name, spec, "RUNNING"),
        }
    if state in (State.SUCCEEDING, State.FAILING):
        patch |= {"terminationTime": at}
    if state is State.FAILED:
        # A submission that failed ends without FAILING before it.
        patch |= {"terminationTime": at}
    if state in TERMINAL:
        patch |= {"executorState": _executors(name, spec, state.value)}
    return patch


def exit_message(code: int) -> str:
    """What the status says of a driver that ended with `code`."""
    return f"driver container failed with ExitCode: {code}, Reason: Error"


def _executors(name: str, spec: Mapping[str, Any], state: str) -> dict[str, str]:
    numbers = range(1, int(spec.get("executor", {}).get("instances", 1)) + 1)
    return {f"{name}-exec-{number}": state for number in numbers}
