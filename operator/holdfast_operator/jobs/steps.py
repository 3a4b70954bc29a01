"""The steps that the plans for Spark jobs can choose."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.collections import JobRecord
from holdfast_operator.engine.steps import Decision, StoreChange
from holdfast_operator.sparkapps.adapter import AppState


@dataclass(frozen=True)
class StartJob(StoreChange):
    """Record a job that runs its first attempt, and then launch its application."""

    call: ClassVar[str] = "start_job"
    collection_id: str
    kind: str
    slot: str
    spec: Mapping[str, Any]
    tasks: int
    limited: bool = True
    """Whether it counts against the limits of concurrent jobs."""


@dataclass(frozen=True)
class RetryJob(StoreChange):
    """Record the next attempt, and then launch its application."""

    call: ClassVar[str] = "retry_job"
    collection_id: str
    job_id: str
    tasks: int
    abandoned: int | None = None
    """An attempt that is recorded as running, but that no process works on any more."""
    limited: bool = True
    """As for `StartJob`."""


@dataclass(frozen=True)
class LaunchAttempt(Decision):
    """Launch the application of a recorded attempt, unless it exists already."""

    irreversible: ClassVar[bool] = True
    collection_id: str
    job: JobRecord
    tasks: int
    limited: bool = True
    """As for `StartJob`."""


@dataclass(frozen=True)
class FailAttempt(StoreChange):
    """Record that an attempt failed, and then delete its application, if there is one.

    An attempt that was `stopped` doesn't count as a failure of the job.
    """

    call: ClassVar[str] = "fail_job"
    kind: str
    job_id: str
    attempt: int
    error: str
    app: AppState | None = None
    stopped: bool = False


@dataclass(frozen=True)
class ForgetRuns(StoreChange):
    """Remove the records of old runs."""

    call: ClassVar[str] = "forget_jobs"
    job_ids: tuple[str, ...]
