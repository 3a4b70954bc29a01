"""Collections: tables over time, each with a metadata shard and renditions of data shards.

`StorageController` creates, finds and drops them; a `CollectionWriter` appends to one, a `CollectionReader`
reads and follows one. JobRecords keep work on them to one outcome, whatever processes do it.
"""

from holdfast.storage.advance import Due, Step, StepKind, Wait
from holdfast.storage.appending import Position, PreparedAppend
from holdfast.storage.bulk import BulkAppend
from holdfast.storage.capabilities import CollectionHold, DurableHold, WriteCapability
from holdfast.storage.changes import ChangesPart, plan_changes, read_changes
from holdfast.storage.controller import StorageController
from holdfast.storage.hydration import needs_spark
from holdfast.storage.jobs import JobRecord, JobState, job_id
from holdfast.storage.listen import CollectionListen
from holdfast.storage.reader import CollectionReader
from holdfast.storage.rendition_writer import RenditionWriter
from holdfast.storage.renditions import Renditions
from holdfast.storage.replicated import ReplicatedRenditionWriter, ReplicatedWriter
from holdfast.storage.restoring import RestoreSource
from holdfast.storage.snapshot import CollectionPart, CollectionSnapshot, read_collection_part
from holdfast.storage.spec import (
    CollectionInfo,
    CollectionSpec,
    CollectionState,
    Frontiers,
    Holder,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.storage.state import CommandKind, CommandRecord
from holdfast.storage.writer import CollectionWriter

__all__ = [
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
    "Step",
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
