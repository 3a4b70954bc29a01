"""A pipeline asks the registry once, stores what it uses with it, and never takes a failure for bad records.

The registry is a stand-in, and the topic is in memory.
"""

import io
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.errors import AsOfNotYetAvailable, BadInput, SourceStalled, StorageError, StoreUnreachable
from holdfast.ingest import Ingestion, parse, schema_texts
from holdfast.ingest import registry as client_of_registry
from holdfast.ingest.kept import errors, offsets, schemas
from holdfast.ingest.made_from import made_from
from holdfast.ingest.opened import format_of, ingestion_of
from holdfast.ingest.schema_bundle import unbundled
from holdfast.ingest.spec import RegistrySpec
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.schema import DIFF
from testbed import docpages, pki
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from testbed.kafka import Kafka as Broker
from testbed.pageruns import PageRun
from testbed.standinregistry import StandInRegistry
from unit.collections.stores import Stores
from unit.ingest.avromessages import ORDER, ORDER_KEY, bare, container, wire
from unit.ingest.kafkatopic import KafkaTopic
from unit.ingest.pipelines import bad, created, drained, positions, row, rows
from unit.ingest.topic import Topic

LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "more", "type": "string", "default": ""}]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for minutes."""
    for name, seconds in (("OPEN_S", 0.5), ("PATIENCE_S", 0.5), ("_REQUEST_S", 1.0), ("PAUSE_S", 0.01)):
        monkeypatch.setattr(client_of_registry, name, seconds)
    monkeypatch.setattr(schema_texts, "PAUSE_S", 0.01)
    monkeypatch.setattr(schema_texts, "_NEW_S", 0.1)


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry() as registry:
        registry.register(1, ORDER)
        yield registry


@pytest.fixture
def stores() -> Stores:
    stores = Stores()
    created(stores.open())
    return stores


@pytest.fixture
def topic() -> Topic:
    topic = Topic()
    topic.send("0", wire(row(1)), wire(row(2)))
    return topic


def fed(client: PersistClient, topic: Topic, registry: StandInRegistry | str, **block: Any) -> int:
    """Feed as a new process. Returns the number of steps."""
    return drained(opened(client, topic, registry, **block))


def opened(
    client: PersistClient,
    topic: Topic,
    registry: StandInRegistry | str,
    rendition: str = "",
    **block: Any,
) -> Ingestion:
    kafka = {"bootstrapServers": "nowhere:1", "topic": "orders"}
    url = registry if isinstance(registry, str) else registry.url
    whole = {
        "kafka": kafka,
        "format": {"avro": {"registry": {"url": url}, "keys": "json"}},
        "run": {"progressInterval": "0s"},
    }
    spec = parse({**whole, **block})
    form = partial(format_of, spec)
    return Ingestion(StorageController(client), "orders", spec, topic, form, rendition=rendition)


def kept(client: PersistClient, as_of: int | None = None) -> dict[str, str]:
    return schemas(StorageController(client), "orders", as_of)[1]


def ids(client: PersistClient) -> list[int]:
    return sorted(id_ for id_, _ in rows(client).elements())


def test_a_follower_decodes_with_the_texts_that_the_other_rendition_stored(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    topic.deletes = False
    client = stores.open()
    registry.register(2, LATER)
    feed = opened(client, topic, registry)
    drained(feed)
    controller = StorageController(client)
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2")
    follower = opened(client, topic, registry, "r2")
    drained(follower)
    topic.send("0", wire({**row(3), "more": "x"}, 2, LATER))
    drained(feed)
    # The registry is gone before the follower has seen the second schema.
    drained(opened(client, topic, "http://127.0.0.1:1", "r2"))
    two = controller.describe("orders").rendition("r2")
    upper = client.recent_upper(two.shards[0])
    assert upper == controller.frontiers("orders").upper
    with client.reader(two.shards[0], purpose="check") as reader:
        assert sorted(reader.snapshot(upper - 1).to_table()["id"].to_pylist()) == [1, 2, 3]


def test_texts_are_stored_with_the_rows_that_need_them(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    client = stores.open()
    registry.register(2, LATER)
    fed(client, topic, registry)
    assert ids(client) == [1, 2]
    assert kept(client) == {"1": json.dumps(ORDER)}
    before = offsets(StorageController(client), "orders")[0]
    topic.send("0", wire({**row(3), "more": "x"}, 2, LATER))
    fed(client, topic, registry)
    assert ids(client) == [1, 2, 3]
    assert kept(client) == {"1": json.dumps(ORDER), "2": json.dumps(LATER)}
    assert kept(client, before) == {"1": json.dumps(ORDER)}
    # A process that uses one in several steps stores it once.
    running = opened(client, topic, registry, batch={"maxRows": 1})
    registry.register(3, LATER)
    for id_ in (4, 5):
        topic.send("0", wire({**row(id_), "more": "x"}, 3, LATER))
        drained(running)
    topic.send("0", wire(row(6)))
    fed(client, topic, registry)
    remap = StorageController(client).describe("orders").holding.pipeline
    assert remap is not None
    with client.reader(remap.remap, purpose="check") as reader:
        stored = reader.snapshot(reader.upper() - 1).to_table()
    assert (stored.num_rows, set(stored[DIFF].to_pylist())) == (4, {1})
    # What shows the bindings shows no texts.
    assert positions(client) == {"0": 6}


@pytest.mark.parametrize("what", ["down", "forgets", "slow", "broken", "other text without meaning"])
def test_stored_texts_are_enough(stores: Stores, topic: Topic, registry: StandInRegistry, what: str) -> None:
    fed(stores.open(), topic, registry)
    match what:
        case "down":
            registry.stop()
        case "forgets":
            registry.schemas.clear()
        case "slow":
            registry.delay_s = 10
        case "broken":
            registry.always = (200, b"<html>")
        case _:
            registry.schemas[1]["schema"] = json.dumps(ORDER, indent=2, sort_keys=True)
    topic.send("0", wire(row(3)))
    fed(stores.open(), topic, registry)
    assert ids(stores.open()) == [1, 2, 3]


def test_another_text_for_a_stored_id_stalls(stores: Stores, topic: Topic, registry: StandInRegistry) -> None:
    running = opened(stores.open(), topic, registry)
    drained(running)
    registry.register(1, {**ORDER, "fields": list(reversed(ORDER["fields"]))})
    topic.send("0", wire(row(3)))
    # A process that runs has asked already.
    drained(running)
    with pytest.raises(SourceStalled, match="another text for schema 1") as caught:
        fed(stores.open(), topic, registry)
    assert "registry.url" in str(caught.value.hint)
    assert ids(stores.open()) == [1, 2, 3]
    registry.register(1, ORDER)
    topic.send("0", wire(row(4)))
    fed(stores.open(), topic, registry)
    assert ids(stores.open()) == [1, 2, 3, 4]


def test_two_instances_that_got_different_texts_do_not_both_commit(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    topic.deletes = False
    one, two = (opened(stores.open(), topic, registry) for _ in range(2))
    for each in (one, two):
        each.load()
    read = two._runner.read

    def late(*given: Any) -> Any:
        """The other one commits between what this one reads and its commit."""
        registry.register(1, {**ORDER, "fields": list(reversed(ORDER["fields"]))})
        try:
            return read(*given)
        finally:
            registry.register(1, ORDER)
            drained(one)

    two._runner.read = late  # type: ignore[method-assign]
    assert two.step().outcome.value == "lost"
    with pytest.raises(SourceStalled, match="another text for schema 1"):
        two.step()
    assert ids(stores.open()) == [1, 2]
    assert kept(stores.open()) == {"1": json.dumps(ORDER)}


@pytest.mark.parametrize("what", ["down", "503", "429", "slow", "cut"])
def test_a_registry_that_is_down_is_an_error_and_no_bad_record(
    stores: Stores, topic: Topic, registry: StandInRegistry, what: str
) -> None:
    client = stores.open()
    match what:
        case "down":
            registry.stop()
        case "slow":
            registry.delay_s = 2
        case "cut":
            registry.cut = True
        case _:
            registry.always = (int(what), b"secret of the server")
    running = opened(client, topic, registry)
    began = time.monotonic()
    with pytest.raises(
        StoreUnreachable, match=f"can't find schema 1: the schema registry at {registry.url}"
    ) as caught:
        running.step()
    assert 0.4 < time.monotonic() - began < 5
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    check_nothing(client)
    registry.always, registry.delay_s, registry.cut = None, 0, False
    if what == "down":
        registry.serve()
    drained(running)
    assert ids(client) == [1, 2]
    assert not bad(client)


def test_a_registry_that_comes_back_soon_is_waited_for(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    registry.responses = [(500, b""), (503, b"x"), (429, b"")]
    fed(stores.open(), topic, registry)
    registry.register(2, LATER)
    registry.stop()
    threading.Timer(0.2, registry.serve).start()
    topic.send("0", wire({**row(3), "more": ""}, 2, LATER))
    fed(stores.open(), topic, registry)
    assert ids(stores.open()) == [1, 2, 3]


def test_a_registry_that_is_away_is_one_line(
    registry: StandInRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.ingest.waits._SHOWN_AFTER_S", 0.05)
    said: list[str] = []
    asked = client_of_registry.Registry(RegistrySpec(registry.url), Waits(said.append))
    registry.responses = [(503, b"")] * 20
    assert asked.text("1") == json.dumps(ORDER)
    waiting = f"waiting for the schema registry at {registry.url}: it responds with status 503"
    assert said == [waiting, "going on after 0 s"]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b"<html>not found</html>", "status 404 and not as a schema registry does"),
        (404, b'{"error_code":404}', "status 404 and not"),
        (200, b"<html>log in</html>", "status 200 and not"),
        (200, b'{"schema":7}', "status 200 and not"),
        (200, b"[" * 100_000, "status 200 and not"),
        (302, b"", "status 302 and not"),
        (400, b"{}", "status 400 and not"),
        (403, b"{}", "does not accept this client: status 403"),
        (200, b"x" * (5 << 20), "its response is too large"),
    ],
)
def test_an_answer_that_is_not_that_of_a_registry_is_an_error(
    stores: Stores,
    topic: Topic,
    registry: StandInRegistry,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    told: str,
) -> None:
    # A busy machine needs more than a moment for the largest one.
    monkeypatch.setattr(client_of_registry, "_REQUEST_S", 5.0)
    registry.always = (status, body)
    with pytest.raises(StoreUnreachable, match=told):
        fed(stores.open(), topic, registry)
    check_nothing(stores.open())


def test_what_the_registry_does_not_know_is_a_bad_record(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    registry.register(3, ORDER, schemaType="PROTOBUF")
    registry.register(4, {**ORDER, "fields": [{"name": "id", "type": "string"}]})
    topic.send(
        "0",
        wire(row(5), 2),
        wire(row(6), 3),
        b"no magic",
        b"",
        wire({"id": "7"}, 4, {**ORDER, "fields": [{"name": "id", "type": "string"}]}),
    )
    topic.send("0", wire(row(8)))
    client = stores.open()
    running = opened(client, topic, registry)
    drained(running)
    assert ids(client) == [1, 2, 8]
    assert bad(client) == [("0", position, "decode") for position in range(2, 7)]
    # Nobody asks again for each message.
    assert registry.asked[3] < 20
    # Later it may know the id.
    running._texts._refused_s = -100
    registry.register(2, ORDER)
    topic.send("0", wire(row(9), 2))
    drained(running)
    assert ids(client) == [1, 2, 8, 9]


def test_a_schema_that_is_registered_a_moment_later_is_waited_for(
    stores: Stores, topic: Topic, registry: StandInRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_texts, "_NEW_S", 5.0)
    topic.send("0", wire({**row(3), "more": ""}, 2, LATER))
    threading.Timer(0.3, registry.register, (2, LATER)).start()
    fed(stores.open(), topic, registry)
    assert ids(stores.open()) == [1, 2, 3]


MONEY: dict[str, Any] = {
    "type": "record",
    "name": "shop.Money",
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "in", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}},
    ],
}
LINE: dict[str, Any] = {
    "type": "record",
    "name": "Line",
    "namespace": "shop",
    "fields": [{"name": "price", "type": "Money"}, {"name": "tax", "type": ["null", "shop.Money"]}],
}
BILL: dict[str, Any] = {
    "type": "record",
    "name": "Bill",
    "namespace": "shop.bills",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "currency", "type": "shop.Currency"},
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
        {"name": "total", "type": ["null", "shop.Money"]},
    ],
}
BILLS = Schema.of(key={"id": "int64"}, value={"currency": "string", "lines": "string", "total": "string?"})


def refers(*subjects: str, version: int = 1) -> list[dict[str, Any]]:
    return [{"name": f"shop.{each}", "subject": each, "version": version} for each in subjects]


def bill(id_: int, money: dict[str, Any] = MONEY) -> bytes:
    """A message whose schema refers to two others, of which one refers to the other."""
    cents = {"cents": id_, "in": "EUR"}
    record = {"id": id_, "currency": "USD", "lines": [{"price": cents, "tax": None}], "total": cents}
    named: dict[str, Any] = {}
    for each in (money, LINE):
        fastavro.parse_schema(each, named_schemas=named)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(BILL, named_schemas=named), record)
    return b"\0" + (1).to_bytes(4, "big") + stream.getvalue()


@pytest.fixture
def bills() -> Iterator[StandInRegistry]:
    with StandInRegistry() as registry:
        registry.register_version("Money", 1, MONEY)
        registry.register_version("Line", 1, LINE, references=refers("Money"))
        registry.register(1, BILL, references=refers("Line", "Money"))
        yield registry


def bills_of(client: PersistClient) -> list[tuple[int, str, str]]:
    return [(id_, total, currency) for id_, currency, _, total in sorted(rows(client).elements())]


def test_what_a_schema_refers_to_is_stored_with_it(bills: StandInRegistry) -> None:
    stores, topic = Stores(), Topic()
    client = stores.open()
    created(client, schema=BILLS)
    topic.send("0", bill(1))
    fed(client, topic, bills)
    assert bills_of(client) == [(1, '{"cents":1,"in":"EUR"}', "USD")]
    assert [each[2] for each in rows(client)] == ['[{"price":{"cents":1,"in":"EUR"},"tax":null}]']
    (text,) = kept(client).values()
    assert [each.schema for each in unbundled(text)[1]] == [json.dumps(MONEY), json.dumps(LINE)]
    # From now on they count, also if the registry is gone or has lost what the schema refers to.
    topic.send("0", bill(2))
    fed(client, topic, "http://127.0.0.1:1")
    lost, bills.subjects = bills.subjects, {}
    topic.send("0", bill(3))
    fed(client, topic, bills)
    assert [id_ for id_, *_ in bills_of(client)] == [1, 2, 3]
    bills.subjects = lost
    bills.register_version("Money", 1, {**MONEY, "doc": "other"}, references=[])
    topic.send("0", bill(4))
    with pytest.raises(SourceStalled, match="the schema registry has another text for schema 1"):
        fed(client, topic, bills)
    bills.register_version("Money", 1, dict(reversed(MONEY.items())))
    fed(client, topic, bills)
    assert [id_ for id_, *_ in bills_of(client)] == [1, 2, 3, 4]


@pytest.mark.parametrize("which", range(3))
def test_a_registry_that_fails_between_references_is_asked_again(bills: StandInRegistry, which: int) -> None:
    stores, topic = Stores(), Topic()
    created(stores.open(), schema=BILLS)
    topic.send("0", bill(1))
    good = [json.dumps(each).encode() for each in (bills.schemas[1], bills.subjects["Line"][1])]
    bills.responses = [*((200, each) for each in good[:which]), (503, b"")]
    fed(stores.open(), topic, bills)
    assert [id_ for id_, *_ in bills_of(stores.open())] == [1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"Money": {"references": refers("Line")}},
            "refers to version 1 of subject Line, which needs itself",
        ),
        (
            {"Line": {"references": refers("Money", version=2)}},
            "refers to version 2 of subject Money, which the registry doesn't have",
        ),
        (
            {"Line": {"references": refers("Other")}},
            "refers to version 1 of subject Other, which the registry doesn't have",
        ),
        ({"Money": {"schemaType": "JSON"}}, "refers to version 1 of subject Money, which is JSON"),
        (
            {"Line": {"references": [{"name": "shop.Money", "subject": "Old", "version": 3}]}},
            "refers to two schemas of shop.Money: version 3 of subject Old, and version 1 of subject Money",
        ),
        (
            {
                "Line": {
                    "references": [{"name": f"n{n}", "subject": f"s{n}", "version": 1} for n in range(200)]
                }
            },
            "refers to more than 100 schemas",
        ),
        ({"Money": {"schema": " " * (3 << 20)}, "Line": {"schema": " " * (3 << 20)}}, "characters"),
    ],
)
def test_references_that_can_not_be_used_are_one_clear_line(
    bills: StandInRegistry, changes: dict[str, dict[str, Any]], told: str
) -> None:
    stores, topic = Stores(), Topic()
    created(stores.open(), schema=BILLS)
    topic.send("0", bill(1))
    bills.register_version("Old", 3, MONEY)
    for number in range(200):
        bills.register_version(f"s{number}", 1, MONEY)
    for subject, fields in changes.items():
        bills.subjects[subject][1] |= fields
    with pytest.raises(SourceStalled, match="schema 1 of the schema registry at ") as stalled:
        fed(stores.open(), topic, bills)
    assert told in str(stalled.value)
    assert "\n" not in str(stalled.value)
    check_nothing(stores.open())


def test_a_reference_without_a_type_that_is_used_is_a_bad_record(bills: StandInRegistry) -> None:
    stores, topic = Stores(), Topic()
    created(stores.open(), schema=BILLS)
    topic.send("0", bill(1))
    bills.register_version("Line", 1, {**LINE, "fields": [{"name": "price", "type": "Mony"}]})
    fed(stores.open(), topic, bills)
    (reason,) = errors(StorageController(stores.open()), "orders")[1]["reason"].to_pylist()
    assert reason == (
        "its schema 1 can't be used: version 1 of subject Line, to which it refers: it has no type Mony"
    )


def test_a_reference_that_is_no_reference_is_an_error(bills: StandInRegistry) -> None:
    stores, topic = Stores(), Topic()
    created(stores.open(), schema=BILLS)
    topic.send("0", bill(1))
    bills.schemas[1]["references"] = [{"name": "shop.Line"}]
    with pytest.raises(StoreUnreachable, match="a reference has no name, subject and version"):
        fed(stores.open(), topic, bills)


def test_a_password_reaches_the_registry_and_no_message(
    stores: Stores, topic: Topic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("pa:ss-wörd\n")
    with StandInRegistry("me", "pa:ss-wörd") as registry:
        registry.register(1, ORDER)
        block = {"registry": {"url": f"{registry.url}/", "user": "me"}, "keys": "json"}
        with pytest.raises(StoreUnreachable, match="does not accept this client: status 401") as caught:
            fed(stores.open(), topic, "", format={"avro": block})
        assert "user and password" in str(caught.value.hint)
        block["registry"] = {**block["registry"], "passwordEnv": "REGISTRY"}  # type: ignore[dict-item]
        with pytest.raises(BadInput, match="the environment variable REGISTRY with the password"):
            fed(stores.open(), topic, "", format={"avro": block})
        monkeypatch.setenv("REGISTRY", "wrong-secret")
        with pytest.raises(StoreUnreachable) as caught:
            fed(stores.open(), topic, "", format={"avro": block})
        assert "wrong-secret" not in f"{caught.value!r} {caught.value.hint}"
        block["registry"] = {"url": registry.url, "user": "me", "passwordFile": str(tmp_path / "password")}
        fed(stores.open(), topic, "", format={"avro": block})
    assert ids(stores.open()) == [1, 2]


def test_user_and_password_come_from_a_secret(
    stores: Stores, topic: Topic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRETS", str(tmp_path))
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry/username").write_text("me")
    with StandInRegistry("me", "hunter2") as registry:
        registry.register(1, ORDER)
        block = {"registry": {"url": registry.url, "secretRef": {"name": "registry"}}, "keys": "json"}
        with pytest.raises(BadInput, match=r"no key password, which source.format.avro.registry.secretRef"):
            fed(stores.open(), topic, "", format={"avro": block})
        (tmp_path / "registry/password").write_text("hunter2\n")
        fed(stores.open(), topic, "", format={"avro": block})
    assert ids(stores.open()) == [1, 2]
    (tmp_path / "registry/ca.crt").write_text("no certificate")
    block["registry"] = {"url": "https://127.0.0.1:1", "secretRef": {"name": "registry"}}
    with pytest.raises(BadInput, match=r"ca\.crt of Secret registry can't be used"):
        fed(stores.open(), topic, "other", format={"avro": block})


def test_upsert_with_keys_of_avro(stores: Stores, registry: StandInRegistry) -> None:
    registry.register(2, ORDER_KEY)
    registry.register(3, "long")
    topic, client = Topic(), stores.open()
    block = {"format": {"avro": {"registry": {"url": registry.url}}}, "envelope": "Upsert"}

    def send(key: bytes, value: bytes | None) -> None:
        topic.partitions.setdefault("0", []).append((key, value))

    for id_ in (1, 2, 3):
        send(wire({"id": id_}, 2, ORDER_KEY), wire(row(id_)))
    fed(client, topic, "", **block)
    send(wire({"id": 1}, 2, ORDER_KEY), None)
    send(wire(2, 3, "long"), None)
    send(wire({"id": 3}, 2, ORDER_KEY), b"bad")
    send(b"no key", None)
    fed(client, topic, "", **block)
    assert ids(client) == []
    assert bad(client) == [("0", 5, "decode"), ("0", 6, "decode")]
    # The keys' schemas are stored too.
    assert set(kept(client)) == {"1", "2", "3"}
    send(wire({"id": 3}, 2, ORDER_KEY), wire(row(3, "good")))
    fed(client, topic, "", **block)
    assert ids(client) == [3]
    assert bad(client) == [("0", 6, "decode")]


def test_a_schema_file_is_stored_and_may_not_change(stores: Stores, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    topic, block = Topic(), {"format": {"avro": {"schemaFile": str(file)}}}
    topic.send("0", bare(row(1)), b"\xff", bare(row(2)))
    fed(stores.open(), topic, "", **block)
    assert ids(stores.open()) == [1, 2]
    assert bad(stores.open()) == [("0", 1, "decode")]
    assert kept(stores.open()) == {"schemaFile": json.dumps(ORDER)}
    file.write_text(json.dumps(ORDER, indent=1))
    topic.send("0", bare(row(3)))
    fed(stores.open(), topic, "", **block)
    file.write_text(json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))
    with pytest.raises(SourceStalled, match="schemaFile has another schema"):
        fed(stores.open(), topic, "", **block)
    assert ids(stores.open()) == [1, 2, 3]
    file.unlink()
    with pytest.raises(BadInput, match=f"can't read source.format.avro.schemaFile {file}: No such file"):
        fed(stores.open(), topic, "", **block)


def test_another_rendition_takes_the_texts_of_the_first(
    stores: Stores, topic: Topic, registry: StandInRegistry
) -> None:
    """A second decoder doesn't depend on the registry."""
    client = stores.open()
    topic.deletes = False
    fed(client, topic, registry)
    controller = StorageController(client)
    controller.renditions.create("c1", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id="r2")
    registry.stop()
    texts = opened(client, topic, registry)._texts
    texts.require(["1"])
    assert texts.use("1") == json.dumps(ORDER)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_a_fault_at_any_write_changes_nothing(fault: Fault, registry: StandInRegistry) -> None:
    """Texts are there with the rows that need them, and never without."""
    registry.register(2, LATER)
    sent = [
        wire(row(1)),
        wire({**row(2), "more": ""}, 2, LATER),
        wire(row(3)),
        wire({**row(4), "more": ""}, 2, LATER),
    ]
    for number in range(60):
        stores, topic = Stores(), Topic()
        created(stores.open())
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            feed_all(stores.open(plan), topic, sent, registry)
        except (StorageError, ProcessDeath):
            check_texts(stores.open())
            feed_all(stores.open(), topic, sent, registry)
        assert ids(stores.open()) == [1, 2, 3, 4]
        assert kept(stores.open()) == {"1": json.dumps(ORDER), "2": json.dumps(LATER)}
        if plan.seen <= number:
            assert number > 3
            return
    raise AssertionError("the work never ends")


