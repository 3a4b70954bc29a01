"""The `StorageCollection` resource: one collection of a catalog, with its rendition and snapshots."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    PERIOD,
    READY_COLUMN,
    REASON_COLUMN,
    ApiModel,
    Definition,
    Frontier,
    LocalReference,
    PrinterColumn,
    Resource,
    Status,
    milliseconds,
    validations,
)
from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.names import Kind
from holdfast_operator.api.spark import SparkTemplate

MAX_COLUMNS = 256
_IMMUTABLE = "self == oldSelf"
_UNBORN = "!has(oldSelf.status) || !has(oldSelf.status.collectionId)"
_SAME_NAME = (
    f"{_UNBORN} || (self.spec.catalogRef == oldSelf.spec.catalogRef && "
    "self.spec.database == oldSelf.spec.database && self.spec.schema == oldSelf.spec.schema && "
    "has(self.spec.name) == has(oldSelf.spec.name) && "
    "(!has(self.spec.name) || self.spec.name == oldSelf.spec.name))"
)
_TYPES = (
    r"^(bool|u?int(8|16|32|64)|float(32|64)|string|binary|date32|timestamp|timestamp_utc|"
    r"decimal128\\((3[0-8]|[12][0-9]|[1-9]),(3[0-8]|[12]?[0-9])\\))$"
)
_UNKNOWN_TYPE = (
    "unknown column type: use bool, int8..int64, uint8..uint64, float32, float64, "
    "decimal128(precision,scale), string, binary, date32, timestamp or timestamp_utc"
)


class CollectionColumn(ApiModel):
    """One column."""

    name: str = Field(
        min_length=1,
        max_length=128,
        description="Name of the column; names that begin with an underscore are Holdfast's own.",
        json_schema_extra=validations(
            ("!self.startsWith('_')", "column names that begin with an underscore are reserved")
        ),
    )
    type: str = Field(
        min_length=1,
        max_length=32,
        description="bool, int8 to int64, uint8 to uint64, float32, float64, decimal128(precision,scale), "
        "string, binary, date32, timestamp or timestamp_utc.",
        json_schema_extra=validations((f"self.matches('{_TYPES}')", _UNKNOWN_TYPE)),
    )
    nullable: bool = Field(default=False, description="Whether the column may be null.")


class CollectionRetention(ApiModel):
    """How much history is kept."""

    period: str = Field(
        default="7d",
        pattern=PERIOD,
        description="How far since trails upper, in the collection's own time, e.g. 90s, 12h or 7d. What was "
        "given up doesn't come back when it is made longer.",
    )

    @property
    def milliseconds(self) -> int:
        """The period in milliseconds."""
        return milliseconds(self.period)


class CollectionRendition(ApiModel):
    """How the data is laid out."""

    shards: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Over how many shards the rows are spread by the hash of their key.",
        json_schema_extra=validations(
            (
                _IMMUTABLE,
                "rendition.shards can't change in this version: create another collection and copy the data",
            )
        ),
    )


class SnapshotRequest(ApiModel):
    """Asks for one snapshot; a new `requestId` asks for another one."""

    request_id: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="Names this request. The same id never runs twice; a new id asks for a new snapshot.",
    )
    as_of: int | None = Field(
        default=None,
        ge=0,
        description="The time to read at, in milliseconds since the epoch; "
        "the latest complete one where it isn't given.",
    )
    destination: str = Field(
        min_length=1,
        max_length=2048,
        description="URL of the folder for Parquet files and a manifest; each attempt has its own subfolder.",
        json_schema_extra=validations(
            ("self.matches('^[a-zA-Z][a-zA-Z0-9+.-]*://.+')", "must be a URL like file:///folder"),
            ("!self.matches('^[^/?#]*://[^/?#]*@')", "must not contain a user or a password"),
        ),
    )
    spark: SparkTemplate = Field(
        default=SparkTemplate(),
        description="What the Spark job runs with.",
        json_schema_extra={"default": {}},
    )


class StorageCollectionSpec(ApiModel):
    """What the collection should be."""

    catalog_ref: LocalReference = Field(
        description="The Catalog that names the collection. It can't change once the collection exists.",
    )
    database: str = Field(
        default="holdfast",
        min_length=1,
        max_length=255,
        description="Database of the collection in the catalog; it must be there.",
    )
    schema_name: str = Field(
        default="public",
        alias="schema",
        min_length=1,
        max_length=255,
        description="Schema of the collection in the catalog; it must be there.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Name of the collection in the catalog; the resource's own name where it isn't given.",
    )
    columns: tuple[CollectionColumn, ...] = Field(
        min_length=1,
        max_length=MAX_COLUMNS,
        description="The columns, in order. They can't change once the collection exists.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    key: tuple[Annotated[str, Field(max_length=128)], ...] = Field(
        default=(),
        max_length=MAX_COLUMNS,
        description="The columns that identify a row; all columns where it isn't given. It can't change.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
        | validations((_IMMUTABLE, "key is immutable")),
    )
    rendition: CollectionRendition = Field(
        default=CollectionRendition(),
        description="How the data is laid out.",
        json_schema_extra={"default": {}},
    )
    retention: CollectionRetention = Field(
        default=CollectionRetention(),
        description="How much history is kept.",
        json_schema_extra={"default": {}},
    )
    snapshot: SnapshotRequest | None = Field(
        default=None, description="Asks for one snapshot, written by a Spark job."
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the durable data when this resource is deleted; Delete drops it for ever.",
    )
    suspend: bool = Field(
        default=False, description="True leaves everything as it is until it is false again."
    )


class RenditionPhase(StrEnum):
    """The life of a rendition; this version only knows active ones."""

    ACTIVE = "Active"


class RenditionStatus(ApiModel):
    """One rendition."""

    id: str = Field(description="Id of the rendition.")
    phase: Literal["Hydrating", "CaughtUp", "Active", "Retiring", "Dropped", "Suspect"] = Field(
        description="Where the rendition is in its life."
    )
    shards: int = Field(description="How many shards it has.")
    since: Frontier | None = Field(default=None, description="It can be read as of this time on.")
    upper: Frontier | None = Field(default=None, description="It is complete before this time.")
    rows: int | None = Field(
        default=None, description="Updates that its shards hold, before they are consolidated."
    )
    bytes: int | None = Field(default=None, description="Bytes that its shards hold.")


class SnapshotStatus(ApiModel):
    """The last snapshot that was committed."""

    request_id: str = Field(description="The request that it answers.")
    as_of: Frontier = Field(description="The time that it was read at.")
    destination: str = Field(description="Where it is.")
    rows: int | None = Field(default=None, description="How many rows it has.")
    checksum: str | None = Field(default=None, description="Checksum over its rows.")
    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The attempt that committed it.")


class SnapshotJobStatus(ApiModel):
    """The job of the snapshot that is asked for."""

    request_id: str = Field(description="The request that it answers.")
    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The current attempt, from 1.")
    as_of: Frontier = Field(description="The time that it reads at.")
    state: Literal["Running", "Done", "Failed"] = Field(description="State of the JobRecord.")
    application: str | None = Field(default=None, description="The SparkApplication of the current attempt.")
    started: datetime | None = Field(default=None, description="When that was created.")


class StorageCollectionStatus(Status):
    """What the store says; always derived from it, so nothing is lost when this is."""

    collection_id: str | None = Field(default=None, description="Id of the collection in the store.")
    item_id: str | None = Field(default=None, description="Id of the collection's item in the catalog.")
    since: Frontier | None = Field(default=None, description="The collection can be read as of this time on.")
    upper: Frontier | None = Field(default=None, description="The collection is complete before this time.")
    active_rendition: str | None = Field(default=None, description="The rendition that readers get.")
    renditions: tuple[RenditionStatus, ...] | None = Field(
        default=None,
        description="All renditions.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
    )
    snapshot_job: SnapshotJobStatus | None = Field(
        default=None, description="The job of the snapshot that spec.snapshot asks for."
    )
    last_snapshot: SnapshotStatus | None = Field(
        default=None, description="The last snapshot that was committed."
    )


class StorageCollection(Resource):
    """One collection of a catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.STORAGE_COLLECTION,
        short_names=("coll",),
        columns=(
            READY_COLUMN,
            PrinterColumn("Catalog", "string", ".spec.catalogRef.name", "The Catalog that names it."),
            PrinterColumn("Since", "string", ".status.since", "It can be read as of this time on."),
            PrinterColumn("Upper", "string", ".status.upper", "It is complete before this time."),
            PrinterColumn(
                "Rendition", "string", ".status.activeRendition", "The rendition that readers get."
            ),
            PrinterColumn(
                "Shards", "integer", ".spec.rendition.shards", "Over how many shards it is spread."
            ),
            AGE_COLUMN,
            REASON_COLUMN,
        ),
        description="A StorageCollection is one definite, time-travelling collection of rows.",
        rules=(
            (
                f"{_UNBORN} || self.spec.columns == oldSelf.spec.columns",
                "spec.columns can't change once the collection exists: create another collection",
            ),
            (
                _SAME_NAME,
                "catalogRef, database, schema and name can't change once the collection exists",
            ),
            (
                "!has(self.spec.key) || self.spec.key.all(k, self.spec.columns.exists(c, c.name == k))",
                "spec.key names a column that isn't in spec.columns",
            ),
            ("has(self.spec.key) == has(oldSelf.spec.key)", "key is immutable"),
        ),
    )

    spec: StorageCollectionSpec = Field(description="What the collection should be.")
    status: StorageCollectionStatus = Field(
        default=StorageCollectionStatus(),
        description="What the operator last found in the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
