"""Change events of Debezium keep a collection equal to their table. They are made after its documentation."""

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import BadInput
from holdfast.ingest import Ingestion, parse
from holdfast.ingest.envelope import later_than
from holdfast.ingest.formats.debezium import DebeziumJson
from holdfast.ingest.formats.decoded import TooManyBad
from holdfast.ingest.kept import errors
from holdfast.ingest.opened import format_of
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.persist import PersistClient, Schema
from unit.collections.stores import Stores
from unit.ingest.avromessages import ORDER_KEY, wire
from unit.ingest.formats.test_formats import found, messages
from unit.ingest.pipelines import SCHEMA, bad, created, drained, pipeline, row, rows
from unit.ingest.topic import Topic

VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.orders",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "lsn", "type": ["null", "long"]}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
Encode = Callable[[dict[str, Any] | None, int | None], tuple[bytes | None, bytes | None]]


def event(op: str, before: object = None, after: object = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"lsn": 7}, "op": op, "ts_ms": 1}


def as_json(value: dict[str, Any] | None, key: int | None) -> tuple[bytes | None, bytes | None]:
    """Without schemas, as with `schemas.enable=false`."""
    return (
        None if key is None else json.dumps({"id": key}).encode(),
        None if value is None else json.dumps(value).encode(),
    )


def as_wrapped(value: dict[str, Any] | None, key: int | None) -> tuple[bytes | None, bytes | None]:
    """With their schemas."""
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}
    return (
        None if key is None else json.dumps({"schema": schema, "payload": {"id": key}}).encode(),
        None if value is None else json.dumps({"schema": schema, "payload": value}).encode(),
    )


def as_avro(value: dict[str, Any] | None, key: int | None) -> tuple[bytes | None, bytes | None]:
    return (
        None if key is None else wire({"id": key}, 2, ORDER_KEY),
        None if value is None else wire(value, 1, EVENT),
    )


FORMS = pytest.mark.parametrize("encode", [as_json, as_wrapped, as_avro])


class Table:
    """A table, and the events of its changes in a topic."""

    def __init__(self, encode: Encode, topic: Topic) -> None:
        self.rows: dict[int, str | None] = {}
        self._encode = encode
        self._topic = topic

    def put(self, value: dict[str, Any] | None, key: int | None, partition: str = "0") -> None:
        self._topic.partitions.setdefault(partition, []).append(self._encode(value, key))

    def upsert(self, id_: int, name: str | None, *, op: str = "", before: bool = True) -> None:
        old = row(id_, self.rows[id_]) if id_ in self.rows and before else None
        op = op or ("u" if id_ in self.rows else "c")
        self.put(event(op, old, row(id_, name)), id_)
        self.rows[id_] = name

    def delete(self, id_: int, *, before: bool = True, tombstone: bool = True) -> None:
        name = self.rows.pop(id_, None)
        self.put(event("d", row(id_, name) if before else None), id_)
        if tombstone:
            self.put(None, id_)

    def truncate(self) -> None:
        self.put(event("t"), None)
        self.rows = {}

    def contents(self) -> Counter[tuple[Any, ...]]:
        return Counter(self.rows.items())


def opened(client: PersistClient, topic: Topic, encode: Encode, **block: Any) -> Ingestion:
    if encode is not as_avro:
        return pipeline(client, topic, envelope="Debezium", **block)
    whole: dict[str, Any] = {
        "kafka": {"bootstrapServers": "nowhere:1", "topic": "orders"},
        "format": {"avro": {"registry": {"url": "http://127.0.0.1:1"}}},
        "envelope": "Debezium",
        "run": {"progressInterval": "0s"},
    }
    spec = parse({**whole, **block})
    ingestion = Ingestion(StorageController(client), "orders", spec, topic, partial(format_of, spec))
    ingestion._texts.found |= {"1": json.dumps(EVENT), "2": json.dumps(ORDER_KEY)}
    return ingestion


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


