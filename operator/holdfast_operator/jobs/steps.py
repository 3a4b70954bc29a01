"""The steps that the plans for Spark jobs may decide on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.collections import JobRecord
from holdfast_operator.engine.steps import Decision, StoreChange
from holdfast_operator.sparkapps.adapter import AppState


@dataclass(frozen=True)
class StartJob(StoreChange):
    """Put a job on record, Running its first attempt; then its application is launched."""

    call: ClassVar[str] = "start_job"
    collection_id: str
    kind: str
    slot: str
    spec: Mapping[str, Any]
    tasks: int


@dataclass(frozen=True)
class RetryJob(StoreChange):
    """Put the next attempt on record; then its application is launched."""

    call: ClassVar[str] = "retry_job"
    collection_id: str
    job_id: str
    tasks: int
    abandoned: int | None = None
    """The attempt that is on record as running and that nobody is at any more."""


@dataclass(frozen=True)
class LaunchAttempt(Decision):
    """Launch the application of an attempt that is on record; one that is there already is fine."""

    irreversible: ClassVar[bool] = True
    collection_id: str
    job: JobRecord
    tasks: int


@dataclass(frozen=True)
class FailAttempt(StoreChange):
    """Put on record that an attempt failed, then take its application away where there is one.

    One that was `stopped` is no failure of the job.
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
    """Remove the records of runs that are long over."""

    call: ClassVar[str] = "forget_jobs"
    job_ids: tuple[str, ...]
