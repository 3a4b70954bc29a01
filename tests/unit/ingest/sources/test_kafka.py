"""A topic of a real Kafka broker feeds a collection: each message once, or the source says what is lost."""

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import OFFSET_INVALID, KafkaError, Message

import holdfast
from holdfast.cli import main
from holdfast.collections import Recipe, StorageController
from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest import Ingestion, StepOutcome, ingest_source, ingestion_of, parse
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.source import Binding, LastMessage, Piece
from holdfast.ingest.sources import kafka_client
from holdfast.ingest.sources.kafka import Kafka
from holdfast.ingest.spec import KafkaSpec
from holdfast.ingest.waits import Stopped, Waits
from holdfast.persist import PersistClient, Schema
from testbed import docpages, pki
from testbed.kafka import USER
from testbed.kafka import Kafka as Broker
from testbed.pageruns import PageRun
from unit.collections.stores import Stores
from unit.ingest.kafkatopic import DEADLINE_S, KafkaTopic
from unit.ingest.pipelines import SCHEMA, bad, created, drained, pipeline, positions, row, rows
from unit.ingest.snapshots import taken

pytestmark = pytest.mark.kafka


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def ids(client: PersistClient, as_of: int | None = None) -> list[int]:
    return sorted(id_ for id_, *_ in rows(client, as_of).elements())


def fed(client: PersistClient, topic: KafkaTopic, *, envelope: str = "None", **changed: Any) -> int:
    """Feed until nothing is new, as another process. Returns the number of steps."""
    source = topic.source(**changed)
    try:
        return drained(pipeline(client, source, envelope=envelope))
    finally:
        source.close()


def test_every_message_is_a_row_and_kafka_may_delete_it(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    sent: list[int] = []
    for number in range(4):
        topic.send(row(number), row(10 + number), partition=number % 2)
        sent += [number, 10 + number]
        # The first step binds where the partitions begin.
        assert fed(client, topic) == (2 if number == 0 else 1)
        assert ids(client) == sorted(sent)
        assert {str(name): each for name, each in topic.committed().items()} == positions(client)
        topic.delete_below(topic.committed())
    assert positions(client) == {"0": 4, "1": 4}
    shown = offsets(StorageController(client), "orders")[1]
    assert {name.split("/")[-1] for name in shown["source"].to_pylist()} == {topic.name}
    assert len(set(shown["identity"].to_pylist())) == 1


def test_keys_timestamps_and_positions_fill_columns(kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1), key=b"a", at=1_700_000_000_123)
    topic.send(row(2), key=b"b", at=1_700_000_000_456, partition=1)
    topic.send(row(3), partition=1, at=1)
    client = Stores().open()
    columns = {"key": "string?", "at": "int64?", "partition": "string?", "position": "int64?"}
    created(client, schema=Schema.of({"id": "int64"}, columns))
    include = {"key": "key", "timestamp": "at", "partition": "partition", "position": "position"}
    drained(pipeline(client, topic.source(), include=include))
    assert rows(client) == Counter(
        {
            (1, "a", 1_700_000_000_123, "0", 0): 1,
            (2, "b", 1_700_000_000_456, "1", 0): 1,
            (3, None, 1, "1", 1): 1,
        }
    )


