"""The snapshot job: files, manifest and record agree, and only one attempt ever commits."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast.collections import CollectionSpec, JobState, RestoreSource, StorageController
from holdfast.collections.snapshots.manifest import verify_snapshot
from holdfast.errors import AsOfTooEarly, BadInput, Fenced, HoldfastError
from holdfast.ingest import ingest_source
from holdfast.ingest.kept import errors, offsets
from holdfast.persist import Schema
from holdfast.spark.jobs import snapshot
from holdfast.spark.jobs.folder import AttemptTaken
from holdfast.spark.jobs.spec import SnapshotSpec
from spark.attempts import again, killed_at, record_of
from testbed import sparkdriver
from testbed.spark import environment
from testbed.sparkdriver import Gate

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
Order = Callable[..., SnapshotSpec]

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64"})


@pytest.fixture(scope="module")
def orders(fill: Fill) -> str:
    """100 orders at time 10, twice as many of the even ones at 20, in two shards."""
    rows = [{"id": i, "name": None if i % 7 == 0 else f"o{i}", "x": float(i)} for i in range(100)]
    return fill("orders", SCHEMA, {10: rows, 20: rows[::2]}, shards=2)


@pytest.fixture
def order(controller: StorageController, url: str, orders: str, tmp_path: Path) -> Order:
    """Starts a job on record and makes its spec."""

    def make(**change: Any) -> SnapshotSpec:
        of = change.get("collection", orders)
        record = controller.start_job(of, "snapshot", str(uuid.uuid4()), spec={})
        given: dict[str, Any] = {
            "url": url,
            "collection": orders,
            "destination": str(tmp_path / "out"),
            "job_id": record.job_id,
            "attempt": record.attempt,
            "as_of": 15,
        }
        return SnapshotSpec(**{**given, **change})

    return make


def folder_of(spec: SnapshotSpec) -> Path:
    return Path(spec.destination) / spec.job_id / f"attempt-{spec.attempt}"


def holds_of_jobs(controller: StorageController, collection: str) -> list[str]:
    info = controller.describe(collection)
    return [
        hold.purpose
        for shard in (info.metadata_shard, *info.data_shards)
        for hold in controller.client.inspect(shard).holds
        if hold.purpose.startswith("job ")
    ]


def check_committed(controller: StorageController, spec: SnapshotSpec, rows: int) -> None:
    record = record_of(controller, spec)
    manifest = verify_snapshot(record.result["path"])
    assert (record.state, record.attempt) == (JobState.DONE, spec.attempt)
    assert Path(record.result["path"]) == folder_of(spec)
    assert record.result["rows"] == manifest.rows == rows
    assert record.result["checksum"] == f"{manifest.checksum:016x}"
    assert record.result["as_of"] == manifest.as_of
    assert (manifest.job_id, manifest.attempt) == (spec.job_id, spec.attempt)
    assert holds_of_jobs(controller, spec.collection) == []
    assert [path.name for path in folder_of(spec).parent.iterdir()] == [folder_of(spec).name]


def run_module(spec: SnapshotSpec) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.spark.jobs.snapshot", spec.to_json()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def submit(spec: SnapshotSpec, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the Spark operator does it: `spark-submit` with the spec as the one argument."""
    gate = Gate(folder / "driver")
    gate.open()
    application = {
        "mainApplicationFile": "local:///opt/holdfast/jobs/snapshot.py",
        "arguments": [spec.to_json()],
    }
    command = sparkdriver.command("snapshot", application, master="local[2]", gate=gate.stem)
    env = {**os.environ, **environment()}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)


