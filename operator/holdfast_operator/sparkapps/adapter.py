"""How a Spark job is put on the cluster, whatever operator runs it there.

Invariants
- One application per attempt, of a name that no other attempt has; only we try again, as a new attempt.
- An application carries no secret, only the names of Secrets.
- What an application says of itself is a hint: whether its job is done, only the JobRecord says.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.engine.kube import ObjectKey


class AppPhase(StrEnum):
    """Where an application is."""

    PENDING = "pending"
    """Made, or submitted; its driver doesn't run yet."""
    RUNNING = "running"
    UNCLEAR = "unclear"
    """It says something that we don't know: that is no answer."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether it will not change any more."""
        return self in {AppPhase.SUCCEEDED, AppPhase.FAILED}


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


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be started."""

    owner: ObjectKey
    owner_uid: str
    job_kind: str
    job_id: str
    attempt: int
    arguments: tuple[str, ...]
    template: SparkTemplate
    secrets: tuple[str, ...]
    """Names of the Secrets whose keys become environment variables."""


ATTEMPT_DEADLINE: Final = "attemptDeadlineSeconds"


def overran(seconds: int) -> str:
    """What is told of an attempt that this deadline ended, whoever kept it."""
    return f"it did not end within {seconds} s ({ATTEMPT_DEADLINE})"


class NotInstalled(Exception):
    """The cluster doesn't serve the applications of an adapter, or not to us; it says what to do."""


class LaunchRefused(Exception):
    """The cluster doesn't take an application as it is, or another one has its name."""


class SparkAdapter(ABC):
    """Starts, watches and cancels applications."""

    name: ClassVar[str] = ""
    """What the setting that asks for it calls it."""

    def objection(self, template: SparkTemplate) -> str | None:  # noqa: ARG002
        """Why nothing can be launched from a template, and what to do; None where it can."""
        return None

    @abstractmethod
    async def launch(self, launch: Launch) -> None:
        """Make the application of an attempt; one that is there already is fine.

        Raises `NotInstalled`, `LaunchRefused`.
        """

    @abstractmethod
    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        """The applications of an object, oldest attempt first. Raises `NotInstalled`."""

    @abstractmethod
    async def running(self, namespaces: Sequence[str]) -> Mapping[ObjectKey, int]:
        """How many applications that aren't over each object has, in these namespaces; empty: in all.

        Raises `NotInstalled`.
        """

    @abstractmethod
    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        """Take the application away, with its driver and executors; one that is gone is fine."""
