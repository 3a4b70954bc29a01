"""The steps that the plans of all kinds share.

Invariants
- A step is a value. Tests can compare it, and logs can print it.
- A `Rest` ends a reconciliation. After any other step is applied, everything is observed again.
- A reconciliation applies at most one irreversible step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast_operator.api.names import Reason
from holdfast_operator.engine.events import Note
from holdfast_operator.engine.health import Health, Phase, WantedCondition


@dataclass(frozen=True)
class Decision:
    """A step that a plan chooses."""

    irreversible: ClassVar[bool] = False


@dataclass(frozen=True)
class StoreChange(Decision):
    """A change in a store. `call` is its name in metrics."""

    irreversible: ClassVar[bool] = True
    call: ClassVar[str]


@dataclass(frozen=True)
class Rest(Decision):
    """Ends this reconciliation."""


@dataclass(frozen=True)
class Settle(Rest):
    """Show this, and rest.

    `fields` are the status fields of the kind. None keeps the current ones. The object is reconciled again
    after `requeue_after` seconds, or with `retry` after its backoff. `notes` are further Events, which are
    posted together with those for changed conditions.
    """

    health: Health
    fields: Mapping[str, Any] | None = None
    conditions: tuple[WantedCondition, ...] = ()
    requeue_after: float | None = None
    retry: bool = False
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Wait(Rest):
    """Show nothing new. Reconcile again after `requeue_after` seconds, or when something changes."""

    requeue_after: float | None = None


@dataclass(frozen=True)
class Keep(Rest):
    """Set the finalizer, before anything is created that a deletion must clean up."""


@dataclass(frozen=True)
class KeepCatalog(Decision):
    """Set the finalizer of the Catalog that a resource refers to, which must outlive the resource."""


@dataclass(frozen=True)
class Free(Rest):
    """Remove the finalizer of a resource that isn't being deleted, because nothing needs to be cleaned up."""


@dataclass(frozen=True)
class Release(Rest):
    """Remove the finalizer, because the deletion is finished."""

    notes: tuple[Note, ...] = field(default=())


def ready(message: str) -> Health:
    """Returns a health: everything matches the spec."""
    return Health(Phase.READY, Reason.AVAILABLE, message)


def reconciling(reason: Reason, message: str) -> Health:
    """Returns a health: the operator is working, or waits for something that happens without the user."""
    return Health(Phase.RECONCILING, reason, message)


def stalled(reason: Reason, message: str) -> Health:
    """Returns a health: the user has to do something."""
    return Health(Phase.STALLED, reason, message)


SUSPENDED = Health(Phase.SUSPENDED, Reason.SUSPENDED, "suspended: to continue, set spec.suspend to false")


@dataclass(frozen=True)
class Rhythm:
    """Seconds between two reconciliations of an object: while it changes, and while it rests."""

    unsteady: float = 2.0
    steady: float = 60.0