class Counting:
    """A consumer that counts how often it had nothing."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.empty = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, most: int, timeout_s: float) -> list[Message]:
        got: list[Message] = self._consumer.consume(most, timeout_s)
        self.empty += not got
        return got


def test_a_new_process_reads_at_once(kafka: Broker) -> None:
    """A consumer that does not look the topic up first waits for up to a second, which is 20 polls."""
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    empty = 0
    for _ in range(4):
        source = topic.source()
        counting = source._client.consumer = Counting(source._client.consumer)  # type: ignore[assignment]
        (wanted,) = (each for each in source.probe({}) if each.waits)
        assert [each.reached for each in source.read(wanted)] == [1]
        source.close()
        empty += counting.empty
    assert empty < 12


def test_raw_values(kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(b"\xff\x00", b"")
    client = Stores().open()
    created(client, schema=Schema.of({}, {"value": "binary"}))
    drained(pipeline(client, topic.source(), format={"raw": {}}))
    assert rows(client) == Counter({(b"\xff\x00",): 1, (b"",): 1})


def test_upsert_replaces_and_deletes_by_key(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, cleanup_policy="compact")
    for id_, value in [(1, row(1, "a")), (2, row(2)), (1, row(1, "b")), (3, row(3)), (2, None)]:
        topic.send(value, key={"id": id_})
    fed(client, topic, envelope="Upsert")
    assert rows(client) == Counter({(1, "b"): 1, (3, "x"): 1})
    topic.send(None, None, key={"id": 3})
    topic.send(row(1, "c"), key={"id": 1})
    topic.send(row(2, "again"), key={"id": 2})
    fed(client, topic, envelope="Upsert")
    assert rows(client) == Counter({(1, "c"): 1, (2, "again"): 1})


def test_small_steps_and_restarts_lose_and_repeat_nothing(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 3)
    for number in range(30):
        topic.send(row(number), partition=number % 3)
    source = topic.source()
    steps = 0
    while drained_once := pipeline(client, source, batch={"maxRows": 4}).step().outcome:
        if drained_once is StepOutcome.IDLE:
            break
        steps += 1
        if steps % 3 == 0:
            source.close()
            source = topic.source()
    assert steps >= 8
    assert ids(client) == list(range(30))


def test_a_step_is_bounded_by_bytes_too(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(*(row(number, "x" * 100_000) for number in range(250)))
    steps = drained(pipeline(client, topic.source(), batch={"maxBytes": "1Mi"}))
    # The first look at the messages takes 100, as it does not know their size.
    assert steps >= 3
    assert ids(client) == list(range(250))


def test_twins_count_each_message_once(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    one, two = (pipeline(client, topic.source()) for _ in range(2))
    outcomes = []
    for number in range(10):
        topic.send(row(number), partition=number % 2)
        outcomes += [(one, two)[number // 3 % 2].step().outcome, (one, two)[number % 2].step().outcome]
    assert StepOutcome.LOST in outcomes
    drained(one)
    drained(two)
    assert ids(client) == list(range(10))


def test_a_twin_that_was_overtaken_is_not_stalled(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    slow = pipeline(client, topic.source())
    slow.load()
    assert fed(client, topic) == 2
    topic.delete_below(topic.committed())
    slow.run(once=True)
    assert ids(client) == [1]


def test_start_is_resolved_once(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1))
    first = pipeline(client, topic.source(start="Latest"))
    assert first.step().outcome is StepOutcome.COMMITTED
    assert (ids(client), positions(client)) == ([], {"0": 1, "1": 0})
    # The process ends here. What comes now is not before the start of the next one.
    topic.send(row(2))
    topic.send(row(3), partition=1)
    fed(client, topic, start="Latest")
    assert ids(client) == [2, 3]


def test_once_goes_to_the_end_as_it_was(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1), row(2))
    pipeline(client, topic.source()).run(once=True)
    assert (ids(client), positions(client)) == ([1, 2], {"0": 2, "1": 0})


def test_start_at_a_time_or_at_offsets(kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    for number in range(5):
        topic.send(row(number), at=1_700_000_000_000 + number * 1000)
    found = []
    for start in (
        {"timestamp": "2023-11-14T22:13:22.5Z"},
        {"timestamp": 1_700_000_003_000},
        {"timestamp": "2100-01-01T00:00:00Z"},
        {"offsets": {0: 4}},
        {"offsets": {"0": 5, "1": 0}},
    ):
        client = Stores().open()
        created(client)
        topic.group = f"{topic.name}-{len(found)}"
        fed(client, topic, start=start)
        found.append(ids(client))
    assert found == [[3, 4], [3, 4], [], [4], []]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({2: 0}, r"has partition 2, but topic .* has partitions 0 to 1"),
        ({0: 6}, r"has 6 for partition 0, but topic .* has offsets 0 to 1 there"),
    ],
)
def test_offsets_to_start_at_must_exist(
    client: PersistClient, kafka: Broker, given: dict[int, int], told: str
) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(0))
    with pytest.raises(BadInput, match=told):
        fed(client, topic, start={"offsets": given})


def test_deleted_messages_that_were_not_read_stall_the_source(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(*(row(number) for number in range(6)))
    topic.delete_below({0: 1})
    fed(client, topic)
    assert ids(client) == [1, 2, 3, 4, 5]
    topic.send(*(row(number) for number in range(6, 10)))
    topic.delete_below({0: 6})
    assert fed(client, topic) == 1
    topic.send(row(10), row(11), row(12))
    topic.delete_below({0: 12})
    with pytest.raises(SourceStalled, match=r"messages 10 to 11 of partition 0 of topic .* were deleted"):
        fed(client, topic)
    assert positions(client) == {"0": 10}
    fed(client, topic, onReset="NewEpoch")
    assert ids(client) == [*range(1, 10), 12]


def test_messages_that_are_deleted_while_they_are_read_are_no_gap(
    client: PersistClient, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1), row(2))
    source = topic.source()
    drained(pipeline(client, source))
    topic.send(row(3), row(4))
    (wanted,) = source.probe(pipeline_bound(client))
    topic.delete_below({0: 3})
    with pytest.raises(SourceChanged, match="changed while it was read"):
        list(source.read(wanted))


def pipeline_bound(client: PersistClient) -> dict[str, Binding]:
    table = offsets(StorageController(client), "orders")[1].to_pylist()
    return {each["partition"]: Binding(each["position"], each["identity"]) for each in table}


def test_a_recreated_topic_stalls_the_source(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1), row(2), row(3))
    fed(client, topic)
    source = topic.source()
    topic.send(row(4))
    found = source.probe(pipeline_bound(client))
    topic.recreate()
    topic.send(row(10), row(11), row(12), row(13))
    with pytest.raises(SourceChanged, match="was deleted and created again while it was read"):
        list(source.read(found[0]))
    with pytest.raises(SourceStalled, match=r"deleted and created again: .* \(partition 0 up to 3, "):
        source.probe(pipeline_bound(client))
    with pytest.raises(SourceStalled, match="deleted and created again"):
        fed(client, topic)
    assert ids(client) == [1, 2, 3]
    fed(client, topic, onReset="NewEpoch")
    assert ids(client) == [1, 2, 3, 10, 11, 12, 13]
    topic.send(row(14))
    # What the old topic had besides is no obstacle.
    assert fed(client, topic) == 1
    assert ids(client)[-1] == 14
    topic.add_partitions(2)
    topic.send(row(15), partition=1)
    assert fed(client, topic) == 1
    assert positions(client) == {"0": 5, "1": 1}


def test_a_deleted_topic_stalls_the_source(
    client: PersistClient, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.ingest.sources.kafka._DELETED_S", 1.0)
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    following = pipeline(client, topic.source())
    drained(following)
    topic.delete()
    with pytest.raises(SourceStalled, match=r"topic .* doesn't exist any more"):
        following.step()


class Failing:
    """A consumer that returns these errors before what the broker sends. A broker that starts may send them.

    The real consumer gives a partition up after most of them, until it is assigned again.
    """

    def __init__(self, consumer: Any, codes: list[int]) -> None:
        self._consumer = consumer
        self._codes = codes
        self.assigned = 0

    def assign(self, partitions: Any) -> None:
        self.assigned += 1
        self._consumer.assign(partitions)

    def consume(self, most: int, wait_s: float) -> list[Message]:
        if not self._codes:
            return self._consumer.consume(most, wait_s)
        (partition, *_) = self._consumer.assignment()
        error = KafkaError(self._codes.pop(0))
        if error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            self._consumer.unassign()
        return [
            Message(topic=partition.topic, partition=partition.partition, offset=OFFSET_INVALID, error=error)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


PASSING = [
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET,
]


def test_an_error_that_passes_makes_no_follower_suspect(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(*(row(number) for number in range(5)))
    fed(client, topic)
    controller = StorageController(client)
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2")
    source = topic.source()
    try:
        source._client.consumer = failing = Failing(source._client.consumer, list(PASSING))
        drained(pipeline(client, source, rendition="r2"))
        assert failing.assigned > 1
    finally:
        source.close()
    two = controller.describe("orders").rendition("r2")
    assert two.suspect == ""
    assert client.recent_upper(two.shards[0]) == controller.frontiers("orders").upper
    with client.reader(two.shards[0], purpose="check") as reader:
        table = reader.snapshot(controller.frontiers("orders").upper - 1).to_table()
    assert sorted(table["id"].to_pylist()) == ids(client) == [0, 1, 2, 3, 4]


def test_the_last_message_is_compared_after_an_error_that_passes(
    client: PersistClient, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    first = topic.source()
    feed = pipeline(client, first)
    drained(feed)
    first.close()
    source = topic.source()
    compared: list[Any] = []
    try:
        source._client.consumer = Failing(source._client.consumer, list(PASSING))
        source._check_same = lambda *each: compared.append(each)  # type: ignore[method-assign]
        source.probe(feed.bound)
    finally:
        source.close()
    assert [(message.offset(), last) for message, last in compared] == [(0, feed.bound["0"].last)]


def test_a_broker_that_does_not_respond_delays_no_step_for_long(
    client: PersistClient, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, source, feed = not_acknowledged(client, kafka, monkeypatch)
    monkeypatch.setattr(kafka_client, "REQUEST_S", 1.0)
    with kafka.frozen():
        began = time.monotonic()
        source.acknowledge(feed.bound)
        assert time.monotonic() - began < 5
    source.probe(feed.bound)
    assert source._committed == {"0": 1}
    source.close()
    assert topic.committed() == {0: 1}


@pytest.mark.long
def test_a_broker_that_does_not_respond_delays_no_end_for_long(
    client: PersistClient, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source, feed = not_acknowledged(client, kafka, monkeypatch)
    source._shown.stopped = lambda _: True
    with kafka.frozen():
        began = time.monotonic()
        source.acknowledge(feed.bound)
        assert time.monotonic() - began < kafka_client.REQUEST_S
        source.close()
        assert time.monotonic() - began < 15


def not_acknowledged(
    client: PersistClient, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> tuple[KafkaTopic, Kafka, Ingestion]:
    """A topic whose message is bound, and not committed to its group."""
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    source = topic.source()
    feed = pipeline(client, source)
    with monkeypatch.context() as patched:
        patched.setattr(Kafka, "_acknowledge", lambda _: None)
        drained(feed)
    return topic, source, feed


def test_a_look_at_the_last_messages_is_shown_and_can_be_ended(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    source = topic.source()
    feed = pipeline(client, source)
    drained(feed)
    said: list[str] = []
    source._shown._say = said.append
    source._shown.stopped = lambda _: bool(said)
    with kafka.frozen(), pytest.raises(Stopped):
        source._check_ends({"0": feed.bound["0"].last}, feed.bound, {"0": 1})
    source.close()
    assert [each.split(": ")[0] for each in said] == [f"waiting for Kafka at {kafka.servers}"]


def test_messages_that_are_gone_make_a_follower_suspect(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(*(row(number) for number in range(5)))
    fed(client, topic)
    controller = StorageController(client)
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2")
    topic.delete_below({0: 3})
    source = topic.source()
    source._client.consumer = Failing(source._client.consumer, [KafkaError.UNKNOWN_TOPIC_OR_PART])
    try:
        with pytest.raises(SourceStalled, match=r"messages 0 to 4 of partition 0 are gone"):
            drained(pipeline(client, source, rendition="r2"))
    finally:
        source.close()
    assert "are gone" in controller.describe("orders").rendition("r2").suspect


def test_added_partitions_wait_for_what_was_before_them(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1, "old"), key={"id": 1})
    fed(client, topic, envelope="Upsert")
    topic.send(*(row(1, str(number)) for number in range(20)), key={"id": 1}, at=9_000)
    topic.add_partitions(2)
    # The same key, later, with an earlier time of its producer.
    topic.send(row(1, "last"), key={"id": 1}, partition=1, at=1_000)
    feed = pipeline(client, topic.source(), envelope="Upsert", batch={"maxRows": 6})
    for end in (7, 13, 19):
        feed.step()
        assert positions(client) == {"0": end}
    feed.step()
    topic.send(row(2))
    drained(feed)
    assert positions(client) == {"0": 22, "1": 1}
    assert rows(client)[(1, "last")] == 1


def test_once_reads_added_partitions_too(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    fed(client, topic)
    topic.send(row(1))
    topic.add_partitions(2)
    topic.send(row(2), partition=1)
    pipeline(client, topic.source()).run(once=True)
    assert ids(client) == [1, 2]


def test_messages_of_an_added_partition_that_are_gone_stall_the_source(
    client: PersistClient, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    fed(client, topic)
    topic.add_partitions(2)
    topic.send(row(1), row(2), partition=1)
    topic.delete_below({1: 1})
    with pytest.raises(SourceStalled, match="messages 0 to 0 of partition 1 of topic"):
        fed(client, topic)


def test_only_committed_transactions_are_read(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    open_ = topic.transaction()
    open_.produce(topic.name, json.dumps(row(2)))
    open_.flush()
    topic.send(row(3))
    fed(client, topic)
    assert ids(client) == [1]
    open_.commit_transaction()
    assert fed_up_to(client, topic, 4) == 1
    assert ids(client) == [1, 2, 3]
    aborted = topic.transaction()
    for number in range(50, 60):
        aborted.produce(topic.name, json.dumps(row(number)))
    aborted.flush()
    aborted.abort_transaction()
    # Nothing but aborted messages and marks: the position passes them, and the next look finds nothing.
    assert fed_up_to(client, topic, 15) == 1
    assert fed(client, topic) == 0
    topic.send(row(4))
    assert fed(client, topic) == 1
    assert ids(client) == [1, 2, 3, 4]


@pytest.mark.long
def test_a_follower_passes_a_gap_and_a_new_topic_with_the_other_rendition(
    client: PersistClient, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    controller = StorageController(client)
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2")

    def follow() -> None:
        source = topic.source(onReset="NewEpoch")
        try:
            drained(pipeline(client, source, rendition="r2"))
        finally:
            source.close()

    topic.send(*(row(number) for number in range(6)))
    fed(client, topic)
    follow()
    topic.send(row(6), row(7))
    topic.delete_below({0: 7})
    fed(client, topic, onReset="NewEpoch")
    follow()
    topic.recreate()
    topic.send(*(row(number) for number in range(10, 14)))
    fed(client, topic, onReset="NewEpoch")
    follow()
    two = controller.describe("orders").rendition("r2")
    upper = client.recent_upper(two.shards[0])
    assert upper == controller.frontiers("orders").upper
    with client.reader(two.shards[0], purpose="check") as reader:
        found = sorted(reader.snapshot(upper - 1).to_table()["id"].to_pylist())
    assert found == ids(client) == [0, 1, 2, 3, 4, 5, 7, 10, 11, 12, 13]
    # One that begins now can't read what is gone.
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r3")
    source = topic.source()
    with pytest.raises(SourceStalled, match=r"partition 0 has 4 messages up to 3, and had 11"):
        drained(pipeline(client, source, rendition="r3"))
    source.close()


@pytest.mark.long
def test_a_rendition_follows_a_topic_and_takes_over(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.group = ""
    controller = StorageController(client)

    def feeding(rendition: str, **changed: Any) -> Ingestion:
        block = {
            "kafka": {"bootstrapServers": kafka.servers, "topic": topic.name},
            "format": {"json": {}},
            "run": {"progressInterval": "0s"},
            **changed,
        }
        return opened.enter_context(ingestion_of(controller, "orders", parse(block), rendition=rendition))

    with ExitStack() as opened:
        old = feeding("r1", batch={"maxRows": 3})
        topic.send(*(row(number % 3, str(number)) for number in range(9)))
        aborted = topic.transaction()
        aborted.produce(topic.name, json.dumps(row(99)), partition=1)
        aborted.flush()
        aborted.abort_transaction()
        drained(old)
        new = feeding("r2", envelope="Upsert", batch={"maxRows": 4})
        drained(new)
        topic.send(row(7, "a"), row(7, "b"), partition=1)
        drained(old)
        drained(new)
        t_h = controller.renditions.hand_over("orders", "r2").held_from
        topic.send(row(8, "late"), partition=1)
        drained(old)
        outcomes = set()
        while StepOutcome.HANDED_OVER not in outcomes:
            outcomes.add(old.step().outcome)
            time.sleep(0.1)
        topic.send(row(9, "new"))
        while sum(positions(client).values()) < 15:
            new.step()
            time.sleep(0.1)
        assert sum(rows(client, t_h - 1).values()) == 12
        at_last = Counter({(0, "6"): 1, (1, "7"): 1, (2, "8"): 1, (7, "b"): 1, (8, "late"): 1})
        assert rows(client, t_h) == at_last
        assert rows(client) == at_last + Counter({(9, "new"): 1})
        groups = [each.group_id for each in kafka.admin.list_consumer_groups().result(DEADLINE_S).valid]
        # Nobody reads for the old rendition any more.
        assert [each for each in groups if each.startswith("holdfast-c1")] == ["holdfast-c1-r2"]


def fed_up_to(client: PersistClient, topic: KafkaTopic, position: int) -> int:
    """Feed until the position, as Kafka ends a transaction only some time after its commit."""
    steps, deadline = 0, time.monotonic() + DEADLINE_S
    while positions(client) != {"0": position}:
        assert time.monotonic() < deadline, positions(client)
        steps += fed(client, topic)
    return steps


def test_compaction_of_what_is_bound_changes_nothing(client: PersistClient, kafka: Broker) -> None:
    settings = {"segment_ms": "1000", "min_cleanable_dirty_ratio": "0.01", "segment_bytes": "1048576"}
    topic = KafkaTopic(kafka, cleanup_policy="compact", **settings)
    for number in range(10):
        topic.send(row(number), key={"id": number % 2})
    fed(client, topic)
    assert ids(client) == list(range(10))
    topic.send(row(10), key={"id": 0})
    deadline = time.monotonic() + DEADLINE_S
    while len(left := values_of(topic)) > 5:
        assert time.monotonic() < deadline, left
        time.sleep(1.1)
        # A segment is closed when a message comes after its time.
        topic.send(row(10), key={"id": 0})
    fed(client, topic)
    assert ids(client)[:10] == list(range(10))
    # A new collection reads what is left, with gaps between.
    other = Stores().open()
    created(other)
    topic.group += "-other"
    before = len(values_of(topic))
    fed(other, topic)
    # The broker may compact more at any moment.
    assert len(values_of(topic)) <= sum(rows(other).values()) <= before


def values_of(topic: KafkaTopic) -> list[Any]:
    """What a new reader finds."""
    source = topic.source(group="look")
    wanted = next(each for each in source.probe({}) if each.waits)
    pieces: list[Piece] = list(source.read(wanted))
    source.close()
    return [value for piece in pieces for value in piece.messages["value"].to_pylist()]


def test_poison_messages_are_kept_and_the_others_go_on(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1), b"not json", None, {"name": "no id"}, b"\xff\xfe", row(2))
    fed(client, topic)
    assert ids(client) == [1, 2]
    assert bad(client) == [("0", 1, "decode"), ("0", 2, "decode"), ("0", 3, "null"), ("0", 4, "decode")]


def test_a_topic_that_lost_its_end_stalls_the_source(kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    source = topic.source()
    identity = source.probe({})[0].identity
    with pytest.raises(SourceStalled, match="ends at 1, but the collection has its messages up to 5"):
        source.probe({"0": Binding(5, identity)})


def test_other_messages_at_offsets_that_are_bound_stall_the_source(
    client: PersistClient, kafka: Broker
) -> None:
    """What the collection has is what the topic had before it lost it and got others."""
    topic = KafkaTopic(kafka, 3)
    for partition in range(3):
        topic.send(row(1), row(2), partition=partition)
    fed(client, topic)
    table = offsets(StorageController(client), "orders")[1].to_pylist()
    identity = table[0]["identity"]
    bound = {name: Binding(2, identity, last=LastMessage(1, 0)) for name in "012"}
    other = r"message 1 of partition {} of topic .* is not the one that the collection has"
    # Which partition's message comes first is up to the broker.
    with pytest.raises(SourceStalled, match=other.format("[012]")):
        topic.source().probe(bound)
    # Where messages are new, the last one is read with them.
    for partition in range(2):
        topic.send(row(3), partition=partition)
    bound["2"] = Binding(2, identity)
    source = topic.source()
    found = {each.partition: each for each in source.probe(bound)}
    with pytest.raises(SourceStalled, match=other.format(0)):
        list(source.read(found["0"]))
    # Retention takes it away.
    topic.delete_below({1: 2})
    with pytest.raises(SourceChanged):
        list(source.read(found["1"]))
    (again,) = (each for each in source.probe(bound) if each.partition == "1")
    assert [each.reached for each in source.read(again)] == [3]
    assert fed(client, topic)
    assert len(ids(client)) == 8


def test_what_was_bound_without_its_last_message_goes_on(client: PersistClient, kafka: Broker) -> None:
    """So it is with what earlier builds have bound, and after retention and compaction."""
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    source = topic.source()
    identity = source.probe({})[0].identity
    (found,) = source.probe({"0": Binding(0, identity)})
    (piece,) = source.read(found)
    assert piece.last is not None
    assert (piece.last.position, found.after) == (0, None)
    topic.send(row(2))
    (found,) = source.probe({"0": Binding(1, identity, last=piece.last)})
    assert found.after == piece.last
    assert [each.messages["position"].to_pylist() for each in source.read(found)] == [[1]]


@pytest.mark.long
def test_a_log_that_went_back_and_grew_past_the_binding_stalls_the_source(
    client: PersistClient, kafka: Broker
) -> None:
    """A disk is restored from an older copy. Another partition stays as it is."""
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1), row(2), row(3))
    topic.send(row(10), partition=1)
    data = kafka.data / f"{topic.name}-0"
    older = shutil.copytree(data, kafka.data.parent / "older")
    topic.send(row(4), row(5))
    fed(client, topic)
    kafka.kill()
    shutil.rmtree(data)
    shutil.move(older, data)
    kafka.serve()
    topic.send(row(104), row(105))
    other = (
        r"message 4 of partition 0 of topic .* is not the one that the collection has: Kafka has lost mess"
    )
    with pytest.raises(SourceStalled, match=other):
        fed(client, topic)
    topic.send(row(106), row(107))
    topic.send(row(11), partition=1)
    with pytest.raises(SourceStalled, match=other):
        fed(client, topic)
    assert ids(client) == [1, 2, 3, 4, 5, 10]


# A location that was restored


def holdfast_(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--url", f"file://{folder}/location"])


def spec_file(folder: Path, used: KafkaTopic, **changed: Any) -> Path:
    path = folder / "orders.yaml"
    block = {"kafka": used.block(**changed), "format": {"json": {}}}
    path.write_text(
        json.dumps(
            {"collection": "orders", "key": {"id": "int64"}, "columns": {"name": "string?"}, "source": block}
        )
    )
    return path


def test_a_location_restored_to_an_earlier_state_is_never_a_silent_gap(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    block = {"kafka": topic.block(), "format": {"json": {}}}
    url = f"file://{tmp_path}/location"
    topic.send(row(1), row(2))
    ingest_source(url, "orders", block, schema=SCHEMA, once=True)
    shutil.copytree(tmp_path / "location", tmp_path / "backup")
    topic.send(row(3), row(4))
    ingest_source(url, "orders", block, once=True)
    topic.delete_below(topic.committed())
    shutil.rmtree(tmp_path / "location")
    shutil.copytree(tmp_path / "backup", tmp_path / "location")
    topic.send(row(5))
    for _ in range(2):
        with pytest.raises(SourceStalled, match=r"has committed offset 4 .* Messages 2 to 3 may be lost"):
            ingest_source(url, "orders", block, once=True)
    assert topic.committed() == {0: 4}
    result = holdfast_(tmp_path, "ingest", str(spec_file(tmp_path, topic)), "--once")
    assert result.exit_code == 1
    assert "the location was restored to an earlier state" in result.stderr
    block["kafka"] = topic.block(onReset="NewEpoch")
    ingest_source(url, "orders", block, once=True)
    with holdfast.table(url, "orders") as table:
        assert sorted(table.read()["id"].to_pylist()) == [1, 2, 5]


def test_a_collection_restored_from_a_snapshot_reads_again_what_kafka_still_has(
    tmp_path: Path, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    url = f"file://{tmp_path}/location"
    named = topic.block()
    own = {name: each for name, each in named.items() if name != "group"}

    def fed_(block: dict[str, Any]) -> list[int]:
        whole = {"kafka": block, "format": {"json": {}}}
        ingest_source(url, "orders", whole, schema=SCHEMA, once=True)
        with holdfast.table(url, "orders") as table:
            return sorted(table.read()["id"].to_pylist())

    def restored() -> None:
        with PersistClient.open(url) as client:
            StorageController(client).restore_collection("orders", source)

    topic.send(row(1), row(2))
    fed_(own)
    with PersistClient.open(url) as client:
        source = taken(client, tmp_path / "snapshot")
    topic.send(row(3), row(4))
    assert fed_(own) == [1, 2, 3, 4]
    restored()
    topic.send(row(5))
    # Each rendition has a group of its own, so what the one before has acknowledged doesn't matter.
    assert fed_(own) == [1, 2, 3, 4, 5]
    # A group that the spec names is that of the rendition before, too.
    assert fed_(named) == [1, 2, 3, 4, 5]
    topic.send(row(6))
    assert fed_(named) == [1, 2, 3, 4, 5, 6]
    assert topic.committed() == {0: 6}
    restored()
    with pytest.raises(SourceStalled, match=r"has committed offset 6 .* Messages 2 to 5 may be lost"):
        fed_(named)
    topic.delete_below({0: 3})
    with pytest.raises(SourceStalled, match=r"messages 2 to 2 of partition 0 of topic .* were deleted"):
        fed_(own)
    assert fed_({**own, "onReset": "NewEpoch"}) == [1, 2, 4, 5, 6]


def test_a_copied_location_is_fed_on_exactly_once(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    here, there, late = (f"file://{tmp_path}/{name}" for name in ("here", "there", "late"))
    named = topic.block()
    block = {"kafka": {name: each for name, each in named.items() if name != "group"}, "format": {"json": {}}}
    sent: list[int] = []

    def send(*ids: int) -> None:
        for id_ in ids:
            topic.send(row(id_), partition=id_ % 2)
        topic.send(b"bad", partition=ids[0] % 2)
        sent.extend(ids)

    def found(url: str) -> tuple[list[int], list[tuple[str, int, int]], int]:
        with PersistClient.open(url) as client:
            controller = StorageController(client)
            bound = offsets(controller, "orders")[1].to_pylist()
            return (
                ids(client),
                sorted((each["partition"], each["position"], each["total"]) for each in bound),
                errors(controller, "orders")[1].num_rows,
            )

    send(*range(10))
    ingest_source(here, "orders", {**block, "batch": {"maxRows": 3}}, schema=SCHEMA, once=True)
    holdfast.copy_tables(here, there)
    send(*range(10, 15))
    ingest_source(here, "orders", block, once=True)
    holdfast.copy_tables(here, there)
    holdfast.copy_tables(here, late)
    assert found(there) == found(here)
    send(*range(15, 22))
    for url in (there, here):
        ingest_source(url, "orders", block, once=True)
        messages = sum(total for _, _, total in found(url)[1])
        assert (found(url)[0], found(url)[2], messages) == (sorted(sent), 3, len(sent) + 3)
    with pytest.raises(BadInput, match="'orders' was fed on from its source"):
        holdfast.copy_table(here, "orders", there)
    # Another place, which came too late: never a silent gap.
    ingest_source(here, "orders", {"kafka": named, "format": {"json": {}}}, once=True)
    with pytest.raises(SourceStalled, match=f"consumer group {topic.group} has committed offset"):
        ingest_source(late, "orders", {"kafka": named, "format": {"json": {}}}, once=True)
    topic.delete_below(dict.fromkeys((0, 1), 10))
    with pytest.raises(SourceStalled, match="were deleted before they were read"):
        ingest_source(late, "orders", block, once=True)


def test_a_new_collection_does_not_take_over_a_group(client: PersistClient, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    fed(client, topic)
    other = Stores().open()
    created(other)
    with pytest.raises(SourceStalled, match=r"committed offset 1 .* has its messages only up to 0"):
        fed(other, topic)


def test_the_group_is_that_of_the_collection_by_default(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    block = topic.block()
    del block["group"]
    url = f"file://{tmp_path}/location"
    ingest_source(url, "orders", {"kafka": block, "format": {"json": {}}}, schema=SCHEMA, once=True)
    with PersistClient.open(url) as client:
        topic.group = f"holdfast-{StorageController(client).describe('orders').collection_id}"
    assert topic.committed() == {0: 1}


# Commands and bad input


def test_the_command_feeds_and_shows_offsets(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, 2)
    topic.send(row(1), row(2), b"bad")
    result = holdfast_(tmp_path, "ingest", str(spec_file(tmp_path, topic)), "--once")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("fed orders with 3 messages, 2 updates, 1 bad record")
    shown = holdfast_(tmp_path, "collection", "offsets", "orders", "--format", "json")
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert sorted((each["partition"], each["position"], each["rows"]) for each in found) == [
        ("0", 3, 3),
        ("1", 0, 0),
    ]
    assert found[0]["source"].startswith("kafka://")


def refused(tmp_path: Path, used: KafkaTopic, **changed: Any) -> str:
    """The one line of a command that fails, and its hint."""
    began = time.monotonic()
    result = holdfast_(tmp_path, "ingest", str(spec_file(tmp_path, used, **changed)), "--once")
    assert result.exit_code != 0
    assert time.monotonic() - began < 30
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_what_can_not_be_reached_is_one_clear_line(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "OPEN_S", 2.0)
    monkeypatch.setattr("holdfast.ingest.sources.kafka.REQUEST_S", 1.0)
    topic = KafkaTopic(kafka)
    told = refused(tmp_path, topic, bootstrapServers="127.0.0.1:1")
    assert "can't connect to Kafka at 127.0.0.1:1: 127.0.0.1:1/bootstrap" in told
    assert "check source.kafka.bootstrapServers (127.0.0.1:1), that the broker is up" in told
    told = refused(tmp_path, topic, bootstrapServers=kafka.sasl_servers)
    assert f"at {kafka.sasl_servers}: no broker responds to security.protocol PLAINTEXT" in told
    assert "that this port takes security.protocol PLAINTEXT" in told
    assert "brokers are down" not in told
    told = refused(tmp_path, topic, topic="no-such-topic")
    assert f"topic no-such-topic at {kafka.servers} doesn't exist" in told
    assert "create the topic, or correct source.kafka.topic" in told
    told = refused(tmp_path, topic, security={"security.protocol": "SSL"})
    assert "SSL handshake failed" in told or "SSL connection closed by peer" in told
    told = refused(tmp_path, topic, security={"security.protocol": "SSL", "ssl.ca.location": "/none"})
    assert "source.kafka.security.ssl.ca.location: there is no file /none" in told
    told = refused(tmp_path, topic, security={"security.protocol": "TLS"})
    assert 'Invalid value "TLS" for configuration property "security.protocol"' in told


def test_what_it_waits_for_is_one_line(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "OPEN_S", 4.0)
    monkeypatch.setattr("holdfast.ingest.sources.kafka.REQUEST_S", 1.0)
    monkeypatch.setattr(kafka_client, "REQUEST_S", 1.0)
    topic = KafkaTopic(kafka)
    # A broker that is away from the beginning.
    told = refused(tmp_path, topic, bootstrapServers="127.0.0.1:1")
    assert told.count("waiting for Kafka at 127.0.0.1:1: 127.0.0.1:1/bootstrap") == 1
    # A topic that is deleted.
    monkeypatch.setattr("holdfast.ingest.sources.kafka._DELETED_S", 3.0)
    said: list[str] = []
    spec = parse({"kafka": topic.block(), "format": {"json": {}}}).source
    assert isinstance(spec, KafkaSpec)
    source = Kafka(spec, spec.group, Waits(said.append))
    topic.delete()
    with pytest.raises(SourceStalled, match="doesn't exist any more"):
        source.probe({})
    source.close()
    assert said == [f"waiting for topic {topic.name} at {kafka.servers}: the brokers don't know it"]


def test_tls_needs_an_authority_a_host_name_and_a_certificate_that_fit(
    client: PersistClient, tmp_path: Path, kafka: Broker
) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    tls = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.pki.ca)}
    mutual = {
        **tls,
        "ssl.certificate.location": str(kafka.pki.client_certificate),
        "ssl.key.location": str(kafka.pki.client_key),
    }
    fed(client, topic, bootstrapServers=kafka.tls_servers, security=tls)
    topic.send(row(2))
    fed(client, topic, bootstrapServers=kafka.mtls_servers, security=mutual)
    assert ids(client) == [1, 2]
    (tmp_path / "other").mkdir()
    other = pki.create(tmp_path / "other", names=(), addresses=("127.0.0.1",))
    foreign = {
        "ssl.certificate.location": str(other.client_certificate),
        "ssl.key.location": str(other.client_key),
    }
    untrusted = f"can't trust the certificate of Kafka at {kafka.tls_servers} with "
    for servers, security, *told in (
        (kafka.tls_servers, {**tls, "ssl.ca.location": str(other.ca)}, untrusted, "unable to get local"),
        (kafka.tls_servers, {"security.protocol": "SSL"}, f"{untrusted}the authorities of this host: "),
        (kafka.tls_servers_by_name, tls, "certificate is not valid for 'localhost'", "as their certificates"),
        (kafka.mtls_servers, tls, "does not accept the certificate of this client, or needs one: "),
        (
            kafka.mtls_servers,
            {**mutual, **foreign},
            "to a certificate of an authority that the brokers trust",
        ),
        (kafka.mtls_servers, {**mutual, "ssl.key.location": str(other.client_key)}, "key values mismatch"),
    ):
        began = time.monotonic()
        found = refused(tmp_path, topic, bootstrapServers=servers, security=security)
        assert all(each in found for each in told), found
        # Nobody waits for a broker that never accepts.
        assert time.monotonic() - began < 10


def test_secrets_come_from_a_file_or_a_variable_and_are_never_shown(
    client: PersistClient, tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    (tmp_path / "password").write_text(f"{kafka.password}\n")
    file = {**sasl, "passwordFile": str(tmp_path / "password")}
    fed(client, topic, bootstrapServers=kafka.sasl_servers, security=file)
    assert ids(client) == [1]
    variable = {**sasl, "passwordEnv": "KAFKA_SECRET"}
    monkeypatch.setenv("KAFKA_SECRET", kafka.password)
    topic.send(row(2))
    source = topic.source(bootstrapServers=kafka.sasl_servers, security=variable)
    drained(pipeline(client, source))
    assert ids(client) == [1, 2]
    assert kafka.password not in repr(vars(source))
    assert kafka.password not in repr(vars(source._client))
    monkeypatch.setenv("KAFKA_SECRET", "wrong-secret")
    told = refused(tmp_path, topic, bootstrapServers=kafka.sasl_servers, security=variable)
    assert f"Kafka at {kafka.sasl_servers} does not accept this client" in told
    assert "can't connect" not in told
    assert "correct the credentials or the protocol in source.kafka.security" in told
    assert "wrong-secret" not in told
    monkeypatch.delenv("KAFKA_SECRET")
    told = refused(tmp_path, topic, security=variable)
    assert "the environment variable KAFKA_SECRET with sasl.password is not set" in told
    told = refused(tmp_path, topic, security={**sasl, "passwordFile": "/none"})
    assert "can't read the file /none with sasl.password: No such file or directory" in told
    told = refused(tmp_path, topic, security={**sasl, "sasl.password": "inline-secret"})
    assert "source.kafka.security.sasl.password is a secret, which a spec may not have" in told
    assert "inline-secret" not in told


def test_user_and_password_come_from_a_secret(
    client: PersistClient, tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1))
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    named = {
        "bootstrapServers": kafka.sasl_servers,
        "security": sasl,
        "secretRef": {"name": "kafka"},
    }
    told = refused(tmp_path, topic, **named)
    assert "source.kafka.secretRef names Secret kafka, and the environment variable HOLDFAST_SECRETS" in told
    monkeypatch.setenv("HOLDFAST_SECRETS", str(tmp_path))
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka/username").write_text(USER)
    told = refused(tmp_path, topic, **named)
    assert "has no key password, which source.kafka.secretRef needs: add it" in told
    (tmp_path / "kafka/password").write_text("wrong-secret")
    told = refused(tmp_path, topic, **named)
    assert f"Kafka at {kafka.sasl_servers} does not accept this client" in told
    assert "wrong-secret" not in told
    # A new pipeline reads the secret as it is now.
    (tmp_path / "kafka/password").write_text(f"{kafka.password}\n")
    fed(client, topic, **named)
    assert ids(client) == [1]


def test_the_page_does_what_it_says(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, name="orders")
    topic.send({"id": 1, "item": "fig"}, {"id": 1, "item": "apple"}, key={"id": 1})
    topic.send({"id": 2, "item": "date"}, None, key={"id": 2})
    customers = KafkaTopic(kafka, name="shop.public.customers")
    customers.send({"before": None, "after": {"id": 1, "name": "Ada"}, "op": "c"}, key={"id": 1})
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    with PageRun(tmp_path, environment=environment, places={"localhost:9092": kafka.servers}) as run:
        docpages.run("docs/how-to/ingest-kafka.md", run)


def test_nothing_imports_the_client_before_a_topic_is_opened() -> None:
    code = "import sys, holdfast.ingest, holdfast.cli.ingest; assert 'confluent_kafka' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_topic_is_kept_raw_and_decoded_from_there(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka)
    topic.send(row(1, "a"), b"bad", None, key=b"k", at=1_700_000_000_123)
    url = f"file://{tmp_path}/location"
    parts = {"partition": "partition", "position": "position", "key": "key", "timestamp": "timestamp"}
    raw = {"kafka": topic.block(), "format": {"raw": {}}, "include": parts}
    key, value = {"partition": "string", "position": "int64"}, {"value": "binary?", "key": "binary?"}
    ingest_source(url, "raw", raw, schema=Schema.of(key, {**value, "timestamp": "int64?"}), once=True)
    source = {"collection": {"name": "raw"}, "format": {"json": {}}, "include": parts}
    columns = {"name": "string?", "partition": "string", "position": "int64"}
    columns |= {"key": "binary?", "timestamp": "timestamp?"}
    ingest_source(url, "orders", source, schema=Schema.of({"id": "int64"}, columns), once=True)
    with PersistClient.open(url) as client:
        ((id_, name, partition, position, text, at),) = rows(client)
        assert (id_, name, partition, position, text) == (1, "a", "0", 0, b"k")
        assert at == dt.datetime.fromtimestamp(1_700_000_000, dt.UTC).replace(
            tzinfo=None, microsecond=123_000
        )
        assert bad(client) == [("0", 1, "decode"), ("0", 2, "decode")]
        controller = StorageController(client)
        assert controller.frontiers("orders").upper == controller.frontiers("raw").upper
