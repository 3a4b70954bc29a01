"""Transactions of Debezium in topics of a real broker, as JSON and as Avro."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.ingest import IngestStep, ingest_source
from testbed.kafka import Kafka as Broker
from testbed.standinregistry import StandInRegistry
from unit.ingest.avromessages import ORDER_KEY, wire
from unit.ingest.formats.test_debezium import EVENT
from unit.ingest.kafkatopic import KafkaTopic
from unit.ingest.pipelines import SCHEMA, row

pytestmark = pytest.mark.kafka

SOURCE: dict[str, Any] = {
    "type": "record",
    "name": "Source",
    "fields": [{"name": name, "type": "string"} for name in ("connector", "db", "schema", "table")],
}
BLOCK: dict[str, Any] = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
}
IN_AVRO: dict[str, Any] = {
    **EVENT,
    "fields": [
        *EVENT["fields"][:2],
        {"name": "source", "type": SOURCE},
        *EVENT["fields"][3:],
        {"name": "transaction", "type": ["null", BLOCK], "default": None},
    ],
}
COUNT: dict[str, Any] = {
    "type": "record",
    "name": "collection",
    "namespace": "event",
    "fields": [{"name": "data_collection", "type": "string"}, {"name": "event_count", "type": "long"}],
}
BOUND: dict[str, Any] = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "namespace": "io.debezium.connector.common",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {"name": "data_collections", "type": ["null", {"type": "array", "items": COUNT}], "default": None},
        {"name": "ts_ms", "type": "long"},
    ],
}
TABLE = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders"}


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry() as registry:
        for id_, schema in ((1, IN_AVRO), (2, ORDER_KEY), (3, BOUND)):
            registry.register(id_, schema)
        yield registry


class Connector:
    """Writes events of a table, and where its transactions end."""

    def __init__(self, broker: Broker, encode: Callable[[Any, int, Any], bytes], partitions: int = 1) -> None:
        self.orders = KafkaTopic(broker, partitions)
        self.ends = KafkaTopic(broker)
        self._encode = encode
        self._partitions = partitions

    def event(self, id_: str, order: int, key: int, name: str) -> None:
        told = {"id": id_, "total_order": order, "data_collection_order": order}
        event = {"op": "c", "before": None, "after": row(key, name), "source": TABLE, "ts_ms": 1}
        self.orders.send(
            self._encode({**event, "transaction": told}, 1, IN_AVRO),
            partition=key % self._partitions,
            key=self._encode({"id": key}, 2, ORDER_KEY),
        )

    def bound(self, id_: str, counts: Mapping[str, int] | None) -> None:
        listed = [{"data_collection": name, "event_count": count} for name, count in (counts or {}).items()]
        event = {"id": id_, "ts_ms": 1, "event_count": None}
        event |= (
            {"status": "BEGIN", "data_collections": None}
            if counts is None
            else {
                "status": "END",
                "event_count": sum(counts.values()),
                "data_collections": listed,
            }
        )
        self.ends.send(self._encode(event, 3, BOUND))

    def source(self, **changed: Any) -> dict[str, Any]:
        return {
            "kafka": self.orders.block(transactions=self.ends.name),
            "format": {"json": {}},
            "envelope": "Debezium",
            "run": {"interval": "50ms", "progressInterval": "0s"},
            **changed,
        }


def as_json(value: Any, _: int, __: Any) -> bytes:
    return json.dumps(value).encode()


def fed(url: str, source: dict[str, Any]) -> list[IngestStep]:
    steps: list[IngestStep] = []
    ingest_source(url, "orders", source, schema=SCHEMA, once=True, on_step=steps.append)
    return steps


def contents(url: str) -> dict[int, str]:
    with holdfast.table(url, "orders", mode="read") as orders:
        found = orders.read()
    return dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ingest.whole.WholeTransactions.patience_s", 0.5)


@pytest.mark.parametrize("encode", [as_json, pytest.param(wire, marks=pytest.mark.long)])
def test_a_collection_has_whole_transactions(
    tmp_path: Path, kafka: Broker, registry: StandInRegistry, encode: Callable[[Any, int, Any], bytes]
) -> None:
    connector = Connector(kafka, encode, 2)
    form = {"json": {}} if encode is as_json else {"avro": {"registry": {"url": registry.url}}}
    source, url = connector.source(format=form), f"file://{tmp_path}/location"
    connector.bound("7:100", None)
    for order in (1, 2, 3):
        connector.event(f"7:{order}", order, order, "a")
    connector.bound("7:104", {"public.orders": 3, "public.customers": 2})
    connector.bound("8:200", None)
    connector.event("8:201", 1, 1, "b")
    assert "waits for its END" in fed(url, source)[-1].waits
    assert contents(url) == {1: "a", 2: "a", 3: "a"}
    connector.bound("8:209", {"public.orders": 2})
    assert "waits for 1 of its 2 events" in fed(url, source)[-1].waits
    assert contents(url) == {1: "a", 2: "a", 3: "a"}
    connector.event("8:202", 2, 2, "b")
    fed(url, source)
    assert contents(url) == {1: "b", 2: "b", 3: "a"}


@pytest.mark.long
def test_the_command_says_what_waits_and_which_topic_is_not_there(tmp_path: Path, kafka: Broker) -> None:
    connector = Connector(kafka, as_json)
    connector.bound("7", None)
    connector.event("7", 1, 1, "a")
    url = f"file://{tmp_path}/location"
    spec = {"collection": "orders", "key": {"id": "int64"}, "columns": {"name": "string?"}}
    file = tmp_path / "orders.yaml"
    file.write_text(json.dumps({**spec, "source": connector.source()}))
    result = CliRunner().invoke(main, ["ingest", str(file), "--once", "--url", url])
    assert result.exit_code == 0, result.output
    told = (
        f"transaction 7 (public.orders, from message 0:0 on) waits for its END in topic {connector.ends.name}"
    )
    assert result.output.count(told) == 1
    source = connector.source(kafka=connector.orders.block(transactions="shop.missing"))
    with pytest.raises(BadInput, match=r"can't read the topic of transactions shop.missing: .* exist"):
        fed(url, source)
