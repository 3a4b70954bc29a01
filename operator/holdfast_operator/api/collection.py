"""The `StorageCollection` resource: one collection of a catalog, with its rendition and snapshots."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, field_validator

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
from holdfast_operator.api.columns import MAX_COLUMNS, NO_NAME_TWICE, CollectionColumn, additive_rules
from holdfast_operator.api.cron import CronSchedule, ScheduleStatus
from holdfast_operator.api.names import Kind
from holdfast_operator.api.rendition import (
    HANDOVER_RULES,
    HYDRATION_RULES,
    CollectionHandover,
    CollectionHydration,
    CollectionRendition,
    CollectionRestoreStatus,
    HandoverStatus,
    HoldStatus,
    RenditionStatus,
)
from holdfast_operator.api.settings import ICEBERG
from holdfast_operator.api.spark import SparkJobStatus, SparkTemplate
from holdfast_operator.api.urls import NO_SECRETS, without_secrets

_IMMUTABLE = "self == oldSelf"
_UNBORN = "!has(oldSelf.status) || !has(oldSelf.status.collectionId)"
_KNOWN_HASH_COLUMNS = (
    "!has(self.spec.rendition.hashColumns) || self.spec.rendition.hashColumns.all(h, "
    "self.spec.columns.exists(c, c.name == h))"
)
_SAME_NAME = (
    f"{_UNBORN} || (self.spec.catalogRef == oldSelf.spec.catalogRef && "
    "self.spec.database == oldSelf.spec.database && self.spec.schema == oldSelf.spec.schema && "
    "has(self.spec.name) == has(oldSelf.spec.name) && "
    "(!has(self.spec.name) || self.spec.name == oldSelf.spec.name))"
)


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


class CollectionRestore(ApiModel):
    """What the contents of the collection are to be replaced by."""

    snapshot: str = Field(
        min_length=1,
        max_length=2048,
        description="URL of the folder of a snapshot, with its manifest: status.lastSnapshot.destination of "
        "the collection that it was made of. A file:// URL below the folder of the namespace on the "
        "operator's own volume, or an s3:// URL, which the operator reads with its own credentials and only "
        "where catalogs may be.",
        json_schema_extra=validations(
            (
                "self.matches('^(file:///|s3://[^/]).+')",
                "must be a URL like file:///folder/snapshot or s3://bucket/snapshot",
            ),
            *NO_SECRETS,
        ),
    )
    _no_secrets = field_validator("snapshot")(without_secrets)


class JobRequest(ApiModel):
    """Asks for one job; a new `requestId` asks for another one."""

    request_id: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$",
        description="Names this request. The same id never runs twice; a new id asks for another one.",
    )


class IcebergTable(ApiModel):
    """A table of an Iceberg catalog, whose contents become those of the snapshot."""

    catalog: str = Field(
        max_length=63,
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Name of the catalog. What properties don't tell of it the environment does: "
        "PYICEBERG_CATALOG__NAME__URI, ..., by spark.envSecretRef.",
    )
    table: str = Field(
        max_length=512,
        pattern=r"^[^.]+(\.[^.]+)+$",
        description="The table, as namespace.table; it is made where it isn't there. It is this collection's "
        "alone: one with rows of others is refused.",
    )
    properties: Annotated[
        dict[str, Annotated[str, Field(max_length=2048)]], AfterValidator(ICEBERG.taken)
    ] = Field(
        default={},
        description="How pyiceberg opens the catalog: type, uri, warehouse, s3.endpoint, ... No secrets: "
        "everybody who can read the resource sees them.",
        json_schema_extra={"maxProperties": 32} | ICEBERG.schema,
    )


_ONE_PLACE = validations(
    ("has(self.destination) != has(self.iceberg)", "give either destination or iceberg"),
)


class SparkTask(ApiModel):
    """What a Spark job does."""

    spark: SparkTemplate = Field(
        default=SparkTemplate(),
        description="What the Spark job runs with.",
        json_schema_extra={"default": {}},
    )


class SnapshotTask(SparkTask):
    """How a snapshot is written, and where."""

    destination: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the folder for Parquet files and a manifest; each attempt has its own subfolder. "
        "s3://bucket/prefix?endpoint=...&region=..., written with the catalog's credentials or those that "
        "spark.envSecretRef names, or a file:// URL of a folder that driver and executors share, such as one "
        "of spark.volumes.",
        json_schema_extra=validations(
            (
                "self.matches('^(file:///|s3://[^/]).+')",
                "must be a URL like s3://bucket/prefix, or file:///folder, which all pods share",
            ),
            *NO_SECRETS,
        ),
    )
    iceberg: IcebergTable | None = Field(
        default=None, description="In place of destination: an Iceberg table that gets its rows."
    )

    _no_secrets = field_validator("destination")(without_secrets)

    @property
    def place(self) -> dict[str, Any]:
        """Where to, as the spec of a job names it."""
        if self.iceberg is not None:
            return {"iceberg": self.iceberg.model_dump()}
        return {"destination": self.destination}


class SnapshotRequest(SnapshotTask, JobRequest):
    """Asks for one snapshot."""

    as_of: int | None = Field(
        default=None,
        ge=0,
        description="The time to read at, in milliseconds since the epoch; "
        "the latest complete one where it isn't given.",
    )


class SnapshotSchedule(SnapshotTask, CronSchedule):
    """Asks for a snapshot at each of its times, of the latest complete time then."""


class CompactionRequest(SparkTask, JobRequest):
    """Asks for one compaction."""


class CompactionSchedule(SparkTask, CronSchedule):
    """Asks for a compaction at each of its times."""


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
        description="The columns, in order. Once the collection exists, nullable ones may be added at the "
        "end and types may become wider, outside of the key.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    key: tuple[Annotated[str, Field(max_length=128)], ...] = Field(
        default=(),
        max_length=MAX_COLUMNS,
        description="The columns that identify a row; all columns where it isn't given. It can't change.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
        | validations((_IMMUTABLE, "key is immutable"), NO_NAME_TWICE),
    )
    rendition: CollectionRendition = Field(
        default=CollectionRendition(),
        description="How the data is laid out. A change makes a new rendition; to change it back while that "
        "is filled gives it up.",
        json_schema_extra={"default": {}},
    )
    handover: CollectionHandover = Field(
        default=CollectionHandover(),
        description="When a new rendition takes over.",
        json_schema_extra={"default": {}} | HANDOVER_RULES,
    )
    hydration: CollectionHydration = Field(
        default=CollectionHydration(),
        description="How new renditions of recipe Copy are filled.",
        json_schema_extra={"default": {}} | HYDRATION_RULES,
    )
    max_bytes: int | None = Field(
        default=None,
        ge=1,
        description="A collection that holds more shows OverMaxBytes, and no new rendition is begun whose "
        "copy would make it hold more. Nothing that is there is taken away.",
    )
    retention: CollectionRetention = Field(
        default=CollectionRetention(),
        description="How much history is kept.",
        json_schema_extra={"default": {}},
    )
    snapshot: SnapshotRequest | None = Field(
        default=None,
        description="Asks for one snapshot, written by a Spark job.",
        json_schema_extra=_ONE_PLACE,
    )
    snapshot_schedule: SnapshotSchedule | None = Field(
        default=None,
        description="Asks for a snapshot at the times of a cron line, beside what spec.snapshot asks for. Of "
        "the runs that were missed, while the operator was down, the collection suspended or the run before "
        "not over, at most one is made up for: the latest.",
        json_schema_extra=_ONE_PLACE,
    )
    compaction: CompactionRequest | None = Field(
        default=None,
        description="Asks for one compaction: a Spark job makes one batch of each shard. Contents stay as "
        "they are at all times that can be read. It waits for other Spark jobs of the collection.",
    )
    compaction_schedule: CompactionSchedule | None = Field(
        default=None,
        description="Asks for a compaction at the times of a cron line, beside what spec.compaction asks "
        "for. Of the runs that were missed at most one is made up for, as with spec.snapshotSchedule.",
    )
    restore_from: CollectionRestore | None = Field(
        default=None,
        description="Makes the contents of the collection those of a snapshot, once for each value: what was "
        "written since is given up from then on. A new collection begins with them. The same value never "
        "restores twice, and to remove it changes nothing.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the durable data when this resource is deleted; Delete drops it for ever. "
        "Either ends Spark jobs that run.",
    )
    suspend: bool = Field(
        default=False,
        description="True leaves everything as it is until it is false again; a Spark job that runs is "
        "ended, and begins anew then.",
    )


class SnapshotStatus(ApiModel):
    """The last snapshot that was committed."""

    request_id: str = Field(description="The request that it answers.")
    as_of: Frontier = Field(description="The time that it was read at.")
    destination: str = Field(description="Where it is: the folder, or that of the Iceberg table.")
    table: str | None = Field(default=None, description="The Iceberg table, with the name of its catalog.")
    snapshot_id: str | None = Field(default=None, description="Id of the Iceberg snapshot.")
    rows: int | None = Field(default=None, description="How many rows it has.")
    checksum: str | None = Field(default=None, description="Checksum over its rows.")
    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The attempt that committed it.")


class CompactionStatus(ApiModel):
    """The last compaction that was done: of how many shards, and what that made of their updates."""

    request_id: str = Field(description="The request that it answers.")
    shards: int | None = Field(default=None, description="How many shards the collection had.")
    compacted: int | None = Field(default=None, description="How many of them were compacted.")
    left: int | None = Field(default=None, description="How many were left to others who compacted them.")
    batches: int | None = Field(default=None, description="How many batches became one for each shard.")
    rows_before: int | None = Field(default=None, description="Stored updates of these batches before.")
    rows: int | None = Field(default=None, description="Stored updates of these batches after.")
    bytes_before: int | None = Field(default=None, description="Stored bytes of these batches before.")
    bytes: int | None = Field(default=None, description="Stored bytes of these batches after.")
    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The attempt that committed it.")


class SnapshotJobStatus(SparkJobStatus):
    """The job of the snapshot that is asked for."""

    request_id: str = Field(description="The request that it answers.")
    as_of: Frontier = Field(description="The time that it reads at.")


class CompactionJobStatus(SparkJobStatus):
    """The job of the compaction that is asked for."""

    request_id: str = Field(description="The request that it answers.")


class SnapshotScheduleStatus(ScheduleStatus):
    """Where the schedule of snapshots is."""

    job: SnapshotJobStatus | None = Field(default=None, description="The job of its last run that began.")


class CompactionScheduleStatus(ScheduleStatus):
    """Where the schedule of compactions is."""

    job: CompactionJobStatus | None = Field(default=None, description="The job of its last run that began.")


class StorageCollectionStatus(Status):
    """What the store says; always derived from it, so nothing is lost when this is."""

    collection_id: str | None = Field(default=None, description="Id of the collection in the store.")
    item_id: str | None = Field(default=None, description="Id of the collection's item in the catalog.")
    since: Frontier | None = Field(default=None, description="The collection can be read as of this time on.")
    upper: Frontier | None = Field(default=None, description="The collection is complete before this time.")
    active_rendition: str | None = Field(default=None, description="The rendition that readers get.")
    shards: int | None = Field(default=None, description="Over how many shards that is spread.")
    next_rendition: str | None = Field(
        default=None, description="The rendition that is being filled, to take over."
    )
    renditions: tuple[RenditionStatus, ...] | None = Field(
        default=None,
        description="The renditions that are there, of the retired ones the oldest 50, and the last ones "
        "that are gone.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
    )
    renditions_total: int | None = Field(
        default=None, description="How many renditions are there, where not all of them are shown."
    )
    handover: HandoverStatus | None = Field(default=None, description="The last handover.")
    restore: CollectionRestoreStatus | None = Field(
        default=None, description="The restore that spec.restoreFrom asks for, once it is done."
    )
    holds: tuple[HoldStatus, ...] | None = Field(
        default=None,
        description="Who keeps retired renditions, beside the retention; those that read as of the oldest "
        "times, 50 at most.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    holds_total: int | None = Field(
        default=None, description="How many holds there are, where not all of them are shown."
    )
    bytes: int | None = Field(default=None, description="Bytes that all renditions hold.")
    snapshot_job: SnapshotJobStatus | None = Field(
        default=None, description="The job of the snapshot that spec.snapshot asks for."
    )
    snapshot_schedule: SnapshotScheduleStatus | None = Field(
        default=None, description="Where spec.snapshotSchedule is."
    )
    last_snapshot: SnapshotStatus | None = Field(
        default=None, description="The last snapshot that was committed."
    )
    compaction_job: CompactionJobStatus | None = Field(
        default=None, description="The job of the compaction that spec.compaction asks for."
    )
    compaction_schedule: CompactionScheduleStatus | None = Field(
        default=None, description="Where spec.compactionSchedule is."
    )
    last_compaction: CompactionStatus | None = Field(
        default=None, description="The last compaction that was done."
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
            PrinterColumn("Shards", "integer", ".status.shards", "Over how many shards that is spread."),
            PrinterColumn("Next", "string", ".status.nextRendition", "The rendition that is being filled."),
            AGE_COLUMN,
            REASON_COLUMN,
        ),
        description="A StorageCollection is one definite, time-travelling collection of rows.",
        rules=(
            *((rule, message, ".spec.columns") for rule, message in additive_rules(_UNBORN)),
            (
                _SAME_NAME,
                "catalogRef, database, schema and name can't change once the collection exists",
                ".spec",
            ),
            (
                "!has(self.spec.key) || self.spec.key.all(k, self.spec.columns.exists(c, c.name == k))",
                "spec.key names a column that isn't in spec.columns",
                ".spec.key",
            ),
            ("has(self.spec.key) == has(oldSelf.spec.key)", "key is immutable", ".spec.key"),
            (
                _KNOWN_HASH_COLUMNS,
                "spec.rendition.hashColumns names a column that isn't in spec.columns",
                ".spec.rendition.hashColumns",
            ),
        ),
    )

    spec: StorageCollectionSpec = Field(description="What the collection should be.")
    status: StorageCollectionStatus = Field(
        default=StorageCollectionStatus(),
        description="What the operator last found in the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
