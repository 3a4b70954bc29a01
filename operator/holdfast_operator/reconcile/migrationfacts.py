"""What is known of the move of a catalog: the values that its plan is made from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast.catalog.move.plan import MigrationPlan
from holdfast.catalog.move.records import Record
from holdfast.catalog.move.truth import STEPS, Backend, MoveStep, Strategy
from holdfast.catalog.upgrade_report import Size
from holdfast_operator.api.migration import CatalogMigrationSpec, Verify
from holdfast_operator.reconcile.facts import Opening
from holdfast_operator.runtime.kube import ObjectKey

_LONGEST_ID: Final = 200
_STRATEGIES: Final = {Strategy.ONE_TOMBSTONE: "OneTombstone", Strategy.TWO_TOMBSTONES: "TwoTombstones"}


@dataclass(frozen=True, slots=True)
class Stand:
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
class Move:
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

    move: Move
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
class Planned:
    """What a dry run found."""

    lines: tuple[str, ...]
    truth: Backend
    strategy: Strategy
    sizes: Mapping[str, Size]
    refused: str = ""
    """Why it can't be done."""


def told_plan(plan: MigrationPlan) -> Planned:
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
    return Planned(tuple(lines), plan.source, plan.strategy, plan.sizes, refused)


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
