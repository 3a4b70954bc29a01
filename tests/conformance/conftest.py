"""Fixtures for every blob store, consensus store and kind of catalog that the conformance suite tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.catalogs import KINDS, Catalogs, make_catalogs
from conformance.objectstore import MemoryObjects
from holdfast.persist.stores import (
    Blob,
    CacheConfig,
    CachedBlob,
    Consensus,
    FileBlob,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
    StoreMetrics,
)
from holdfast.persist.stores.metrics import MeteredBlob, MeteredConsensus
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.persist.stores.retry import RetryingBlob, RetryingConsensus, RetryPolicy
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_log import S3LogConsensus
from holdfast.persist.stores.s3_objects import S3Objects
from holdfast.persist.stores.s3_place import S3Place
from testbed.faults import FaultyBlob, FaultyConsensus, ScriptedPlan
from testbed.minio import Minio

POLICY = RetryPolicy(deadline_s=5.0)


def _make_blob(kind: str, folder: Path, request: pytest.FixtureRequest) -> Blob:
    match kind:
        case "memory":
            return MemoryBlob()
        case "file":
            return FileBlob(folder / "blob")
        case "faultless":
            return FaultyBlob(MemoryBlob(), ScriptedPlan({}))
        case "metered":
            return MeteredBlob(MemoryBlob(), StoreMetrics())
        case "retrying":
            return RetryingBlob(MemoryBlob(), POLICY)
        case "cached in memory":
            return CachedBlob(MemoryBlob(), CacheConfig(), scope="location")
        case "cached in a folder":
            config = CacheConfig(memory_bytes=0, folder=folder / "cache")
            return CachedBlob(MemoryBlob(), config, scope="location")
        case "layered":
            metered = RetryingBlob(MeteredBlob(FileBlob(folder / "blob"), StoreMetrics()), POLICY)
            return CachedBlob(metered, CacheConfig(folder=folder / "cache"), scope="location")
        case "s3":
            minio: Minio = request.getfixturevalue("minio")
            bucket: str = request.getfixturevalue("bucket")
            return S3Blob(S3Place(bucket=bucket, prefix="a/location", endpoint=minio.endpoint))
    raise AssertionError(kind)


def _make_consensus(kind: str, folder: Path, request: pytest.FixtureRequest) -> Consensus:
    match kind:
        case "memory":
            return MemoryConsensus()
        case "sqlite":
            return SqliteConsensus(folder / "consensus.sqlite")
        case "postgres":
            return PostgresConsensus(request.getfixturevalue("postgres_url"))
        case "s3":
            minio: Minio = request.getfixturevalue("minio")
            place = S3Place(bucket=request.getfixturevalue("bucket"), prefix="a/log", endpoint=minio.endpoint)
            return S3LogConsensus(S3Objects(place), checkpoint_every=16)
        case "log":
            return S3LogConsensus(MemoryObjects(), checkpoint_every=4)
        case "metered":
            return MeteredConsensus(MemoryConsensus(), StoreMetrics())
        case "retrying":
            return RetryingConsensus(MemoryConsensus(), POLICY)
        case "layered":
            store = SqliteConsensus(folder / "consensus.sqlite")
            return RetryingConsensus(MeteredConsensus(store, StoreMetrics()), POLICY)
        case "faultless":
            return FaultyConsensus(MemoryConsensus(), ScriptedPlan({}))
    raise AssertionError(kind)


@pytest.fixture(
    params=[
        "memory",
        "file",
        pytest.param("s3", marks=pytest.mark.s3),
        "metered",
        "retrying",
        "cached in memory",
        "cached in a folder",
        "layered",
        "faultless",
    ]
)
def blob(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blob]:
    store = _make_blob(request.param, tmp_path, request)
    yield store
    store.close()


@pytest.fixture(
    params=[
        "memory",
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("s3", marks=pytest.mark.s3),
        "log",
        "metered",
        "retrying",
        "layered",
        "faultless",
    ]
)
def consensus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Consensus]:
    store = _make_consensus(request.param, tmp_path, request)
    yield store
    store.close()


@pytest.fixture
def appends(request: pytest.FixtureRequest) -> int:
    """How often each racing thread appends: less on a store where all wait for one another's requests."""
    return 8 if request.node.callspec.params["consensus"] == "s3" else 25


@pytest.fixture(params=KINDS)
def catalogs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalogs]:
    made = make_catalogs(request.param, tmp_path, request)
    yield made
    made.close()
