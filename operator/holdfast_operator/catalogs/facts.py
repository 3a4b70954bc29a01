"""How a catalog is opened, and what is then found in its store: the values that plans are made from."""

from dataclasses import dataclass
from typing import Final

from holdfast.catalog import Bootstrap
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.upgrade_report import UpgradeReport
from holdfast.errors import BadInput, HoldfastError, StorageError
from holdfast_operator.api.catalog import CatalogFence, CatalogSpec
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs.connection import Seen
from holdfast_operator.catalogs.objects import NOTHING_DECLARED, ObjectsPlan
from holdfast_operator.engine.deletion import NO_DELETION, Deletion
from holdfast_operator.engine.failures import ReasonedError
from holdfast_operator.engine.status import Health
from holdfast_operator.places.storage import RefusedLocation, RestoreSource, StashLocation, Storage


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
    stash: StashLocation | None = None
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


class RestoreFailed(ReasonedError):
    """What was to fill a new catalog, or a collection, can't be had or used; nothing was changed."""

    reason = Reason.RESTORE_FAILED
    hint = "correct spec.restoreFrom or its source, or remove it; it is tried again by itself"


class OwnedByAnother(ReasonedError):
    """The store says that another Catalog has this one; nothing was changed."""

    reason = Reason.DUPLICATE_CATALOG
    hint = "delete one of the two"

    def __init__(self, owner: str) -> None:
        super().__init__(f"Catalog {owner} has this organization in the same store, by whatever name")


class ObservedByAnother(ReasonedError):
    """A database process has this catalog, as an Observed Catalog says; nothing was changed."""

    reason = Reason.DUPLICATE_CATALOG
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


class NotAllowed(ReasonedError):
    """It is where the operator doesn't read for the namespace of the resource; nothing was opened."""

    reason = Reason.LOCATION_NOT_ALLOWED
    hint = "correct spec.restoreFrom, or remove it"


class NotReadable(BadInput):
    """The catalog's format is of another version than this operator reads."""


class UpgradePending(ReasonedError):
    """The catalog has an older format, and nobody said that it may be upgraded; nothing was changed."""

    reason = Reason.UPGRADE_PENDING


class EpochWentBack(HoldfastError):
    """The durable epoch is lower than the catalog had, or there is none any more; nothing was changed."""

    def __init__(self, found: Durable, least: int) -> None:
        super().__init__(f"the durable epoch is {found.epoch}, and was {least}")
        self.found, self.least = found, least


@dataclass(frozen=True, kw_only=True)
class CatalogView:
    """Everything that the plan for a Catalog depends on."""

    name: str
    spec: CatalogSpec | None
    problem: str = ""
    """Why `spec` is None."""
    deleting: bool = False
    asks_to_delete: bool = False
    """Whether the spec asks to delete the data, also where nothing else of it is understood."""
    deletion: Deletion = NO_DELETION
    """How far the deletion is."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """Whether its deletion has something to do: to delete data, or to wait for who needs it."""
    known_epoch: int = 0
    """`status.epoch` as it is shown: that of the last open, also of another process."""
    initialized: bool = False
    """Whether the status says that there is something in the store."""
    void: bool = False
    """Whether its store was found to hold nothing, or nothing any more, or to be no store at all."""
    older_twin: str | None = None
    fences: tuple[CatalogFence, ...] = ()
    """Who took it from an operator, since the resource was last changed."""
    storage: Storage | RefusedLocation
    restore: RestoreSource | RefusedLocation | None = None
    """What it is to be filled with where it is new."""
    restored_from: str | None = None
    """What it was filled with."""
    reopen: str = ""
    """With what somebody last asked to open it anew."""
    approved_upgrade: str = ""
    """The format version that somebody approved an upgrade to."""
    unusable_secret: Health | None = None
    """What is wrong with a Secret that the spec names."""
    under_way: bool = False
    """Whether an open, a preflight or an upgrade-check goes on, or its outcome waits to be taken."""
    opened: Opening | None = None
    facts: CatalogFacts | None = None
    connection: Seen | None = None
    """The ConfigMap that says how to open it; looked at while it is open, or another process is to."""
    objects: ObjectsPlan = NOTHING_DECLARED
    """What is to change for `spec.objects`, of an open catalog."""
    migration: str = ""
    """The CatalogMigration that has it."""
    in_both: bool = False
    """Whether that one opened it in both stores."""
    named_truth: str = ""
    """Which of two stores counts by somebody's word, where that is still to decide."""
    handled_truth: str = ""
    """The word that did its duty, as long as it is there."""
    migrations: tuple[str, ...] = ()
    """CatalogMigrations of it that aren't over; looked at while it is being deleted."""
    dependents: tuple[str, ...] = ()
    """StorageCollections that refer to it; looked at while it is being deleted."""
    doomed_dependents: bool = False
    """Whether one of them is to be dropped from the catalog."""
    busy_dependents: bool = False
    """Whether attempts of Spark jobs of one that is being deleted are to be ended on record."""
    holder: str = ""
