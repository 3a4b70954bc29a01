"""The values that the plan for a Catalog depends on: how to open the catalog, and what its store holds."""

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
from holdfast_operator.engine.health import Health
from holdfast_operator.places.storage import RefusedLocation, RestoreSource, StashLocation, Storage


@dataclass(frozen=True, slots=True)
class ShadowFacts:
    """The state of an open catalog's shadow. Both fields are empty while it equals the catalog."""

    diverged: str = ""
    """The first difference."""
    out_of_date: str = ""
    """Why nothing is compared at the moment."""


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What the store holds of an open catalog."""

    organization_id: str
    shard_id: str
    epoch: int
    deploy_generation: int
    catalog_version: int
    since: int
    upper: int
    object_counts: tuple[tuple[str, int], ...]
    """Empty if the catalog has another format version than this operator reads."""
    holder: str = ""
    """The process that holds the fence token, and its purpose."""
    shadow: ShadowFacts | None = None
    truth: str = "Persist"
    """The store that is the source of truth."""
    link: str = ""
    """Id of the link between two stores. Empty if there is only one store."""


@dataclass(frozen=True, slots=True)
class Start:
    """What else happened when a catalog was opened."""

    restored: str = ""
    """Describes the source that the catalog was filled from. Empty if it was not restored."""
    upgraded: UpgradeReport | None = None
    kept: Kept | None = None
    """The time before the upgrade, which stays readable."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What can be read of a catalog at any version of its format, without opening it."""

    organization_id: str
    shard_id: str
    catalog_version: int | None
    epoch: int | None
    deploy_generation: int | None
    truth: str | None = "Persist"
    link: str = ""


_FOR: Final = "operator for Catalog "


def purpose_of(catalog: str, migration: str = "") -> str:
    """Returns the purpose in a fence token: a Catalog, or one of its CatalogMigrations."""
    return f"{_FOR}{catalog}" + (f", CatalogMigration {migration}" if migration else "")


def owner_of(purpose: str) -> str | None:
    """Returns the Catalog that a token's purpose names, or None if no operator wrote the token."""
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
    """If true, a missing catalog is not created, and the open raises `NothingThere`."""
    replica_sizes: tuple[str, ...] = ("1",)
    system_configurations: tuple[tuple[str, str], ...] = ()
    upgrade: bool = True
    """If false, a catalog of an older format is not upgraded, and the open raises `UpgradePending`."""
    stash: StashLocation | None = None
    """The stash, if the catalog has two stores."""
    shadow: bool = False
    """Whether every change is also made in the other store, and compared."""
    backend: str = "Persist"
    """The store in which a new catalog is created, if it has two stores."""
    strategy: str | None = None
    """How the two stores record the source of truth. None keeps the recorded strategy."""
    truth: str | None = None
    """The source of truth that the annotation names, if both stores hold a catalog when they are linked."""
    reopen: str = ""
    """Value of the annotation that requests to open the catalog again."""
    restore: RestoreSource | None = None
    """The source that a new catalog is filled from, instead of the bootstrap."""
    observed: bool = False
    """Whether the catalog is only read, because another process writes to it."""
    secrets: int = 0
    """`Credentials.version` of what it is opened with."""
    least_epoch: int = 0
    """The epoch that the catalog had before. If its store has a lower one, the open raises
    `EpochWentBack`."""

    @property
    def location(self) -> str:
        """One name for all stores of the catalog. A slow response may come from any of them."""
        return self.storage.beside(self.stash)

    @property
    def bootstrap(self) -> Bootstrap:
        """The contents of a new catalog."""
        return Bootstrap(
            default_cluster=self.default_cluster,
            replica_sizes=self.replica_sizes,
            roles=self.roles,
            system_configurations=dict(self.system_configurations),
        )


class UnknownLocation(BadInput):
    """`spec.storage` names a store that can't be opened at all."""


class NothingThere(BadInput):
    """The catalog doesn't exist, and the open must not create it."""


class RestoreFailed(ReasonedError):
    """The source for a new catalog or a collection can't be read or used. Nothing was changed."""

    reason = Reason.RESTORE_FAILED
    hint = "correct spec.restoreFrom or its source, or remove it; the operator retries by itself"


class OwnedByAnother(ReasonedError):
    """The store records that the catalog belongs to another Catalog. Nothing was changed."""

    reason = Reason.DUPLICATE_CATALOG
    hint = "delete one of the two"

    def __init__(self, owner: str) -> None:
        super().__init__(f"Catalog {owner} has this organization in the same store, maybe under another URL")