@FORMS
def test_changes_of_a_table(client: PersistClient, encode: Encode) -> None:
    topic = Topic()
    table = Table(encode, topic)
    for id_ in range(4):
        table.upsert(id_, "snapshot", op="r")
    drained(opened(client, topic, encode))
    assert rows(client) == table.contents()
    table.upsert(0, "a")
    table.upsert(1, None, before=False)
    table.delete(2)
    table.delete(3, before=False, tombstone=False)
    table.upsert(4, "new")
    drained(opened(client, topic, encode))
    assert rows(client) == table.contents() == Counter({(0, "a"): 1, (1, None): 1, (4, "new"): 1})
    assert bad(client) == []


@FORMS
def test_a_tombstone_alone_deletes(client: PersistClient, encode: Encode) -> None:
    """Compaction leaves only that of a key that was deleted."""
    topic = Topic()
    table = Table(encode, topic)
    table.upsert(1, "a")
    table.upsert(2, "b")
    drained(opened(client, topic, encode))
    table.put(None, 1)
    drained(opened(client, topic, encode))
    assert rows(client) == Counter({(2, "b"): 1})


@FORMS
def test_before_may_be_anything(client: PersistClient, encode: Encode) -> None:
    """The collection's contents are the state."""
    topic = Topic()
    table = Table(encode, topic)
    table.put(event("u", row(1, "never seen"), row(1, "a")), 1)
    table.put(event("d", row(2, "never there")), 2)
    table.put(event("c", row(1, "a"), row(1, "b")), 1)
    drained(opened(client, topic, encode))
    assert rows(client) == Counter({(1, "b"): 1})
    assert bad(client) == []


@FORMS
def test_an_update_of_the_key_deletes_the_old_one(client: PersistClient, encode: Encode) -> None:
    topic = Topic()
    table = Table(encode, topic)
    table.upsert(1, "a")
    table.upsert(2, "b")
    drained(opened(client, topic, encode))
    # The collection's key is not the one of the table.
    table.put(event("u", row(1, "a"), row(3, "a")), 77)
    table.put(event("u", row(2, "b"), row(2, "c")), 77)
    drained(opened(client, topic, encode))
    assert rows(client) == Counter({(3, "a"): 1, (2, "c"): 1})


UNAVAILABLE = "__debezium_unavailable_value"


@FORMS
@pytest.mark.parametrize("policy", ["Remove", "Keep"])
def test_a_bad_update_of_the_key_deletes_the_old_row(
    client: PersistClient, encode: Encode, policy: str
) -> None:
    topic = Topic()
    table = Table(encode, topic)
    for id_ in range(4):
        table.upsert(id_, "a")
    feed = partial(opened, client, topic, encode, onBadValue=policy)
    drained(feed())
    table.put(event("u", row(1, "a"), row(5, UNAVAILABLE)), 5)
    drained(feed())
    assert rows(client) == Counter({(0, "a"): 1, (2, "a"): 1, (3, "a"): 1})
    assert bad(client) == [("0", 4, "decode")]
    table.put(event("u", row(5), row(5, "b")), 5)
    drained(feed())
    assert rows(client) == Counter({(0, "a"): 1, (2, "a"): 1, (3, "a"): 1, (5, "b"): 1})
    assert bad(client) == []


@FORMS
def test_an_error_that_no_later_event_of_its_key_settles_stays(client: PersistClient, encode: Encode) -> None:
    topic = Topic()
    table = Table(encode, topic)
    for id_ in range(4):
        table.upsert(id_, "a")
    drained(opened(client, topic, encode))
    # The message has the old key, so a later event of it says nothing about the new one.
    table.put(event("u", row(1, "a"), row(5, UNAVAILABLE)), 1)
    table.put(event("u", None, row(6, "a")), 2)
    table.put(event("d", row(0, "a")), 3)
    for id_ in range(4):
        table.put(event("c", None, row(id_, "again")), id_)
    drained(opened(client, topic, encode))
    assert rows(client) == Counter({(id_, "again"): 1 for id_ in range(4)})
    assert bad(client) == [("0", position, "unclear") for position in (4, 5, 6)]
    table.truncate()
    drained(opened(client, topic, encode))
    assert (rows(client), bad(client)) == (Counter(), [])


