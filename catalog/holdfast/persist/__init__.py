"""Definite, time-varying collections on an object store and a small consensus store.

A shard holds updates `((key, value), time, diff)` between two frontiers. Compaction may have merged times
before `since`. Times from `upper` on are not complete yet. `docs/reference/FORMAT.md` describes the stored
bytes.
"""

from holdfast.errors import CLOSED
from holdfast.persist.client import PersistClient
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.handles.builder import BatchBuilder
from holdfast.persist.handles.codec import Codec, ValueCodec
from holdfast.persist.handles.critical import CriticalSince
from holdfast.persist.handles.exclusive import Exclusive
from holdfast.persist.handles.read import (
    Event,
    Listen,
    Progress,
    ReadHandle,
    Updates,
)
from holdfast.persist.handles.typed import TypedListen, TypedReader, TypedUpdate, TypedWriter
from holdfast.persist.handles.upload import Upload, UploadTicket
from holdfast.persist.handles.write import WriteHandle
from holdfast.persist.multi_write import Prepared
from holdfast.persist.parts.snapshot import Snapshot, SnapshotPart
from holdfast.persist.rows.order import KeyRange
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.state.inspect import HoldInfo, ShardInfo, StoredSize
from holdfast.persist.state.state import WriteMode
from holdfast.persist.stores import CacheConfig, StoreMetrics
from holdfast.persist.upkeep.compaction import CompactionTask
from holdfast.persist.upkeep.piecewise import CompactionPiece

__all__ = [
    "CLOSED",
    "BatchBuilder",
    "CacheConfig",
    "Clock",
    "Codec",
    "Column",
    "CompactionPiece",
    "CompactionTask",
    "CriticalSince",
    "Event",
    "Exclusive",
    "HoldInfo",
    "KeyRange",
    "Listen",
    "PersistClient",
    "PersistConfig",
    "Prepared",
    "Progress",
    "ReadHandle",
    "Schema",
    "ShardInfo",
    "Snapshot",
    "SnapshotPart",
    "StoreMetrics",
    "StoredSize",
    "TypedListen",
    "TypedReader",
    "TypedUpdate",
    "TypedWriter",
    "Updates",
    "Upload",
    "UploadTicket",
    "ValueCodec",
    "WriteHandle",
    "WriteMode",
]
