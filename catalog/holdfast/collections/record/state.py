"""The contents of a location's controller shard in memory, and the outcomes of transitions.

`ControllerState` is built only from the updates of the shard. Transitions read it and never change it. A
transition returns the new rows in a `RecordCommit`. They are committed to the shard, and the state changes
when it reads them from there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from typing import Generic, TypeVar

from holdfast.collections.record.jobs import JobRecord, JobState, Json
from holdfast.collections.record.spec import CollectionInfo, CollectionState
from holdfast.errors import CollectionNotFound, HoldfastError

T = TypeVar("T")


class CommandKind(IntEnum):
    """The kind of a command. The numbers are stored."""

    CREATE_COLLECTION = 1
    DROP_COLLECTION = 2
    CREATE_RENDITION = 3
    ABORT_RENDITION = 4
    HAND_OVER = 5
    DROP_RENDITION = 6
    EVOLVE_COLLECTION = 7
    RESTORE_COLLECTION = 8
    SUSPECT_RENDITION = 9
    ACQUIRE = 10
    RELEASE = 11
    MAKE_DIFFERENCE = 12
    COMMENT_COLUMNS = 13
    RETAIN_COLLECTION = 14
    RENAME_COLLECTION = 15
    RENAME_COLUMN = 16
    DROP_COLUMN = 17


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """A command: who gave it, when (`at_ms`, wall time), on which host, and with which fence token."""

    command_id: str
    kind: CommandKind
    object_id: str
    who: str
    host: str
    token: str
    at_ms: int
    result: Json = field(default_factory=dict)


Record = CollectionInfo | CommandRecord | JobRecord


def record_id(record: Record) -> str:
    """The id of a record, unique among records of its kind."""
    match record:
        case CollectionInfo():
            return record.collection_id
        case CommandRecord():
            return record.command_id
        case JobRecord():
            return record.job_id


@dataclass(frozen=True, slots=True)
class RecordCommit(Generic[T]):
    """Write the records `puts`, each replacing the one with its id, and remove `removals`, in one commit."""

    result: T
    puts: tuple[Record, ...] = ()
    removals: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordNoOp(Generic[T]):
    """The requested state already exists. Nothing is written."""

    result: T


@dataclass(frozen=True, slots=True)
class RecordReject:
    """The command is refused. Nothing is written."""

    error: HoldfastError


Outcome = RecordCommit[T] | RecordNoOp[T] | RecordReject


class ControllerState:
    """All records of a controller shard at one version."""

    def __init__(self) -> None:
        self.collections: dict[str, CollectionInfo] = {}
        self.commands: dict[str, CommandRecord] = {}
        self.jobs: dict[str, JobRecord] = {}
        self.names: dict[str, str] = {}

    def copy(self) -> "ControllerState":
        """A copy that can change while this version stays as it is."""
        copy = ControllerState()
        copy.collections, copy.commands = dict(self.collections), dict(self.commands)
        copy.jobs, copy.names = dict(self.jobs), dict(self.names)
        return copy

    def apply(self, removed: Iterable[Record], added: Iterable[Record]) -> None:
        """Apply the records that one version removes and adds."""
        for record in removed:
            match record:
                case CollectionInfo():
                    del self.collections[record.collection_id]
                    if self.names.get(record.name) == record.collection_id:
                        del self.names[record.name]
                case CommandRecord():
                    del self.commands[record.command_id]
                case JobRecord():
                    del self.jobs[record.job_id]
        for record in added:
            match record:
                case CollectionInfo():
                    self.collections[record.collection_id] = record
                    if record.state is not CollectionState.DROPPED:
                        self.names[record.name] = record.collection_id
                case CommandRecord():
                    self.commands[record.command_id] = record
                case JobRecord():
                    self.jobs[record.job_id] = record

    def running(self, collection_id: str) -> tuple[JobRecord, ...]:
        """The running jobs of a collection, oldest first."""
        found = (job for job in self.jobs.values() if job.object_id == collection_id)
        running = (job for job in found if job.state is JobState.RUNNING)
        return tuple(sorted(running, key=lambda job: (job.started_ms, job.job_id)))

    def find(self, id_or_name: str) -> CollectionInfo:
        """The collection with this id, dropped or not, or else the live one with this name.

        Raises `CollectionNotFound` if there is neither.
        """
        found = self.collections.get(id_or_name) or self.collections.get(self.names.get(id_or_name, ""))
        if found is None:
            like = "".join(
                f"did you mean {near}? " for near in get_close_matches(str(id_or_name), self.names, 1)
            )
            raise CollectionNotFound(
                f"no collection has the id or name '{id_or_name}'",
                hint=f"{like}'holdfast collection list' shows all collections",
            )
        return found
