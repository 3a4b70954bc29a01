"""How a catalog is opened, and what is then found in its store: the values that plans are made from."""

from dataclasses import dataclass, field
from typing import Final

from holdfast.catalog import Bootstrap
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.upgrade_report import UpgradeReport
from holdfast.collections import CollectionInfo, JobRecord, Recipe, RenditionState
from holdfast.collections.record.comments import Comments
from holdfast.errors import CLOSED, BadInput, HoldfastError, StorageError
from holdfast.persist import Schema
from holdfast_operator.places.storage import RestoreSource, StashPlace, Storage


@dataclass(frozen=True, slots=True)
class ShadowFacts:
    """What became of the shadow of an open catalog; both empty while it is in step."""

    diverged: str = ""
    """The first difference."""
    out_of_date: str = ""
    """Why nothing is compared at the moment."""


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What the store says about an open catalog."""

    organization_id: str
    shard_id: str
    epoch: int
    deploy_generation: int
    catalog_version: int
    since: int
    upper: int
    object_counts: tuple[tuple[str, int], ...]
    """Empty where only what is known at every version of the format could be read."""
    holder: str = ""
    """Who has the fence token, and what for."""
    shadow: ShadowFacts | None = None
    truth: str = "Persist"
    """The backend that holds the truth."""
    link: str = ""
    """What the two stores are linked by; empty where there is only one."""


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
class Look:
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


@dataclass(frozen=True, slots=True)
class Start:
    """What happened when a catalog was opened, beside that it was."""

    restored: str = ""
    """What it was filled with, for people; empty where it was not."""
    upgraded: UpgradeReport | None = None
    kept: Kept | None = None
    """The time before the upgrade, which is kept readable."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What is known of a catalog at any version of its format, without opening it."""

    organization_id: str
    shard_id: str
    catalog_version: int | None
    epoch: int | None
    deploy_generation: int | None
    truth: str | None = "Persist"
    link: str = ""


_FOR: Final = "operator for Catalog "


def purpose_of(catalog: str, migration: str = "") -> str:
    """What a token says that it is for: a Catalog, or a CatalogMigration of it."""
    return f"{_FOR}{catalog}" + (f", CatalogMigration {migration}" if migration else "")


def owner_of(purpose: str) -> str | None:
    """The Catalog that a token is for; None where no operator wrote it."""
    return purpose.removeprefix(_FOR).partition(",")[0] if purpose.startswith(_FOR) else None


@dataclass(frozen=True, slots=True)
class Opening:
    """How a catalog is to be opened."""

    storage: Storage
    organization_id: str
    deploy_generation: int
    default_cluster: str
    roles: tuple[str, ...]
    holder: str
    purpose: str
    existing_only: bool = False
    """Whether a catalog that isn't there stays away: `NothingThere` then."""
    replica_sizes: tuple[str, ...] = ("1",)
    system_configurations: tuple[tuple[str, str], ...] = ()
    upgrade: bool = True
    """Whether a catalog of an older format may be upgraded: `UpgradePending` otherwise."""
    stash: StashPlace | None = None
    """The other one of its two stores."""
    shadow: bool = False
    """Whether every change is made and compared in the other one of its two stores too."""
    backend: str = "Persist"
    """Where it begins, if it is new and has two stores."""
    strategy: str | None = None
    """How its two stores are to tell the truth; None: as they do already."""
    truth: str | None = None
    """Which store counts, by somebody's word, where both hold a catalog when they are linked."""
    reopen: str = ""
    """What somebody last asked with to open it anew."""
    restore: RestoreSource | None = None
    """What a catalog that isn't there is filled with in place of the bootstrap."""
    observed: bool = False
    """Whether it is only looked at: another process writes it."""
    least_epoch: int = 0
    """The epoch that it was open at before: `EpochWentBack` where its store has a lower one."""

    @property
    def location(self) -> str:
        """All the stores that are asked, in one name: who is slow to answer is one of them."""
        return self.storage.beside(self.stash)

    @property
    def bootstrap(self) -> Bootstrap:
        """What the first open puts into the catalog."""
        return Bootstrap(
            default_cluster=self.default_cluster,
            replica_sizes=self.replica_sizes,
            roles=self.roles,
            system_configurations=dict(self.system_configurations),
        )


class UnknownLocation(BadInput):
    """`spec.storage` names nothing that can be opened."""


class NothingThere(BadInput):
    """There is no catalog, and none was to be made."""


class RestoreFailed(HoldfastError):
    """What was to fill a new catalog, or a collection, can't be had or used; nothing was changed."""

    hint = "correct spec.restoreFrom or its source, or remove it; it is tried again by itself"


class OwnedByAnother(HoldfastError):
    """The store says that another Catalog has this one; nothing was changed."""

    hint = "delete one of the two"

    def __init__(self, owner: str) -> None:
        super().__init__(f"Catalog {owner} has this organization in the same store, by whatever name")


class ObservedByAnother(HoldfastError):
    """A database process has this catalog, as an Observed Catalog says; nothing was changed."""

    hint = "delete one of the two; to let this operator write it set access: Managed in that one"

    def __init__(self, observer: str) -> None:
        super().__init__(
            f"Catalog {observer} observes this organization in the same store, by whatever name: a database "
            "process writes it"
        )


class OwnerUnknown(StorageError):
    """Whether an Observed Catalog of another looks at this store can't be told; nothing was changed."""

    hint = "it is tried again by itself; make that store reachable, or delete that Catalog"

    def __init__(self, observer: str) -> None:
        # Where that one's store is, and what it said, is nothing for other namespaces.
        super().__init__(
            f"whether Catalog {observer} observes this organization in the same store can't be told: its own "
            "store doesn't answer"
        )


class NotAllowed(HoldfastError):
    """It is where the operator doesn't read for the namespace of the resource; nothing was opened."""

    hint = "correct spec.restoreFrom, or remove it"


class NotReadable(BadInput):
    """The catalog's format is of another version than this operator reads."""


class UpgradePending(HoldfastError):
    """The catalog has an older format, and nobody said that it may be upgraded; nothing was changed."""


class EpochWentBack(HoldfastError):
    """The durable epoch is lower than the catalog had, or there is none any more; nothing was changed."""

    def __init__(self, found: Durable, least: int) -> None:
        super().__init__(f"the durable epoch is {found.epoch}, and was {least}")
        self.found, self.least = found, least


class Superseded(HoldfastError):
    """What was under way is somebody else's now, or nobody's."""


class NoSuchSchema(BadInput):
    """The catalog has no such database or schema."""
