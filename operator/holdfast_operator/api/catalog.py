"""The `Catalog` resource: one durable catalog of one organization."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    ApiModel,
    Definition,
    Frontier,
    LocalReference,
    PrinterColumn,
    Resource,
    Status,
    validations,
)
from holdfast_operator.api.names import Kind

_NO_USERINFO = "!self.matches('^[^/?#]*://[^/?#]*@')"
_NO_USERINFO_MESSAGE = "must not contain a user or a password: name a Secret in credentialsSecretRef"
_HAS_SCHEME = "self.matches('^[a-zA-Z][a-zA-Z0-9+.-]*://.+')"
_HAS_SCHEME_MESSAGE = "must be a URL like file:///folder"
_URL_RULES = validations((_HAS_SCHEME, _HAS_SCHEME_MESSAGE), (_NO_USERINFO, _NO_USERINFO_MESSAGE))
_URL_OR_PAIR = (
    "has(self.url) ? !has(self.blob) && !has(self.consensus) : has(self.blob) == has(self.consensus)"
)
_SAME_STORAGE = (
    "!has(oldSelf.status) || !has(oldSelf.status.shardId) || "
    "(has(self.spec.storage.url) == has(oldSelf.spec.storage.url) && "
    "has(self.spec.storage.blob) == has(oldSelf.spec.storage.blob) && "
    "(!has(self.spec.storage.url) || self.spec.storage.url == oldSelf.spec.storage.url) && "
    "(!has(self.spec.storage.blob) || (self.spec.storage.blob == oldSelf.spec.storage.blob && "
    "self.spec.storage.consensus == oldSelf.spec.storage.consensus)))"
)
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class Backend(StrEnum):
    """Where a catalog's data is."""

    PERSIST = "Persist"


class DeletionPolicy(StrEnum):
    """What happens to the durable data when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class CatalogStorage(ApiModel):
    """Where the durable state is. Empty: files and SQLite on the operator's own volume."""

    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="One URL for blobs and consensus together, e.g. file:///var/lib/holdfast/demo.",
        json_schema_extra=_URL_RULES,
    )
    blob: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the blob store, together with consensus instead of url.",
        json_schema_extra=_URL_RULES,
    )
    consensus: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the consensus store, together with blob instead of url.",
        json_schema_extra=_URL_RULES,
    )
    credentials_secret_ref: LocalReference | None = Field(
        default=None,
        description="A Secret with credentials; its keys become environment variables of Spark jobs.",
    )


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


class CatalogSpec(ApiModel):
    """What the catalog should be."""

    organization_id: str = Field(
        pattern=_UUID,
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
        json_schema_extra=validations(
            (
                _URL_OR_PAIR,
                "give either url, or blob and consensus together, or none of them",
            )
        )
        | {"default": {}},
    )
    backend: Backend = Field(
        default=Backend.PERSIST, description="What keeps the catalog's data. Only Persist in this version."
    )
    deploy_generation: int = Field(
        default=0,
        ge=0,
        description="Generation of the deployment that opens the catalog. A greater one shuts all lower "
        "ones out for ever, so it never decreases.",
        json_schema_extra=validations(
            ("self >= oldSelf", "deployGeneration never decreases: lower ones are shut out already")
        ),
    )
    bootstrap: CatalogBootstrap = Field(
        default=CatalogBootstrap(),
        description="What a new catalog starts with; ignored for one that exists.",
        json_schema_extra={"default": {}},
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the durable catalog when this resource is deleted; Delete destroys it.",
    )
    suspend: bool = Field(
        default=False, description="True closes the catalog and does nothing until it is false again."
    )


class CatalogStatus(Status):
    """What the store says; always derived from it, so nothing is lost when this is."""

    organization_id: str | None = Field(default=None, description="The organization whose catalog is open.")
    shard_id: str | None = Field(default=None, description="The shard that holds the catalog.")
    epoch: int | None = Field(
        default=None, description="Epoch of this operator's fence token; it grows with each start."
    )
    deploy_generation: int | None = Field(
        default=None, description="Deploy generation of this operator's fence token."
    )
    source_of_truth: str | None = Field(default=None, description="The backend that holds the truth.")
    catalog_version: int | None = Field(default=None, description="Version of the catalog's format.")
    since: Frontier | None = Field(default=None, description="The catalog can be read as of this version on.")
    upper: Frontier | None = Field(default=None, description="The next version to be written.")
    object_counts: dict[str, int] | None = Field(
        default=None, description="How many objects of each type the catalog has."
    )


class Catalog(Resource):
    """One durable catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.CATALOG,
        short_names=("cat",),
        columns=(
            READY_COLUMN,
            REASON_COLUMN,
            PrinterColumn("Epoch", "integer", ".status.epoch", "Epoch of the operator's fence token."),
            PrinterColumn("Truth", "string", ".status.sourceOfTruth", "The backend that holds the truth."),
            PrinterColumn("Version", "integer", ".status.catalogVersion", "Version of the catalog's format."),
            PrinterColumn("Upper", "string", ".status.upper", "The next version to be written."),
            AGE_COLUMN,
        ),
        description="A Catalog is one durable, fenced and versioned catalog of one organization.",
        rules=(
            (
                _SAME_STORAGE,
                "spec.storage is immutable once the catalog is initialized: create another Catalog instead",
            ),
        ),
    )

    spec: CatalogSpec = Field(description="What the catalog should be.")
    status: CatalogStatus = Field(
        default=CatalogStatus(),
        description="What the operator last found in the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
