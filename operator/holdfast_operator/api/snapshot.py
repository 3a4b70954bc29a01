"""The `CollectionSnapshot` resource: one snapshot of one collection."""

from datetime import datetime
from typing import ClassVar, Final

from pydantic import Field

from holdfast_operator.api.base import (
    AGE_COLUMN,
    READY_COLUMN,
    REASON_COLUMN,
    Definition,
    Frontier,
    LocalReference,
    PrinterColumn,
    Resource,
    Status,
    validations,
)
from holdfast_operator.api.catalog import DeletionPolicy
from holdfast_operator.api.collection import SnapshotTask
from holdfast_operator.api.names import Kind
from holdfast_operator.api.spark import SparkJobStatus

_FIXED_OPTIONAL: Final = ("asOf", "destination", "iceberg", "spark")
_UNCHANGED: Final = " && ".join(
    [
        "self.collectionRef == oldSelf.collectionRef",
        *(
            f"has(self.{field}) == has(oldSelf.{field}) && "
            f"(!has(self.{field}) || self.{field} == oldSelf.{field})"
            for field in _FIXED_OPTIONAL
        ),
    ]
)


class CollectionSnapshotSpec(SnapshotTask):
    """The snapshot to take, and where to write it."""

    collection_ref: LocalReference = Field(description="The StorageCollection to take the snapshot of.")
    as_of: int | None = Field(
        default=None,
        ge=0,
        description="The time to read at, in milliseconds since 1970. The default is the latest complete "
        "time when the snapshot starts. status.asOf shows it, and it never changes.",
    )
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN,
        description="Retain keeps the files when this resource is deleted. Delete deletes them for ever. The "
        "operator uses the Catalog's credentials for S3, or its own if the Catalog has none, or if the "
        "Catalog or the collection is gone. While the Secret of the Catalog can't be read, the deletion "
        "waits. Both policies end a running Spark job.",
    )


_SPEC_RULES: Final = validations(
    (_UNCHANGED, "only deletionPolicy can change: create another CollectionSnapshot instead"),
    ("!(has(self.destination) && has(self.iceberg))", "give destination or iceberg, not both"),
    (
        "!has(self.iceberg) || self.deletionPolicy == 'Retain'",
        "deletionPolicy Delete needs a destination: the operator deletes no rows of an Iceberg table",
    ),
)


class CollectionSnapshotStatus(Status):
    """What the operator last read from the store."""

    as_of: Frontier | None = Field(
        default=None, description="The time at which the collection is read, in milliseconds since 1970."
    )
    collection_id: str | None = Field(default=None, description="Id of the collection that is read.")
    location: str | None = Field(
        default=None,
        description="URL of the folder that holds the snapshot and its manifest, once it is committed. For "
        "an Iceberg table, the location of the table.",
    )
    table: str | None = Field(default=None, description="The Iceberg table, with the name of its catalog.")
    iceberg_snapshot_id: str | None = Field(default=None, description="Id of the Iceberg snapshot.")
    rows: int | None = Field(default=None, description="Number of rows.")
    checksum: str | None = Field(default=None, description="Checksum of the rows.")
    size_bytes: int | None = Field(default=None, description="Size of the files with rows, in bytes.")
    job: SparkJobStatus | None = Field(default=None, description="The Spark job that writes the snapshot.")
    start_time: datetime | None = Field(default=None, description="When the latest attempt started.")
    completion_time: datetime | None = Field(default=None, description="When the snapshot was committed.")


class CollectionSnapshot(Resource):
    """One snapshot of one collection."""

    definition: ClassVar[Definition] = Definition(
        kind=Kind.COLLECTION_SNAPSHOT,
        selectable=(".spec.collectionRef.name",),
        short_names=("collsnap",),
        columns=(
            READY_COLUMN,
            PrinterColumn(
                "Collection", "string", ".spec.collectionRef.name", "The StorageCollection that it is of."
            ),
            PrinterColumn(
                "As-Of",
                "string",
                ".status.asOf",
                "The time at which the collection was read, in milliseconds since 1970.",
            ),
            PrinterColumn("Rows", "integer", ".status.rows", "Number of rows."),
            PrinterColumn("Bytes", "integer", ".status.sizeBytes", "Size of its files."),
            AGE_COLUMN,
            REASON_COLUMN,
            PrinterColumn(
                "Location", "string", ".status.location", "Where the snapshot is stored.", wide=True
            ),
        ),
        description="A CollectionSnapshot is the contents of a StorageCollection at one time, as files.",
    )

    spec: CollectionSnapshotSpec = Field(
        description="The snapshot to take, and where to write it. Only deletionPolicy can change.",
        json_schema_extra=_SPEC_RULES,
    )
    status: CollectionSnapshotStatus = Field(
        default=CollectionSnapshotStatus(),
        description="What the operator last read from the store.",
        json_schema_extra={"default": {"observedGeneration": -1}},
    )
