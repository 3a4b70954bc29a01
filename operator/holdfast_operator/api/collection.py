"""The `StorageCollection` resource: one collection of a catalog, its renditions and its Spark jobs."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, field_validator

from holdfast_operator.api.base import (
    AGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    UNSEEN,
    ApiModel,
    Definition,
    Frontier,
    LocalReference,
    Period,
    PrinterColumn,
    Quantity,
    Resource,
    Status,
    byte_count,
    milliseconds,
    seen_void,
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
from holdfast_operator.api.settings import ICEBERG, SettingName
from holdfast_operator.api.source import (
    SOURCE_RULES,
    CollectionSource,
    SourceScheduleStatus,
    SourceStatus,
)
from holdfast_operator.api.spark import SparkJobStatus, SparkOverride, SparkTemplate
from holdfast_operator.api.urls import no_secrets, without_secrets

_IMMUTABLE = "self == oldSelf"
_UNBORN = "!has(oldSelf.status) || !has(oldSelf.status.collectionId)"
_KNOWN_HASH_COLUMNS = (
    "!has(self.spec.rendition.hashColumns) || self.spec.rendition.hashColumns.all(h, "
    "self.spec.columns.exists(c, c.name == h))"
)
_SAME_NAME = (
    f"{seen_void('collectionId')} || (self.spec.catalogRef == oldSelf.spec.catalogRef && "
    "self.spec.database == oldSelf.spec.database && self.spec.schema == oldSelf.spec.schema && "
    "has(self.spec.name) == has(oldSelf.spec.name) && "
    "(!has(self.spec.name) || self.spec.name == oldSelf.spec.name))"
)


class CollectionRetention(ApiModel):
    """How much history is kept."""

    period: Period = Field(
        default="7d",
        description="How far since trails upper, in the collection's own time, e.g. 90s, 12h or 7d. A longer "
        "period doesn't bring back history that is already gone.",
    )

    @property
    def milliseconds(self) -> int:
        """The period in milliseconds."""
        return milliseconds(self.period)


class CollectionRestore(ApiModel):
    """The data that replaces the contents of the collection."""

    snapshot: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the folder that holds a snapshot and its manifest: status.location of a "
        "CollectionSnapshot, which may be gone. Either a file:// URL below the namespace's folder on the "
        "operator's own volume, or an s3:// URL. The operator reads it with the Catalog's credentials for "
        "S3, or its own if the Catalog has none, and only from locations that it allows for catalogs.",
        json_schema_extra=validations(
            (
                "self.matches('^(file:///|s3://[^/]).+')",
                "must be a URL like file:///folder/snapshot or s3://bucket/snapshot",
            ),
            *no_secrets("the Secret of the Catalog has them"),
        ),
    )
    snapshot_ref: LocalReference | None = Field(
        default=None,
        description="Instead of snapshot: the CollectionSnapshot to restore. It must be Ready until the "
        "restore is done. A CollectionSnapshot that is created again under the same name never restores "
        "again.",
    )
    _no_secrets = field_validator("snapshot")(without_secrets)

    @property
    def value(self) -> str:
        """The snapshot to restore, as text. The same text never restores twice."""
        if self.snapshot_ref is not None:
            return f"CollectionSnapshot {self.snapshot_ref.name}"
        return self.snapshot or ""


class IcebergTable(ApiModel):
    """An Iceberg table whose contents the snapshot replaces."""

    catalog: str = Field(
        max_length=63,
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Name of the Iceberg catalog. Options that are not in properties come from the "
        "environment (PYICEBERG_CATALOG__NAME__URI, ...), which spark.envSecretRef can set.",
    )
    table: str = Field(
        max_length=512,
        pattern=r"^[^.]+(\.[^.]+)+$",
        description="The table, as namespace.table. It is created if it doesn't exist. It belongs to this "
        "collection alone: a table that contains other rows is refused.",
    )
    properties: Annotated[
        dict[SettingName, Annotated[str, Field(max_length=2048)]], AfterValidator(ICEBERG.taken)
    ] = Field(
        default={},
        description="Options with which pyiceberg opens the catalog: type, uri, warehouse, s3.endpoint, ... "
        "Don't put secrets here: everybody who can read the resource sees them.",
        json_schema_extra={"maxProperties": 32} | ICEBERG.schema,
    )


_SCHEDULED_PLACE = validations(
    ("has(self.destination) != has(self.iceberg)", "give either destination or iceberg"),
    (
        "!has(self.iceberg) || self.deletionPolicy == 'Retain'",
        "deletionPolicy Delete needs a destination: the operator deletes no rows of an Iceberg table",
    ),
)


class SparkTask(ApiModel):
    """Work that a Spark job does."""

    spark: SparkOverride = Field(
        default=SparkOverride(),
        description="How this Spark job differs from spec.spark of the StorageCollection.",
        json_schema_extra=UNSEEN,
    )


class SnapshotTask(SparkTask):
    """A snapshot and the place where it is written."""

    destination: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        description="URL of the folder for Parquet files and a manifest. Each attempt has its own subfolder. "
        "Either s3://bucket/prefix?endpoint=...&region=..., written with the catalog's credentials or those "
        "of spark.envSecretRef, or a file:// URL of a folder that driver and executors share, such as one of "
        "spark.pod.volumes.",
        json_schema_extra=validations(
            (
                "self.matches('^(file:///|s3://[^/]).+')",
                "must be a URL like s3://bucket/prefix, or file:///folder for a folder that all pods share",
            ),
            *no_secrets("name a Secret in spark.envSecretRef"),
        ),
    )
    iceberg: IcebergTable | None = Field(
        default=None, description="Instead of destination: an Iceberg table to write the rows to."
    )

    _no_secrets = field_validator("destination")(without_secrets)

    @property
    def place(self) -> dict[str, Any]:
        """The place to write to, in the form that the spec of a job uses."""
        if self.iceberg is not None:
            return {"iceberg": self.iceberg.model_dump()}
        return {"destination": self.destination}


class SnapshotSchedule(SnapshotTask, CronSchedule):
    """Creates a CollectionSnapshot at each time of a schedule. Each reads at the latest complete time."""

    keep_last: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="How many Ready snapshots of this schedule to keep. Older ones are deleted, as "
        "deletionPolicy says. Without keepLast and keepFor, all are kept.",
    )
    keep_for: Period | None = Field(
        default=None,
        description="How long to keep snapshots of this schedule, from their scheduled time, e.g. 30d. The "
        "latest Ready one is always kept.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="The deletionPolicy of new snapshots: Delete deletes the files of snapshots that are no "
        "longer kept. Retain deletes only the resources, and keeps the files.",
    )


class CompactionSchedule(SparkTask, CronSchedule):
    """Requests a compaction at each time of a schedule."""


class StorageCollectionSpec(ApiModel):
    """The desired state of a collection."""

    catalog_ref: LocalReference = Field(
        description="The Catalog that the collection is in. Immutable once the collection exists, and until "
        "the operator has looked at it.",
    )
    database: str = Field(
        default="holdfast",
        min_length=1,
        max_length=255,
        description="Database of the collection in the catalog. It must exist.",
    )
    schema_name: str = Field(
        default="public",
        alias="schema",
        min_length=1,
        max_length=255,
        description="Schema of the collection in the catalog. It must exist.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Name of the collection in the catalog. The default is the resource's own name.",
    )
    columns: tuple[CollectionColumn, ...] = Field(
        min_length=1,
        max_length=MAX_COLUMNS,
        description="The columns, in order. Once the collection exists, you can add nullable columns at the "
        "end, and widen the types of columns that are not in the key.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    key: tuple[Annotated[str, Field(max_length=128)], ...] = Field(
        default=(),
        max_length=MAX_COLUMNS,
        description="The columns that identify a row. The default is all columns. Immutable.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
        | validations((_IMMUTABLE, "key is immutable"), NO_NAME_TWICE),
    )
    rendition: CollectionRendition = Field(
        default=CollectionRendition(),
        description="How the data is laid out. A change creates a new rendition. If you undo the change "
        "while that rendition is being filled, it is dropped.",
        json_schema_extra={"default": {}},
    )
    handover: CollectionHandover = Field(
        default=CollectionHandover(),
        description="When a new rendition becomes current.",
        json_schema_extra={"default": {}} | HANDOVER_RULES,
    )
    hydration: CollectionHydration = Field(
        default=CollectionHydration(),
        description="How new renditions of recipe Copy are filled.",
        json_schema_extra={"default": {}} | HYDRATION_RULES,
    )
    source: CollectionSource | None = Field(
        default=None,
        description="What feeds the collection: a Spark job reads it, and nobody else can write to the "
        "collection. It can't be added or removed once the collection exists. Without it, applications "
        "write.",
        json_schema_extra=SOURCE_RULES,
    )
    max_bytes: Quantity | None = Field(
        default=None,
        description="Maximum size of the collection, e.g. 100Gi. A collection that holds "
        "more shows the condition OverMaxBytes, and the operator creates no new rendition whose copy would "
        "exceed the limit. No data is removed.",
    )
    retention: CollectionRetention = Field(
        default=CollectionRetention(),
        description="How much history is kept.",
        json_schema_extra={"default": {}},
    )
    spark: SparkTemplate = Field(
        default=SparkTemplate(),
        description="How the Spark jobs of this collection differ from spec.spark of its Catalog.",
        json_schema_extra=UNSEEN,
    )
    snapshot_schedule: SnapshotSchedule | None = Field(
        default=None,
        description="Creates CollectionSnapshots on a cron schedule, and deletes old ones. Runs are missed "
        "while the operator is down, the collection is suspended, or the previous snapshot is not finished. "
        "Of the missed runs, only the latest is made up for.",
        json_schema_extra=_SCHEDULED_PLACE,
    )
    compaction_schedule: CompactionSchedule | None = Field(
        default=None,
        description="Requests compactions on a cron schedule: a Spark job merges the batches of each shard "
        "into one. The contents stay the same at all readable times. The job waits for other Spark jobs of "
        "the collection. Of the missed runs, at most one is made up for, as with spec.snapshotSchedule.",
    )
    restore_from: CollectionRestore | None = Field(
        default=None,
        description="Replaces the contents of the collection with those of a snapshot, once for each value. "
        "From that time on, rows that were written after the snapshot are gone. A new collection starts with "
        "the snapshot's contents. With spec.source, the snapshot must have the positions in the source, "
        "which is read from there on. The same value never restores twice, and removing it changes nothing.",
        json_schema_extra=validations(
            ("has(self.snapshot) != has(self.snapshotRef)", "give either snapshot or snapshotRef")
        ),
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the stored data when this resource is deleted. Delete drops it for ever. "
        "Both end running Spark jobs.",
    )
    suspend: bool = Field(
        default=False,
        description="If true, the operator leaves everything as it is until it is false again. A running "
        "Spark job is ended, and starts again afterwards.",
    )

    @property
    def most_bytes(self) -> int | None:
        """The maximum size of the collection in bytes, or None."""
        return None if self.max_bytes is None else byte_count(self.max_bytes)


class SnapshotStatus(ApiModel):
    """The last snapshot that was committed."""

    name: str = Field(description="Name of its CollectionSnapshot.")
    as_of: Frontier = Field(
        description="The time at which the collection was read, in milliseconds since 1970."
    )
    location: str = Field(description="The folder that holds it, or the location of the Iceberg table.")
    table: str | None = Field(default=None, description="The Iceberg table, with the name of its catalog.")
    rows: int | None = Field(default=None, description="Number of rows.")
    checksum: str | None = Field(default=None, description="Checksum of the rows.")


class CompactionStatus(ApiModel):
    """The last compaction that finished, and what it did."""

    request_id: str = Field(description="Id of its request.")
    shards: int | None = Field(default=None, description="Number of shards that the collection had.")
    compacted: int | None = Field(default=None, description="Number of shards that it compacted.")
    left: int | None = Field(
        default=None, description="Number of shards that it skipped because others compacted them."
    )
    batches: int | None = Field(
        default=None, description="Number of batches that it merged, into one for each shard."
    )
    rows_before: int | None = Field(
        default=None, description="Stored updates of these batches before the compaction."
    )
    rows: int | None = Field(
        default=None, description="Stored updates of these batches after the compaction."
    )
    bytes_before: int | None = Field(
        default=None, description="Stored bytes of these batches before the compaction."
    )
    bytes: int | None = Field(default=None, description="Stored bytes of these batches after the compaction.")
    job_id: str = Field(description="Id of the JobRecord.")
    attempt: int = Field(description="The attempt that committed it.")


class CompactionJobStatus(SparkJobStatus):
    """The job of a requested compaction."""

    request_id: str = Field(description="Id of its request.")


class SnapshotScheduleStatus(ScheduleStatus):
    """The state of a schedule of snapshots."""

    last_snapshot: str | None = Field(
        default=None, description="Name of the CollectionSnapshot that the last run created."
    )


class CompactionScheduleStatus(ScheduleStatus):
    """The state of a schedule of compactions."""

    job: CompactionJobStatus | None = Field(default=None, description="The job of the last run that started.")


class StorageCollectionStatus(Status):
    """What the operator last read from the store. Losing the status loses no data."""

    collection_id: str | None = Field(default=None, description="Id of the collection in the store.")
    item_id: str | None = Field(default=None, description="Id of the collection's item in the catalog.")
    since: Frontier | None = Field(
        default=None,
        description="The earliest time at which the collection can be read, in milliseconds since 1970.",
    )
    upper: Frontier | None = Field(
        default=None,
        description="The collection is complete before this time, in milliseconds since 1970, or `closed`.",
    )
    active_rendition: str | None = Field(default=None, description="The rendition that readers use.")
    shards: int | None = Field(default=None, description="Number of shards of the active rendition.")
    next_rendition: str | None = Field(
        default=None, description="The rendition that is being filled and will take over."
    )
    renditions: tuple[RenditionStatus, ...] | None = Field(
        default=None,
        description="The existing renditions, with at most the oldest 50 retired ones, and the latest "
        "renditions that are gone.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
    )
    renditions_total: int | None = Field(
        default=None, description="Number of existing renditions, if not all of them are shown."
    )
    handover: HandoverStatus | None = Field(default=None, description="The last handover.")
    restore: CollectionRestoreStatus | None = Field(
        default=None, description="The restore that spec.restoreFrom requests, once it is done."
    )
    holds: tuple[HoldStatus, ...] | None = Field(
        default=None,
        description="Holds that keep retired renditions in addition to the retention: at most 50, those at "
        "the oldest times.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    holds_total: int | None = Field(
        default=None, description="Number of holds, if not all of them are shown."
    )
    bytes: int | None = Field(default=None, description="Stored bytes of all renditions.")
    snapshot_schedule: SnapshotScheduleStatus | None = Field(
        default=None, description="State of spec.snapshotSchedule."
    )
    last_snapshot: SnapshotStatus | None = Field(
        default=None, description="The last snapshot that was committed."
    )
    compaction_request: str | None = Field(
        default=None, description="Id of the request in the annotation holdfast.dev/compact, once it is seen."
    )
    compaction_job: CompactionJobStatus | None = Field(
        default=None, description="The job of the compaction that the annotation requests."
    )
    compaction_schedule: CompactionScheduleStatus | None = Field(
        default=None, description="State of spec.compactionSchedule."
    )
    last_compaction: CompactionStatus | None = Field(
        default=None, description="The last compaction that finished."
    )
    source: SourceStatus | None = Field(default=None, description="How far spec.source is read.")
    source_schedule: SourceScheduleStatus | None = Field(
        default=None, description="State of spec.source.run.cron."
    )


class StorageCollection(Resource):
    """One collection of a catalog."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.STORAGE_COLLECTION,
        short_names=("coll",),
        columns=(
            READY_COLUMN,
            PrinterColumn("Catalog", "string", ".spec.catalogRef.name", "The Catalog that it is in."),
            PrinterColumn(
                "Since",
                "string",
                ".status.since",
                "The earliest time at which it can be read, in milliseconds since 1970.",
            ),
            PrinterColumn(
                "Upper",
                "string",
                ".status.upper",
                "It is complete before this time, in milliseconds since 1970, or closed.",
            ),
            PrinterColumn(
                "Rendition", "string", ".status.activeRendition", "The rendition that readers use."
            ),
            PrinterColumn("Shards", "integer", ".status.shards", "Number of shards of that rendition."),
            PrinterColumn("Next", "string", ".status.nextRendition", "The rendition that is being filled."),
            AGE_COLUMN,
            REASON_COLUMN,
        ),
        description="A StorageCollection is a collection of rows that keeps its history.",
        selectable=(".spec.catalogRef.name",),
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
                "has(self.spec.source) == has(oldSelf.spec.source)",
                "source can't be added or removed: create another StorageCollection",
                ".spec.source",
            ),
            (
                _KNOWN_HASH_COLUMNS,
                "spec.rendition.hashColumns names a column that isn't in spec.columns",
                ".spec.rendition.hashColumns",
            ),
        ),
    )

    spec: StorageCollectionSpec = Field(description="Desired state of the collection.")
    status: StorageCollectionStatus = Field(
        default=StorageCollectionStatus(),
        description="What the operator last read from the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
