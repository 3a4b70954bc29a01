"""A source feeds a collection: each message counts once, and the offsets of each time are exact."""

import json
from collections import Counter
from time import sleep
from typing import Any

import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.collections.recovery import look_at_recovered
from holdfast.errors import AsOfNotYetAvailable, AsOfTooEarly, BadInput, SourceStalled
from holdfast.ingest import StepOutcome, ingestion_of, parse
from holdfast.ingest.kept import errors, offsets, progress
from holdfast.ingest.made_from import made_from
from holdfast.persist import PersistClient, Schema
from unit.collections.stores import Stores
from unit.ingest.pipelines import SCHEMA, bad, created, drained, pipeline, positions, row, rows
from unit.ingest.topic import Topic


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def test_each_message_is_a_row_and_the_source_may_delete_it(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", *(row(number) for number in range(5)))
    topic.send("1", row(7), row(7))
    feed = pipeline(client, topic)
    assert drained(feed) == 1
    assert rows(client) == Counter({**{(number, "x"): 1 for number in range(5)}, (7, "x"): 2})
    assert positions(client) == topic.acknowledged == topic.low == {"0": 5, "1": 2}
    topic.send("0", row(9))
    # Another process that knows nothing goes on where the collection is.
    assert drained(pipeline(client, topic)) == 1
    assert rows(client)[(9, "x")] == 1
    assert sum(rows(client).values()) == 8


def test_the_contents_of_every_time_are_what_its_offsets_say(client: PersistClient) -> None:
    topic = Topic()
    feed = pipeline(client, topic, batch={"maxRows": 3})
    for number in range(20):
        topic.send(str(number % 3), row(number))
        if number % 5 == 4:
            drained(feed)
    controller = StorageController(client)
    pipeline_ = controller.describe("orders").holding.pipeline
    assert pipeline_ is not None
    remap = client.reader(pipeline_.remap, purpose="check")
    times = [time for time, _, _ in remap.change_counts(0)]
    assert len(times) >= 7
    for time in times:
        offsets = positions(client, time)
        ids = [number for number in range(20) if number // 3 < offsets.get(str(number % 3), 0)]
        assert rows(client, time) == Counter((number, "x") for number in ids)


def test_a_step_says_how_far_it_is_behind(client: PersistClient) -> None:
    topic = Topic(deletes=False)
    topic.send("0", *(row(number) for number in range(7)))
    topic.send("1", row(10))
    feed = pipeline(client, topic, batch={"maxRows": 4})
    step = feed.step()
    assert step.behind == 4
    controller = StorageController(client)
    known = progress(client, controller.describe("orders").holding)
    assert known is not None
    assert (known.positions, known.ends, known.behind) == ((("0", 3), ("1", 1)), (("0", 7),), 4)
    assert offsets(controller, "orders")[1]["behind"].to_pylist() == [4, None]
    # It is no binding: others that begin now read the same.
    other = pipeline(client, topic, batch={"maxRows": 2})
    assert other.step().behind == 2
    assert other.step().behind == 0
    known = progress(client, controller.describe("orders").holding)
    assert known is not None
    assert (known.behind, known.messages) == (0, 8)
    assert offsets(controller, "orders", step.upper - 1)[1]["behind"].to_pylist() == [4, None]
    assert positions(client) == {"0": 7, "1": 1}


def test_what_is_kept_is_shown_in_order(client: PersistClient) -> None:
    topic, controller = Topic(deletes=False), StorageController(client)
    names = [str(number) for number in range(12)]
    for name in reversed(names):
        topic.send(name, b"bad", row(1), b"worse")
    drained(pipeline(client, topic))
    assert offsets(controller, "orders")[1]["partition"].to_pylist() == names
    found = errors(controller, "orders")[1]
    shown = list(zip(found["partition"].to_pylist(), found["position"].to_pylist(), strict=True))
    assert shown == [(name, position) for name in names for position in (0, 2)]


def test_a_key_that_is_no_text_is_a_bad_record(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1), key="a")
    topic.partitions["0"].append((b"\xff\xfe", b'{"id":2,"name":"x"}'))
    topic.partitions["0"].append((None, b'{"id":3,"name":"x"}'))
    feed = pipeline(client, topic, include={"key": "name"})
    assert drained(feed) == 1
    assert rows(client) == Counter({(1, '"a"'): 1, (3, None): 1})
    assert bad(client) == [("0", 1, "decode")]


def test_two_pipelines_at_once_count_each_message_once(client: PersistClient) -> None:
    topic = Topic()
    one, two = pipeline(client, topic), pipeline(client, topic)
    outcomes = []
    for number in range(12):
        topic.send("0", row(number))
        topic.send("1", row(100 + number))
        outcomes += [(one, two)[number // 3 % 2].step().outcome, (one, two)[number % 2].step().outcome]
    assert StepOutcome.LOST in outcomes
    drained(one)
    drained(two)
    assert rows(client) == Counter((number, "x") for number in [*range(12), *range(100, 112)])


def test_a_bad_record_is_kept_and_the_others_go_on(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1), b"not json", row(2), {"name": "no id"}, None, {"id": "text"}, row(3))
    drained(pipeline(client, topic))
    assert rows(client) == Counter({(1, "x"): 1, (2, "x"): 1, (3, "x"): 1})
    assert bad(client) == [("0", 1, "decode"), ("0", 3, "null"), ("0", 4, "decode"), ("0", 5, "decode")]
    assert positions(client) == {"0": 7}


def test_more_bad_records_than_the_limit_stop_the_source_before_it_commits(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", b"one", row(1))
    limited = {"onError": {"collect": {"limit": 2}}}
    feed = pipeline(client, topic, **limited)
    assert drained(feed) == 1
    topic.send("0", b"two", b"three", row(2))
    with pytest.raises(
        SourceStalled,
        match=r"keep more bad records than the limit 2; the next one is in partition 0 at position 2: ",
    ):
        feed.step()
    assert positions(client) == {"0": 2}
    assert drained(pipeline(client, topic, onError={"collect": {"limit": 3}})) == 1
    assert len(bad(client)) == 3


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_bad_record_that_hides_no_row_ends_with_the_history(client: PersistClient, envelope: str) -> None:
    topic, controller = Topic(), StorageController(client)
    limits: dict[str, Any] = {"envelope": envelope, "onError": {"collect": {"limit": 3}}}
    feed = pipeline(client, topic, **limits)
    topic.send("0", row(1), b"one", b"two")
    topic.send("0", b"bad", key={"id": 1})
    first = feed.step().upper
    topic.send("0", row(2))
    second = feed.step().upper
    assert len(bad(client)) == 3
    topic.send("0", b"more")
    with pytest.raises(SourceStalled, match="more bad records than the limit 3"):
        feed.step()
    # What the collection no longer shows at any time counts no more.
    controller.set_retention_hold("orders", second - 1)
    topic.send("0", b"still more")
    for each in (feed, pipeline(client, topic, **limits)):
        assert drained(each) == (each is feed)
    hidden = [("0", 3, "decode")] if envelope == "Upsert" else []
    assert bad(client) == [*hidden, ("0", 5, "decode"), ("0", 6, "decode")]
    assert rows(client) == Counter({(each, "x"): 1 for each in ((2,) if hidden else (1, 2))})
    assert len(bad(client, second - 1)) == 3
    assert first < second


def test_many_bad_records_stop_the_source_at_once(client: PersistClient) -> None:
    topic = Topic(piece=100_000)
    topic.send("0", row(1), *[b'{"id":"text"}'] * 50_000)
    with pytest.raises(
        SourceStalled, match=r"more bad records than the limit 1,000; the next one is in partition 0: "
    ):
        pipeline(client, topic).step()
    assert StorageController(client).frontiers("orders").upper == 0


def test_upsert_keeps_the_last_value_of_each_key(client: PersistClient) -> None:
    topic = Topic()
    for id_, value in [(1, row(1, "a")), (2, row(2, "a")), (1, row(1, "b")), (3, row(3)), (2, None)]:
        topic.send("0", value, key={"id": id_})
    feed = pipeline(client, topic, envelope="Upsert")
    drained(feed)
    assert rows(client) == Counter({(1, "b"): 1, (3, "x"): 1})
    topic.send("0", row(1, "b"), key={"id": 1})
    topic.send("0", None, key={"id": 99})
    topic.send("0", row(3, None), key={"id": 3})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter({(1, "b"): 1, (3, None): 1})


def test_upsert_hides_a_key_while_its_value_is_bad(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1, "a"), key={"id": 1})
    topic.send("0", row(2, "a"), key={"id": 2})
    drained(pipeline(client, topic, envelope="Upsert"))
    topic.send("0", b"bad", key={"id": 1})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter({(2, "a"): 1})
    assert bad(client) == [("0", 2, "decode")]
    topic.send("0", row(1, "b"), key={"id": 1})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter({(2, "a"): 1, (1, "b"): 1})
    assert bad(client) == []


@pytest.mark.parametrize("steps", ["one", "several"])
def test_upsert_keeps_the_row_of_a_key_whose_value_is_bad_if_it_is_told_to(
    client: PersistClient, steps: str
) -> None:
    keeping: dict[str, Any] = {"envelope": "Upsert", "onBadValue": "Keep"}
    topic = Topic()
    for value in (row(1, "a"), b"bad", b"worse"):
        topic.send("0", value, key={"id": 1})
        if steps == "several":
            drained(pipeline(client, topic, **keeping))
    drained(pipeline(client, topic, **keeping))
    assert rows(client) == Counter({(1, "a"): 1})
    assert bad(client) == [("0", 1, "decode"), ("0", 2, "decode")]
    files = {"files": {"path": "/in"}, "format": {"json": {}}}
    assert json.loads(made_from(parse({**files, **keeping})))["onBadValue"] == "Keep"
    with pytest.raises(BadInput, match="onBadValue Keep needs envelope Upsert"):
        parse({**files, "onBadValue": "Keep"})
    topic.send("0", row(1, "b"), key={"id": 1})
    drained(pipeline(client, topic, **keeping))
    assert rows(client) == Counter({(1, "b"): 1})
    assert bad(client) == []


def test_a_bad_value_that_a_later_one_replaces_in_the_same_step_is_no_error(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", b"bad", row(1, "a"), key={"id": 1})
    topic.send("0", row(2, "a"), b"bad", key={"id": 2})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter({(1, "a"): 1})
    assert bad(client) == [("0", 3, "decode")]


def test_a_deletion_whose_key_is_bad_is_an_error(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1), None, key={"id": "one"})
    topic.send("0", None, key={"id": 1})
    drained(pipeline(client, topic, envelope="Upsert"))
    assert rows(client) == Counter()
    assert bad(client) == [("0", 1, "decode")]


@pytest.mark.parametrize("most", [1, 2, 100])
def test_upsert_goes_by_the_offsets_of_a_partition_whatever_the_clocks(
    client: PersistClient, most: int
) -> None:
    topic = Topic(piece=2)
    for id_, value, at in [
        (1, row(1, "old"), 1_000),
        (1, row(1, "new"), 900),
        (2, row(2), 900),
        (2, None, 950),
        (3, b"bad", 800),
        (3, row(3, "good"), None),
    ]:
        topic.send("0", value, key={"id": id_}, at=at)
    drained(pipeline(client, topic, envelope="Upsert", batch={"maxRows": most}))
    assert rows(client) == Counter({(1, "new"): 1, (3, "good"): 1})
    assert bad(client) == []


@pytest.mark.parametrize("most", [1, 100])
def test_a_value_with_another_key_than_its_message_is_an_error(client: PersistClient, most: int) -> None:
    topic = Topic()
    topic.send("0", row(1, "a"), key={"id": 1})
    topic.send("0", row(7, "moved"), key={"id": 1})
    topic.send("0", row(7, "bare"), key=7)
    topic.send("0", row(2, "no key"))
    topic.send("0", row(3, "no such column"), key={"customer": 4})
    topic.send("0", row(4, "another type"), key="four")
    feed = {"envelope": "Upsert", "batch": {"maxRows": most}}
    drained(pipeline(client, topic, **feed))
    good = [(7, "bare"), (2, "no key"), (3, "no such column"), (4, "another type")]
    assert rows(client) == Counter(good)
    assert bad(client) == [("0", 1, "decode")]
    (reason,) = errors(StorageController(client), "orders", None)[1]["reason"].to_pylist()
    assert reason.startswith("the key of the message is not the one in its value")
    topic.send("0", None, key={"id": 1})
    drained(pipeline(client, topic, **feed))
    assert rows(client) == Counter(good)
    assert bad(client) == []


def test_a_key_that_the_message_itself_fills_is_not_compared(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(5, "a"), row(6, "b"), key={"id": 9})
    kafka = {"bootstrapServers": "k:9092", "topic": "t"}
    feed = {"generator": None, "kafka": kafka, "include": {"position": "id"}, "envelope": "Upsert"}
    drained(pipeline(client, topic, **feed))
    assert (rows(client), bad(client)) == (Counter({(0, "a"): 1, (1, "b"): 1}), [])


def test_another_source_is_refused(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1))
    drained(pipeline(client, topic))
    other = Topic(name="other")
    other.send("0", row(2))
    with pytest.raises(SourceStalled, match="fed from topic, not from other"):
        pipeline(client, other).step()


def test_a_gap_stops_the_source(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1), row(2))
    topic.low["0"] = 1
    with pytest.raises(SourceStalled, match="lost 0 to 1"):
        pipeline(client, topic).step()


