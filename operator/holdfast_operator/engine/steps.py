"""What a plan may decide: the steps that all kinds share.

Invariants
- A step is a value: it can be compared in tests and printed in logs.
- A `Rest` ends a reconcile; every other step is taken and then the world is looked at again.
- At most one irreversible step is taken in a reconcile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast_operator.api.names import Reason
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.status import Health, Phase, WantedCondition


@dataclass(frozen=True)
class Decision:
    """One decision."""

    irreversible: ClassVar[bool] = False


@dataclass(frozen=True)
class StoreChange(Decision):
    """A change in a store; `call` is its name in metrics."""

    irreversible: ClassVar[bool] = True
    call: ClassVar[str]


@dataclass(frozen=True)
class Rest(Decision):
    """Nothing more is done in this reconcile."""


@dataclass(frozen=True)
class Settle(Rest):
    """Show this and rest.

    `fields` is the status of the kind; None leaves what is there, because nothing is known better.
    `requeue_after`: seconds until it is looked at again; `retry`: after the key's backoff instead. `notes`
    are told when that is shown, beside what the conditions tell.
    """

    health: Health
    fields: Mapping[str, Any] | None = None
    conditions: tuple[WantedCondition, ...] = ()
    requeue_after: float | None = None
    retry: bool = False
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Wait(Rest):
    """Nothing to show yet; look again after `requeue_after` seconds or when something changes."""

    requeue_after: float | None = None


@dataclass(frozen=True)
class Keep(Rest):
    """The finalizer is put on, before anything is made that a deletion would have to clean up."""


@dataclass(frozen=True)
class KeepCatalog(Decision):
    """The finalizer is put on the Catalog that a resource refers to, and needs until its own end."""


@dataclass(frozen=True)
class Free(Rest):
    """The finalizer is taken off a resource that isn't being deleted: a deletion has nothing to clean up."""


@dataclass(frozen=True)
class Release(Rest):
    """Everything that a deletion asks for is done: the finalizer may go."""

    notes: tuple[Note, ...] = field(default=())


def ready(message: str) -> Health:
    """All is as asked."""
    return Health(Phase.READY, Reason.AVAILABLE, message)


def reconciling(reason: Reason, message: str) -> Health:
    """At work, or waiting for what comes by itself."""
    return Health(Phase.RECONCILING, reason, message)


def stalled(reason: Reason, message: str) -> Health:
    """Somebody has to do something."""
    return Health(Phase.STALLED, reason, message)


SUSPENDED = Health(
    Phase.SUSPENDED, Reason.SUSPENDED, "suspended: set spec.suspend to false to go on where it was left"
)


@dataclass(frozen=True)
class Rhythm:
    """Seconds between two looks at an object: while it moves, and while it rests."""

    unsteady: float = 2.0
    steady: float = 60.0
