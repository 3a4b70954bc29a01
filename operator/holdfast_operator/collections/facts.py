"""What is observed of a StorageCollection: the values that its plan is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from holdfast.collections import CollectionInfo, JobRecord, Recipe, RenditionState
from holdfast.collections.record.comments import Comments
from holdfast.errors import CLOSED, BadInput, HoldfastError
from holdfast.persist import Schema, StoredSize
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.engine.deletion import NO_DELETION, Deletion
from holdfast_operator.jobs.hydration import HydrationsView
from holdfast_operator.jobs.requested import RequestedView


@dataclass(frozen=True, slots=True)
class RenditionFacts:
    """A rendition: rows and bytes are those stored, before they are consolidated.

    One that is gone has none. The other fields are those of `holdfast.collections.RenditionInfo`.
    """

    id: str
    shards: int = 0
    since: int = 0
    upper: int = 0
    rows: int = 0
    bytes: int = 0
    state: RenditionState = RenditionState.HOLDING
    recipe: Recipe = Recipe.COPY
    hash_columns: tuple[str, ...] = ()
    held_from: int = 0
    held_to: int = CLOSED
    suspect: str = ""
    start: int = 0
    oldest: int = CLOSED
    """The since of that of its shards that has the most history."""
    needed: int = CLOSED
    """From when on others than the retention keep its shards."""

    @property
    def size(self) -> StoredSize:
        """How much a job that reads it has to read."""
        return StoredSize(self.rows, self.bytes)

    @property
    def gone(self) -> bool:
        """Whether its shards are gone."""
        return self.state in {RenditionState.DROPPED, RenditionState.ABORTED}


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """Who holds a collection's since back, and since when; empty where nobody noted it.

    A durable one stays until it is released, another ends with its process. `keeps` are retired renditions.
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
    """What the store says about a collection; `shards` are those of its active rendition."""

    collection_id: str
    name: str
    schema: Schema
    shards: int
    dropped: bool
    comments: Comments = field(default_factory=dict)
    """Those of its columns that have one."""
    since: int = 0
    upper: int = 0
    active_rendition: str = ""
    needed: int = CLOSED
    """From when on others than the retention keep it."""
    renditions: tuple[RenditionFacts, ...] = ()
    """In the order of their creation, those that are gone too."""
    holds: tuple[HoldFacts, ...] = ()
    """Those that keep retired renditions, beside the collection's own."""
    due: tuple[str, ...] = ()
    """What may be done without anybody's word, as `StorageController.advance` does it; all but this:"""
    lacks_difference: bool = False
    """Whether nobody has put down yet what differs with the last handover, for who listens through it."""

    @property
    def active(self) -> RenditionFacts:
        """The rendition that is the collection now."""
        (active,) = (each for each in self.renditions if each.id == self.active_rendition)
        return active

    @property
    def unfinished(self) -> bool:
        """Whether one is being filled, or the active one lacks what was written before it took over."""
        hydrating = any(each.state is RenditionState.HYDRATING for each in self.renditions)
        return bool(self.renditions) and (hydrating or self.active.upper < self.active.held_from)

    @property
    def bytes(self) -> int:
        """What all renditions hold."""
        return sum(each.bytes for each in self.renditions)


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
    """What a look at a collection was made from, or older: as long as it is the same, so is what is seen.

    `versions` are those of the metadata shard and of the shards of its renditions, and `seen` is what is seen
    of each, in a number; `info` is None of one that was dropped.
    """

    collection_id: str
    info: CollectionInfo | None
    jobs: tuple[JobRecord, ...]
    versions: tuple[int, ...]
    seen: tuple[int, ...]

    @property
    def shards(self) -> tuple[str, ...]:
        """Those that `versions` are of."""
        return () if self.info is None else watched_shards(self.info)


def watched_shards(info: CollectionInfo) -> tuple[str, ...]:
    """The shards that what is seen of a collection depends on."""
    live = (shard for each in info.live for shard in each.all_shards)
    return info.metadata_shard, *live


@dataclass(frozen=True, slots=True)
class CollectionLook:
    """What catalog and storage say about one StorageCollection; None for what isn't there."""

    item_id: str | None = None
    collection_id: str | None = None
    facts: CollectionFacts | None = None
    definition: str = ""
    """What the item says of the collection."""
    jobs: tuple[JobRecord, ...] = ()
    """All that are on record, oldest first."""
    basis: Basis | None = None
    ahead_ms: int = 0
    """How far this host's clock is ahead of the store's, if that is too far (`PersistClient.now_ms`)."""


class Superseded(HoldfastError):
    """What was under way is somebody else's now, or nobody's."""


class NoSuchSchema(BadInput):
    """The catalog has no such database or schema."""


class CatalogState(Enum):
    """What the Catalog of a collection is like."""

    MISSING = auto()
    DELETING = auto()
    CLOSED = auto()
    """There, not open in this process, and its status says that it isn't ready."""
    OPENING = auto()
    """There, not open in this process yet, and its status says that it was ready: before a restart."""
    OPEN = auto()


@dataclass(frozen=True, kw_only=True)
class CollectionView:
    """Everything that the plan for a StorageCollection depends on."""

    name: str
    spec: StorageCollectionSpec | None
    problem: str = ""
    deleting: bool = False
    asks_to_delete: bool = False
    """Whether the spec asks to delete the data, also where nothing else of it is understood."""
    deletion: Deletion = NO_DELETION
    """How far the deletion is."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """As the function of that name says."""
    created: bool = False
    """Whether the status says that there is something in the store."""
    older_twin: str | None = None
    catalog_void: bool = False
    """Whether the Catalog's store was found to hold nothing at all."""
    catalog: CatalogState = CatalogState.MISSING
    catalog_loose: bool = False
    """Whether a deletion of the Catalog wouldn't wait for this resource."""
    catalog_open: bool = False
    """Whether this process has it open for writing; also one that is being deleted may be."""
    catalog_observed: bool = False
    """Whether another process writes it, and this one only looks."""
    item_id: str | None = None
    definition: str = ""
    """What its item says of it."""
    collection_id: str | None = None
    facts: CollectionFacts | None = None
    retention_since: int | None = None
    """The time up to which the retention lets history go; None where it isn't limited."""
    asked: tuple[RequestedView, ...] = ()
    """The jobs that are asked for, by their kinds."""
    hydrations: HydrationsView | None = None
    shown: Mapping[str, str] = field(default_factory=dict)
    """The phases of its renditions as the status shows them, by id."""
    shown_running: tuple[str, ...] = ()
    """The attempts of Spark jobs that the status shows as running."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
