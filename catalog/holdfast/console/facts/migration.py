"""Migrations of catalogs between two stores: the numbered steps, and what was compared. Pure.

On a cluster they come from CatalogMigrations and their Events: the operator posts one Event for each step
that is done. Without a cluster, a location knows its own side only: whether its catalog is linked to a
stash, and whether it is the source of truth. The records of migrations are in the stash.

Invariants
- A fence token is shown as its generation, its epoch and its holder. Its nonce is no secret, but nobody
  needs it.
- A step has a time only if an Event shows it. Events are gone after an hour or so: then the time is
  unknown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from holdfast.console.facts.activity import moment, shown_text

Json = Mapping[str, Any]

_DONE: Final = re.compile(r"done: (\d+)\. .* \(epoch (\d+|None)\)")
_STRATEGIES: Final = {"OneTombstone": Strategy.ONE_TOMBSTONE, "TwoTombstones": Strategy.TWO_TOMBSTONES}
_AT_REST: Final = frozenset({"Planned", "Completed", "RolledBack"})
_FIRST: Final = re.compile(r"(\d+)\.")


class StepState(StrEnum):
    """Where a step is."""

    DONE = "done"
    NEXT = "next"
    WAITING = "waiting"
    SKIPPED = "not needed"


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A numbered step. `at_ms` is when it was done, and `took_ms` how long after the step before it."""

    number: int
    text: str
    state: StepState
    at_ms: int | None = None
    took_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoreSide:
    """One of the two stores. `epoch` is that of its fence token, and None if it is unknown."""

    name: str
    is_truth: bool
    is_target: bool
    epoch: int | None


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """How many rows and bytes of one type of objects were read."""

    type: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MigrationCondition:
    """A condition of a resource."""

    type: str
    status: str
    reason: str
    message: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Migration:
    """A CatalogMigration. Times are wall times in milliseconds, and None if they are unknown.

    `trouble` is why it does not go on, or empty. `command` is what to run, if there is something to do.
    """

    namespace: str
    name: str
    catalog: str
    target: str
    phase: str
    is_rollback: bool
    is_dry_run: bool
    migration_id: str
    strategy: str
    truth: str
    stores: tuple[StoreSide, ...]
    steps: tuple[MigrationStep, ...]
    objects: tuple[ObjectCount, ...]
    rows: int | None
    bytes: int | None
    verify: str
    verified: MigrationCondition | None
    ready: MigrationCondition | None
    shadow: MigrationCondition | None
    shadow_for: str
    created_ms: int | None
    started_ms: int | None
    deadline_ms: int | None
    completed_ms: int | None
    trouble: str
    command: str
    plan: tuple[str, ...]
    fenced_by: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether it does nothing more."""
        return self.phase in _AT_REST

    @property
    def progress(self) -> tuple[int, int]:
        """How many of its steps are done, and how many it has."""
        return sum(each.state in (StepState.DONE, StepState.SKIPPED) for each in self.steps), len(self.steps)


def migration(body: Json, catalog: Json | None = None, events: Iterable[Json] = ()) -> Migration:
    """What the page of a CatalogMigration shows. `catalog` is its Catalog, `events` are those about it."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status", {})
    back = bool(spec.get("rollback"))
    target = str(spec["target"])
    destination = _other(target) if back else target
    phase = str(status.get("phase") or "New")
    truth = str(status.get("sourceOfTruth") or "")
    ready, stalled = condition(body, "Ready"), condition(body, "Stalled")
    sizes = status.get("objects") or {}
    return Migration(
        namespace=metadata["namespace"],
        name=metadata["name"],
        catalog=str(spec["catalogRef"]["name"]),
        target=target,
        phase=phase,
        is_rollback=back,
        is_dry_run=bool(spec.get("dryRun")),
        migration_id=shown_text(status.get("migrationId") or spec.get("migrationId")),
        strategy=str(status.get("strategy") or ""),
        truth=truth,
        stores=tuple(
            StoreSide(name, truth == name, destination == name, status.get(f"{name.lower()}Epoch"))
            for name in ("Stash", "Persist")
        ),
        steps=steps_of(
            status, destination, is_over=phase in ("Completed", "RolledBack"), events=events, back=back
        ),
        objects=tuple(
            ObjectCount(str(name), int(each.get("rows", 0)), int(each.get("bytes", 0)))
            for name, each in sorted(sizes.items())
        ),
        rows=status.get("rows"),
        bytes=status.get("bytes"),
        verify=str(spec.get("verify") or "Compare"),
        verified=condition(body, "Verified"),
        ready=ready,
        shadow=None if catalog is None else condition(catalog, "ShadowDiverged"),
        shadow_for=shown_text(spec.get("shadowFor") or ("5m" if spec.get("verify") == "Shadow" else "")),
        created_ms=moment(metadata.get("creationTimestamp")),
        started_ms=moment(status.get("startTime")),
        deadline_ms=moment(status.get("deadline")),
        completed_ms=moment(status.get("completionTime")),
        trouble="" if ready is None or ready.status == "True" or phase in _AT_REST else ready.message,
        command=_command(
            metadata, phase, back=back, stalled=stalled is not None and stalled.status == "True"
        ),
        plan=tuple(shown_text(each) for each in status.get("plan") or ()),
        fenced_by=tuple(_fence(each) for each in status.get("fencedBy") or ()),
    )


