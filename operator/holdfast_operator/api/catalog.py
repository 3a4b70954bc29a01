"""The `Catalog` resource: one durable catalog of one organization."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    ApiModel,
    Definition,
    Frontier,
    PrinterColumn,
    Resource,
    Status,
    validations,
)
from holdfast_operator.api.catalogobjects import MAX_OBJECTS, CatalogObjects, SettingText
from holdfast_operator.api.catalogsource import (
    STORAGE_RULES,
    UUID,
    CatalogRestore,
    CatalogStash,
    CatalogStorage,
)
from holdfast_operator.api.names import Kind

_SAME_STORAGE = (
    "!has(oldSelf.status) || !has(oldSelf.status.shardId) || "
    "(has(self.spec.storage.url) == has(oldSelf.spec.storage.url) && "
    "has(self.spec.storage.blob) == has(oldSelf.spec.storage.blob) && "
    "(!has(self.spec.storage.url) || self.spec.storage.url == oldSelf.spec.storage.url) && "
    "(!has(self.spec.storage.blob) || (self.spec.storage.blob == oldSelf.spec.storage.blob && "
    "self.spec.storage.consensus == oldSelf.spec.storage.consensus)))"
)
_RESTORED_ONCE = (
    "!has(self.spec.restoreFrom) || !has(oldSelf.status) || !has(oldSelf.status.shardId) || "
    "(has(oldSelf.spec.restoreFrom) && self.spec.restoreFrom == oldSelf.spec.restoreFrom)"
)
_NEVER_LESS = (
    "self.access == 'Observed' || (has(self.deployGeneration) ? self.deployGeneration : 0) >= "
    "(has(oldSelf.deployGeneration) ? oldSelf.deployGeneration : 0)"
)
_LINKED = "!has(oldSelf.status) || !has(oldSelf.status.link) || has(self.spec.stash)"
_SAME_STRATEGY = (
    "!has(oldSelf.migrationStrategy) || "
    "(has(self.migrationStrategy) && self.migrationStrategy == oldSelf.migrationStrategy)"
)
_UNSEEN: dict[str, Any] = {"default": None}
"""A default that only this operator knows: a rule must see whether somebody set the field."""


class Backend(StrEnum):
    """Where a catalog's data is."""

    PERSIST = "Persist"
    STASH = "Stash"


class MigrationStrategy(StrEnum):
    """How two linked stores tell which one is the source of truth."""

    ONE_TOMBSTONE = "OneTombstone"
    TWO_TOMBSTONES = "TwoTombstones"


class DeletionPolicy(StrEnum):
    """What happens to the durable data when its resource is deleted."""

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
    """What a catalog starts with when it is initialized; ignored for one that exists."""

    default_cluster: str = Field(
        default="default", min_length=1, max_length=255, description="Name of the first cluster."
    )
    roles: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        default=(),
        max_length=64,
        description="Names of roles to create beside the built-in ones.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    replica_sizes: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        default=("1",),
        max_length=64,
        description="Sizes of the first cluster's replicas r1, r2, ..., as the database names them.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    system_configurations: dict[str, SettingText] = Field(
        default={},
        description="System configurations to set, by name.",
        json_schema_extra={"maxProperties": MAX_OBJECTS},
    )


class CatalogSpec(ApiModel):
    """What the catalog should be."""

    organization_id: str = Field(
        pattern=UUID,
        max_length=36,
        description="The organization whose catalog it is: a UUID in lower case. It can't change.",
        json_schema_extra=validations(
            ("self == oldSelf", "organizationId is immutable: create another Catalog instead")
        ),
    )
    storage: CatalogStorage = Field(
        default=CatalogStorage(),
        description="Where the durable state is; empty means files and SQLite on the operator's own volume. "
        "It can't change once the catalog is initialized.",
        json_schema_extra=STORAGE_RULES | {"default": {}},
    )
    backend: Backend = Field(
        default=Backend.PERSIST,
        description="Where a new catalog begins, Persist or Stash; one that exists stays where its source of "
        "truth is until a CatalogMigration moves it.",
    )
    access: Access = Field(
        default=Access.MANAGED,
        description="Managed: this operator writes to the catalog. Observed: a database process does, and "
        "the operator only shows it.",
    )
    upgrade_policy: UpgradePolicy = Field(
        default=UpgradePolicy.AUTOMATIC,
        description="Whether the operator upgrades a catalog of an older format when it opens it (Automatic, "
        "the default) or waits until the annotation holdfast.dev/approve-upgrade names the version (Manual).",
        json_schema_extra=_UNSEEN,
    )
    deploy_generation: int = Field(
        default=0,
        ge=0,
        description="Generation of the deployment that opens the catalog, 0 where it isn't given. A greater "
        "one shuts all lower ones out for ever, so it never decreases.",
        json_schema_extra=_UNSEEN,
    )
    bootstrap: CatalogBootstrap = Field(
        default=CatalogBootstrap(),
        description="What a new catalog starts with; ignored for one that exists.",
        json_schema_extra=_UNSEEN,
    )
    restore_from: CatalogRestore | None = Field(
        default=None,
        description="What an uninitialized catalog is filled with. It can't change once the catalog is "
        "initialized, but may be removed.",
        json_schema_extra=validations(
            ("has(self.dump) != has(self.catalog)", "give either dump or catalog"),
        ),
    )
    objects: CatalogObjects | None = Field(
        default=None,
        description="What the operator keeps in step with the catalog; what others made is left alone.",
    )
    stash: CatalogStash | None = Field(
        default=None,
        description="A database that is linked with the storage: the catalog is in one of the two, and a "
        "CatalogMigration moves it. It can't be removed while they are linked.",
    )
    migration_strategy: MigrationStrategy | None = Field(
        default=None,
        description="How the two stores tell which one is the source of truth: OneTombstone where it isn't "
        "given. It is recorded when they are linked, and can't change.",
    )
    shadow: bool = Field(
        default=False,
        description="True: every change of the catalog is made in the other one of its two stores too, and "
        "what comes back is compared.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the durable catalog when this resource is deleted; Delete destroys it.",
    )
    suspend: bool = Field(
        default=False, description="True closes the catalog and does nothing until it is false again."
    )


