"""What is known of the move of a catalog: the values that its plan is made from."""

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
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status import Health

_LONGEST_ID: Final = 200
_STRATEGIES: Final = {Strategy.ONE_TOMBSTONE: "OneTombstone", Strategy.TWO_TOMBSTONES: "TwoTombstones"}


@dataclass(frozen=True, slots=True)
class MoveState:
    """What both stores say about a catalog and about one of its migrations; read without taking it over."""

    strategy: Strategy | None = None
    """None where they aren't linked yet."""
    truth: Backend | None = None
    stash_epoch: int | None = None
    persist_epoch: int | None = None
    record: Record | None = None
    """How far the migration is; None where it never began."""
    version: int | None = None
    """Version of the format of what is the truth; None where it isn't initialized, or isn't known."""
    other: str = ""
    """The id of another migration that is running."""
    target: Backend | None = None
    """Where the migration of that id was to go when it began."""


@dataclass(frozen=True, slots=True)
class RequestedMove:
    """What is asked for: a migration of a catalog, or its way back."""

    migration_id: str
    target: Backend
    rollback: bool
    verify: Verify
    purpose: str
    opening: Opening
    """How the catalog is opened: where its stores are, and by whom."""

    @property
    def destination(self) -> Backend:
        """Where the truth is in the end."""
        return self.target.other if self.rollback else self.target


@dataclass(frozen=True, slots=True)
class Course:
    """What this process did for a migration since it began, or began anew, to take its steps."""

    move: RequestedMove
    """What it did it for."""
    calls: int = 0
    """How often it was asked for a step."""
    strategy: Strategy | None = None
    done: MoveStep | None = None
    """The last step that was done."""
    truth: Backend | None = None
    epoch: int | None = None
    """Of the token, which is the same in both stores."""
    sizes: Mapping[str, Size] = field(default_factory=dict)
    compared: str = ""
    """What was compared and found equal, for people."""
    shadow_until: datetime | None = None
    """When the catalog was opened in both stores: until then it stays so."""
    shadowed: bool = False
    """Whether that is over."""

    @property
    def next(self) -> MoveStep | None:
        """The step that follows; None after the last one."""
        # The first steps are the same with both strategies.
        steps = STEPS[self.strategy or Strategy.ONE_TOMBSTONE, self.move.destination]
        number = self.done.number if self.done else 0
        return steps[number] if number < len(steps) else None


@dataclass(frozen=True, slots=True)
class DryRunResult:
    """What a dry run found."""

    lines: tuple[str, ...]
    truth: Backend
    strategy: Strategy
    sizes: Mapping[str, Size]
    refused: str = ""
    """Why it can't be done."""


def plan_message(plan: MigrationPlan) -> DryRunResult:
    """A plan for people, one line for each thing that would be done."""
    places = {backend: f"{backend.value} ({place})" for backend, place in plan.places.items()}
    lines = [f"the source of truth is {places[plan.source]}"]
    if plan.links:
        lines.append(f"the two stores would be linked, with strategy {_STRATEGIES[plan.strategy]}")
    if plan.upgrade is not None:
        lines.append("it would be upgraded from format version {} to {}".format(*plan.upgrade))
    if plan.refused is not None:
        lines.append(f"it would be refused: {plan.refused}")
    elif not plan.steps:
        lines.append(f"nothing would be done: it is {plan.record}")
    elif plan.source is plan.destination:
        lines.append(f"nothing would be moved: the source of truth is {plan.destination.value} already")
    else:
        size = total(plan.sizes)
        lines.append(f"{size.rows} rows of {size.bytes} bytes would be moved to {places[plan.destination]}")
        lines += [f"step {step}" for step in plan.steps]
    refused = "" if plan.refused is None else str(plan.refused)
    return DryRunResult(tuple(lines), plan.source, plan.strategy, plan.sizes, refused)


def total(sizes: Mapping[str, Size]) -> Size:
    """The sum over all object types."""
    return Size(sum(size.rows for size in sizes.values()), sum(size.bytes for size in sizes.values()))


def migration_id(key: ObjectKey, uid: str, spec: CatalogMigrationSpec, shown: str | None) -> str:
    """The name of a migration in the catalog's records, where `shown` is the one in its status.

    By default uid/namespace/name: a resource that is created again under the same name is another migration.
    A resource that an earlier version began under namespace/name keeps that name.
    """
    if spec.migration_id is not None:
        return spec.migration_id
    name = f"{key.namespace}/{key.name}"
    if shown is not None and shown == _name_without_uid(name):
        return shown
    return f"{uid}/{name}"[:_LONGEST_ID].rstrip(".-/")


def _name_without_uid(name: str) -> str:
    """What earlier versions called a migration by default."""
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
    """How far the deletion is."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """As the function of that name says."""
    now: datetime
    changed: bool = False
    """Whether the spec was changed since the status was written."""
    shown: CatalogMigrationStatus = field(default_factory=CatalogMigrationStatus)
    """The status as it is shown."""
    no_catalog: Health | None = None
    """Why there is nothing to move; None where there is."""
    catalog_missing: bool = False
    catalog_deleting: bool = False
    catalog_loose: bool = False
    """Whether a deletion of the Catalog wouldn't wait for this resource."""
    catalog_observed: bool = False
    """Whether a database process writes the catalog."""
    known_epoch: int = 0
    """At which the operator had the catalog open last, as its Catalog shows."""
    catalog_open: bool = False
    """Whether this process has the Catalog's own handle open, or is about to."""
    move: RequestedMove | None = None
    """What is asked for, where there is a catalog to do it with."""
    rival: str = ""
    """Another CatalogMigration that has the catalog in this process."""
    state: MoveState | None = None
    """What the stores say; None where they weren't asked."""
    trouble: Health | None = None
    """Why they couldn't be asked."""
    course: Course | None = None
    """What this process did; None where it hasn't begun, or has given up."""
    stepping: bool = False
    """Whether a step is under way, or its outcome waits to be taken."""
    planned: DryRunResult | None = None
    """What a dry run found."""
    fences: tuple[CatalogFence, ...] = ()
    """Which other operators took the migration over, since the resource was last changed."""

    @property
    def deadline(self) -> datetime | None:
        """Until when steps are taken: as it was shown, anew where the spec was changed."""
        if self.spec is None or (self.shown.deadline is not None and not self.changed):
            return self.shown.deadline
        span = self.spec.timeout_seconds + (0.0 if self.spec.rollback else self.spec.shadow_seconds)
        return (self.now + timedelta(seconds=span)).replace(microsecond=0)