def check_texts(client: PersistClient) -> None:
    """The texts are those of the rows that are there: they came in the same commits."""
    try:
        found = ids(client)
    except AsOfNotYetAvailable:
        return
    assert set(kept(client)) == {"2" if id_ % 2 == 0 else "1" for id_ in found}


def check_nothing(client: PersistClient) -> None:
    with pytest.raises(AsOfNotYetAvailable):
        rows(client)


def feed_all(client: PersistClient, topic: Topic, sent: list[bytes], registry: StandInRegistry) -> None:
    """Send and feed one message at a time. What was sent before is not sent again."""
    while True:
        fed(client, topic, registry)
        done = len(topic.partitions.get("0", []))
        if done == len(sent):
            return
        topic.send("0", sent[done])


@pytest.mark.parametrize(
    ("avro", "told"),
    [
        ({}, "source.format.avro must have one of registry and schemaFile"),
        ({"registry": {"url": "http://r"}, "schemaFile": "x"}, "must have one of registry and schemaFile"),
        ({"registry": {}}, "source.format.avro.registry.url is missing"),
        ({"registry": {"url": "kafka:8081"}}, "registry.url must be http://host:port"),
        ({"registry": {"url": "http://r:x"}}, "registry.url must be http://host:port"),
        ({"registry": {"url": "http://me:secret@r"}}, "a secret that a spec may not have"),
        ({"registry": {"url": "http://r", "password": "secret"}}, "a secret, which a spec may not have"),
        ({"registry": {"url": "http://r", "passwordEnv": "X"}}, "has a password but no user"),
        ({"registry": {"url": "http://r", "x": 1}}, "unknown field 'x'"),
        ({"registry": {"url": "http://r"}, "keys": "csv"}, "keys is 'csv', expected one of avro, json"),
        ({"schemaFile": "f", "keys": "avro"}, "unknown field 'keys'"),
    ],
)
def test_a_bad_field_is_named(avro: dict[str, Any], told: str) -> None:
    kafka = {"bootstrapServers": "b:1", "topic": "t"}
    with pytest.raises(BadInput, match=told) as caught:
        parse({"kafka": kafka, "format": {"avro": avro}})
    assert "secret@" not in str(caught.value)


