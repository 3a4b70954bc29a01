"""Definite, time-varying collections on an object store and a small consensus store.

A shard holds updates `((key, value), time, diff)` between two frontiers: times before `since` can no longer
be told apart, times from `upper` on are not complete yet. The stored bytes: `docs/reference/FORMAT.md`.
"""

from holdfast.errors import CLOSED
from holdfast.persist.builder import BatchBuilder
from holdfast.persist.client import PersistClient
from holdfast.persist.clock import Clock
from holdfast.persist.codec import Codec, ValueCodec
from holdfast.persist.compaction import CompactionTask
from holdfast.persist.config import PersistConfig
from holdfast.persist.critical import CriticalSince
from holdfast.persist.exclusive import Exclusive
from holdfast.persist.inspect import HoldInfo, ShardInfo, StoredSize
from holdfast.persist.order import KeyRange
from holdfast.persist.piecewise import CompactionPiece
from holdfast.persist.read import (
    Event,
    Listen,
    Progress,
    ReadHandle,
    Updates,
)
from holdfast.persist.schema import Column, Schema
from holdfast.persist.snapshot import Snapshot, SnapshotPart
from holdfast.persist.state import WriteMode
from holdfast.persist.storage import CacheConfig, StoreMetrics
from holdfast.persist.typed import TypedListen, TypedReader, TypedUpdate, TypedWriter
from holdfast.persist.upload import Upload, UploadTicket
from holdfast.persist.write import Prepared, WriteHandle

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