def test_keys_of_another_table_key_settle_what_their_event_names(client: PersistClient) -> None:
    topic = Topic()
    key = b'{"pk":9}'

    def send(*events: dict[str, Any]) -> None:
        for each in events:
            topic.partitions.setdefault("0", []).append((key, json.dumps(each).encode()))
        drained(pipeline(client, topic, envelope="Debezium"))

    send(event("c", None, row(1)), event("u", row(1), {"id": 2, "name": 5}))
    assert (rows(client), bad(client)) == (Counter(), [("0", 1, "decode")])
    send(event("u", row(2, "5"), row(2, "z")))
    assert (rows(client), bad(client)) == (Counter({(2, "z"): 1}), [])
    send(event("u", row(2, "z"), {"id": 2, "name": 5}))
    assert (rows(client), bad(client)) == (Counter(), [("0", 3, "decode")])
    send(event("u", row(2, "5"), row(2, "y")), event("u", None, row(3, "q")))
    # Nothing says which row the last one replaces.
    assert (rows(client), bad(client)) == (Counter({(2, "y"): 1}), [("0", 5, "unclear")])


def test_a_null_that_is_not_allowed_hides_what_the_event_names() -> None:
    client, topic = Stores().open(), Topic()
    created(client, schema=Schema.of({"id": "int64"}, {"name": "string"}))
    topic.send("0", event("c", None, row(1)), event("c", None, row(2)), key={"pk": 1})
    topic.send("0", event("u", row(1), row(1, None)), event("u", row(2), row(3, None)), key={"pk": 1})
    drained(pipeline(client, topic, envelope="Debezium"))
    assert rows(client) == Counter()
    assert bad(client) == [("0", 2, "null"), ("0", 3, "null")]


@FORMS
def test_a_truncation_deletes_what_came_before(client: PersistClient, encode: Encode) -> None:
    topic = Topic()
    table = Table(encode, topic)
    table.upsert(1, "a")
    table.put({**event("c"), "op": "nonsense"}, 9)
    drained(opened(client, topic, encode))
    assert bad(client) == [("0", 1, "decode")]
    table.upsert(2, "b")
    table.put({**event("c"), "op": "nonsense"}, 8)
    table.truncate()
    table.upsert(3, "c")
    table.put({**event("c"), "op": "nonsense"}, 7)
    drained(opened(client, topic, encode))
    assert rows(client) == Counter({(3, "c"): 1})
    assert bad(client) == [("0", 6, "decode")]
    table.truncate()
    drained(opened(client, topic, encode))
    assert (rows(client), bad(client)) == (Counter(), [])


@pytest.mark.parametrize("most", [1, 2, 100])
def test_in_a_partition_the_offset_decides_whatever_the_clocks(client: PersistClient, most: int) -> None:
    topic = Topic(piece=2)
    topic.stamps = {("0", at): stamp for at, stamp in enumerate((1_000, 900, 900, 950, 800, 700))}
    table = Table(as_json, topic)
    table.put(event("c", None, row(1, "old")), 1)
    table.put(event("u", row(1, "old"), row(1, "new")), 1)
    table.put(event("c", None, row(2)), 2)
    table.put(event("d", row(2)), 2)
    table.put({**event("c"), "op": "nonsense"}, 3)
    table.put(event("c", None, row(3, "good")), 3)
    include = {"timestamp": "created"}
    schema = Schema.of({"id": "int64"}, {"name": "string?", "created": "int64?"})
    StorageController(client).create_collection(CollectionSpec("c2", "stamped", schema, 2, source_fed=True))
    spec = parse(
        {
            "generator": {"rows": 1},
            "format": {"json": {}},
            "envelope": "Debezium",
            "include": include,
            "batch": {"maxRows": most},
        }
    )
    feed = Ingestion(StorageController(client), "stamped", spec, topic, partial(format_of, spec))
    drained(feed)
    reader = StorageController(client).reader("stamped", purpose="check")
    found_ = sorted(tuple(each.values())[:3] for each in reader.snapshot().to_table().to_pylist())
    assert found_ == [(1, "new", 900), (3, "good", 700)]
    assert errors(StorageController(client), "stamped")[1].num_rows == 0


