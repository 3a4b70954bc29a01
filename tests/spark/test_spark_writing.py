"""The write path for Spark without Spark: it plans, uploads and commits each row once, despite faults."""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import BadInput, HandleExpired
from holdfast.persist import PersistClient, Schema
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.machine import commit as commit_commands
from holdfast.spark import planned_write
from holdfast.spark.planned_write import StreamBatch
from holdfast.spark.types import check_writes
from holdfast.spark.write_options import parse_write_options
from spark.orders import SCHEMA, batch_of, blobs, contents, once, planned, rows_of
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = pytest.mark.spark
Fill = Callable[..., str]

X = {"x": t.DoubleType()}
ID_X = {"id": t.LongType(), **X}


@pytest.fixture
def orders(fill: Fill) -> str:
    """An empty collection in two shards."""
    return fill(f"orders-{uuid.uuid4()}", SCHEMA, {}, shards=2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**ID_X, "y": t.LongType()}, "collection orders has no column 'y'; it has id, name, x"),
        ({"id": t.LongType(), "name": t.StringType()}, "column 'x' is missing; there are id, name"),
        (
            {"id": t.StringType(), **X},
            "column 'id' is string, which can't be converted to uint64 without loss",
        ),
        ({**ID_X, "_time": t.LongType()}, "column '_time' can't be written: all rows of a write have one"),
        (
            {"id": t.LongType(), "x": t.ArrayType(t.DoubleType())},
            "column 'x' is array<double>, which can't be converted to double",
        ),
        ({**ID_X, "_diff": t.StringType()}, "column '_diff' is string, which can't be converted to int64"),
        (
            {"id": t.LongType(), "x": t.TimestampType()},
            "column 'x' is timestamp, which can't be converted to",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns: Any, message: str) -> None:
    struct = t.StructType([t.StructField(name, type_) for name, type_ in columns.items()])
    with pytest.raises(BadInput) as refused:
        check_writes(struct, "orders", SCHEMA, counted=True)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    if "y" in columns:
        assert refused.value.hint.endswith("run: holdfast collection alter orders --add 'y:TYPE?'")


def test_columns_of_other_types_fit_where_their_values_may() -> None:
    fields = {"id": t.DecimalType(20, 0), "x": t.FloatType(), "name": t.NullType(), "_diff": t.IntegerType()}
    struct = t.StructType([t.StructField(name, type_) for name, type_ in fields.items()])
    check_writes(struct, "orders", SCHEMA, counted=True)
    with pytest.raises(BadInput, match="can't be used with mode overwrite"):
        check_writes(struct, "orders", SCHEMA, counted=False)
    twice = t.StructType([*struct.fields, struct.fields[0]])
    with pytest.raises(BadInput, match="column 'id' appears twice"):
        check_writes(twice, "orders", SCHEMA, counted=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "c"}, "option 'url' is missing"),
        ({"url": "file:///srv/lake"}, "option 'collection' is missing"),
        ({"url": "memory:", "collection": "c"}, "exists in one process only"),
        ({"url": "file:///srv/lake", "collection": "c", "asOf": "3"}, "unknown option 'asof'; there are url"),
        ({"url": "file:///srv/lake", "collection": "c", "at": "-1"}, "option 'at' is '-1', not an integer"),
        ({"url": "file:///srv/lake", "collection": "c", "writeId": ""}, "option 'writeId' is ''"),
    ],
)
def test_options_that_can_not_be_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_write_options(options)
    assert message in str(refused.value)


def test_options_of_a_stream_are_those_that_hold_for_each_batch() -> None:
    given = {"URL": "file:///srv/lake", "collection": "c", "checkpointlocation": "/x"}
    assert parse_write_options(given, stream=True).place.url == "file:///srv/lake"
    with pytest.raises(BadInput, match="option 'writeid' is only for batch writes"):
        parse_write_options({**given, "writeId": "w"}, stream=True)


def test_a_plan_that_is_refused_leaves_no_writer(controller: StorageController, url: str, fill: Fill) -> None:
    collection = fill("complete", SCHEMA, {9: rows_of(0, 3)}, shards=2)
    with pytest.raises(BadInput, match="is complete up to 10: rows can't be added at 3"):
        planned(url, collection, at="3")
    for shard in controller.describe(collection).data_shards:
        assert "spark: load" not in controller.client.inspect(shard).writers
    assert contents(controller, collection) == once(0, 3)


def test_of_two_drivers_of_a_named_write_one_appends_and_the_other_takes_its_uploads_away(
    controller: StorageController, url: str, orders: str
) -> None:
    plans = [planned(url, orders, writeId="w1") for _ in range(2)]
    uploads = [[planned_write.upload(each, [batch_of(0, 40)])] for each in plans]
    assert len(blobs(controller, orders)) == 4
    for each, told in zip(plans, uploads, strict=True):
        planned_write.commit(each, told)
    assert contents(controller, orders) == once(0, 40)
    assert len(blobs(controller, orders)) == 2
    # Spark aborts after a commit that failed, whatever had happened by then.
    planned_write.abort(plans[0], uploads[0])
    assert contents(controller, orders) == once(0, 40)
    assert len(blobs(controller, orders)) == 2


