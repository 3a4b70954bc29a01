"""The interface of an adapter, which runs Spark jobs on the cluster.

Invariants
- Each attempt has one application with a unique name. Only the operator retries, with a new attempt.
- An application contains no secrets, only names of Secrets.
- The state of an application is only a hint. The JobRecord decides whether the job is done.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.kube import ObjectKey


class AppPhase(StrEnum):
    """The phase of an application."""

    PENDING = "pending"
    """Created or submitted. Its driver doesn't run yet."""
    RUNNING = "running"
    UNCLEAR = "unclear"
    """The operator doesn't know its state."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether the phase is final."""
        return self in {AppPhase.SUCCEEDED, AppPhase.FAILED}


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An adapter whose last application in a namespace nobody noticed."""

    adapter: str
    created: datetime
    """When that application was created."""


@dataclass(frozen=True, slots=True)
class AppState:
    """An application as it was seen."""

    name: str
    uid: str
    job_id: str
    attempt: int
    phase: AppPhase
    message: str
    created: datetime
    kind: str = "snapshot"
    """The kind of its job."""
    via: str = ""
    """The name of the adapter that it belongs to."""
    is_noticed: bool = True
    """Whether somebody has set its status, as whatever runs it does first."""
    passed_over: tuple[PassedOver, ...] = ()
    """Why other adapters did not launch it."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An application that isn't over and counts against the limits of concurrent jobs."""

    owner: ObjectKey
    owner_uid: str
    name: str


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """A Secret of which pods get these keys as files. Without `shared`, only the driver does."""

    name: str
    keys: tuple[str, ...]
    shared: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt to start."""

    owner: ObjectKey
    owner_uid: str
    job_kind: str
    job_id: str
    attempt: int
    arguments: tuple[str, ...]
    template: SparkTemplate
    store_keys: SecretFiles | None = None
    """The keys of the catalog's stores. No pod starts without them."""
    files: tuple[SecretFiles, ...] = ()
    """The Secrets of the job's source, each once."""
    passed_over: tuple[PassedOver, ...] = ()
    """As in `AppState`."""


INGEST: Final = "ingest"
"""The kind of jobs that read a source. They don't count against the limits of concurrent jobs."""
ATTEMPT_DEADLINE: Final = "attemptDeadline"


def overran(seconds: int) -> str:
    """Returns the message for an attempt that this deadline ended."""
    return f"it did not end within {seconds} s ({ATTEMPT_DEADLINE})"


class NotInstalled(Exception):
    """The cluster doesn't serve an adapter's applications to the operator. The message says what to do."""


class LaunchRefused(Exception):
    """The cluster rejects an application, or another object has its name."""


class LaunchDenied(LaunchRefused):
    """A quota has no room for an application now, or a webhook of the cluster doesn't respond."""


class SparkAdapter(ABC):
    """Starts, watches and cancels applications."""

    name: ClassVar[str] = ""
    """The name of the adapter in `--spark-adapter`."""

    def objection(self, template: SparkTemplate) -> str | None:  # noqa: ARG002
        """Returns why a template can't be launched, and what to do, or None if it can."""
        return None

    @abstractmethod
    async def launch(self, launch: Launch) -> None:
        """Creates the application of an attempt, unless it exists already.

        Raises `NotInstalled`, `LaunchRefused`.
        """

    @abstractmethod
    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        """Returns the applications of an object, oldest attempt first. Raises `NotInstalled`."""

    @abstractmethod
    async def unfinished(self, namespaces: Sequence[str]) -> Collection[Unfinished]:
        """Returns the unfinished applications in these namespaces, or in all if empty.

        Others may have made some of them, because labels and owners can be forged. Leaves out those of kind
        `INGEST`. Raises `NotInstalled`.
        """

    @abstractmethod
    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Deletes the application with its driver and executors. Does nothing if it is already gone."""
