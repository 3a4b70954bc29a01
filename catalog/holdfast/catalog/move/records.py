"""The records of migrations in the stash's config: which are done, which one is running and until when. Pure.

Invariants
- At most one migration is running. Its record, its target and its deadline are written in one append.
- A record that is done or rolled back stays so: a migration with that id does nothing any more. Record and
  target stay together permanently, so an id that was used for one target is never used for the other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.catalog import config
from holdfast.catalog.damage import corrupt
from holdfast.catalog.move.truth import NUMBERS, Backend, named
from holdfast.errors import BadInput, MigrationConflict

_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/@-]{0,198}[A-Za-z0-9])?")


class Record(Enum):
    """The state of a migration. The values are stored in the stash's config."""

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
        """The state after its last step. A state that has ended stays."""
        match self:
            case Record.RUNNING:
                return Record.DONE
            case Record.ROLLING_BACK:
                return Record.ROLLED_BACK
            case _:
                return self


@dataclass(frozen=True)
class Running:
    """A running migration. Others can't write until `deadline_ms` (wall clock).

    `target` is the target of the migration. If it is rolling back, it leads to the other store.
    """

    migration_id: str
    record: Record
    target: Backend
    deadline_ms: int

    @property
    def destination(self) -> Backend:
        """The source of truth when it ends."""
        return destination(self.target, rollback=self.record is Record.ROLLING_BACK)

    def shuts_out(self, now_ms: int) -> bool:
        """Whether others still can't open the catalog for writing."""
        return now_ms < self.deadline_ms


def destination(target: Backend, *, rollback: bool) -> Backend:
    """Where a migration to `target`, or its rollback, leads."""
    return target.other if rollback else target


def key_of(migration_id: str) -> str:
    """The config key of a migration's record. Raises `BadInput` for an invalid id."""
    if not _ID.fullmatch(migration_id):
        raise BadInput(
            f"migration id {migration_id!r} is not valid",
            hint="use at most 200 letters, digits and .-_:/@, with a letter or a digit at both ends",
        )
    return f"{config.MIGRATION_RECORD}{migration_id}"


def target_key_of(migration_id: str) -> str:
    """The config key of a migration's target."""
    return f"{config.MIGRATION_TARGET}{migration_id}"


def records_of(stash: Mapping[str, int]) -> dict[str, Record]:
    """The records of all migrations in a stash's config, by id. Raises `CorruptBlob` for an invalid one."""
    found = {}
    for key, value in sorted(stash.items()):
        if key.startswith(config.MIGRATION_RECORD):
            found[key.removeprefix(config.MIGRATION_RECORD)] = _record(key, value)
    return found


def targets_of(stash: Mapping[str, int]) -> dict[str, Backend]:
    """The targets of all migrations, by id. Raises `CorruptBlob` for a record without a target."""
    return {migration_id: named(stash, target_key_of(migration_id)) for migration_id in records_of(stash)}


def running_of(stash: Mapping[str, int]) -> Running | None:
    """The running migration. Raises `CorruptBlob` if there are two, or if a value of it is missing."""
    running = [(id_, record) for id_, record in records_of(stash).items() if record.is_running]
    if not running:
        return None
    if len(running) > 1:
        names = ", ".join(id_ for id_, _ in running)
        raise corrupt("the config of the stash", "at most one running migration", names)
    ((id_, record),) = running
    return Running(id_, record, named(stash, target_key_of(id_)), stash.get(config.MIGRATION_DEADLINE, 0))


def to_begin(
    stash: Mapping[str, int], migration_id: str, target: Backend, *, rollback: bool
) -> Record | None:
    """The record that a migration, or its rollback, begins or resumes with. None if nothing is to do.

    Raises `MigrationConflict` if this migration was begun with another target, even if it has ended; while
    another one is running; or if it is rolling back and should go forward. Raises `BadInput` for the rollback
    of a migration that was never begun.
    """
    key = key_of(migration_id)
    found = None if key not in stash else _record(key, stash[key])
    if found is not None:
        _check_target(migration_id, found, named(stash, target_key_of(migration_id)), target)
    if found is Record.ROLLED_BACK or (found is Record.DONE and not rollback):
        return None
    running = running_of(stash)
    if running is not None and running.migration_id != migration_id:
        raise MigrationConflict(
            f"migration {running.migration_id} of this catalog has not ended: {running.record}",
            hint=f"run it to its end, or roll it back, before migration {migration_id}",
        )
    if found is None and rollback:
        raise _never_begun(migration_id)
    if found is Record.ROLLING_BACK and not rollback:
        raise MigrationConflict(
            f"migration {migration_id} is being rolled back",
            hint="run the rollback to its end; then migrate with a new id",
        )
    return Record.ROLLING_BACK if rollback else Record.RUNNING


def target_to_leave(targets: Mapping[str, Backend], migration_id: str) -> Backend:
    """The target that a migration to roll back was begun with. Raises `BadInput` if it was never begun."""
    key_of(migration_id)
    if migration_id not in targets:
        raise _never_begun(migration_id)
    return targets[migration_id]


def _never_begun(migration_id: str) -> BadInput:
    return BadInput(
        f"there is no migration {migration_id} of this catalog to roll back or to give up",
        hint="'holdfast migrate status' shows all migrations",
    )


def _check_target(migration_id: str, record: Record, begun_with: Backend, target: Backend) -> None:
    if begun_with is target:
        return
    begun_to = begun_with.value
    raise MigrationConflict(
        f"migration {migration_id} was begun with target {begun_to}, not {target.value}: it is {record}",
        hint=f"continue with target {begun_to.lower()}, or migrate with a new id"
        if record.is_running
        else "migrate with a new id",
    )


def begun(migration_id: str, record: Record, target: Backend, deadline_ms: int) -> Mapping[str, int | None]:
    """The changes of the stash's config when a migration begins or is resumed."""
    return {
        key_of(migration_id): record.value,
        target_key_of(migration_id): NUMBERS[target],
        config.MIGRATION_DEADLINE: deadline_ms,
    }


def ended(migration_id: str, record: Record | None) -> Mapping[str, int | None]:
    """The changes of the config when a migration ends. A record of None removes the record and the target."""
    over: dict[str, int | None] = {config.MIGRATION_DEADLINE: None}
    if record is None:
        return {**over, key_of(migration_id): None, target_key_of(migration_id): None}
    return {**over, key_of(migration_id): record.value}


def ending_with(stash: Mapping[str, int], truth: Backend) -> Mapping[str, int | None]:
    """The changes of the config when the running migration, if there is one, ends with this truth.

    If the truth has moved, the migration is done. Otherwise its record is removed, or, if it was rolling
    back, set to done again.
    """
    running = running_of(stash)
    if running is None:
        return {}
    return ended(running.migration_id, ended_with(running, truth))


def ended_with(running: Running, truth: Backend) -> Record | None:
    """The record of a migration that ends with this truth. None if it has none."""
    if truth is running.destination:
        return running.record.ended
    return Record.DONE if running.record is Record.ROLLING_BACK else None


def _record(key: str, value: int) -> Record:
    try:
        return Record(value)
    except ValueError:
        raise corrupt(f"config {key}", "1 to 4", str(value)) from None
