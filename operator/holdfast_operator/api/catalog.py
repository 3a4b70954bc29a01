"""The `Catalog` resource: the durable catalog of one organization."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    IS_UUID,
    READY_COLUMN,
    REASON_COLUMN,
    UNSEEN,
    ApiModel,
    Definition,
    Frontier,
    PrinterColumn,
    Resource,
    Status,
    Uuid,
    seen_void,
    validations,
)
from holdfast_operator.api.catalog_objects import MAX_OBJECTS, CatalogObjects, SettingText
from holdfast_operator.api.catalog_source import (
    STORAGE_RULES,
    CatalogRestore,
    CatalogStash,
    CatalogStorage,
)
from holdfast_operator.api.names import Kind
from holdfast_operator.api.settings import SettingName
from holdfast_operator.api.spark import SparkTemplate

_SAME_STORAGE = (
    f"{seen_void('shardId')} || "
    "(has(self.spec.storage.url) == has(oldSelf.spec.storage.url) && "
    "has(self.spec.storage.blob) == has(oldSelf.spec.storage.blob) && "
    "(!has(self.spec.storage.url) || self.spec.storage.url == oldSelf.spec.storage.url) && "
    "(!has(self.spec.storage.blob) || (self.spec.storage.blob == oldSelf.spec.storage.blob && "
    "self.spec.storage.consensus == oldSelf.spec.storage.consensus)))"
)
_RESTORED_ONCE = (
    f"!has(self.spec.restoreFrom) || {seen_void('shardId')} || "
    "(has(oldSelf.spec.restoreFrom) && self.spec.restoreFrom == oldSelf.spec.restoreFrom)"
)
_NEVER_LESS = (
    "self.access == 'Observed' || (has(self.deployGeneration) ? self.deployGeneration : 0) >= "
    "(has(oldSelf.deployGeneration) ? oldSelf.deployGeneration : 0)"
)
_LINKED = f"!has(oldSelf.spec.stash) || has(self.spec.stash) || {seen_void('link')}"
_SAME_STRATEGY = (
    "!has(oldSelf.migrationStrategy) || "
    "(has(self.migrationStrategy) && self.migrationStrategy == oldSelf.migrationStrategy)"
)


class Backend(StrEnum):
    """The store that holds a catalog's data."""

    PERSIST = "Persist"
    STASH = "Stash"


class MigrationStrategy(StrEnum):
    """How two linked stores record which one is the source of truth."""

    ONE_TOMBSTONE = "OneTombstone"
    TWO_TOMBSTONES = "TwoTombstones"


class DeletionPolicy(StrEnum):
    """What happens to the stored data when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Access(StrEnum):
    """Who writes to the catalog."""

    MANAGED = "Managed"
    OBSERVED = "Observed"


class UpgradePolicy(StrEnum):
    """Who decides when the format of a catalog is upgraded."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class CatalogBootstrap(ApiModel):
    """The contents of a new catalog. Ignored if the catalog exists."""

    default_cluster: str = Field(
        default="default", min_length=1, max_length=255, description="Name of the first cluster."
    )
    roles: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        default=(),
        max_length=64,
        description="Names of roles to create in addition to the built-in ones.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    replica_sizes: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        default=("1",),
        max_length=64,
        description="Sizes of the first cluster's replicas r1, r2, ..., in the database's own terms.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    system_configurations: dict[SettingName, SettingText] = Field(
        default={},
        description="System configurations to set, by name.",
        json_schema_extra={"maxProperties": MAX_OBJECTS},
    )