def test_included_columns(client: PersistClient) -> None:
    topic = Topic()
    topic.send("7", {"id": 1, "name": "ignored", "more": [1, {"a": None}]})
    drained(pipeline(client, topic, include={"record": "name"}))
    ((_, record),) = rows(client)
    assert json.loads(record) == {"id": 1, "name": "ignored", "more": [1, {"a": None}]}


def test_a_message_without_what_its_column_needs_is_a_bad_record(client: PersistClient) -> None:
    topic = Topic()
    topic.send("7", {"name": "a"}, {"name": "b"})
    kafka = {"bootstrapServers": "k:9092", "topic": "t"}
    drained(pipeline(client, topic, generator=None, kafka=kafka, include={"timestamp": "id"}))
    assert rows(client) == Counter()
    reason = "column 'id' allows no nulls, and the message has no timestamp"
    found = errors(StorageController(client), "orders", None)[1]
    assert found["reason"].to_pylist() == [reason, reason]


def test_an_empty_step_moves_the_upper(client: PersistClient) -> None:
    feed = pipeline(client, Topic(), run={"progressInterval": "1ms"})
    first = feed.step()
    assert first.outcome is StepOutcome.COMMITTED
    assert (rows(client), positions(client)) == (Counter(), {})


def test_tables_and_writers_keep_away_from_it(client: PersistClient) -> None:
    with pytest.raises(BadInput, match="written by a source"):
        StorageController(client).writer("orders", purpose="table")


