"""The hydration job: executors upload, one driver commits once, and no rows of others get in."""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.collections import JobState, RenditionState, StorageController
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.errors import BadInput, Fenced, HoldfastError
from holdfast.ingest import ingest_source
from holdfast.ingest.kept import offsets
from holdfast.persist import PersistClient, Schema
from holdfast.persist.ids import BLOB_NAME
from holdfast.spark import options
from holdfast.spark.jobs import hydrate, snapshot
from holdfast.spark.jobs.spec import HydrateSpec, SnapshotSpec
from holdfast.spark.place import Place
from spark.attempts import again, killed_at, record_of, run_on_servers
from testbed import sparkdriver
from testbed.minio import Minio
from testbed.postgres import PostgresServer
from testbed.spark import environment
from testbed.sparkdriver import Gate

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
Order = Callable[..., HydrateSpec]

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64"})
WIDER = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64", "more": "int64?"})
# Fills a collection, and runs the job with tasks that fail after they have uploaded, for the first time.
FAILING_ONCE = """
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from holdfast.persist import PersistClient, Schema
from holdfast.persist.ids import BLOB_NAME
from holdfast.spark import configure
from holdfast.spark.jobs import hydrate
from holdfast.spark.jobs.spec import HydrateSpec
from holdfast.collections import CollectionSpec, StorageController

def fill_task(part, *, filling, work=hydrate.fill_task):
    done = work(part, filling=filling)
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the machine is gone")
    return done

hydrate.fill_task = fill_task
place = dict(blob=sys.argv[1], consensus=sys.argv[2])
with PersistClient.open(**place) as client:
    controller = StorageController(client)
    schema = Schema.of(key={"id": "uint64"}, value={"name": "string"})
    controller.create_collection(CollectionSpec("c1", "orders", schema, shards=2))
    writer = controller.writer("c1", purpose="test")
    writer.append([{"id": i, "name": str(i)} for i in range(500)], 0, 10)
    shards = controller.renditions.create("c1", shards=3, rendition_id="r2").shards
    job = controller.start_job("c1", "hydrate", "r2", spec={})
    work = {"collection": "c1", "rendition": "r2", "job_id": job.job_id, "attempt": 1, "partitions": 2}
    spark = configure(SparkSession.builder.master("local[2,3]")).getOrCreate()
    hydrate.run(HydrateSpec(**place, **work), say=print, spark=spark)
    assert controller.job(job.job_id).result == {"upper": 10, "rows": 500}
    parts = [meta for shard in shards for meta in client.location.blob.list(shard)
             if BLOB_NAME.fullmatch(meta.key)["writer"]]
    assert len(parts) == 2 * 2 * len(shards), parts
    controller.renditions.hand_over("c1", "r2")
    rows = controller.reader("c1", purpose="look").snapshot(9).to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(500))
    assert set(rows["_diff"].to_pylist()) == {1}
"""