def test_a_task_that_ran_twice_counts_once_and_an_abort_takes_all_away(
    controller: StorageController, url: str, orders: str
) -> None:
    plan = planned(url, orders)
    zombie = planned_write.upload(plan, [batch_of(0, 20)])
    named = [planned_write.upload(plan, [batch_of(0, 10), batch_of(10, 20)]), planned_write.upload(plan, [])]
    assert named[1] == ()
    planned_write.commit(plan, named)
    assert contents(controller, orders) == once(0, 20)
    # A driver that comes late finds that its writers have ended.
    aborted = planned(url, orders)
    uploads = [planned_write.upload(aborted, [batch_of(20, 30)])]
    before = blobs(controller, orders)
    planned_write.abort(aborted, [*uploads, None])
    assert len(before - blobs(controller, orders)) == 2
    with pytest.raises(HandleExpired):
        planned_write.commit(aborted, uploads)
    planned_write._alive(aborted.options.place, aborted.location_id, aborted.tickets)._beaten_s = -1e9
    with pytest.raises(HandleExpired):
        planned_write.upload(aborted, [batch_of(20, 30)])
    assert contents(controller, orders) == once(0, 20)
    assert {part.blob_key for each in zombie for part in each.run} <= blobs(controller, orders)


def test_writers_that_are_not_known_any_more_commit_nothing(
    controller: StorageController, url: str, orders: str
) -> None:
    plan = planned(url, orders)
    uploads = [planned_write.upload(plan, [batch_of(0, 20)])]
    machine = controller.client.session.machine(plan.tickets[0].shard_id)
    known = machine.refresh().writers[plan.tickets[0].writer_id]
    assert known.lease_ms >= 12 * 3600 * 1000
    commit_commands([(machine, ExpireHandles((), ((known.id, known.heartbeats),)))])
    with pytest.raises(HandleExpired, match="sent no heartbeat for too long"):
        planned_write.commit(plan, uploads)
    assert contents(controller, orders) == Counter()


@pytest.mark.parametrize("meanwhile", ["written", "handed over", "evolved"])
def test_what_was_uploaded_is_written_though_the_collection_moved_meanwhile(
    controller: StorageController, url: str, orders: str, meanwhile: str
) -> None:
    plan = planned(url, orders, writeId="w")
    uploads = [planned_write.upload(plan, [batch_of(0, 300)])]
    match meanwhile:
        case "written":
            writer = controller.writer(orders, purpose="test")
            writer.append(rows_of(300, 310), writer.upper(), plan.time + 60_000)
        case "handed over":
            controller.renditions.create(orders, shards=3, rendition_id="r2")
            controller.hydrate(orders, "r2")
            controller.renditions.hand_over(orders, "r2")
        case _:
            wider = Schema.of(
                key={"id": "uint64"}, value={"name": "string?", "x": "float64", "more": "int64?"}
            )
            controller.evolve_collection(orders, wider)
    planned_write.commit(plan, uploads)
    wanted = once(0, 310) if meanwhile == "written" else once(0, 300)
    assert contents(controller, orders) == wanted
    planned_write.commit(plan, uploads)
    assert contents(controller, orders) == wanted
    named = {part.blob_key for each in uploads[0] for part in each.run}
    assert named.isdisjoint(blobs(controller, orders)) is (meanwhile != "evolved")


def test_values_that_do_not_fit_are_told_by_column_and_leave_nothing(
    controller: StorageController, url: str, orders: str
) -> None:
    plan = planned(url, orders)
    for rows, message in (
        (
            {"id": [1], "x": pa.array([None], pa.float64())},
            "column 'x' is not nullable, but 1 row has a null",
        ),
        (
            {"id": [-1], "x": [1.0]},
            "column 'id' does not fit uint64: -1 is not from 0 to 18446744073709551615",
        ),
        ({"id": [1], "x": [1.0], "_diff": pa.array([None], pa.int32())}, "column '_diff'"),
    ):
        with pytest.raises(BadInput) as refused:
            planned_write.upload(plan, [batch_of(0, 50), pa.RecordBatch.from_pydict(rows)])
        assert message in str(refused.value)
    assert blobs(controller, orders) == set()


def test_a_batch_of_a_stream_is_written_once_and_never_after_a_later_one(
    controller: StorageController, url: str, orders: str
) -> None:
    def write(number: int, first: int, query: str = "q1") -> set[str | None]:
        plan = planned(url, orders)
        uploads = [planned_write.upload(plan, [batch_of(first, first + 10)])]
        planned_write.commit(plan, uploads, StreamBatch(query, number))
        return {part.blob_key for each in uploads[0] for part in each.run}

    named = write(0, 0)
    write(0, 0)
    named |= write(2, 10)
    write(1, 50)
    write(2, 10)
    named |= write(0, 20, query="q2")
    assert contents(controller, orders) == once(0, 30)
    assert blobs(controller, orders) == named
    assert {job.slot: job.result["batch"] for job in controller.jobs(orders)} == {"q1": 2, "q2": 0}