def test_of_several_partitions_a_truncation_leaves_what_is_later(client: PersistClient) -> None:
    topic = Topic()
    table = Table(as_json, topic)
    for partition in ("0", "1", "2"):
        id_ = int(partition)
        table.put(event("c", None, row(id_)), id_, partition)
    table.put(event("t"), None, "1")
    table.put(event("c", None, row(5)), 5, "1")
    drained(pipeline(client, topic, envelope="Debezium"))
    # The topic has no timestamps, so partitions decide.
    assert rows(client) == Counter({(2, "x"): 1, (5, "x"): 1})


@FORMS
def test_bad_events_say_why_and_hide_their_rows(client: PersistClient, encode: Encode) -> None:
    topic = Topic()
    table = Table(encode, topic)
    for id_ in range(5):
        table.upsert(id_, "a")
    drained(opened(client, topic, encode))
    table.put(event("u"), 0)
    table.put(event("x", row(1), row(1)), 1)
    table.put(event("", row(2), row(2)), 2)
    table.put(event("u", row(3, "a"), row(3, "__debezium_unavailable_value")), 3)
    topic.partitions["0"].append((b"no key", None))
    topic.partitions["0"].append((encode(None, 4)[0], b"\xff"))
    drained(opened(client, topic, encode))
    assert rows(client) == Counter()
    assert bad(client) == [("0", position, "decode") for position in range(5, 11)]
    for id_ in range(5):
        table.upsert(id_, "b")
    drained(opened(client, topic, encode))
    assert rows(client) == table.contents()
    assert bad(client) == [("0", 9, "decode")]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"id": 1, "name": "flattened"}, "no 'op', so it is not a change event of Debezium"),
        ({"op": "u", "after": None}, "op 'u' and no 'after'"),
        ({"op": "m"}, "unknown op 'm'"),
        ({"op": "c", "after": {"id": "x"}}, "id"),
        ({"op": 1}, "op"),
        (
            {"op": "c", "after": {"id": 1, "name": "__debezium_unavailable_value"}},
            "column 'name', which it left",
        ),
        (
            {"op": "c", "after": {"id": 1, "name": '["__debezium_unavailable_value"]'}},
            "column 'name', which it left",
        ),
        ({"payload": {"op": "r"}}, "op 'r' and no 'after'"),
    ],
)
def test_reasons(message: object, reason: str) -> None:
    form = DebeziumJson(SCHEMA.arrow, SCHEMA.key_names)
    good = json.dumps(event("c", None, row(1))).encode()
    decoded = form.decode(messages(good, json.dumps(message).encode(), good))
    assert [(each.index, reason in each.reason) for each in decoded.bad] == [(1, True)], decoded.bad
    assert [index for index, _ in found(decoded)] == [0, 2]
    with pytest.raises(TooManyBad):
        DebeziumJson(SCHEMA.arrow, SCHEMA.key_names, most_bad=2).decode(
            messages(*[json.dumps(message).encode()] * 3)
        )


def test_types_in_json_and_in_avro() -> None:
    schema = Schema.of({"id": "int64"}, {"day": "date32?", "raw": "binary?", "at": "timestamp?"})
    decoded = DebeziumJson(schema.arrow, ["id"]).decode(
        messages(b'{"op":"c","after":{"id":1,"day":"2026-01-31","raw":"YQ==","at":"2026-01-31T00:00:00"}}')
    )
    (want,) = [dict(decoded.rows.to_pylist()[0])]
    assert want["day"] == dt.date(2026, 1, 31)
    assert want["raw"] == b"a"
    value = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            {"name": "raw", "type": ["null", "bytes"]},
            {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
        ],
    }
    fields = [{**EVENT["fields"][0], "type": ["null", value]}, *EVENT["fields"][1:]]
    avro = {**EVENT, "fields": fields}
    kafka = {"bootstrapServers": "b:1", "topic": "t"}
    block = {"kafka": kafka, "format": {"avro": {"registry": {"url": "http://r"}}}, "envelope": "Debezium"}
    form = format_of(parse(block), schema, SchemaTexts(stored={"1": json.dumps(avro)}))
    at = int(dt.datetime(2026, 1, 31, tzinfo=dt.UTC).timestamp() * 1e6)
    days = (dt.date(2026, 1, 31) - dt.date(1970, 1, 1)).days
    sent = event("c", None, {"id": 1, "day": days, "raw": b"a", "at": at})
    assert form.decode(messages(wire(sent, 1, avro))).rows.to_pylist() == [want]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"format": {"raw": {}}}, "Debezium is for messages of format json or avro, not for raw"),
        ({"files": {"path": "/in"}, "format": {"csv": {}}}, "not for csv"),
        ({"files": {"path": "/in"}, "format": {"avro": {}}}, "not for avro"),
        ({"include": {"record": "name"}}, "include.record is for format json without envelope Debezium"),
    ],
)
def test_what_does_not_fit_is_refused(block: dict[str, Any], told: str) -> None:
    source = {} if "files" in block else {"generator": {"rows": 1}}
    spec = parse({**source, "format": {"json": {}}, "envelope": "Debezium", **block})
    schema = Schema.of({"id": "string"}, {}) if "raw" in spec.format else SCHEMA
    with pytest.raises(BadInput, match=told):
        format_of(spec, schema)


