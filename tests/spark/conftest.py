"""One Spark session for all tests, and one location for each module."""

import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest
from pyspark.sql import SparkSession

from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, Schema
from holdfast.spark import configure


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session as users get it; starting one takes 6 s, so nobody stops it."""
    scratch = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("holdfast-tests")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.ui.showConsoleProgress", "false")
    )
    session = configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty location in a folder, which other processes can open too."""
    return f"file://{tmp_path_factory.mktemp('lake')}"


@pytest.fixture(scope="module")
def controller(url: str) -> Iterator[StorageController]:
    with PersistClient.open(url) as client:
        yield StorageController(client)


Fill = Callable[..., str]


@pytest.fixture(scope="module")
def fill(controller: StorageController) -> Fill:
    """`fill(name, schema, {time: rows}, shards=1)` makes a collection whose upper is the last time + 1."""

    def make(name: str, schema: Schema, contents: Mapping[int, object], *, shards: int = 1) -> str:
        collection_id = str(uuid.uuid4())
        controller.create_collection(
            CollectionSpec(collection_id, name, schema, shards=shards), command_id=f"create {name}"
        )
        writer = controller.writer(collection_id, purpose="test")
        upper = 0
        for time, rows in contents.items():
            writer.seal(time)
            writer.append(rows, time, time + 1)
            upper = time + 1
        assert writer.upper() == upper
        return collection_id

    return make