class ObservedByAnother(ReasonedError):
    """An Observed Catalog shows that a database process has this catalog. Nothing was changed."""

    reason = Reason.DUPLICATE_CATALOG
    hint = "delete one of the two; to let this operator write to it, set access: Managed in that one"

    def __init__(self, observer: str) -> None:
        super().__init__(
            f"Catalog {observer} observes this organization in the same store, maybe under another URL: a "
            "database process writes to it"
        )


class OwnerUnknown(StorageError):
    """It is unknown whether another Catalog observes this store. Nothing was changed."""

    hint = "the operator retries by itself; make that store reachable, or delete that Catalog"

    def __init__(self, observer: str) -> None:
        # Other namespaces must not see where that store is and how it failed.
        super().__init__(
            f"can't check whether Catalog {observer} observes this organization in the same store: its own "
            "store can't be reached"
        )


class NotAllowed(ReasonedError):
    """The operator does not read this location for the resource's namespace. Nothing was opened."""

    reason = Reason.LOCATION_NOT_ALLOWED
    hint = "correct spec.restoreFrom, or remove it"


class NotReadable(BadInput):
    """The catalog has another format version than this operator reads."""


class UpgradePending(ReasonedError):
    """The catalog has an older format, and its upgrade is not approved. Nothing was changed."""

    reason = Reason.UPGRADE_PENDING


class EpochWentBack(HoldfastError):
    """The stored epoch is lower than an earlier one, or the catalog is gone. Nothing was changed."""

    def __init__(self, found: Durable, least: int) -> None:
        super().__init__(f"the stored epoch is {found.epoch}, but was {least} before")
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
    """Whether the spec requests to delete the data. Known even if the rest of the spec can't be parsed."""
    deletion: Deletion = NO_DELETION
    """The progress of the deletion."""
    has_finalizer: bool = True
    needs_finalizer: bool = True
    """Whether a deletion must delete data, or wait for resources that need the Catalog."""
    known_epoch: int = 0
    """`status.epoch`: the epoch of the last open, maybe by another process."""
    initialized: bool = False
    """Whether the status shows that the store holds data."""
    void: bool = False
    """Whether an open found that the store holds nothing of this Catalog, or that it is no store at all."""
    older_twin: str | None = None
    """An older Catalog that claims the same catalog."""
    fences: tuple[CatalogFence, ...] = ()
    """The fences by other processes since the resource was last changed."""
    storage: Storage | RefusedLocation
    restore: RestoreSource | RefusedLocation | None = None
    """The source that a new catalog is filled from."""
    restored_from: str | None = None
    """The source that the catalog was filled from."""
    reopen: str = ""
    """Value of the annotation that requests to open the catalog again."""
    approved_upgrade: str = ""
    """The format version that the annotation approves an upgrade to."""
    unusable_secret: Health | None = None
    """The problem with a Secret that the spec names."""
    secrets: int = 0
    """`Credentials.version` of the Secrets."""
    under_way: bool = False
    """Whether an open, a preflight or an upgrade check is running, or its result is not taken yet."""
    opened: Opening | None = None
    facts: CatalogFacts | None = None
    connection: Seen | None = None
    """The Catalog's ConfigMap. Read while the catalog is open, or if another process should open it."""
    objects: ObjectsPlan = NOTHING_DECLARED
    """The changes to an open catalog for `spec.objects`."""
    migration: str = ""
    """The CatalogMigration that holds the catalog."""
    in_both: bool = False
    """Whether that migration has opened the catalog in both stores."""
    named_truth: str = ""
    """The source of truth that the annotation names, if it is not applied yet."""
    handled_truth: str = ""
    """The value of the annotation if it is already applied."""
    migrations: tuple[str, ...] = ()
    """Unfinished CatalogMigrations of the Catalog. Read while it is being deleted."""
    dependents: tuple[str, ...] = ()
    """StorageCollections that refer to the Catalog. Read while it is being deleted."""
    kept_dependents: tuple[str, ...] = ()
    """Those of them that are not being deleted."""
    doomed_dependents: bool = False
    """Whether one of them must be dropped from the catalog."""
    busy_dependents: bool = False
    """Whether one of them is being deleted while its Spark jobs run. The end of their attempts is
    recorded."""
    holder: str = ""