def test_a_table_can_not_be_fed(client: PersistClient) -> None:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("c2", "table", SCHEMA))
    spec = parse({"generator": {"rows": 1}, "format": {"json": {}}})
    with (
        pytest.raises(BadInput, match="not fed from a source"),
        ingestion_of(controller, "table", spec),
    ):
        pass


def test_nothing_is_readable_before_the_first_step(client: PersistClient) -> None:
    with pytest.raises(AsOfNotYetAvailable):
        positions(client)


def test_retention_moves_all_shards_together(client: PersistClient) -> None:
    topic = Topic()
    feed = pipeline(client, topic)
    uppers = []
    for number in range(4):
        topic.send("0", row(number))
        uppers.append(feed.step().upper)
    controller = StorageController(client)
    assert controller.set_retention_hold("orders", uppers[2] - 1) == uppers[2] - 1
    info = controller.describe("orders")
    assert {client.inspect(each).since for each in info.holding.written_shards} == {uppers[2] - 1}
    assert positions(client, uppers[2] - 1) == {"0": 3}
    with pytest.raises(AsOfTooEarly):
        positions(client, uppers[1] - 1)


def test_a_run_gives_up_history_that_need_not_be_kept(client: PersistClient) -> None:
    topic, controller = Topic(), StorageController(client)
    topic.send("0", row(1))
    pipeline(client, topic).run(once=True)
    assert controller.frontiers("orders").since == 0
    controller.retain("orders", 1)
    sleep(0.01)
    topic.send("0", row(2))
    pipeline(client, topic).run(once=True)
    found = controller.frontiers("orders")
    assert found.since == found.upper - 2
    assert rows(client) == Counter({(1, "x"): 1, (2, "x"): 1})


