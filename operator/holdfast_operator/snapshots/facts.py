"""The values that the plan for a CollectionSnapshot depends on."""

from dataclasses import dataclass, field
from enum import Enum, auto

from holdfast.collections import JobRecord
from holdfast_operator.api.snapshot import CollectionSnapshotSpec, CollectionSnapshotStatus
from holdfast_operator.engine.deletion import NO_DELETION, Deletion
from holdfast_operator.jobs.snapshot import SnapshotView
from holdfast_operator.sparkapps.adapter import AppState


class CollectionState(Enum):
    """The state of the StorageCollection of a snapshot."""

    MISSING = auto()
    """It doesn't exist, is being deleted, or its data was dropped."""
    UNREADABLE = auto()
    """It can't be read yet. `SnapshotFacts.why` says why."""
    OPENING = auto()
    """Its catalog isn't open in this process yet, and its status shows that it was ready before a restart."""
    SUSPENDED = auto()
    OBSERVED = auto()
    """Another process writes its catalog, so the operator can't run jobs."""
    READABLE = auto()


@dataclass(frozen=True, kw_only=True)
class SnapshotFacts:
    """Everything that the plan for a CollectionSnapshot depends on."""

    spec: CollectionSnapshotSpec | None
    name: str = ""
    slot: str = ""
    """The slot of its JobRecord."""
    problem: str = ""
    deleting: bool = False
    asks_to_delete: bool = False
    """Whether the spec requests to delete the files. Known even if the rest of the spec can't be parsed."""
    deletion: Deletion = NO_DELETION
    has_finalizer: bool = True
    shown: CollectionSnapshotStatus = field(default_factory=CollectionSnapshotStatus)
    """The current status."""
    shown_running: tuple[str, ...] = ()
    """The attempt that the status shows as running."""
    collection: CollectionState = CollectionState.MISSING
    why: str = ""
    """Why the collection can't be read yet."""
    collection_kept: bool = True
    """Whether the collection has the finalizer, so that its deletion ends an attempt."""
    apps: tuple[AppState, ...] = ()
    """The applications of the job, read *before* its record."""
    task: CollectionSnapshotSpec | None = None
    """The spec with the place to write to. None if there is no such place."""
    job: SnapshotView | None = None
    """The job. None if the store was not looked at."""
    folder: str | None = None
    """The folder with everything that the job wrote. None if it is unknown or there is none."""
    not_deletable: str = ""
    """Why the operator may not delete that folder, as text after its name. Empty if it may."""
    removed: bool = False
    """Whether the files are deleted."""

    @property
    def record(self) -> JobRecord | None:
        """The JobRecord of the snapshot."""
        return None if self.job is None else self.job.job

    @property
    def is_done(self) -> bool:
        """Whether the status shows that the snapshot is committed."""
        return self.shown.completion_time is not None