def _observed_refuses(field: str, is_set: str = "", what: str = "") -> tuple[str, str]:
    message = f"a database process alone writes an Observed catalog: remove {what or field}"
    return f"self.access != 'Observed' || !({is_set or f'has(self.{field})'})", message


_SPEC_RULES = validations(
    (_NEVER_LESS, "deployGeneration never decreases: lower ones are shut out already"),
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
    """One time that another process took the catalog from the operator."""

    time: datetime = Field(description="When the operator found out.")
    holder: str = Field(
        max_length=MAX_FENCE_TEXT, description="Who has the catalog since then, and what for."
    )
    epoch: int = Field(description="Epoch of the other one's fence token.")
    generation: int = Field(description="The metadata.generation at that time.")
    reopen: str = Field(
        default="",
        max_length=MAX_FENCE_TEXT,
        description="Value of the annotation holdfast.dev/reopen at that time.",
    )


class CatalogConnection(ApiModel):
    """Where it is written how to open a catalog."""

    config_map: str = Field(
        description="A ConfigMap of the same namespace whose values a pod takes as environment variables."
    )


class CatalogStatus(Status):
    """What the store says; always derived from it, so nothing is lost when this is."""

    organization_id: str | None = Field(default=None, description="The organization whose catalog is open.")
    shard_id: str | None = Field(default=None, description="The shard that holds the catalog.")
    epoch: int | None = Field(
        default=None,
        description="Epoch of the durable fence token; it grows with each open for writing. While a store "
        "that went back keeps a managed catalog closed (FenceRegressed), the one that it had before.",
    )
    deploy_generation: int | None = Field(
        default=None, description="Deploy generation of the durable fence token."
    )
    holder: str | None = Field(default=None, description="Who holds the durable fence token, and what for.")
    source_of_truth: str | None = Field(default=None, description="The backend that holds the truth.")
    link: str | None = Field(default=None, description="What the two stores are linked by, in both of them.")
    catalog_version: int | None = Field(default=None, description="Version of the catalog's format.")
    since: Frontier | None = Field(default=None, description="The catalog can be read as of this version on.")
    upper: Frontier | None = Field(default=None, description="The next version to be written.")
    object_counts: dict[str, int] | None = Field(
        default=None, description="How many objects of each type the catalog has."
    )
    restored_from: str | None = Field(
        default=None, description="What the catalog was filled with when it was new, by spec.restoreFrom."
    )
    handled_truth: str | None = Field(
        default=None,
        description="Value of the annotation holdfast.dev/truth that did its duty. It has no effect "
        "any more: remove the annotation and set it again to decide anew.",
    )
    connection: CatalogConnection | None = Field(
        default=None, description="Where it is written how an application opens the catalog."
    )
    fenced_by: tuple[CatalogFence, ...] | None = Field(
        default=None,
        max_length=3,
        description="Who took the catalog from the operator since the resource was last changed; after three "
        "times within ten minutes it isn't taken back any more.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class Catalog(Resource):
    """One durable catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.CATALOG,
        short_names=("cat",),
        columns=(
            READY_COLUMN,
            PrinterColumn("Epoch", "integer", ".status.epoch", "Epoch of the durable fence token."),
            PrinterColumn("Truth", "string", ".status.sourceOfTruth", "The backend that holds the truth."),
            PrinterColumn("Version", "integer", ".status.catalogVersion", "Version of the catalog's format."),
            PrinterColumn("Upper", "string", ".status.upper", "The next version to be written."),
            AGE_COLUMN,
            REASON_COLUMN,
            PrinterColumn(
                "Organization", "string", ".spec.organizationId", "Whose catalog it is.", wide=True
            ),
        ),
        description="A Catalog is one durable, fenced and versioned catalog of one organization.",
        rules=(
            (
                _SAME_STORAGE,
                "spec.storage is immutable once the catalog is initialized: create another Catalog instead",
                ".spec.storage",
            ),
            (
                _RESTORED_ONCE,
                "spec.restoreFrom is for a catalog that isn't initialized: create another Catalog instead",
                ".spec.restoreFrom",
            ),
            (
                _LINKED,
                "spec.stash can't be removed while it is linked: 'holdfast migrate detach' ends that",
                ".spec.stash",
            ),
        ),
    )

    spec: CatalogSpec = Field(description="What the catalog should be.", json_schema_extra=_SPEC_RULES)
    status: CatalogStatus = Field(
        default=CatalogStatus(),
        description="What the operator last found in the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
