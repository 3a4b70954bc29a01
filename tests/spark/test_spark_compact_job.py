"""The compaction job: executors merge key ranges, one driver installs them, and no contents change."""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.collections import JobRecord, JobState, StorageController
from holdfast.errors import CollectionInUse, CollectionNotFound, Fenced
from holdfast.persist import Schema
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.state.command import Handle
from holdfast.persist.upkeep.compaction import claim_compaction
from holdfast.spark import options
from holdfast.spark.jobs import compact
from holdfast.spark.jobs.folder import AttemptTaken
from holdfast.spark.jobs.spec import CompactSpec
from spark import orders
from spark.attempts import again, killed_at, record_of, run_on_servers
from testbed import sparkdriver
from testbed.minio import Minio
from testbed.postgres import PostgresServer
from testbed.spark import environment
from testbed.sparkdriver import Gate

pytestmark = pytest.mark.spark
Fill = Callable[..., str]
Order = Callable[..., CompactSpec]

SCHEMA = Schema.of(key={"id": "uint64"}, value={"name": "string?", "x": "float64"})
SINCE, UPPER = 20, 41
MERGED = "1 of 3 shards are merged"
# Runs the job with tasks that fail after they have uploaded, for the first time. The second time they wait
# until the driver has renewed its claim.
FAILING_ONCE = """
import functools, sys, time
from pyspark import TaskContext
from pyspark.sql import SparkSession
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.spark import configure, place as places
from holdfast.spark.jobs import compact
from holdfast.spark.jobs.spec import CompactSpec
from holdfast.collections import CollectionSpec, StorageController

def merge_pieces(pieces, *, place, location_id, work=compact.merge_pieces):
    done = work(pieces, place=place, location_id=location_id)
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the machine is gone")
    until = time.monotonic() + 60
    with place.open_to_read() as client:
        for piece in pieces:
            machine = client.session.machine(piece.task.shard_id)
            while not machine.refresh().writers[piece.task.writer.id].heartbeats:
                assert time.monotonic() < until, "the claim was not renewed"
                time.sleep(0.05)
    return done

compact.merge_pieces = merge_pieces
places.PersistConfig = functools.partial(PersistConfig, lease_s=2.0)
place = dict(blob=sys.argv[1], consensus=sys.argv[2])
with PersistClient.open(**place, config=PersistConfig(maintenance="off", inline_max_bytes=0)) as client:
    controller = StorageController(client)
    schema = Schema.of(key={"id": "uint64"}, value={"name": "string"})
    (s1, s2) = controller.create_collection(CollectionSpec("c1", "orders", schema, shards=2)).holding.shards
    writer = controller.writer("c1", purpose="test")
    for at in range(3):
        writer.append([{"id": i, "name": str(i)} for i in range(3000 * at, 3000 * at + 3000)], at, at + 1)
    job = controller.start_job("c1", "compact", "now", spec={})
    work = {"collection": "c1", "job_id": job.job_id, "attempt": 1}
    parts = {meta.key for shard in (s1, s2) for meta in client.location.blob.list(shard) if "/w" in meta.key}
    spark = configure(SparkSession.builder.master("local[2,3]")).getOrCreate()
    compact.run(CompactSpec(**place, **work), say=print, spark=spark)
    result = controller.job(job.job_id).result
    assert (result["compacted"], result["batches"], result["rows"]) == (2, 6, 9000), result
    made = {meta.key for shard in (s1, s2) for meta in client.location.blob.list(shard) if "/w" in meta.key}
    assert len(made - parts) == 4, made
    states = [client.session.machine(shard).refresh() for shard in (s1, s2)]
    assert all(len(state.batches) == 1 and not state.claims for state in states)
    rows = controller.reader("c1", purpose="look").snapshot(2).to_table()
    assert sorted(rows["id"].to_pylist()) == list(range(9000))
    assert set(rows["_diff"].to_pylist()) == {1}
"""


@pytest.fixture
def collection(controller: StorageController, fill: Fill) -> str:
    """Five thousand orders in three shards, which come, change and go, readable from the third time on."""
    name = f"orders-{uuid.uuid4()}"
    rows = [{"id": i, "name": f"order {i % 97} {'.' * 50}", "x": float(i)} for i in range(5000)]
    gone = [{**row, "_diff": -1} for row in rows[:2000]]
    changed = [{**row, "x": -1.0} for row in rows[:2000:2]]
    made = fill(
        name, SCHEMA, {0: rows[::2], 10: rows[1::2], SINCE: gone, 30: changed, UPPER - 1: rows[:9]}, shards=3
    )
    controller.set_retention_hold(made, SINCE)
    return made