class CatalogSpec(ApiModel):
    """The desired state of a catalog."""

    organization_id: Uuid = Field(
        description="The organization that the catalog belongs to: a UUID in lower case. Immutable.",
        json_schema_extra=validations(
            IS_UUID, ("self == oldSelf", "organizationId is immutable: create another Catalog instead")
        ),
    )
    storage: CatalogStorage = Field(
        default=CatalogStorage(),
        description="Where the catalog is stored. If empty: in files and SQLite on the operator's volume. "
        "Immutable once the catalog is initialized, and until the operator has looked at it.",
        json_schema_extra=STORAGE_RULES | {"default": {}},
    )
    backend: Backend = Field(
        default=Backend.PERSIST,
        description="The store in which a new catalog is created: Persist or Stash. An existing catalog "
        "stays in its source of truth until a CatalogMigration moves it.",
    )
    access: Access = Field(
        default=Access.MANAGED,
        description="Managed: this operator writes to the catalog. Observed: a database process writes to "
        "it, and the operator only shows it.",
    )
    upgrade_policy: UpgradePolicy = Field(
        default=UpgradePolicy.AUTOMATIC,
        description="Automatic (the default): the operator upgrades a catalog of an older format when it "
        "opens it. Manual: it waits until the annotation holdfast.dev/approve-upgrade names the version.",
        json_schema_extra=UNSEEN,
    )
    deploy_generation: int = Field(
        default=0,
        ge=0,
        description="Generation of the deployment that opens the catalog. The default is 0. Once a greater "
        "generation has opened the catalog, a lower one never can again, so the value can't decrease.",
        json_schema_extra=UNSEEN,
    )
    bootstrap: CatalogBootstrap = Field(
        default=CatalogBootstrap(),
        description="The contents of a new catalog. Ignored if the catalog exists.",
        json_schema_extra=UNSEEN,
    )
    restore_from: CatalogRestore | None = Field(
        default=None,
        description="The data to fill a new catalog with. You can remove this field once the catalog is "
        "initialized, but you can't change it.",
        json_schema_extra=validations(
            ("has(self.dump) != has(self.catalog)", "give either dump or catalog"),
        ),
    )
    objects: CatalogObjects | None = Field(
        default=None,
        description="Objects that the operator keeps in the catalog as declared here. It does not touch "
        "objects that others create.",
    )
    stash: CatalogStash | None = Field(
        default=None,
        description="A database that is linked to the storage. The catalog is in one of the two, and a "
        "CatalogMigration moves it to the other. You can't remove the field while they are linked.",
    )
    migration_strategy: MigrationStrategy | None = Field(
        default=None,
        description="How the two stores record which one is the source of truth. The default is "
        "OneTombstone. The strategy is fixed when the stores are linked.",
    )
    shadow: bool = Field(
        default=False,
        description="If true, every change to the catalog is also made in its other store, and the results "
        "are compared.",
    )
    spark: SparkTemplate = Field(
        default=SparkTemplate(),
        description="Image, resources, pods and settings of the Spark jobs of the catalog's collections. A "
        "StorageCollection can differ in its own spec.spark, and each job in its own spark.",
        json_schema_extra=UNSEEN,
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="What happens to the stored catalog when you delete this resource. Retain keeps it. "
        "Delete destroys it, except for a stash: the stash is kept.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, the operator closes the catalog and does nothing until it is false again.",
    )


def _observed_refuses(field: str, is_set: str = "", what: str = "") -> tuple[str, str]:
    message = f"only a database process writes to an Observed catalog: remove {what or field}"
    return f"self.access != 'Observed' || !({is_set or f'has(self.{field})'})", message


_SPEC_RULES = validations(
    (_NEVER_LESS, "deployGeneration can't decrease: lower generations are already fenced"),
    ("!self.shadow || has(self.stash)", "shadow needs stash: name a database to shadow the catalog in"),
    ("self.backend != 'Stash' || has(self.stash)", "backend Stash needs stash"),
    ("!has(self.migrationStrategy) || has(self.stash)", "migrationStrategy needs stash"),
    (_SAME_STRATEGY, "migrationStrategy is immutable"),
    _observed_refuses("bootstrap"),
    _observed_refuses("objects"),
    _observed_refuses("restoreFrom"),
    _observed_refuses("shadow", "self.shadow"),
    _observed_refuses("deployGeneration"),
    _observed_refuses("upgradePolicy"),
    _observed_refuses("deletionPolicy", "self.deletionPolicy == 'Delete'", "deletionPolicy Delete"),
)


MAX_FENCE_TEXT: Final = 1024