def test_a_pipeline_that_is_overtaken_while_it_begins_looks_again(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, controller = Topic(deletes=False), StorageController(client)
    topic.send("0", row(1, "a"), key={"id": 1})
    faster, late = (pipeline(client, topic, envelope="Upsert") for _ in range(2))
    drained(faster)
    topic.send("0", row(1, "b"), key={"id": 1})
    look = late._look

    def look_before_the_other_commits() -> None:
        look()
        if drained(faster):
            controller.set_retention_hold("orders", controller.frontiers("orders").upper - 1)

    monkeypatch.setattr(late, "_look", look_before_the_other_commits)
    late.load()
    assert late.bound["0"].position == 2
    topic.send("0", row(1, "c"), key={"id": 1})
    monkeypatch.undo()
    drained(late)
    assert rows(client) == Counter({(1, "c"): 1})


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_what_is_sent_after_the_collection_got_a_column_fills_it(
    client: PersistClient, envelope: str
) -> None:
    topic = Topic()
    topic.send("0", row(1), key={"id": 1})
    feed = pipeline(client, topic, envelope=envelope)
    drained(feed)
    topic.send("0", row(2), key={"id": 2})
    reads_old = feed.step()
    later = Schema.of(key={"id": "int64"}, value={"name": "string?", "seats": "int32?"})
    StorageController(client).evolve_collection("orders", later)
    # It is not even idle in between.
    topic.send("0", {"id": 3, "seats": 7}, key={"id": 3})
    assert (reads_old.outcome, feed.step().outcome) == (StepOutcome.COMMITTED, StepOutcome.LOST)
    assert drained(feed) == 1
    assert rows(client) == Counter({(1, "x", None): 1, (2, "x", None): 1, (3, None, 7): 1})
    assert positions(client) == topic.acknowledged == {"0": 3}


def test_shards_that_came_back_at_different_times_are_not_sealed(client: PersistClient) -> None:
    topic = Topic()
    topic.send("0", row(1))
    drained(pipeline(client, topic))
    info = StorageController(client).describe("orders")
    shard = info.holding.shards[0]
    upper = client.recent_upper(shard)
    client.writer(shard, info.schema, purpose="damage").compare_and_append(None, upper, upper + 5)
    (found,) = look_at_recovered(client).collections
    assert "its pipeline can't tell what is missing" in found.problem


def test_a_dropped_collection_leaves_no_shard(client: PersistClient) -> None:
    controller = StorageController(client)
    info = controller.describe("orders")
    pipeline_ = info.holding.pipeline
    assert pipeline_ is not None
    controller.drop_collection("orders")
    assert all(client.inspect(shard).finalized for shard in (*info.data_shards, *pipeline_.all))