# Plans and uploads, and is killed when it would commit.
KILLED = """
import os, signal, sys
from holdfast.spark import planned_write
from spark.orders import batch_of, planned
plan = planned(sys.argv[1], sys.argv[2], writeId="w")
planned_write.upload(plan, [batch_of(0, 30)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_driver_that_is_killed_before_the_commit_leaves_nothing_that_anybody_reads(
    controller: StorageController, url: str, orders: str
) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", KILLED, url, orders]
    killed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert contents(controller, orders) == Counter()
    assert len(blobs(controller, orders)) == 2
    plan = planned(url, orders, writeId="w")
    planned_write.commit(plan, [planned_write.upload(plan, [batch_of(0, 30)])])
    assert contents(controller, orders) == once(0, 30)
    assert planned(url, orders, writeId="w").done


@pytest.mark.parametrize("meanwhile", ["nothing", "written", "handed over"])
def test_an_overwrite_replaces_what_is_there_when_it_commits(
    controller: StorageController, url: str, orders: str, meanwhile: str
) -> None:
    writer = controller.writer(orders, purpose="test")
    writer.append(rows_of(0, 100), 0, 10)
    plan = planned(url, orders, replaces=True, writeId="w")
    uploads = [
        planned_write.upload(plan, [batch_of(50, 80)]),
        (),
        planned_write.upload(plan, [batch_of(80, 120)]),
    ]
    match meanwhile:
        case "written":
            writer.append(rows_of(200, 210), 10, plan.time + 60_000)
        case "handed over":
            controller.renditions.create(orders, shards=3, rendition_id="r2")
            controller.hydrate(orders, "r2")
            controller.renditions.hand_over(orders, "r2")
        case _:
            pass
    planned_write.commit(plan, uploads)
    assert contents(controller, orders) == once(50, 120)
    upper = controller.frontiers(orders).upper
    with controller.reader(orders, purpose="look") as reader:
        changes = sum(count for time, count in reader.change_counts(upper - 2) if time == upper - 1)
    # What stays as it is is not written.
    assert changes == {"nothing": 70, "written": 80, "handed over": 70}[meanwhile]
    planned_write.commit(plan, uploads)
    assert controller.frontiers(orders).upper == upper
    emptied = planned(url, orders, replaces=True)
    planned_write.commit(emptied, [()])
    assert contents(controller, orders) == Counter()


@pytest.mark.parametrize("replaces", [False, True])
def test_who_is_faster_at_the_last_moment_is_not_overwritten_unseen(
    controller: StorageController, url: str, orders: str, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """Between the look at the collection and the commit somebody writes, and another one hands over."""
    other = controller.writer(orders, purpose="test")
    other.append(rows_of(0, 10), 0, 10)
    plan = planned(url, orders, replaces=replaces, writeId="w")
    uploads = [planned_write.upload(plan, [batch_of(20, 40)])]
    tries = 0
    record = StorageController.record_job

    def moved_first(self: StorageController, *args: Any, **given: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            other.append(rows_of(10, 15), 10, 20)
        if tries == 2:
            controller.renditions.create(orders, shards=3, rendition_id="r2")
            controller.hydrate(orders, "r2")
            controller.renditions.hand_over(orders, "r2")
        return record(self, *args, **given)

    monkeypatch.setattr(StorageController, "record_job", moved_first)
    planned_write.commit(plan, uploads)
    assert tries > 2
    assert contents(controller, orders) == (once(20, 40) if replaces else once(0, 15) + once(20, 40))


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.long
def test_it_is_written_once_on_s3_and_postgres_too(
    minio: Minio, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = minio.make_bucket()
    for name, value in minio.credentials.items():
        monkeypatch.setenv(name, value)
    with postgres.database() as database:
        place = {
            "blob": f"s3://{bucket}/lake?endpoint={minio.endpoint}",
            "consensus": postgres.url(database),
        }
        with PersistClient.open(**place) as client:
            controller = StorageController(client)
            controller.create_collection(CollectionSpec("c1", "orders", SCHEMA, shards=2))

            def write(first: int, last: int, *, replaces: bool = False, **options: str) -> None:
                given = parse_write_options({**place, "collection": "orders", **options})
                plan = planned_write.plan(given, lambda *_: None, replaces=replaces)
                # A task that ran twice; only one of its runs is named.
                uploads = [planned_write.upload(plan, [batch_of(first, last)]) for _ in range(2)]
                planned_write.commit(plan, uploads[:1])

            write(0, 500)
            for _ in range(2):
                write(500, 600, writeId="w")
            assert contents(controller, "c1") == once(0, 600)
            write(100, 700, replaces=True)
            assert contents(controller, "c1") == once(100, 700)