@pytest.mark.long
def test_the_job_as_it_is_submitted_and_the_same_attempt_once_more(
    controller: StorageController, order: Order, tmp_path: Path
) -> None:
    spec = order()
    done = submit(spec, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "snapshot: orders as of 15: 2 tasks into" in done.stdout
    assert "committed 100 rows in 2 files" in done.stdout
    check_committed(controller, spec, rows=100)
    manifest = verify_snapshot(folder_of(spec))
    found = pa.concat_tables(pq.read_table(folder_of(spec) / file.name) for file in manifest.files)
    wanted = controller.reader(spec.collection, purpose="test").snapshot(15).to_table()
    assert found.sort_by("id").equals(wanted.drop_columns(["_diff"]).sort_by("id"))

    before = record_of(controller, spec)
    more = run_module(spec)
    assert (more.returncode, record_of(controller, spec)) == (0, before)
    assert "has already committed; nothing to do" in more.stdout
    assert verify_snapshot(folder_of(spec)) == manifest


def test_the_latest_time_is_the_default_and_rows_are_repeated(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order(as_of=None, partitions=1)
    said: list[str] = []
    snapshot.run(spec, say=said.append, spark=spark)
    check_committed(controller, spec, rows=150)
    assert record_of(controller, spec).result["as_of"] == 20
    assert said[0].startswith("orders as of 20: 1 tasks into")
    assert said[-1].startswith("committed 150 rows in 1 files")


def test_an_attempt_that_was_replaced_meanwhile_is_fenced_and_takes_its_files_away(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    zombie = order()
    successor: list[SnapshotSpec] = []

    def say(text: str) -> None:
        if "are written, committing" in text:
            successor.append(again(controller, zombie))

    with pytest.raises(Fenced, match="attempt 1"):
        snapshot.run(zombie, say=say, spark=spark)
    record = record_of(controller, zombie)
    assert (record.state, record.attempt, record.result) == (JobState.RUNNING, 2, {})
    assert not folder_of(zombie).exists()
    snapshot.run(successor[0], say=str, spark=spark)
    check_committed(controller, successor[0], rows=100)


def test_an_old_attempt_is_fenced_before_it_does_anything(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    zombie = order()
    successor = again(controller, zombie)
    assert snapshot.main([zombie.to_json()]) == 4
    snapshot.run(successor, say=str, spark=spark)
    done = record_of(controller, successor)
    assert snapshot.main([zombie.to_json()]) == 4
    assert record_of(controller, successor) == done
    check_committed(controller, successor, rows=100)


@pytest.mark.parametrize("moment", ["tasks into", "are written, committing"])
@pytest.mark.long
def test_a_killed_attempt_leaves_nothing_that_the_next_one_does_not_clear(
    spark: SparkSession, controller: StorageController, order: Order, moment: str
) -> None:
    first = order()
    killed = killed_at(first, moment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    record = record_of(controller, first)
    assert (record.state, record.attempt) == (JobState.RUNNING, 1)
    assert holds_of_jobs(controller, first.collection) == [f"job {first.job_id} attempt 1"]
    assert folder_of(first).exists()

    with pytest.raises(AttemptTaken):
        snapshot.run(first, say=str, spark=spark)
    assert record_of(controller, first) == record

    second = again(controller, first)
    assert holds_of_jobs(controller, first.collection) == []
    snapshot.run(second, say=str, spark=spark)
    check_committed(controller, second, rows=100)


@pytest.mark.long
def test_a_driver_that_is_told_to_end_leaves_no_files_and_what_is_held_to_its_record(
    controller: StorageController, order: Order
) -> None:
    spec = order()
    command = [sys.executable, "-m", "holdfast.spark.jobs.snapshot", spec.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as job:
        assert job.stdout is not None
        assert "tasks into" in job.stdout.readline()
        job.terminate()
        assert job.wait(timeout=120) == 128 + signal.SIGTERM
    record = record_of(controller, spec)
    assert (record.state, record.attempt) == (JobState.RUNNING, 1)
    assert not folder_of(spec).exists()
    assert holds_of_jobs(controller, spec.collection) == [f"job {spec.job_id} attempt 1"]
    controller.fail_job(spec.job_id, 1, "it was told to end")
    assert holds_of_jobs(controller, spec.collection) == []


def test_the_contents_are_held_while_the_job_runs(
    spark: SparkSession, controller: StorageController, fill: Fill, order: Order
) -> None:
    collection = fill("retained", SCHEMA, {1: [{"id": 1, "name": "a", "x": 0.0}], 9: None}, shards=2)
    spec = order(collection=collection, as_of=4)

    def say(text: str) -> None:
        if "tasks into" in text:
            assert controller.set_retention_hold(collection, 8) == 4

    snapshot.run(spec, say=say, spark=spark)
    check_committed(controller, spec, rows=1)
    assert controller.set_retention_hold(collection, 9) == 9
    late = order(collection=collection, as_of=4)
    with pytest.raises(AsOfTooEarly):
        snapshot.run(late, say=str)
    assert record_of(controller, late).error == "as_of 4 is before since 9; read at 9 or later"
    assert holds_of_jobs(controller, collection) == []


def test_a_snapshot_has_what_the_pipeline_of_the_collection_keeps(
    spark: SparkSession, controller: StorageController, url: str, order: Order, tmp_path: Path
) -> None:
    """Readers of its files see only the rows. A restored collection is fed on from there."""
    folder, name = tmp_path / "in", f"fed {uuid.uuid4()}"
    folder.mkdir()
    schema = Schema.of(key={"id": "int64"}, value={"name": "string?"})
    source = {"files": {"path": str(folder)}, "format": {"json": {}}, "envelope": "Upsert"}

    def feed(name: str, file: str, *lines: str) -> tuple[list[Any], list[Any], list[Any]]:
        (folder / file).write_text("".join(f"{each}\n" for each in lines))
        ingest_source(url, name, source, schema=schema, once=True)
        return contents(name)

    def contents(name: str) -> tuple[list[Any], list[Any], list[Any]]:
        with controller.reader(name, purpose="check") as reader:
            found = [reader.snapshot().to_table(), *(each(controller, name)[1] for each in (offsets, errors))]
        first, second, third = (table.drop_columns(["_diff"]).to_pylist() for table in found)
        return sorted(first, key=str), second, third

    then = feed(name, "a", '{"id": 1, "name": "a"}', "bad", '{"id": 2}')
    spec = order(collection=controller.describe(name).collection_id, as_of=None)

    def say(text: str) -> None:
        if "tasks into" in text:
            # The time is fixed, so this is not in the snapshot.
            feed(name, "b", '{"id": 1, "name": "b"}', "worse")

    snapshot.run(spec, say=say, spark=spark)
    check_committed(controller, spec, rows=2)
    path = folder_of(spec)
    assert ds.dataset(str(path), format="parquet").to_table().num_rows == 2
    assert spark.read.parquet(str(path)).count() == 2
    assert len(list(path.glob("*.parquet"))) == len(verify_snapshot(path).files)
    uninterrupted = contents(name)
    snapshotted = RestoreSource.open(path)
    for to in (name, f"copy {uuid.uuid4()}"):
        if to != name:
            new = CollectionSpec(str(uuid.uuid4()), to, schema, 2, source_fed=True)
            controller.create_collection(new)
        controller.restore_collection(to, snapshotted)
        assert contents(to) == then
        ingest_source(url, to, source, once=True)
        assert contents(to) == uninterrupted


def test_what_the_record_says_is_read_and_another_time_is_refused(
    spark: SparkSession, controller: StorageController, fill: Fill, order: Order
) -> None:
    collection = fill("on record", SCHEMA, {1: [{"id": 1, "name": "a", "x": 0.0}], 9: None})
    job = controller.start_job(collection, "snapshot", "monday", spec={"as_of": 4})
    controller.set_retention_hold(collection, 8)
    spec = order(collection=collection, job_id=job.job_id, as_of=None)
    assert snapshot.main([replace(spec, as_of=8).to_json()]) == 2
    assert record_of(controller, spec) == job
    snapshot.run(spec, say=str, spark=spark)
    check_committed(controller, spec, rows=1)
    assert record_of(controller, spec).result["as_of"] == 4


@pytest.mark.parametrize(("as_of", "rows"), [(15, 100), (3, 0)])
def test_the_folder_of_a_snapshot_is_read_by_others_as_it_is_with_or_without_rows(
    spark: SparkSession, controller: StorageController, fill: Fill, order: Order, as_of: int, rows: int
) -> None:
    spec = order(as_of=as_of)
    controller.comment_columns(spec.collection, {"name": "who it is"})
    snapshot.run(spec, say=str, spark=spark)
    check_committed(controller, spec, rows=rows)
    folder = str(folder_of(spec))
    wanted = {(i, None if i % 7 == 0 else f"o{i}", float(i)) for i in range(rows)}
    for table in (pq.read_table(folder), ds.dataset(folder, format="parquet").to_table()):
        assert table.schema.equals(SCHEMA.arrow)
        assert table.schema.field("name").metadata == {b"comment": b"who it is"}
        assert {tuple(row.values()) for row in table.to_pylist()} == wanted
    frame = spark.read.parquet(folder)
    assert frame.schema.simpleString() == "struct<id:decimal(20,0),name:string,x:double>"
    assert {tuple(row) for row in frame.collect()} == wanted
    assert frame.count() == rows

    other = fill(f"restored as of {as_of}", SCHEMA, {3: [{"id": 7, "name": "old", "x": 0.0}]})
    controller.restore_collection(other, RestoreSource.open(folder))
    with controller.reader(other, purpose="test") as reader:
        assert reader.snapshot().to_table().num_rows == rows


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"as_of": 21}, HoldfastError),
        ({"destination": "gs://bucket/x"}, BadInput),
        ({"destination": "/proc/nowhere"}, BadInput),
    ],
)
def test_work_that_can_not_be_done_is_put_on_record_as_failed(
    spark: SparkSession,
    controller: StorageController,
    order: Order,
    change: dict[str, Any],
    error: type[HoldfastError],
) -> None:
    spec = order(**change)
    with pytest.raises(error) as caught:
        snapshot.run(spec, say=str, spark=spark)
    record = record_of(controller, spec)
    assert record.state is JobState.FAILED
    assert record.error.startswith(str(caught.value))


def test_a_task_that_fails_fails_the_attempt_in_one_line(
    spark: SparkSession, controller: StorageController, fill: Fill, order: Order
) -> None:
    collection = fill("owing", SCHEMA, {0: [{"id": 1, "name": "a", "x": 0.0, "_diff": -1}]})
    spec = order(collection=collection, as_of=0)
    with pytest.raises(
        HoldfastError, match=r"^a task failed: collection owing at 0 is not a multiset: .* -1 times$"
    ):
        snapshot.run(spec, say=str, spark=spark)
    assert record_of(controller, spec).state is JobState.FAILED
    assert not folder_of(spec).exists()
    assert holds_of_jobs(controller, collection) == []


def test_a_job_that_was_never_started_is_refused_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], order: Order
) -> None:
    spec = order(job_id=str(uuid.uuid4()))
    assert snapshot.main([spec.to_json()]) == 2
    assert snapshot.main([order(attempt=2).to_json()]) == 2
    assert snapshot.main([]) == 2
    assert snapshot.main(["{}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"snapshot: there is no job {spec.job_id}"
    assert not Path(spec.destination).exists()
