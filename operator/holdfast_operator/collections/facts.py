"""The values that the plan for a StorageCollection depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from holdfast.collections import CollectionInfo, JobRecord, Recipe, RenditionState
from holdfast.collections.record.comments import Comments
from holdfast.errors import CLOSED, BadInput, HoldfastError
from holdfast.ingest.kept import SourceProgress
from holdfast.persist import Schema, StoredSize
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.collections.snapshot_schedule import SnapshotScheduleView
from holdfast_operator.engine.deletion import NO_DELETION, Deletion
from holdfast_operator.jobs.hydration import HydrationsView
from holdfast_operator.jobs.ingestion import SourceView
from holdfast_operator.jobs.requested import RequestedView


@dataclass(frozen=True, slots=True)
class RenditionFacts:
    """A rendition. `rows` and `bytes` count what is stored, before it is consolidated.

    They are 0 for a rendition that is gone. The other fields are those of
    `holdfast.collections.RenditionInfo`.
    """

    id: str
    shards: int = 0
    since: int = 0
    upper: int = 0
    rows: int = 0
    bytes: int = 0
    state: RenditionState = RenditionState.HOLDING
    recipe: Recipe = Recipe.COPY
    is_fed: bool = False
    made_from: str = ""
    hash_columns: tuple[str, ...] = ()
    held_from: int = 0
    held_to: int = CLOSED
    suspect: str = ""
    start: int = 0
    oldest: int = CLOSED
    """The lowest since of its shards."""
    needed: int = CLOSED
    """The earliest time at which something other than the retention holds its shards."""
    staged: int = 0
    """How many pieces of a hydration are staged in each of its shards."""

    @property
    def size(self) -> StoredSize:
        """How much a job reads that reads the rendition."""
        return StoredSize(self.rows, self.bytes)

    @property
    def gone(self) -> bool:
        """Whether its shards are gone."""
        return self.state in {RenditionState.DROPPED, RenditionState.ABORTED}


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """A hold on a collection, and who took it when, if recorded.

    A durable hold stays until it is released. Other holds end with their process. `keeps` are the retired
    renditions that it keeps.
    """

    purpose: str
    since: int
    keeps: tuple[str, ...]
    durable: bool = False
    who: str = ""
    host: str = ""
    taken_ms: int = 0


@dataclass(frozen=True, slots=True)
class CollectionFacts:
    """What the store holds of a collection. `shards` is the number of shards of its active rendition."""

    collection_id: str
    name: str
    schema: Schema
    shards: int
    dropped: bool
    erased: bool = False
    """Whether it is dropped, and its data deleted."""
    comments: Comments = field(default_factory=dict)
    """The comments of its columns."""
    since: int = 0
    upper: int = 0
    active_rendition: str = ""
    needed: int = CLOSED
    """The earliest time at which something other than the retention holds it."""
    renditions: tuple[RenditionFacts, ...] = ()
    """All renditions in the order of their creation, including those that are gone."""
    holds: tuple[HoldFacts, ...] = ()
    """The holds that keep retired renditions, without the collection's own holds."""
    due: tuple[str, ...] = ()
    """The upkeep that `StorageController.advance` would do, except for `lacks_difference`."""
    fed: bool = False
    """Whether a pipeline writes its active rendition."""
    lacks_difference: bool = False
    """Whether the difference of the last handover isn't stored yet. Listeners use it."""

    @property
    def active(self) -> RenditionFacts:
        """The active rendition."""
        (active,) = (each for each in self.renditions if each.id == self.active_rendition)
        return active

    @property
    def unfinished(self) -> bool:
        """Whether a rendition is being filled, or the active one lacks rows from before its handover."""
        hydrating = any(each.state is RenditionState.HYDRATING for each in self.renditions)
        return bool(self.renditions) and (hydrating or self.active.upper < self.active.held_from)

    @property
    def bytes(self) -> int:
        """The stored bytes of all renditions."""
        return sum(each.bytes for each in self.renditions)


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The place of the snapshot to restore."""

    url: str = ""
    problem: str = ""
    """Why it can't be restored yet, and what to do. Empty if it can."""


@dataclass(frozen=True, slots=True)
class ItemName:
    """The full name of an item."""

    database: str
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class FoundItem:
    """The item of a collection in the catalog."""

    id: str
    definition: str


