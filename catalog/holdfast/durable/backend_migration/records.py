"""What the stash's config tells of migrations: which were done, which one is running and until when. Pure.

Invariants
- At most one migration is running; the record, its deadline and its target are written and taken away in one
  append, so that they are there together.
- What is done or rolled back stays so: a migration of that id does nothing any more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.durable import config
from holdfast.durable.backend_migration.truth import Backend
from holdfast.errors import BadInput, CorruptBlob, MigrationConflict

_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/@-]{0,198}[A-Za-z0-9])?")

_TARGETS: Mapping[Backend, int] = {Backend.STASH: 1, Backend.PERSIST: 2}


class Record(Enum):
    """How far a migration is; the value is what the stash's config holds."""

    RUNNING = 1
    DONE = 2
    ROLLING_BACK = 3
    ROLLED_BACK = 4

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self in (Record.RUNNING, Record.ROLLING_BACK)

    @property
    def ended(self) -> "Record":
        """What it becomes with its last step; what has ended stays."""
        match self:
            case Record.RUNNING:
                return Record.DONE
            case Record.ROLLING_BACK:
                return Record.ROLLED_BACK
            case _:
                return self


@dataclass(frozen=True)
class Running:
    """A migration that is running; others are shut out until `deadline_ms` (of the wall clock).

    `target` is that of the migration: where it is rolling back to is the other one.
    """

    migration_id: str
    record: Record
    target: Backend
    deadline_ms: int

    @property
    def destination(self) -> Backend:
        """Where the truth will be when it ends."""
        return destination(self.target, rollback=self.record is Record.ROLLING_BACK)

    def shuts_out(self, now_ms: int) -> bool:
        """Whether nobody else may open the catalog for writing yet."""
        return now_ms < self.deadline_ms


def destination(target: Backend, *, rollback: bool) -> Backend:
    """Where a migration to `target`, or its way back, leads."""
    return target.other if rollback else target


def key_of(migration_id: str) -> str:
    """The config key of a migration's record; `BadInput` for an id that can't be one."""
    if not _ID.fullmatch(migration_id):
        raise BadInput(
            f"migration id {migration_id!r} is not one",
            hint="it has at most 200 letters, digits and .-_:/@, with a letter or a digit at both ends",
        )
    return f"{config.RESERVED_PREFIX}{migration_id}"


def records_of(stash: Mapping[str, int]) -> dict[str, Record]:
    """The records of all migrations in a stash's config, by id; `CorruptBlob` for one without sense."""
    found = {}
    for key, value in sorted(stash.items()):
        if key.startswith(config.RESERVED_PREFIX):
            found[key.removeprefix(config.RESERVED_PREFIX)] = _record(key, value)
    return found


def running_of(stash: Mapping[str, int]) -> Running | None:
    """The migration that is running; `CorruptBlob` where there are two, or where it misses what it needs."""
    running = [(id_, record) for id_, record in records_of(stash).items() if record.is_running]
    if not running:
        return None
    if len(running) > 1:
        names = ", ".join(id_ for id_, _ in running)
        raise CorruptBlob("the config of the stash", "at most one running migration", names)
    ((id_, record),) = running
    number = stash.get(config.MIGRATION_TARGET)
    for target, value in _TARGETS.items():
        if value == number:
            return Running(id_, record, target, stash.get(config.MIGRATION_DEADLINE, 0))
    raise CorruptBlob(f"config {config.MIGRATION_TARGET}", "1 or 2", str(number))


def to_begin(
    stash: Mapping[str, int], migration_id: str, target: Backend, *, rollback: bool
) -> Record | None:
    """The record that a migration, or its way back, begins or resumes with; None when there is nothing to do.

    Raises `MigrationConflict` while another one is running, where this one is running to another target, or
    when one that is rolling back is to go forward; and `BadInput` to roll back what was never begun.
    """
    key = key_of(migration_id)
    found = None if key not in stash else _record(key, stash[key])
    if found is Record.ROLLED_BACK or (found is Record.DONE and not rollback):
        return None
    running = running_of(stash)
    if running is not None:
        _check_same(running, migration_id, target)
    if found is None and rollback:
        raise BadInput(
            f"there is no migration {migration_id} of this catalog to roll back",
            hint="'holdfast migrate status' shows those that there were",
        )
    if found is Record.ROLLING_BACK and not rollback:
        raise MigrationConflict(
            f"migration {migration_id} is being rolled back",
            hint="roll it back to its end; then migrate under a new id",
        )
    return Record.ROLLING_BACK if rollback else Record.RUNNING


def _check_same(running: Running, migration_id: str, target: Backend) -> None:
    if running.migration_id != migration_id:
        raise MigrationConflict(
            f"migration {running.migration_id} of this catalog has not ended: {running.record}",
            hint=f"run it to its end, or roll it back, before migration {migration_id}",
        )
    if running.target is not target:
        raise MigrationConflict(
            f"migration {migration_id} was begun with target {running.target.value}, not {target.value}",
            hint=f"go on with target {running.target.value.lower()}, or migrate under a new id",
        )


def begun(migration_id: str, record: Record, target: Backend, deadline_ms: int) -> Mapping[str, int | None]:
    """What the config of the stash becomes when a migration begins or is resumed."""
    return {
        key_of(migration_id): record.value,
        config.MIGRATION_TARGET: _TARGETS[target],
        config.MIGRATION_DEADLINE: deadline_ms,
    }


def ended(migration_id: str, record: Record | None) -> Mapping[str, int | None]:
    """What it becomes when it ends, with its last record; None takes the record back."""
    return {
        key_of(migration_id): None if record is None else record.value,
        config.MIGRATION_TARGET: None,
        config.MIGRATION_DEADLINE: None,
    }


def _record(key: str, value: int) -> Record:
    try:
        return Record(value)
    except ValueError:
        raise CorruptBlob(f"config {key}", "1 to 4", str(value)) from None
