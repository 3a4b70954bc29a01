"""Collections: rows over time, each stored as a metadata shard and renditions of data shards.

`StorageController` creates, finds and drops collections. A `CollectionWriter` appends to one, and a
`CollectionReader` reads and follows one. A `JobRecord` makes sure that exactly one attempt of a job commits,
even if several processes run it.
"""

from holdfast.collections.bulk import BulkAppend
from holdfast.collections.capabilities import CollectionHold, DurableHold, WriteCapability
from holdfast.collections.changes import ChangesPart, plan_changes, read_changes
from holdfast.collections.collection_snapshot import CollectionPart, CollectionSnapshot, read_collection_part
from holdfast.collections.controller import StorageController
from holdfast.collections.due_steps import AdvanceStep, Due, StepKind, Wait
from holdfast.collections.hydration import needs_spark
from holdfast.collections.listen import CollectionListen
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.jobs import JobRecord, JobState, job_id
from holdfast.collections.record.spec import (
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    Frontiers,
    Holder,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.record.state import CommandKind, CommandRecord
from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.collections.renditions import Renditions
from holdfast.collections.replication import ReplicatedRenditionWriter, ReplicatedWriter
from holdfast.collections.restore import RestoreSource
from holdfast.collections.sharded_append import Position, PreparedAppend
from holdfast.collections.writer import CollectionWriter

__all__ = [
    "AdvanceStep",
    "BulkAppend",
    "ChangesPart",
    "CollectionHold",
    "CollectionInfo",
    "CollectionListen",
    "CollectionPart",
    "CollectionReader",
    "CollectionSnapshot",
    "CollectionSpec",
    "CollectionState",
    "CollectionWriter",
    "CommandKind",
    "CommandRecord",
    "Due",
    "DurableHold",
    "Frontiers",
    "Holder",
    "JobRecord",
    "JobState",
    "Position",
    "PreparedAppend",
    "Recipe",
    "RenditionInfo",
    "RenditionState",
    "RenditionWriter",
    "Renditions",
    "ReplicatedRenditionWriter",
    "ReplicatedWriter",
    "RestoreSource",
    "StepKind",
    "StorageController",
    "Wait",
    "WriteCapability",
    "job_id",
    "needs_spark",
    "plan_changes",
    "read_changes",
    "read_collection_part",
]
