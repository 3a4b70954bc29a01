"""Storage of persist: the traits, their implementations and the location that pairs two of them."""

from holdfast.persist.storage.cache import CacheConfig, CachedBlob, CacheStats
from holdfast.persist.storage.file import FileBlob
from holdfast.persist.storage.location import Location
from holdfast.persist.storage.memory import MemoryBlob, MemoryConsensus
from holdfast.persist.storage.metrics import Observation, OperationStats, StoreMetrics
from holdfast.persist.storage.sqlite import SqliteConsensus
from holdfast.persist.storage.traits import (
    Blob,
    BlobMeta,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    Put,
    Row,
    digest_of,
)
from holdfast.persist.storage.watch import Watch

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
    "MemoryBlob",
    "MemoryConsensus",
    "Observation",
    "OperationStats",
    "Put",
    "Row",
    "SqliteConsensus",
    "StoreMetrics",
    "Watch",
    "digest_of",
]