class CatalogFence(ApiModel):
    """An occasion on which another process fenced the operator from the catalog."""

    time: datetime = Field(description="When the operator noticed.")
    holder: str = Field(
        max_length=MAX_FENCE_TEXT, description="The process that then held the catalog, and its purpose."
    )
    epoch: int = Field(description="The epoch with which the other process opened the catalog.")
    generation: int = Field(description="The metadata.generation at that time.")
    reopen: str = Field(
        default="",
        max_length=MAX_FENCE_TEXT,
        description="Value of the annotation holdfast.dev/reopen at that time.",
    )


class CatalogConnection(ApiModel):
    """How an application finds a catalog."""

    config_map: str = Field(
        description="A ConfigMap in the same namespace. Its values are environment variables for a pod that "
        "opens the catalog."
    )


class CatalogStatus(Status):
    """What the operator last read from the store. Losing the status loses no data."""

    organization_id: str | None = Field(
        default=None, description="The organization that the open catalog belongs to."
    )
    shard_id: str | None = Field(default=None, description="The shard that holds the catalog.")
    epoch: int | None = Field(
        default=None,
        description="A number that grows each time the catalog is opened for writing. If the store was "
        "restored from an older state (FenceRegressed), the operator keeps a managed catalog closed, and "
        "this is the epoch from before the restore.",
    )
    deploy_generation: int | None = Field(
        default=None, description="The deploy generation with which the catalog was last opened for writing."
    )
    holder: str | None = Field(
        default=None, description="The process that last opened the catalog for writing, and its purpose."
    )
    source_of_truth: str | None = Field(
        default=None, description="The store that is the source of truth: Persist or Stash."
    )
    link: str | None = Field(default=None, description="Id of the link, stored in both linked stores.")
    catalog_version: int | None = Field(default=None, description="Version of the catalog's format.")
    since: Frontier | None = Field(
        default=None, description="The earliest version at which the catalog can be read."
    )
    upper: Frontier | None = Field(default=None, description="The next version to be written.")
    object_counts: dict[str, int] | None = Field(
        default=None, description="Number of objects in the catalog, by type."
    )
    restored_from: str | None = Field(
        default=None, description="The source in spec.restoreFrom that the new catalog was filled with."
    )
    handled_truth: str | None = Field(
        default=None,
        description="The value of the annotation holdfast.dev/truth that the operator has already applied. "
        "It has no further effect: to decide again, remove the annotation and set it again.",
    )
    connection: CatalogConnection | None = Field(
        default=None, description="How an application finds and opens the catalog."
    )
    fenced_by: tuple[CatalogFence, ...] | None = Field(
        default=None,
        max_length=3,
        description="The processes that fenced the operator since the resource was last changed. After three "
        "times within ten minutes, the operator no longer takes the catalog back.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Catalog(Resource):
    """One durable catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.CATALOG,
        short_names=("cat",),
        columns=(
            READY_COLUMN,
            PrinterColumn(
                "Epoch", "integer", ".status.epoch", "Grows each time the catalog is opened for writing."
            ),
            PrinterColumn(
                "Truth", "string", ".status.sourceOfTruth", "The store that is the source of truth."
            ),
            PrinterColumn("Version", "integer", ".status.catalogVersion", "Version of the catalog's format."),
            PrinterColumn("Upper", "string", ".status.upper", "The next version to be written."),
            AGE_COLUMN,
            REASON_COLUMN,
            PrinterColumn(
                "Organization",
                "string",
                ".spec.organizationId",
                "The organization that it belongs to.",
                wide=True,
            ),
        ),
        description="A Catalog is the stored catalog of one organization. One process at a time writes it.",
        selectable=(".spec.organizationId",),
        rules=(
            (
                _SAME_STORAGE,
                "spec.storage is immutable once the catalog is initialized: create another Catalog instead",
                ".spec.storage",
            ),
            (
                _RESTORED_ONCE,
                "spec.restoreFrom can't change in an initialized catalog: create another Catalog instead",
                ".spec.restoreFrom",
            ),
            (
                _LINKED,
                "spec.stash can't be removed while it is linked: run 'holdfast migrate detach' first",
                ".spec.stash",
            ),
        ),
    )

    spec: CatalogSpec = Field(description="Desired state of the catalog.", json_schema_extra=_SPEC_RULES)
    status: CatalogStatus = Field(
        default=CatalogStatus(),
        description="What the operator last read from the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
