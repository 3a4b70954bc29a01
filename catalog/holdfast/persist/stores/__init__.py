"""Stores of persist: the interfaces, their implementations, and the location that pairs two stores."""

from holdfast.persist.stores.cache import CacheConfig, CachedBlob, CacheStats
from holdfast.persist.stores.file import FileBlob
from holdfast.persist.stores.location import Location
from holdfast.persist.stores.memory import MemoryBlob, MemoryConsensus
from holdfast.persist.stores.metrics import Observation, OperationStats, StoreMetrics
from holdfast.persist.stores.sqlite import SqliteConsensus
from holdfast.persist.stores.traits import (
    Blob,
    BlobMeta,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    Put,
    digest_of,
)
from holdfast.persist.stores.watch import Watch

__all__ = [
    "Blob",
    "BlobMeta",
    "CacheConfig",
    "CacheStats",
    "CachedBlob",
    "Consensus",
    "Digest",
    "Entry",
    "Expect",
    "FileBlob",
    "Head",
    "Location",
    "LogRow",
    "MemoryBlob",
    "MemoryConsensus",
    "Observation",
    "OperationStats",
    "Put",
    "SqliteConsensus",
    "StoreMetrics",
    "Watch",
    "digest_of",
]