def test_what_a_rendition_is_made_from_says_where_schemas_and_keys_are(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(json.dumps(ORDER))
    forms = [
        {"registry": {"url": "http://r"}},
        {"registry": {"url": "http://r"}, "keys": "json"},
        {"schemaFile": str(tmp_path / "f")},
    ]
    kafka = {"bootstrapServers": "b:1", "topic": "t"}
    assert len({made_from(parse({"kafka": kafka, "format": {"avro": each}})) for each in forms}) == 3
    # Another address of the registry changes nothing.
    other = parse({"kafka": kafka, "format": {"avro": {"registry": {"url": "http://other"}}}})
    assert made_from(other) == made_from(parse({"kafka": kafka, "format": {"avro": forms[0]}}))


def test_files_have_their_schemas() -> None:
    assert parse({"files": {"path": "/in"}, "format": {"avro": {}}}).format == "avro"
    with pytest.raises(BadInput, match=r"source\.format\.avro\.schemaFile is not for files"):
        parse({"files": {"path": "/in"}, "format": {"avro": {"schemaFile": "x"}}})


def test_a_ca_file_must_exist(tmp_path: Path) -> None:
    registry = {"url": "https://r", "caFile": str(tmp_path / "no")}
    spec = parse(
        {"kafka": {"bootstrapServers": "b:1", "topic": "t"}, "format": {"avro": {"registry": registry}}}
    )
    with pytest.raises(BadInput, match=r"caFile .* can't be used: No such file"):
        format_of(spec, Schema.of({"id": "int64"}, {}))


def test_container_files_feed_a_collection(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "1.avro").write_bytes(container([row(1), row(2)], codec="deflate"))
    (tmp_path / "2.avro").write_bytes(b"none")
    spec = parse({"files": {"path": str(tmp_path), "pattern": "*.avro"}, "format": {"avro": {}}})
    controller = StorageController(stores.open())
    with ingestion_of(controller, "orders", spec) as ingestion:
        drained(ingestion)
    assert ids(stores.open()) == [1, 2]
    assert bad(stores.open()) == [("2.avro", 0, "file")]
    assert kept(stores.open()) == {}


@pytest.mark.kafka
def test_the_page_does_what_it_says(tmp_path: Path, kafka: Broker) -> None:
    topic = KafkaTopic(kafka, name="avro-orders")
    schema = {**ORDER, "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}]}
    for item in ("fig", "apple"):
        topic.send(wire({"id": 1, "item": item}, 1, schema), key=wire({"id": 1}, 2, ORDER_KEY))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with StandInRegistry() as registry:
        registry.register(1, schema)
        registry.register(2, ORDER_KEY)
        places = {"localhost:9092": kafka.servers, "http://localhost:8081": registry.url}
        with PageRun(tmp_path, environment={**os.environ, "PATH": path}, places=places) as run:
            (tmp_path / "data" / "orders").mkdir()
            (tmp_path / "data" / "orders" / "monday.avro").write_bytes(container([row(1)]))
            docpages.run("docs/how-to/ingest-avro.md", run)


def test_nothing_imports_fastavro_before_it_is_needed() -> None:
    code = "import sys, holdfast.ingest, holdfast.cli.ingest; assert 'fastavro' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tls_needs_an_authority_that_is_trusted(
    stores: Stores, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_of_registry, "OPEN_S", 60.0)
    keys = pki.create(tmp_path, names=("localhost",), addresses=("127.0.0.1",))
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(keys.server_certificate, keys.server_key)
    with StandInRegistry(tls=serving) as registry:
        registry.register(1, ORDER)
        trusting = {"registry": {"url": registry.url, "caFile": str(keys.ca)}, "keys": "json"}
        began = time.monotonic()
        with pytest.raises(StoreUnreachable, match="certificate"):
            fed(stores.open(), topic, registry)
        # Time changes nothing about that.
        assert time.monotonic() - began < 30
        fed(stores.open(), topic, "", format={"avro": trusting})
    assert ids(stores.open()) == [1, 2]


def test_what_a_registry_returns_for_a_schema_is_no_bundle() -> None:
    text = json.dumps({"schema": '"string"', "references": [{"name": "a", "subject": "b", "version": 1}]})
    assert unbundled(text) == (text, ())