def test_it_needs_a_key() -> None:
    spec = parse({"generator": {"rows": 1}, "format": {"json": {}}, "envelope": "Debezium"})
    with pytest.raises(BadInput, match="envelope Debezium needs a collection with a key"):
        format_of(spec, Schema.of({}, {"id": "int64"}))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.integers(0, 3), st.none() | st.text("ab", max_size=1), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 3), st.booleans(), st.booleans()),
        st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 3), st.none()),
        st.tuples(st.just("truncate"), st.none(), st.none(), st.none()),
        st.tuples(st.just("junk"), st.none(), st.none(), st.none()),
        st.tuples(st.just("broken"), st.integers(0, 3), st.integers(0, 3), st.sampled_from("ab")),
        st.tuples(st.just("feed"), st.integers(1, 4), st.none(), st.none()),
    ),
    max_size=14,
)


@FORMS
@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_a_collection_equals_its_table_after_any_changes(encode: Encode, steps: list[Any]) -> None:
    client, topic = Stores().open(), Topic()
    created(client)
    table = Table(encode, topic)
    table.upsert(0, "first")
    for what, one, two, three in steps:
        if what == "upsert":
            table.upsert(one, two, before=three)
        elif what == "delete" and one in table.rows:
            table.delete(one, before=two, tombstone=three)
        elif what == "move" and one in table.rows and two not in table.rows:
            name = table.rows.pop(one)
            table.put(event("u", row(one, name), row(two, name)), 50)
            table.rows[two] = name
        elif what == "truncate":
            table.truncate()
        elif what == "junk":
            topic.partitions["0"].append((None, b"junk"))
        elif what == "broken" and one in table.rows and (two == one or two not in table.rows):
            name = table.rows.pop(one)
            table.put(event("u", row(one, name), row(two, UNAVAILABLE)), one if three == "a" else two)
            table.rows[two] = "unknown"
        elif what == "feed":
            drained(opened(client, topic, encode, batch={"maxRows": one}))
            check(client, table)
    drained(opened(client, topic, encode))
    check(client, table)


def check(client: PersistClient, table: Table) -> None:
    """What the collection has is in the table. If there are no errors but junk, it has all."""
    assert rows(client) <= table.contents()
    found = errors(StorageController(client), "orders")[1].to_pylist()
    if all(each["key"] is None for each in found):
        assert rows(client) == table.contents()


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 2), st.sampled_from("01"), st.integers(0, 3)), max_size=6)
)
def test_later_than_compares_as_tuples(orders: list[tuple[int | None, str, int]]) -> None:
    names = ("_timestamp", "_partition", "_position")
    columns = list(zip(*orders, strict=True)) or [(), (), ()]
    types = (pa.int64(), pa.string(), pa.int64())
    table = pa.table([pa.array(each, type_) for each, type_ in zip(columns, types, strict=True)], names=names)
    for limit in [(-1, "0", 1), (1, "1", 2)]:
        wanted = [each for each in orders if (-1 if each[0] is None else each[0], *each[1:]) > limit]
        assert [tuple(each.values()) for each in later_than(table, limit).to_pylist()] == wanted