def steps_of(
    status: Json, destination: str, *, is_over: bool, events: Iterable[Json], back: bool = False
) -> tuple[MigrationStep, ...]:
    """The steps to a destination. A strategy that is not known yet counts as OneTombstone.

    The first steps are the same with both. Events of the way forward don't count for a rollback.
    """
    strategy = _STRATEGIES.get(str(status.get("strategy")), Strategy.ONE_TOMBSTONE)
    steps = STEPS[strategy, Backend(destination)]
    found = _FIRST.match(str(status.get("step") or ""))
    done = int(found[1]) if found else 0
    if is_over:
        done = max(done, len(steps))
    times = _times(events, {step.number: str(step) for step in steps})
    was_done = int(found[1]) if found else 0
    before = None if back else moment(status.get("startTime"))
    shown = []
    for step in steps:
        at = times.get(step.number)
        if step.number > done:
            state = StepState.NEXT if step.number == done + 1 else StepState.WAITING
        else:
            # The check ends a migration whose target is the source of truth already.
            state = StepState.DONE if step.number <= was_done or not was_done else StepState.SKIPPED
        took = at - before if at is not None and before is not None and at >= before else None
        before = at
        shown.append(MigrationStep(step.number, str(step).partition(". ")[2], state, at, took))
    return tuple(shown)


def _times(events: Iterable[Json], texts: Mapping[int, str]) -> dict[int, int]:
    """When each step was done last, by its number, as Events show it."""
    found: dict[int, int] = {}
    for event in events:
        said = _DONE.fullmatch(str(event.get("message", "")))
        at = moment(event.get("eventTime")) or moment(event.get("lastTimestamp"))
        if event.get("reason") != "MigrationStep" or said is None or at is None:
            continue
        number = int(said[1])
        # The other direction has other texts.
        if f"done: {texts.get(number)} (" in str(event["message"]):
            found[number] = max(at, found.get(number, 0))
    return found


def condition(body: Json, type_: str) -> MigrationCondition | None:
    """A condition of a resource, or None."""
    for each in body.get("status", {}).get("conditions", ()):
        if each.get("type") == type_:
            return MigrationCondition(
                type_,
                str(each.get("status", "Unknown")),
                shown_text(each.get("reason")),
                shown_text(each.get("message")),
                moment(each.get("lastTransitionTime")),
            )
    return None


def ordered(found: Sequence[Migration]) -> list[Migration]:
    """Migrations that still run first, then the newest."""
    return sorted(found, key=lambda each: (each.is_over, -(each.created_ms or 0), each.namespace, each.name))


def _command(metadata: Json, phase: str, *, back: bool, stalled: bool) -> str:
    name, namespace = metadata["name"], metadata["namespace"]
    if stalled and not back and phase not in _AT_REST:
        return f"kubectl holdfast rollback {name} --namespace {namespace}"
    return f"kubectl holdfast status migration/{name} --namespace {namespace}"


def _fence(fence: Json) -> str:
    taken = f"{fence.get('holder')} took it over with epoch {fence.get('epoch')} at {fence.get('time')}"
    return shown_text(taken)


def _other(target: str) -> str:
    return Backend(target).other.value