@pytest.fixture
def order(controller: StorageController, url: str, collection: str) -> Order:
    """Starts a job on record and makes its spec."""

    def make(**change: Any) -> CompactSpec:
        of = change.get("collection", collection)
        record = controller.start_job(of, "compact", str(uuid.uuid4()), spec={})
        return CompactSpec(
            **{
                "url": url,
                "collection": of,
                "job_id": record.job_id,
                "attempt": record.attempt,
                "partitions": 6,
                **change,
            }
        )

    return make


@pytest.fixture
def in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred stored rows are worth a task."""
    monkeypatch.setattr(options, "_TASK_ROWS", 500)


def shards_of(controller: StorageController, collection: str) -> tuple[str, ...]:
    return controller.describe(collection).holding.shards


def batches(controller: StorageController, collection: str) -> list[int]:
    client = controller.client
    return [
        len(client.session.machine(shard).refresh().batches) for shard in shards_of(controller, collection)
    ]


def all_of(controller: StorageController, collection: str) -> list[list[dict[str, Any]]]:
    """The contents at times from `since` on, and the changes between them, in order."""
    times = (SINCE, 25, 30, UPPER - 1)
    with controller.reader(collection, purpose="look") as reader:
        snapshots = [reader.snapshot(time) for time in times]
        spans = [reader.changes(times[0], time) for time in times[1:]]
        found = [[row for batch in each for row in batch.to_pylist()] for each in (*snapshots, *spans)]
    assert [len(rows) for rows in found] == [3000, 3000, 4000, 4009, 0, 1000, 1009]
    return [sorted(rows, key=lambda row: (row["id"], row["x"])) for rows in found]


def check_done(controller: StorageController, spec: CompactSpec, **wanted: Any) -> JobRecord:
    record = record_of(controller, spec)
    assert (record.state, record.attempt) == (JobState.DONE, spec.attempt)
    assert {name: record.result[name] for name in wanted} == wanted
    return record


@pytest.mark.long
def test_the_job_as_it_is_submitted_and_the_same_attempt_once_more(
    controller: StorageController, order: Order, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = order()
    before = all_of(controller, spec.collection)
    sizes = [controller.client.stored(shard) for shard in shards_of(controller, spec.collection)]
    gate = Gate(tmp_path / "driver")
    gate.open()
    application = {
        "mainApplicationFile": "local:///opt/holdfast/jobs/compact.py",
        "arguments": [spec.to_json()],
    }
    command = sparkdriver.command("compact", application, master="local[2]", gate=gate.stem)
    env = {**os.environ, **environment()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 shards in 3 tasks" in done.stdout
    assert "compact: 3 of 3 shards are compacted, 8,009 stored rows are 4,009" in done.stdout
    record = check_done(
        controller, spec, shards=3, compacted=3, skipped=0, left=0, batches=15, rows_before=8009, rows=4009
    )
    assert record.result["bytes_before"] == sum(size.size_bytes for size in sizes) > record.result["bytes"]
    after = [controller.client.stored(shard) for shard in shards_of(controller, spec.collection)]
    assert sum(size.size_bytes for size in after) == record.result["bytes"]
    assert batches(controller, spec.collection) == [1, 1, 1]
    assert all_of(controller, spec.collection) == before

    assert compact.main([spec.to_json()]) == 0
    assert record_of(controller, spec) == record
    assert "has already committed; nothing to do" in capfd.readouterr().out
    # Another job finds nothing to gain, and needs no Spark for that.
    compact.run(idle := order(), say=str)
    check_done(controller, idle, shards=3, compacted=0, skipped=3, left=0, batches=0, rows=0)


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.long
def test_ranges_of_keys_make_one_run_beside_what_is_appended_meanwhile(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()
    before = all_of(controller, spec.collection)
    writer = controller.writer(spec.collection, purpose="test")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if " tasks" in text and len(said) == 1:
            writer.append([{"id": 9000, "name": None, "x": 0.0}], UPPER, UPPER + 1)
            controller.set_retention_hold(spec.collection, 25)

    compact.run(spec, say=say, spark=spark)
    assert said[0].endswith("3 of 3 shards in 6 tasks")
    check_done(controller, spec, compacted=3, batches=15, rows_before=8009, rows=4009)
    states = [
        controller.client.session.machine(shard).refresh() for shard in shards_of(controller, spec.collection)
    ]
    for first, *_ in (state.batches for state in states):
        (run,) = first.runs
        assert (first.since, len(run)) == (SINCE, 2), "each range made a part"
    assert sum(batch.rows for state in states for batch in state.batches[1:]) == 1
    with controller.reader(spec.collection, purpose="look") as reader:
        late = [row for batch in reader.snapshot(30) for row in batch.to_pylist()]
        assert reader.snapshot(UPPER).to_table().num_rows == 4010
    assert sorted(late, key=lambda row: row["id"]) == before[2]


@pytest.mark.long
@pytest.mark.usefixtures("in_ranges")
def test_an_attempt_that_was_replaced_meanwhile_is_fenced_and_installs_nothing(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    zombie = order()
    before, blobs = all_of(controller, zombie.collection), orders.blobs(controller, zombie.collection)
    successor: list[CompactSpec] = []

    def say(text: str) -> None:
        if MERGED in text:
            assert orders.blobs(controller, zombie.collection) > blobs
            successor.append(again(controller, zombie))
            compact.run(successor[0], say=str, spark=spark)

    with pytest.raises(Fenced, match="attempt 1"):
        compact.run(zombie, say=say, spark=spark)
    check_done(controller, successor[0], compacted=3, batches=15, rows=4009)
    assert batches(controller, zombie.collection) == [1, 1, 1]
    assert all_of(controller, zombie.collection) == before
    # What the zombie uploaded is deleted, and what its successor did is all that is left.
    live = {
        str(part.blob_key)
        for shard in shards_of(controller, zombie.collection)
        for batch in controller.client.session.machine(shard).refresh().batches
        for part in batch.parts
    }
    assert orders.blobs(controller, zombie.collection) == live
    assert compact.main([zombie.to_json()]) == 4


def test_of_two_drivers_of_one_attempt_one_does_the_work(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order(partitions=2)
    before = all_of(controller, spec.collection)
    refused = threading.Event()

    def say(text: str) -> None:
        if MERGED in text:
            assert refused.wait(timeout=120)

    def drive() -> Exception | None:
        try:
            compact.run(spec, say=say, spark=spark)
        except AttemptTaken as error:
            refused.set()
            return error
        return None

    with ThreadPoolExecutor(2) as drivers:
        outcomes = [each.result() for each in [drivers.submit(drive) for _ in range(2)]]
    assert [type(each) for each in outcomes if each is not None] == [AttemptTaken]
    check_done(controller, spec, compacted=3, batches=15)
    assert all_of(controller, spec.collection) == before


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.long
def test_a_killed_driver_leaves_its_claims_to_the_next_attempt_and_its_parts_to_the_sweeper(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    first = order()
    before, blobs = all_of(controller, first.collection), orders.blobs(controller, first.collection)
    killed = killed_at(first, MERGED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert record_of(controller, first).state is JobState.RUNNING
    assert batches(controller, first.collection) == [5, 5, 5]
    left = orders.blobs(controller, first.collection) - blobs
    with pytest.raises(AttemptTaken, match="already started"):
        compact.run(first, say=str, spark=spark)
    assert record_of(controller, first).state is JobState.RUNNING
    another = order()
    compact.run(another, say=str)
    check_done(controller, another, compacted=0, skipped=0, left=3)

    second = again(controller, first)
    compact.run(second, say=str, spark=spark)
    check_done(controller, second, compacted=3, left=0, batches=15)
    assert all_of(controller, first.collection) == before
    assert left <= orders.blobs(controller, first.collection)
    swept = list(sweep(controller.client, older_than_s=0, delete=True))
    assert {orphan.key for each in swept for orphan in each.orphans} >= left
    assert not left & orders.blobs(controller, first.collection)
    assert all_of(controller, first.collection) == before


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.long
def test_what_a_killed_attempt_has_installed_stays(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    first = order()
    before = all_of(controller, first.collection)
    killed = killed_at(first, "2 of 3 shards are merged")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(batches(controller, first.collection)) == [1, 5, 5]
    assert all_of(controller, first.collection) == before

    second = again(controller, first)
    compact.run(second, say=str, spark=spark)
    check_done(controller, second, compacted=2, skipped=1, left=0, batches=10)
    assert all_of(controller, first.collection) == before


@pytest.mark.usefixtures("in_ranges")
@pytest.mark.parametrize("moment", ["in 6 tasks", MERGED])
def test_what_others_have_merged_meanwhile_is_left_to_them(
    spark: SparkSession, controller: StorageController, order: Order, moment: str
) -> None:
    """Its claim on one shard is lost, as by a silence of the lease: others compact it, before or after."""
    spec = order()
    before = all_of(controller, spec.collection)
    lost, *_ = shards_of(controller, spec.collection)

    def say(text: str) -> None:
        if moment in text:
            controller.client.compactions.end(lost, {f"job {spec.job_id} attempt 1"})
            task = controller.client.compactions.claim(lost, purpose="other", full=True)
            assert task is not None
            compactions = controller.client.compactions
            assert compactions.install(task, compactions.merge(task))

    compact.run(spec, say=say, spark=spark)
    check_done(controller, spec, shards=3, compacted=2, skipped=0, left=1, batches=10)
    assert batches(controller, spec.collection) == [1, 1, 1]
    assert all_of(controller, spec.collection) == before


@pytest.mark.usefixtures("in_ranges")
def test_batches_that_others_are_merging_are_left_to_them_and_the_rest_is_merged(
    spark: SparkSession, controller: StorageController, order: Order
) -> None:
    spec = order()
    before = all_of(controller, spec.collection)
    compactions = controller.client.compactions
    shared, *_ = shards_of(controller, spec.collection)
    machine = controller.client.session.machine(shared)
    other = claim_compaction(machine, Handle("w1", "other", "host", 60_000), machine.refresh().batches[:2])
    assert other is not None
    compact.run(spec, say=str, spark=spark)
    check_done(controller, spec, shards=3, compacted=3, skipped=0, left=0, batches=13)
    assert batches(controller, spec.collection) == [3, 1, 1]
    assert compactions.install(other, compactions.merge(other))
    assert batches(controller, spec.collection) == [2, 1, 1]
    assert all_of(controller, spec.collection) == before


def test_a_task_that_can_not_read_its_rows_fails_the_attempt_and_gives_up_the_claims(
    spark: SparkSession, controller: StorageController, order: Order, url: str
) -> None:
    spec = order()
    shard, *_ = shards_of(controller, spec.collection)
    key = next(
        part.blob_key
        for batch in controller.client.session.machine(shard).refresh().batches
        for part in batch.parts
        if part.blob_key
    )
    blob = controller.client.location.blob
    whole = blob.get(key)
    assert whole is not None
    blob.put(key, whole[:-1] + b"x")
    with pytest.raises(Exception, match="a task failed: .*" + key):
        compact.run(spec, say=str, spark=spark)
    record = record_of(controller, spec)
    assert record.state is JobState.FAILED
    assert key in record.error
    assert not any(map(controller.client.compactions.claimants, shards_of(controller, spec.collection)))
    assert batches(controller, spec.collection)[0] == 5


def test_orders_that_can_not_be_done_are_refused_or_put_on_record(
    capsys: pytest.CaptureFixture[str], controller: StorageController, fill: Fill, order: Order
) -> None:
    spec = order()
    assert compact.main([CompactSpec(**{**vars(spec), "job_id": str(uuid.uuid4())}).to_json()]) == 2
    assert compact.main([CompactSpec(**{**vars(spec), "attempt": 2}).to_json()]) == 2
    assert compact.main([]) == 2
    assert capsys.readouterr().err.startswith("compact: there is no job ")
    assert record_of(controller, spec).state is JobState.RUNNING
    empty = order(collection=fill("nothing", SCHEMA, {}, shards=2))
    compact.run(empty, say=str)
    check_done(controller, empty, shards=2, compacted=0, skipped=2, left=0, rows=0, bytes=0)
    with pytest.raises(CollectionInUse):
        controller.drop_collection(spec.collection)
    with pytest.raises(CollectionNotFound):
        compact.run(spec, say=str)
    assert record_of(controller, spec).state is JobState.FAILED


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.long
def test_on_s3_and_postgres_tasks_that_fail_and_run_again_upload_twice_and_count_once(
    minio: Minio, postgres: PostgresServer
) -> None:
    """The driver renews its claims while they run."""
    run_on_servers(FAILING_ONCE, minio, postgres)