def contents_of(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": None if i % 7 == 0 else f"o{i}", "x": float(i)} for i in range(first, last)]


@pytest.fixture
def orders(fill: Fill) -> str:
    """A thousand orders in two shards, and half of them twice, with an empty rendition r2 of three shards."""
    name = f"orders-{uuid.uuid4()}"
    rows = contents_of(0, 1000)
    return fill(name, SCHEMA, {10: rows, 20: rows[::2], 30: [{**rows[1], "_diff": -1}]}, shards=2)


@pytest.fixture
def order(controller: StorageController, url: str, orders: str) -> Order:
    """Makes a rendition, starts its job on record, and makes the spec."""

    def make(**change: Any) -> HydrateSpec:
        collection = change.get("collection", orders)
        controller.renditions.create(collection, shards=3, rendition_id="r2")
        return spec_of(controller, collection, url=url, **change)

    return make


def spec_of(controller: StorageController, collection: str, **given: Any) -> HydrateSpec:
    record = controller.start_job(collection, "hydrate", "r2", spec={})
    of_job = {"job_id": record.job_id, "attempt": record.attempt, "partitions": 4}
    return HydrateSpec(**{"collection": collection, "rendition": "r2", **of_job, **given})


def shards_of(controller: StorageController, spec: HydrateSpec) -> tuple[str, ...]:
    return controller.describe(spec.collection).rendition("r2").shards


def test_a_copy_of_a_collection_that_a_source_feeds_is_fed_on(
    spark: SparkSession, controller: StorageController, url: str
) -> None:
    name = f"fed-{uuid.uuid4()}"
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?"})

    def feed(rows: int) -> None:
        source = {"generator": {"rows": rows}, "format": {"json": {}}, "batch": {"maxRows": 40}}
        ingest_source(url, name, source, schema=schema, once=True)

    feed(100)
    collection = controller.describe(name).collection_id

    def say(text: str) -> None:
        if "tasks into" in text:
            # This is copied after the job, not by it.
            feed(130)

    controller.renditions.create(collection, shards=3, rendition_id="r2")
    hydrate.run(spec_of(controller, collection, url=url), say=say, spark=spark)
    feed(150)
    controller.renditions.hand_over(collection, "r2")
    feed(200)
    with controller.reader(collection, purpose="check") as reader:
        assert sorted(reader.snapshot().to_table()["id"].to_pylist()) == list(range(200))
    (bound,) = offsets(controller, name)[1].to_pylist()
    assert (bound["position"], bound["total"], bound["begin"]) == (200, 200, 0)
    assert len(controller.describe(name).holding.shards) == 3


def test_renamed_and_dropped_columns_are_copied(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()
    controller.rename_column(spec.collection, "name", "label")
    controller.drop_column(spec.collection, "x")
    with controller.reader(spec.collection, purpose="look") as reader:
        before = [reader.snapshot(time).to_table().sort_by("id") for time in (30, reader.upper() - 1)]
    hydrate.run(spec, say=str, spark=spark)
    controller.renditions.hand_over(spec.collection, "r2")
    with controller.reader(spec.collection, purpose="look") as reader:
        after = [reader.snapshot(time).to_table().sort_by("id") for time in (30, reader.upper() - 1)]
    assert before[-1].column_names == ["id", "label", "_diff"]
    assert after[0].equals(before[0])
    assert after[-1].equals(before[-1])


def filled(controller: StorageController, spec: HydrateSpec, as_of: int) -> pa.Table:
    """What is in the shards of the new rendition, each row from the one that it belongs to."""
    found = []
    for shard in shards_of(controller, spec):
        with controller.client.reader(shard, purpose="look") as reader:
            found.append(reader.snapshot(as_of).to_table())
    assert all(table.num_rows for table in found)
    return pa.concat_tables(found).sort_by("id")


def check_committed(
    controller: StorageController, spec: HydrateSpec, *, upper: int = 31, reached: int = 31
) -> None:
    """The record says so, and the rendition has, once, all that the collection has."""
    record = record_of(controller, spec)
    assert (record.state, record.attempt) == (JobState.DONE, spec.attempt)
    with controller.reader(spec.collection, purpose="look") as reader:
        wanted = reader.snapshot(upper - 1).to_table().sort_by("id")
    assert filled(controller, spec, upper - 1).equals(wanted)
    assert record.result == {"upper": upper, "rows": wanted.num_rows}
    view = controller.renditions.look(spec.collection)
    holds = controller.client.inspect(view.info.metadata_shard).holds
    assert [hold.since for hold in holds if hold.purpose == rendition_hold("r2")] == [reached - 1]


def check_nothing(controller: StorageController, spec: HydrateSpec) -> None:
    uppers = controller.client.recent_uppers(shards_of(controller, spec))
    assert set(uppers.values()) == {0}


def uploaded(controller: StorageController, spec: HydrateSpec) -> dict[str, int]:
    """How many parts there are of each writer of the new rendition's shards."""
    found: dict[str, int] = {}
    for shard in shards_of(controller, spec):
        for meta in controller.client.location.blob.list(shard):
            parsed = BLOB_NAME.fullmatch(meta.key)
            if parsed is not None and parsed["writer"]:
                found[parsed["writer"]] = found.get(parsed["writer"], 0) + 1
    return found


@pytest.mark.long
def test_the_job_as_it_is_submitted_and_the_same_attempt_once_more(
    controller: StorageController, order: Order, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = order()
    gate = Gate(tmp_path / "driver")
    gate.open()
    application = {
        "mainApplicationFile": "local:///opt/holdfast/jobs/hydrate.py",
        "arguments": [spec.to_json()],
    }
    command = sparkdriver.command("hydrate", application, master="local[2]", gate=gate.stem)
    env = {**os.environ, **environment()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "as of 30: 2 tasks into 3 shards of r2" in done.stdout
    assert "hydrate: 999 rows are staged, committing" in done.stdout
    check_committed(controller, spec)
    # What executors uploaded is three runs of two parts, and none of their rows are in the state.
    assert sorted(uploaded(controller, spec).values()) == [2, 2, 2]

    before = record_of(controller, spec)
    assert hydrate.main([spec.to_json()]) == 0
    assert record_of(controller, spec) == before
    assert "has already committed; nothing to do" in capfd.readouterr().out


def test_it_catches_up_and_takes_over_while_the_collection_is_written_and_read(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()
    writer = controller.writer(spec.collection, purpose="test")
    reader = controller.reader(spec.collection, purpose="test").listen(30)

    def say(text: str) -> None:
        if "rows are staged" in text:
            writer.append(contents_of(2000, 2010), 31, 41)
            assert controller.evolve_collection(spec.collection, WIDER).schema == WIDER

    hydrate.run(spec, say=say, spark=spark)
    assert record_of(controller, spec).result == {"upper": 31, "rows": 999}
    assert set(controller.client.recent_uppers(shards_of(controller, spec)).values()) == {41}
    controller.renditions.hand_over(spec.collection, "r2", at=50)
    again_written = controller.writer(spec.collection, purpose="test")
    again_written.append([{"id": 3000, "name": "new", "x": 0.0}], again_written.upper(), 60_000)
    info = controller.describe(spec.collection)
    assert info.holding.id == "r2"
    with controller.reader(spec.collection, purpose="look") as after:
        assert after.snapshot().to_table().num_rows == 999 + 10 + 1
    told = 0
    while reader.frontier < 60_000:
        told += sum(event.table.num_rows for event in reader.next() if hasattr(event, "table"))
    assert told == 11


def test_executors_copy_what_was_written_meanwhile_until_little_is_left(
    spark: SparkSession, controller: StorageController, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hydrate, "LEAST_CHANGES", 15)
    monkeypatch.setattr(options, "_TASK_ROWS", 5)
    spec = order()
    writer = controller.writer(spec.collection, purpose="test")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "rows are staged" in text:
            new = contents_of(2000, 2010)
            writer.append(new, 31, 41)
            writer.append([{**row, "_diff": -1} for row in new[:8]] + contents_of(1000, 1004), 41, 51)
        if "changes are uploaded" in text:
            writer.append(contents_of(3000, 3003), 51, 61)

    hydrate.run(spec, say=say, spark=spark)
    assert "as of 50: 3 tasks into 3 shards of r2" in " ".join(said)
    assert "22 changes are uploaded, committing" in said
    assert len([text for text in said if "are uploaded" in text]) == 1
    assert "as of 30: 4 tasks into 3 shards of r2" in " ".join(said)
    for shard in shards_of(controller, spec):
        filled_with = controller.client.session.machine(shard).refresh().batches[0]
        # One of each shard that was read, not of each task.
        assert [len(run) for run in filled_with.runs] == [2, 2]
    assert set(controller.client.recent_uppers(shards_of(controller, spec)).values()) == {61}
    with controller.reader(spec.collection, purpose="look") as reader:
        wanted = reader.snapshot(60).to_table().sort_by("id")
    assert wanted.num_rows == 999 + 2 + 4 + 3
    assert filled(controller, spec, 60).equals(wanted)
    holds = controller.client.inspect(controller.describe(spec.collection).metadata_shard).holds
    assert [hold.since for hold in holds if hold.purpose == rendition_hold("r2")] == [60]


def test_an_attempt_that_was_replaced_meanwhile_is_fenced_and_the_next_one_commits_what_it_staged(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    zombie = order()
    successor: list[HydrateSpec] = []
    said: list[str] = []

    def say(text: str) -> None:
        if "rows are staged, committing" in text:
            assert len(uploaded(controller, zombie)) == 3
            successor.append(again(controller, zombie))

    with pytest.raises(Fenced, match="attempt 1"):
        hydrate.run(zombie, say=say, spark=spark)
    record = record_of(controller, zombie)
    assert (record.state, record.attempt, record.outcome) == (JobState.RUNNING, 2, {})
    check_nothing(controller, zombie)
    before = uploaded(controller, zombie)
    hydrate.run(successor[0], say=said.append, spark=spark)
    assert said[:2] == ["2 of 2 pieces are staged already", "999 rows are staged, committing"]
    assert uploaded(controller, zombie) == before
    check_committed(controller, successor[0])
    assert hydrate.main([zombie.to_json()]) == 4
    check_committed(controller, successor[0])


def test_of_two_drivers_of_one_attempt_one_commits_and_both_are_right(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()
    both_have_uploaded = threading.Barrier(2)

    def say(text: str) -> None:
        if "rows are staged, committing" in text:
            both_have_uploaded.wait(timeout=300)

    with ThreadPoolExecutor(2) as drivers:
        for driver in [drivers.submit(hydrate.run, spec, say=say, spark=spark) for _ in range(2)]:
            driver.result()
    check_committed(controller, spec)
    assert len(uploaded(controller, spec)) == 3


@pytest.mark.long
def test_after_a_kill_the_next_attempt_does_only_the_rest(
    spark: SparkSession, controller: StorageController, orders: str, url: str
) -> None:
    """The pieces that were staged when the driver was killed are not uploaded again."""
    writer = controller.writer(orders, purpose="test")
    for time in range(31, 36):
        writer.append(contents_of(1000 * time, 1000 * time + 500), time, time + 1)
    controller.renditions.create(orders, shards=3, rendition_id="r2")
    first = spec_of(controller, orders, url=url, partitions=10)
    killed = killed_at(first, "2 of ", "500")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert record_of(controller, first).state is JobState.RUNNING
    pieces = int(killed.stdout.split(" of ")[-1].split()[0])
    check_nothing(controller, first)
    names = {shard: controller.client.staged(shard) for shard in shards_of(controller, first)}
    (staged,) = {len(found) for found in names.values()}
    assert staged == 2 < pieces
    writer.append(contents_of(90_000, 90_010), 36, 41)
    second = again(controller, first)
    said: list[str] = []
    before = sum(uploaded(controller, first).values())
    hydrate.run(second, say=said.append, spark=spark)
    assert said[0] == f"2 of {pieces} pieces are staged already"
    assert f"as of 35: {pieces - 2} tasks into 3 shards of r2" in said[1]
    check_committed(controller, second, upper=36, reached=41)
    # A piece may have no rows for a shard.
    assert 0 < sum(uploaded(controller, first).values()) - before <= 3 * (pieces - 2)


def test_a_rendition_that_is_given_up_meanwhile_ends_the_job(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()

    def say(text: str) -> None:
        if "tasks into" in text:
            controller.renditions.abort(spec.collection, "r2")

    with pytest.raises(BadInput, match=r"r2 of collection .* can't be filled: it is ABORTED, not HYDRATING"):
        hydrate.run(spec, say=say, spark=spark)
    record = record_of(controller, spec)
    assert record.state is JobState.FAILED
    assert "is ABORTED, not HYDRATING" in record.error
    assert controller.describe(spec.collection).rendition("r2").state is RenditionState.ABORTED


def test_an_empty_collection_needs_no_spark(controller: StorageController, url: str, fill: Fill) -> None:
    collection = fill("nothing", SCHEMA, {})
    controller.renditions.create(collection, shards=3, rendition_id="r2")
    spec = spec_of(controller, collection, url=url)
    hydrate.run(spec, say=str)
    assert record_of(controller, spec).result == {"upper": 0, "rows": 0}
    check_nothing(controller, spec)


def test_orders_that_can_not_be_done_are_refused_or_put_on_record(
    capsys: pytest.CaptureFixture[str], controller: StorageController, order: Order
) -> None:
    spec = order()
    assert hydrate.main([HydrateSpec(**{**vars(spec), "job_id": str(uuid.uuid4())}).to_json()]) == 2
    assert hydrate.main([HydrateSpec(**{**vars(spec), "attempt": 2}).to_json()]) == 2
    assert hydrate.main([]) == 2
    as_snapshot = SnapshotSpec(
        url=spec.url, collection=spec.collection, destination="/x", job_id=spec.job_id, attempt=1
    )
    assert hydrate.main([as_snapshot.to_json()]) == 2
    assert snapshot.main([spec.to_json()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("hydrate: there is no job ")
    assert record_of(controller, spec).state is JobState.RUNNING
    check_nothing(controller, spec)


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.long
def test_on_s3_and_postgres_tasks_that_fail_and_run_again_upload_twice_and_count_once(
    minio: Minio, postgres: PostgresServer
) -> None:
    """Executors have the credentials from their environment; the spec has none of the object store's."""
    run_on_servers(FAILING_ONCE, minio, postgres)


def test_a_location_that_was_removed_is_not_made_anew(tmp_path: Any) -> None:
    gone = Place(f"file://{tmp_path}/gone")
    with pytest.raises(HoldfastError):
        gone.open_to_write()
    assert not (tmp_path / "gone").exists()
    PersistClient.open(gone.url).close()
    with pytest.raises(HoldfastError, match="is not the location that the query was planned for"):
        gone.open_to_write(uuid.uuid4())
