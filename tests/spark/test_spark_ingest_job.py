"""The ingestion job: executors read, one driver commits, and the result is that of `holdfast ingest`."""

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.collections import CollectionSpec, JobState, StorageController
from holdfast.errors import BadInput, Fenced, SourceStalled
from holdfast.ingest import IngestStep, StepOutcome, ingest_source
from holdfast.ingest.kept import errors, offsets, schemas
from holdfast.ingest.reading import Order, RangeWork
from holdfast.persist import PersistClient, Schema, Upload
from holdfast.persist.ids import BLOB_NAME
from holdfast.persist.rows.schema import DIFF
from holdfast.spark.jobs import ingest
from holdfast.spark.jobs.spec import IngestJobSpec
from spark.attempts import again, killed_at, record_of
from testbed.kafka import Kafka
from testbed.standinregistry import StandInRegistry
from unit.ingest.avromessages import ORDER_KEY, wire
from unit.ingest.kafkatopic import KafkaTopic
from unit.ingest.snapshots import taken

pytestmark = pytest.mark.spark

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?", "x": "float64?", "file": "string?"})
FILES = 6
Fed = Callable[..., IngestJobSpec]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of 500 lines with ids that occur in several of them; one line of each is bad."""
    for number in range(FILES):
        lines = [
            json.dumps(
                {"id": (number * 300 + n) % 1000, "name": f"{number}/{n}", "x": -0.0 if n % 2 else n / 7}
            )
            for n in range(500)
        ]
        lines[number * 7] = '{"id": "no number"}'
        file(tmp_path / "in", number).write_text("\n".join(lines) + "\n")
    return tmp_path / "in"


def file(folder: Path, number: int) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"{number}.jsonl"


def block(folder: Path, **changed: Any) -> dict[str, Any]:
    """A step reads two files."""
    size = file(folder, 1).stat().st_size
    return {
        "files": {"path": str(folder)},
        "format": {"json": {}},
        "include": {"partition": "file"},
        "run": {"interval": "10ms", "progressInterval": "0s"},
        "batch": {"maxBytes": str(int(size * 2.5))},
        **changed,
    }


def created(controller: StorageController, schema: Schema = SCHEMA) -> str:
    name = f"orders-{uuid.uuid4()}"
    controller.create_collection(CollectionSpec(str(uuid.uuid4()), name, schema, 2, source_fed=True))
    return name


@pytest.fixture
def fed(controller: StorageController, url: str) -> Fed:
    """Makes a collection, starts its job on record, and makes the spec."""

    def make(source: dict[str, Any], name: str = "", slot: str = "source", **given: Any) -> IngestJobSpec:
        info = controller.describe(name or created(controller))
        record = controller.start_job(info.collection_id, "ingest", slot, spec={})
        of_job = {"job_id": record.job_id, "attempt": record.attempt, "partitions": 4}
        spec = {"url": url, "collection": info.collection_id, "source": source, "once": True}
        return IngestJobSpec(**{**of_job, **spec, **given})

    return make


def contents(controller: StorageController, collection: str, at: int) -> list[pa.Table]:
    """Output, bindings and errors at a time."""
    with controller.reader(collection, purpose="look") as reader:
        output = reader.snapshot(at).to_table().sort_by([(name, "ascending") for name in SCHEMA.arrow.names])
    kept = [each(controller, collection, at)[1] for each in (offsets, errors)]
    return [output, *(each.sort_by([("partition", "ascending"), ("position", "ascending")]) for each in kept)]


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_its_steps_are_those_of_one_process_byte_for_byte(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed, envelope: str
) -> None:
    source = block(folder, envelope=envelope)
    alone = created(controller)
    steps: list[IngestStep] = []
    ingest_source(url, alone, source, once=True, on_step=steps.append)
    here = [step.upper for step in steps if step.outcome is StepOutcome.COMMITTED]
    assert len(here) == FILES // 2

    spec = fed(source)
    said: list[str] = []
    ingest.run(spec, say=said.append, spark=spark)
    there = [int(each.rsplit(" ", 1)[1]) for each in said if "complete before" in each]
    assert len(there) == len(here)
    for mine, other in zip(here, there, strict=True):
        for ours, theirs in zip(
            contents(controller, alone, mine - 1),
            contents(controller, spec.collection, other - 1),
            strict=True,
        ):
            assert ours.num_rows
            assert theirs.equals(ours)
    record = record_of(controller, spec)
    assert record.state is JobState.DONE
    assert record.result == {
        "upper": there[-1],
        "messages": FILES * 500,
        "updates": sum(step.updates for step in steps),
        "errors": FILES,
    }


def pair(
    spark: SparkSession, controller: StorageController, url: str, fed: Fed
) -> Callable[[dict[str, Any]], tuple[list[list[pa.Table]], list[list[pa.Table]]]]:
    """Feeds two collections from one source: one in this process, the other with Spark. Returns what each has
    after each of its steps."""
    alone, other = created(controller), created(controller)

    def feed(source: dict[str, Any]) -> tuple[list[list[pa.Table]], list[list[pa.Table]]]:
        steps: list[IngestStep] = []
        ingest_source(url, alone, source, once=True, on_step=steps.append)
        here = [step.upper for step in steps if step.outcome is StepOutcome.COMMITTED]
        said: list[str] = []
        ingest.run(fed(source, other, uuid.uuid4().hex), say=said.append, spark=spark)
        there = [int(each.rsplit(" ", 1)[1]) for each in said if "complete before" in each]
        return (
            [contents(controller, alone, upper - 1) for upper in here],
            [contents(controller, other, upper - 1) for upper in there],
        )

    return feed


def test_a_column_that_comes_while_it_runs_is_filled_as_in_one_process(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed
) -> None:
    narrow = Schema.of(key={"id": "int64"}, value={"name": "string?", "file": "string?"})
    wide = Schema.of(key={"id": "int64"}, value={"name": "string?", "file": "string?", "x": "float64?"})
    alone, other = created(controller, narrow), created(controller, narrow)
    source = block(folder)
    ingest_source(url, alone, source, once=True, on_step=lambda _: controller.evolve_collection(alone, wide))
    spec = fed(source, other)
    ingest.run(spec, say=lambda _: controller.evolve_collection(other, wide), spark=spark)
    upper = controller.frontiers(alone).upper
    here, there = (
        contents(controller, *each) for each in ((alone, upper - 1), (other, upper_of(controller, spec) - 1))
    )
    assert all(theirs.equals(ours) for ours, theirs in zip(here, there, strict=True))
    # The step after the one that came before the column fills it.
    assert here[0].num_rows == FILES * 499
    assert here[0]["x"].null_count == 2 * 499


@pytest.mark.long
@pytest.mark.parametrize("order", ["Modified", "Lexical"])
def test_files_are_read_in_order_and_forgotten_as_in_one_process(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed, order: str
) -> None:
    files = {"path": str(folder), "order": order, "forgetAfter": "1ms"}
    source, feed = block(folder, files=files), pair(spark, controller, url, fed)
    (folder / "1-broken.jsonl").symlink_to("nothing")
    os.mkfifo(folder / "9-pipe.jsonl")
    forgotten = []
    for more in range(4):
        if more:
            # Those of the last round are missing since this one, and are forgotten in the next one.
            file(folder, more - 1).unlink()
            line = json.dumps({"id": 5000 + more, "name": "new"})
            (folder / f"6-{more}.jsonl").write_text(f"{line}\n")
        here, there = feed(source)
        assert len(here) == len(there) == (1 if more else FILES // 2)
        for mine, other in zip(here, there, strict=True):
            for ours, theirs in zip(mine, other, strict=True):
                assert theirs.equals(ours)
        output, bound, bad = here[-1]

        assert (sum(output[DIFF].to_pylist()), bad.num_rows) == (FILES * 499 + more, FILES)
        forgotten += [
            (each["position"], each["total"]) for each in bound.to_pylist() if each["source"] == "forgotten"
        ]
    # With order Lexical they are missing as soon as a later one is bound.
    assert forgotten == (
        [(1, 500), (3, 1500), (5, 2500), (6, 3000)] if order == "Lexical" else [(1, 500), (2, 1000)]
    )


@pytest.mark.long
def test_a_lexical_file_that_changes_keeps_the_later_ones_waiting_on_spark(
    spark: SparkSession,
    controller: StorageController,
    url: str,
    folder: Path,
    fed: Fed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = block(folder, files={"path": str(folder), "order": "Lexical"}, batch={"maxRows": 1_000_000})
    spec = fed(source)
    read: list[list[str]] = []

    discarded: list[int] = []
    discard = PersistClient.discard

    def noted(client: PersistClient, uploads: Iterable[Upload]) -> None:
        some = list(uploads)
        discarded.append(len(some))
        discard(client, some)

    class Changing(ingest.SparkRunner):
        def read(self, order: Order, *given: Any) -> list[RangeWork]:
            if not read:
                with file(folder, 1).open("a") as more:
                    more.write('{"id": 7, "name": "more"}\n')
            done = super().read(order, *given)
            read.append([each.partition for each in done])
            return done

    monkeypatch.setattr(ingest, "SparkRunner", Changing)
    monkeypatch.setattr(PersistClient, "discard", noted)
    ingest.run(spec, say=lambda _: None, spark=spark)
    # A step has a task for each of 4 files. What was read after the one that had changed is not used.
    names_ = [f"{number}.jsonl" for number in range(FILES)]
    assert read == [names_[:1], names_[1:5], names_[5:]]
    alone = created(controller)
    ingest_source(url, alone, source, once=True)
    for here, there in zip(latest(controller, alone), latest(controller, spec.collection), strict=True):
        assert here.num_rows
        assert there.equals(here)
    # Two more files were uploaded. These uploads are deleted, from two shards each.
    assert sum(discarded) == 4


def test_both_feed_one_collection_at_the_same_time(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed
) -> None:
    source = block(folder, batch={"maxBytes": "1"})
    spec = fed(source)
    done: list[IngestStep] = []
    other = threading.Thread(
        target=ingest_source,
        args=(url, spec.collection, source),
        kwargs={"once": True, "on_step": done.append},
    )
    other.start()
    ingest.run(spec, say=lambda _: None, spark=spark)
    other.join()
    check_whole(controller, spec)
    result = record_of(controller, spec).result
    assert result["messages"] + sum(step.messages for step in done) == FILES * 500


def check_whole(controller: StorageController, spec: IngestJobSpec) -> None:
    """Each line of each file is there once, as a row or as an error."""
    output, bound, bad = contents(controller, spec.collection, upper_of(controller, spec) - 1)
    assert bound.num_rows == bad.num_rows == FILES
    assert sum(output[DIFF].to_pylist()) == FILES * 499
    assert set(output[DIFF].to_pylist()) == {1}


def upper_of(controller: StorageController, spec: IngestJobSpec) -> int:
    rendition = controller.describe(spec.collection).holding.id
    return controller.rendition_writer(spec.collection, rendition, purpose="look").upper()


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_follower_on_spark_has_what_one_process_has_and_takes_over(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed, envelope: str
) -> None:
    source = block(folder, envelope=envelope)
    name = created(controller)
    ingest_source(url, name, source, once=True)
    spec = fed(source, name, rendition="r2")
    ingest.run(spec, say=lambda _: None, spark=spark)
    at = controller.frontiers(name).upper - 1
    before = contents(controller, name, at)
    taken = controller.renditions.hand_over(name, "r2")
    # The old pipeline is gone. The new one completes its rendition, once the time has come.
    while controller.client.now_ms() < taken.held_from:
        time.sleep(0.1)
    file(folder, FILES).write_text(json.dumps({"id": 5000, "name": "new"}) + "\n")
    ingest.run(fed(source, name, "again", rendition="r2"), say=lambda _: None, spark=spark)
    assert [each.num_rows for each in contents(controller, name, at)] == [each.num_rows for each in before]
    output, bound, bad = contents(controller, name, taken.held_from)
    # It read in other ranges and at other times, but the same messages.
    assert output.equals(before[0])
    assert bad.equals(before[2])
    assert bound.drop_columns(["rows", "checksum"]).equals(before[1].drop_columns(["rows", "checksum"]))
    assert contents(controller, name, upper_of(controller, spec) - 1)[1].num_rows == FILES + 1


def test_a_driver_goes_on_with_the_rendition_that_a_restore_made(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed, tmp_path: Path
) -> None:
    spec = fed(block(folder), once=False)
    ingest_source(url, spec.collection, block(folder), once=True)
    snapshot = taken(controller.client, tmp_path / "made", name=spec.collection)
    done: list[str] = []

    def stopped(seconds: float) -> bool:
        if not done:
            done.append(controller.restore_collection(spec.collection, snapshot).id)
            file(folder, FILES).write_text(json.dumps({"id": 5000, "name": "new"}) + "\n")
        time.sleep(seconds)
        found = offsets(controller, spec.collection)[1] if done else None
        return found is not None and found.num_rows == FILES + 1

    ingest.run(spec, say=lambda _: None, spark=spark, stopped=stopped)
    assert controller.describe(spec.collection).holding.id == done[0]
    output = contents(controller, spec.collection, upper_of(controller, spec) - 1)[0]
    assert sum(output[DIFF].to_pylist()) == FILES * 499 + 1


@pytest.mark.long
def test_a_driver_that_is_killed_after_any_step_is_followed_by_another(
    spark: SparkSession, controller: StorageController, folder: Path, fed: Fed
) -> None:
    spec = fed(block(folder))
    for _ in range(2):
        done = killed_at(spec, "complete before")
        assert done.returncode < 0, done.stderr
        spec = again(controller, spec)
    ingest.run(spec, say=lambda _: None, spark=spark)
    check_whole(controller, spec)
    assert record_of(controller, spec).result["messages"] == FILES // 3 * 500


@pytest.mark.kafka
@pytest.mark.long
def test_a_topic_is_read_by_executors(
    spark: SparkSession, controller: StorageController, kafka: Kafka, fed: Fed
) -> None:
    topic = KafkaTopic(kafka, partitions=3)
    for n in range(300):
        topic.send({"id": n, "name": str(n)}, partition=n % 3)
    topic.send({"id": "bad"}, partition=1)
    spec = fed({"kafka": topic.block(), "format": {"json": {}}, "run": {"progressInterval": "0s"}})
    ingest.run(spec, say=lambda _: None, spark=spark)
    output, bound, bad = contents(controller, spec.collection, upper_of(controller, spec) - 1)
    assert sorted(output["id"].to_pylist()) == list(range(300))
    assert bound["position"].to_pylist() == [100, 101, 100]
    assert [(each["partition"], each["position"]) for each in bad.to_pylist()] == [("1", 100)]
    assert topic.committed() == {0: 100, 1: 101, 2: 100}


@pytest.mark.kafka
@pytest.mark.parametrize("start", ["Latest", pytest.param({"timestamp": 1500}, marks=pytest.mark.long)])
def test_the_first_step_binds_more_partitions_than_it_has_tasks(
    spark: SparkSession, controller: StorageController, url: str, kafka: Kafka, fed: Fed, start: Any
) -> None:
    topic = KafkaTopic(kafka, partitions=3)

    def send(first: int, at: int) -> None:
        for n in range(first, first + 6):
            topic.send({"id": n, "name": str(n)}, partition=n % 3, at=at)

    send(0, 1000)
    send(6, 2000)
    source = {"format": {"json": {}}, "run": {"progressInterval": "0s"}}
    there = {**source, "kafka": topic.block(start=start)}
    here = {**source, "kafka": topic.block(start=start, group="alone")}
    spec, alone = fed(there, partitions=1), created(controller)
    for run in range(2):
        if run:
            send(12, 3000)
        ingest_source(url, alone, here, once=True)
        ingest.run(spec, say=lambda _: None, spark=spark)
        found = latest(controller, spec.collection)
        assert all(theirs.equals(ours) for ours, theirs in zip(latest(controller, alone), found, strict=True))
        assert found[1]["begin"].to_pylist() == ([4, 4, 4] if start == "Latest" else [2, 2, 2])
        spec = again_after(controller, spec)
    assert sorted(found[0]["id"].to_pylist()) == list(range(12 if start == "Latest" else 6, 18))


def test_the_driver_reads_a_collection(
    spark: SparkSession, controller: StorageController, url: str, folder: Path, fed: Fed
) -> None:
    raw = f"raw-{uuid.uuid4()}"
    columns = Schema.of({"file": "string", "line": "int64"}, {"value": "string"})
    files = {"path": str(folder)}
    include = {"partition": "file", "position": "line"}
    lines = {"files": files, "format": {"raw": {}}, "include": include}
    ingest_source(url, raw, lines, schema=columns, once=True)
    named = {"name": raw, "columns": {"partition": "file", "position": "line"}}
    source = {"collection": named, "format": {"json": {}}, "include": {"partition": "file"}}
    source["batch"] = {"maxRows": 1000}
    alone = created(controller)
    ingest_source(url, alone, source, once=True)
    spec = fed(source)
    ingest.run(spec, say=lambda _: None, spark=spark)
    upper = controller.frontiers(raw).upper
    assert upper_of(controller, spec) == controller.frontiers(alone).upper == upper
    ours, theirs = (contents(controller, each, upper - 1) for each in (alone, spec.collection))
    assert theirs == ours
    output, _, bad = theirs
    assert (sum(output[DIFF].to_pylist()), bad.num_rows) == (FILES * 499, FILES)
    assert record_of(controller, spec).result["messages"] == FILES * 500
    held = [each.purpose for each in controller.holds(raw) if each.durable and not each.own]
    assert len(held) == 2
    ingest.run(fed(source, name=spec.collection, slot="forget", forget=True), say=lambda _: None)
    left = [each.purpose for each in controller.holds(raw) if each.durable and not each.own]
    assert left == [each for each in held if spec.collection not in each]


@pytest.mark.long
@pytest.mark.parametrize("envelope", ["None", "Upsert"])
@pytest.mark.kafka
def test_only_the_driver_asks_the_schema_registry(
    spark: SparkSession, controller: StorageController, url: str, kafka: Kafka, fed: Fed, envelope: str
) -> None:
    topic = KafkaTopic(kafka, partitions=3)
    fields: list[dict[str, Any]] = [{"name": "id", "type": "long"}, {"name": "x", "type": "double"}]
    first = {"type": "record", "name": "R", "fields": fields}
    later = {**first, "fields": [{"name": "name", "type": "string"}, *fields]}

    def send(n: int, partition: int) -> None:
        key = wire({"id": n}, 9, ORDER_KEY)
        value = (
            wire({"id": n, "x": n / 2, "name": str(n)}, 2, later)
            if n % 10 == 7
            else wire({"id": n, "x": n / 2}, 1, first)
        )
        topic.send(value, key=key, partition=partition)

    for n in range(90):
        send(n, n % 3)
    topic.send(wire({"id": 1, "x": 0.0}, 3, first), b"no magic", key=wire({"id": 100}, 9, ORDER_KEY))
    with StandInRegistry() as registry:
        for id_, schema in ((1, first), (2, later), (9, ORDER_KEY)):
            registry.register(id_, schema)
        source = {
            "kafka": topic.block(),
            "format": {"avro": {"registry": {"url": registry.url}}},
            "envelope": envelope,
            "run": {"progressInterval": "0s"},
        }
        spec = fed(source)
        ingest.run(spec, say=lambda _: None, spark=spark)
        assert registry.asked[1] == registry.asked[2] == 1
        assert registry.asked[9] == (envelope == "Upsert")
        # One process comes to the same.
        alone = created(controller)
        ingest_source(url, alone, {**source, "kafka": topic.block(group="alone")}, once=True)
        for here, there in zip(latest(controller, alone), latest(controller, spec.collection), strict=True):
            assert here.num_rows
            assert there.equals(here)
    # The registry is gone. What was stored is enough for new executors and a new driver.
    send(91, 0)
    spec = again_after(controller, spec)
    ingest.run(spec, say=lambda _: None, spark=spark)
    at = upper_of(controller, spec) - 1
    output, _, bad = contents(controller, spec.collection, at)
    rows = {row["id"]: (row["x"], row["name"]) for row in output.to_pylist()}
    assert rows == {n: (n / 2, str(n) if n % 10 == 7 else None) for n in [*range(90), 91]}
    kept = schemas(controller, spec.collection, at)[1]
    assert {id_: json.loads(text) for id_, text in kept.items() if id_ != "9"} == {"1": first, "2": later}
    reasons = sorted(each["reason"] for each in bad.to_pylist())
    # With Upsert, the second one replaces the first one of the same key.
    assert reasons == ["the message has no schema id", "the schema registry has no schema 3"]


def latest(controller: StorageController, name: str) -> list[pa.Table]:
    """Output, bindings and errors now."""
    rendition = controller.describe(name).holding.id
    return contents(
        controller, name, controller.rendition_writer(name, rendition, purpose="look").upper() - 1
    )


@pytest.mark.kafka
def test_debezium_with_spark_comes_to_the_same_as_one_process(
    spark: SparkSession, controller: StorageController, url: str, kafka: Kafka, fed: Fed
) -> None:
    topic = KafkaTopic(kafka, partitions=3)

    def change(id_: int, op: str, at: int, **event: Any) -> None:
        topic.send({"op": op, **event}, key={"id": id_}, partition=id_ % 3, at=at)

    for id_ in range(30):
        change(id_, "c", 1000 + id_, after={"id": id_, "name": "lost"})
    change(1, "t", 2000)
    for id_ in range(30):
        change(id_, "c", 3000 + id_, after={"id": id_, "name": "first"})
    for id_ in range(0, 30, 2):
        change(id_, "u", 4000 + id_, before={"id": id_, "name": None}, after={"id": id_, "name": "second"})
    for id_ in range(0, 30, 5):
        change(id_, "d", 5000 + id_, before={"id": id_})
        topic.send(None, key={"id": id_}, partition=id_ % 3, at=6000)
    change(1, "?", 7000)
    source = {
        "kafka": topic.block(),
        "format": {"json": {}},
        "envelope": "Debezium",
        "run": {"progressInterval": "0s"},
    }
    spec = fed(source)
    ingest.run(spec, say=lambda _: None, spark=spark)
    alone = created(controller)
    ingest_source(url, alone, {**source, "kafka": topic.block(group="alone")}, once=True)
    for here, there in zip(latest(controller, alone), latest(controller, spec.collection), strict=True):
        assert here.num_rows
        assert there.equals(here)
    rows = {row["id"]: row["name"] for row in latest(controller, alone)[0].to_pylist()}
    assert rows == {id_: "first" if id_ % 2 else "second" for id_ in range(30) if id_ % 5 and id_ != 1}


@pytest.mark.kafka
@pytest.mark.long
def test_with_spark_steps_end_between_transactions_too(
    spark: SparkSession, controller: StorageController, url: str, kafka: Kafka, fed: Fed
) -> None:
    """There are more partitions than tasks, and each transaction has an event in each."""
    topic, ends = KafkaTopic(kafka, partitions=6), KafkaTopic(kafka)
    table = {"connector": "mysql", "db": "shop", "table": "orders"}

    def commit(id_: str, name: str, *, ends_too: bool = True) -> None:
        ends.send({"status": "BEGIN", "id": id_})
        for number in range(12):
            told = {"id": id_, "data_collection_order": number + 1}
            after = {"id": number, "name": name}
            event = {"op": "c", "after": after, "source": table, "transaction": told}
            topic.send(event, key={"id": number}, partition=number % 6)
        counts = [{"data_collection": "shop.orders", "event_count": 12}]
        if ends_too:
            ends.send({"status": "END", "id": id_, "data_collections": counts})

    for number in range(3):
        commit(f"t{number}", f"v{number}")
    commit("t3", "too early", ends_too=False)
    source = {
        "kafka": topic.block(transactions=ends.name),
        "format": {"json": {}},
        "envelope": "Debezium",
        "run": {"interval": "10ms", "progressInterval": "0s"},
        "batch": {"maxRows": 6},
    }
    spec, said = fed(source), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.ingest.whole.WholeTransactions.patience_s", 0.5)
        ingest.run(spec, say=said.append, spark=spark)
        alone = created(controller)
        block_ = {**source, "kafka": topic.block(transactions=ends.name, group="alone")}
        ingest_source(url, alone, block_, once=True)
    assert len([each for each in said if "transaction t3" in each]) == 1
    for here, there in zip(latest(controller, alone), latest(controller, spec.collection), strict=True):
        assert there.equals(here)
    output, bound, _ = latest(controller, alone)
    assert output["name"].to_pylist() == ["v2"] * 12
    assert set(bound["position"].to_pylist()) == {6}


def again_after(controller: StorageController, spec: IngestJobSpec) -> IngestJobSpec:
    """The next job after one that is done."""
    record = controller.start_job(spec.collection, "ingest", "again", spec={})
    return replace(spec, job_id=record.job_id, attempt=record.attempt)


def test_too_many_bad_records_stall_it_and_leave_no_uploads(
    spark: SparkSession, controller: StorageController, folder: Path, fed: Fed
) -> None:
    spec = fed(block(folder, onError={"collect": {"limit": 1}}))
    with pytest.raises(SourceStalled, match="more bad records than the limit 1"):
        ingest.run(spec, say=lambda _: None, spark=spark)
    record = record_of(controller, spec)
    assert record.state is JobState.FAILED
    assert "more bad records than the limit 1" in record.error
    assert upper_of(controller, spec) == 0
    assert not uploads(controller, spec)


def uploads(controller: StorageController, spec: IngestJobSpec) -> list[str]:
    found = []
    for shard in controller.describe(spec.collection).holding.shards:
        for meta in controller.client.location.blob.list(shard):
            parsed = BLOB_NAME.fullmatch(meta.key)
            if parsed is not None and parsed["writer"]:
                found.append(meta.key)
    return found


def test_an_error_of_an_executor_comes_whole(
    spark: SparkSession, controller: StorageController, folder: Path, fed: Fed
) -> None:
    """A folder that only the driver can see."""
    spec = fed(block(folder))

    class Moved(ingest.SparkRunner):
        def read(self, *given: Any) -> Any:
            folder.rename(folder.with_name("elsewhere"))
            return super().read(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "SparkRunner", Moved)
        with pytest.raises(BadInput, match="folder") as raised:
            ingest.run(spec, say=lambda _: None, spark=spark)
    assert raised.value.hint


def test_an_attempt_that_was_replaced_ends(
    spark: SparkSession,
    controller: StorageController,
    folder: Path,
    fed: Fed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingest, "LOOK_S", 0.0)
    spec = fed(block(folder), once=False)
    said: list[str] = []

    def stopped(seconds: float) -> bool:
        if len(said) == 1:
            controller.retry_job(spec.job_id, abandoned=1)
        return False

    with pytest.raises(Fenced):
        ingest.run(spec, say=said.append, spark=spark, stopped=stopped)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": {}}, "source must have one of"),
        ({"source": {"files": {"path": "/x"}, "format": {"json": {}}, "more": 1}}, "unknown field 'more'"),
        ({"once": "yes"}, "'once' must be true or false"),
    ],
)
def test_a_bad_spec_is_refused(fed: Fed, folder: Path, change: dict[str, Any], words: str) -> None:
    good = json.loads(fed(block(folder)).to_json())
    with pytest.raises(BadInput, match=words):
        IngestJobSpec.from_json(json.dumps({**good, **change}))