@dataclass(frozen=True, slots=True)
class Basis:
    """The state of the store from which a collection was read. While it stays the same, so does the result.

    It may be slightly older than the result. `versions` are the versions of the metadata shard and of the
    renditions' shards. `seen` is a hash of what is shown of each shard. `info` is None for a dropped
    collection.
    """

    collection_id: str
    info: CollectionInfo | None
    jobs: tuple[JobRecord, ...]
    versions: tuple[int, ...]
    seen: tuple[int, ...]

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that `versions` and `seen` describe."""
        return () if self.info is None else watched_shards(self.info)


def watched_shards(info: CollectionInfo) -> tuple[str, ...]:
    """Returns the shards whose state is shown for a collection."""
    live = (shard for each in info.live for shard in each.all_shards)
    return info.metadata_shard, *live


@dataclass(frozen=True, slots=True)
class CollectionLook:
    """What catalog and storage hold of a StorageCollection. None for parts that don't exist."""

    item_id: str | None = None
    collection_id: str | None = None
    facts: CollectionFacts | None = None
    definition: str = ""
    """The definition in the catalog's item."""
    jobs: tuple[JobRecord, ...] = ()
    """All job records, oldest first."""
    basis: Basis | None = None
    ahead_ms: int = 0
    """How far this host's clock is ahead of the store's, if it is too far ahead (`PersistClient.now_ms`)."""


class Superseded(HoldfastError):
    """The work is no longer needed, or another process does it now."""


class NoSuchSchema(BadInput):
    """The catalog has no such database or schema."""


class CatalogState(Enum):
    """The state of a collection's Catalog."""

    MISSING = auto()
    DELETING = auto()
    CLOSED = auto()
    """It exists, isn't open in this process, and its status shows that it isn't ready."""
    OPENING = auto()
    """It exists, isn't open in this process yet, and its status shows that it was ready before a restart."""
    OPEN = auto()


@dataclass(frozen=True, kw_only=True)
class CollectionView:
    """Everything that the plan for a StorageCollection depends on."""

    name: str
    spec: StorageCollectionSpec | None
    problem: str = ""
    deleting: bool = False
    asks_to_delete: bool = False
    """Whether the spec requests to delete the data. Known even if the rest of the spec can't be parsed."""
    deletion: Deletion = NO_DELETION
    """The progress of the deletion."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """The result of the function `needs_finalizer`."""
    created: bool = False
    """Whether the status shows that the store holds data."""
    older_twin: str | None = None
    """An older StorageCollection that claims the same name."""
    catalog_void: bool = False
    """Whether an open found that the Catalog's store holds nothing."""
    catalog: CatalogState = CatalogState.MISSING
    catalog_spark: SparkTemplate | None = None
    """The template in the Catalog's spec."""
    catalog_loose: bool = False
    """Whether a deletion of the Catalog wouldn't wait for this resource."""
    has_waiting_snapshots: bool = False
    """Whether a CollectionSnapshot of it isn't Ready. It may start an attempt at any time."""
    catalog_open: bool = False
    """Whether this process has the catalog open for writing. This may be true even during its deletion."""
    catalog_observed: bool = False
    """Whether another process writes the catalog, and this one only reads it."""
    item_id: str | None = None
    definition: str = ""
    """The definition in the catalog's item."""
    collection_id: str | None = None
    facts: CollectionFacts | None = None
    retention_since: int | None = None
    """The time up to which the retention releases history. None if it isn't limited."""
    asked: tuple[RequestedView, ...] = ()
    """The requested jobs, by kind."""
    restore_place: SnapshotPlace | None = None
    """The place of the snapshot to restore. None if there is nothing to restore."""
    snapshots: SnapshotScheduleView | None = None
    """The schedule of snapshots. None without one."""
    last_snapshot: Mapping[str, Any] = field(default_factory=dict)
    """The status field of the last committed snapshot."""
    snapshots_running: tuple[JobRecord, ...] = ()
    """The running jobs of its CollectionSnapshots."""
    hydrations: HydrationsView | None = None
    source: SourceView | None = None
    """The jobs that feed it. None without `spec.source`."""
    progress: SourceProgress | None = None
    """How far its source is read. None if nothing has been read."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The phases of its renditions in the current status, by id."""
    shown_running: tuple[str, ...] = ()
    """The attempts of Spark jobs that the status shows as running."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    """This host's time, or the store's if this host's clock is too far ahead."""
    reached: datetime = field(default_factory=lambda: datetime.now(UTC))
    """The time that both `now` and the API server's clock have reached. It decides what is due."""
