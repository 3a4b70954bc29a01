"""The values that the plan for a CatalogMigration depends on."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from holdfast.catalog.move.plan import MigrationPlan
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import STEPS, Backend, MoveStep, Strategy
from holdfast.catalog.upgrade_report import Size
from holdfast_operator.api.catalog import CatalogFence
from holdfast_operator.api.migration import CatalogMigrationSpec, CatalogMigrationStatus, Verify
from holdfast_operator.catalogs.facts import Opening
from holdfast_operator.engine.deletion import NO_DELETION, Deletion
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.kube import ObjectKey

_LONGEST_ID: Final = 200
_STRATEGIES: Final = {Strategy.ONE_TOMBSTONE: "OneTombstone", Strategy.TWO_TOMBSTONES: "TwoTombstones"}


@dataclass(frozen=True, slots=True)
class MoveState:
    """What both stores record of a catalog and of one of its migrations. Read without a takeover."""

    strategy: Strategy | None = None
    """None if the stores aren't linked yet."""
    truth: Backend | None = None
    stash_epoch: int | None = None
    persist_epoch: int | None = None
    record: Record | None = None
    """The state of the migration. None if it never started."""
    version: int | None = None
    """Format version of the source of truth. None if it isn't initialized or is unknown."""
    other: str = ""
    """The id of another migration that is running."""
    target: Backend | None = None
    """The recorded target of the migration."""


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """A requested migration of a catalog, or its rollback."""

    migration_id: str
    target: Backend
    rollback: bool
    verify: Verify
    purpose: str
    opening: Opening
    """How to open the catalog: its stores and the holder."""

    @property
    def destination(self) -> Backend:
        """The source of truth at the end."""
        return self.target.other if self.rollback else self.target


@dataclass(frozen=True, slots=True)
class Course:
    """The progress of a migration in this process since its first step, or since the last restart."""

    move: RequestedMove
    """The migration as it was requested."""
    calls: int = 0
    """The number of calls for a step."""
    strategy: Strategy | None = None
    done: MoveStep | None = None
    """The last step that was done."""
    truth: Backend | None = None
    epoch: int | None = None
    """Epoch of the token, which is the same in both stores."""
    sizes: Mapping[str, Size] = field(default_factory=dict)
    compared: str = ""
    """Describes what was compared and found equal."""
    shadow_until: datetime | None = None
    """The time until which the catalog stays open in both stores. None if it was not opened."""
    shadowed: bool = False
    """Whether that time is over."""

    @property
    def next(self) -> MoveStep | None:
        """The next step, or None after the last one."""
        # The first steps are the same with both strategies.
        steps = STEPS[self.strategy or Strategy.ONE_TOMBSTONE, self.move.destination]
        number = self.done.number if self.done else 0
        return steps[number] if number < len(steps) else None


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """The result of a dry run."""

    lines: tuple[str, ...]
    truth: Backend
    strategy: Strategy
    sizes: Mapping[str, Size]
    refused: str = ""
    """Why the migration can't run."""


def plan_message(plan: MigrationPlan) -> DryRunResult:
    """Returns a plan as text, with one line for each action."""
    places = {backend: f"{backend.value} ({place})" for backend, place in plan.places.items()}
    lines = [f"the source of truth is {places[plan.source]}"]
    if plan.links:
        lines.append(f"the two stores would be linked, with strategy {_STRATEGIES[plan.strategy]}")
    if plan.upgrade is not None:
        lines.append("it would be upgraded from format version {} to {}".format(*plan.upgrade))
    if plan.refused is not None:
        lines.append(f"it would be refused: {plan.refused}")
    elif not plan.steps:
        lines.append(f"nothing would be done: the migration is {plan.record}")
    elif plan.source is plan.destination:
        lines.append(f"nothing would be moved: the source of truth is already {plan.destination.value}")
    else:
        size = total(plan.sizes)
        lines.append(f"{size.rows} rows of {size.bytes} bytes would be moved to {places[plan.destination]}")
        lines += [f"step {step}" for step in plan.steps]
    refused = "" if plan.refused is None else str(plan.refused)
    return DryRunResult(tuple(lines), plan.source, plan.strategy, plan.sizes, refused)


def total(sizes: Mapping[str, Size]) -> Size:
    """Returns the sum over all object types."""
    return Size(sum(size.rows for size in sizes.values()), sum(size.bytes for size in sizes.values()))


def migration_id(key: ObjectKey, uid: str, spec: CatalogMigrationSpec, shown: str | None) -> str:
    """Returns the id of a migration in the catalog's records. `shown` is the id in its status.

    The default is uid/namespace/name, so a resource that is created again under the same name is another
    migration. A migration that an earlier version started under namespace/name keeps that id.
    """
    if spec.migration_id is not None:
        return spec.migration_id
    name = f"{key.namespace}/{key.name}"
    if shown is not None and shown == _name_without_uid(name):
        return shown
    return f"{uid}/{name}"[:_LONGEST_ID].rstrip(".-/")


def _name_without_uid(name: str) -> str:
    """Returns the default id of a migration in earlier versions."""
    if len(name) <= _LONGEST_ID:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST_ID - 17].rstrip('.-/')}-{digest}"


@dataclass(frozen=True, kw_only=True)
class MigrationView:
    """Everything that the plan for a CatalogMigration depends on."""

    name: str
    spec: CatalogMigrationSpec | None
    problem: str = ""
    """Why `spec` is None."""
    deleting: bool = False
    deletion: Deletion = NO_DELETION
    """The progress of the deletion."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """The result of the function `needs_finalizer`."""
    now: datetime
    changed: bool = False
    """Whether the spec has changed since the status was written."""
    shown: CatalogMigrationStatus = field(default_factory=CatalogMigrationStatus)
    """The current status."""
    no_catalog: Health | None = None
    """Why there is no catalog to move, or None."""
    catalog_missing: bool = False
    catalog_deleting: bool = False
    catalog_loose: bool = False
    """Whether a deletion of the Catalog wouldn't wait for this resource."""
    catalog_observed: bool = False
    """Whether a database process writes the catalog."""
    known_epoch: int = 0
    """The epoch at which the operator last had the catalog open, from the Catalog's status."""
    catalog_fences: tuple[CatalogFence, ...] = ()
    """The other operators that took the catalog over, from the Catalog's status."""
    catalog_open: bool = False
    """Whether this process has the Catalog's own handle open, or is opening it."""
    move: RequestedMove | None = None
    """The requested migration, if there is a catalog to move."""
    rival: str = ""
    """Another CatalogMigration that holds the catalog in this process."""
    state: MoveState | None = None
    """The state in the stores. None if they were not read."""
    trouble: Health | None = None
    """Why the stores could not be read."""
    course: Course | None = None
    """The progress in this process. None if the migration hasn't started here or was stopped."""
    stepping: bool = False
    """Whether a step is running, or its result isn't taken yet."""
    planned: DryRunResult | None = None
    """The result of a dry run."""
    fences: tuple[CatalogFence, ...] = ()
    """The other operators that took the migration over since the resource was last changed."""

    @property
    def deadline(self) -> datetime | None:
        """The time after which no step runs. It is the shown time, unless the spec has changed."""
        if self.spec is None or (self.shown.deadline is not None and not self.changed):
            return self.shown.deadline
        span = self.spec.timeout_seconds + (0.0 if self.spec.rollback else self.spec.shadow_seconds)
        return (self.now + timedelta(seconds=span)).replace(microsecond=0)
