"""Kills of ingesting processes and of the broker, while a producer goes on: each message counts once."""

import contextlib
import json
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest

import holdfast
from holdfast.collections import StorageController
from holdfast.errors import AsOfNotYetAvailable, CollectionNotFound
from holdfast.ingest.kept import schemas as schemas_kept
from holdfast.persist import PersistClient
from testbed.kafka import Kafka as Broker
from testbed.standinregistry import StandInRegistry
from unit.ingest.avromessages import ORDER, wire
from unit.ingest.kafkatopic import DEADLINE_S, KafkaTopic, put
from unit.ingest.test_ingest_cli import ingested, started, wait_for_line

pytestmark = pytest.mark.kafka

PARTITIONS: Final = 3


class Orders:
    """A producer that goes on in a thread, and which messages the broker acknowledged."""

    def __init__(
        self, topic: KafkaTopic, keys: int = 0, encode: Callable[[dict[str, Any]], object] = lambda row: row
    ) -> None:
        self._topic = topic
        self._keys = keys
        self._encode = encode
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        # An idempotent producer sends nothing twice, so what is acknowledged is there once.
        producer = self._topic.broker.producer(
            self._note, enable_idempotence=True, linger_ms=5, reconnect_backoff_max_ms=500
        )
        number = 0
        while not self._ended.wait(0.02):
            for _ in range(1 + number % 7):
                row = {"id": number % self._keys if self._keys else number, "name": str(number)}
                partition = row["id"] % PARTITIONS  # type: ignore[operator]
                put(producer, self._topic.name, partition, self._encode(row), {"id": row["id"]})
                number += 1
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0

    def _note(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(re.findall(rb"\d+", message.value())[-1]))
        else:
            self.failed.append(str(error))


def location(folder: Path, topic: KafkaTopic, envelope: str, form: dict[str, Any] | None = None) -> None:
    block = {
        "kafka": topic.block(),
        "format": form or {"json": {}},
        "envelope": envelope,
        "run": {"interval": "20ms"},
        "batch": {"maxRows": 200},
    }
    spec = {
        "collection": "orders",
        "key": {"id": "int64"},
        "columns": {"name": "string?"},
        "source": block,
    }
    (folder / "orders.yaml").write_text(json.dumps(spec))


def rows(folder: Path) -> Counter[tuple[int, str]]:
    with holdfast.table(f"file://{folder}/location", "orders") as table:
        found = table.read().to_pylist()
    return Counter((row["id"], row["name"]) for row in found)


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
@pytest.mark.long
def test_kills_of_instances_lose_and_repeat_nothing(tmp_path: Path, kafka: Broker, envelope: str) -> None:
    topic = KafkaTopic(kafka, PARTITIONS)
    keys = 20 if envelope == "Upsert" else 0
    location(tmp_path, topic, envelope)
    with Orders(topic, keys) as orders:
        seed = kill_instances(tmp_path, topic)
    check(tmp_path, orders, keys, f"seed {seed}")


@pytest.mark.long
def test_kills_while_schemas_change_and_the_registry_forgets(tmp_path: Path, kafka: Broker) -> None:
    """The registry has each schema only until the collection has it."""
    topic = KafkaTopic(kafka, PARTITIONS)
    schemas = [
        {**ORDER, "fields": [*({"name": f"x{n}", "type": "null"} for n in range(id_)), *ORDER["fields"]]}
        for id_ in range(1, 40)
    ]

    def encode(row: dict[str, Any]) -> bytes:
        id_ = min(int(row["name"]) // 100 + 1, len(schemas))
        return wire(row, id_, schemas[id_ - 1])

    with StandInRegistry() as registry:
        for id_, schema in enumerate(schemas, 1):
            registry.register(id_, schema)
        location(tmp_path, topic, "None", {"avro": {"registry": {"url": registry.url}, "keys": "json"}})
        with Orders(topic, encode=encode) as orders:
            seed = kill_instances(tmp_path, topic, forgetting(tmp_path, registry))
        check(tmp_path, orders, 0, f"seed {seed}")
    assert len(stored(tmp_path)) > 1


def forgetting(folder: Path, registry: StandInRegistry) -> Callable[[], None]:
    def forget() -> None:
        for id_ in stored(folder):
            registry.schemas.pop(int(id_), None)

    return forget


def stored(folder: Path) -> dict[str, str]:
    """The schema texts in the collection."""
    with PersistClient.open(f"file://{folder}/location") as client:
        try:
            return schemas_kept(StorageController(client), "orders")[1]
        except (AsOfNotYetAvailable, CollectionNotFound):
            return {}


def kill_instances(folder: Path, topic: KafkaTopic, between: Callable[[], None] = lambda: None) -> int:
    """Kill one of two instances again and again, at random times. Returns the seed."""
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    processes = [started(folder) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [(each.kill(), each.communicate()) for each in processes])
        for _ in range(8):
            time.sleep(0.5 + draw.random() * 1.5)
            victim = draw.randrange(2)
            check_alive(folder, processes[victim])
            processes[victim].kill()
            processes[victim].communicate()
            between()
            processes[victim] = started(folder)
            # What was acknowledged to Kafka may be deleted at any time.
            topic.delete_below({name: each for name, each in topic.committed().items() if each > 0})
    return seed


@pytest.mark.long
def test_a_killed_broker_loses_and_repeats_nothing(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that does not end shows its stack on SIGABRT.
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    topic = KafkaTopic(kafka, PARTITIONS)
    location(tmp_path, topic, "None")
    process = started(tmp_path)
    try:
        with Orders(topic) as orders:
            for _ in range(2):
                wait_for_more(tmp_path, topic, process)
                kafka.kill()
                wait_for_line(tmp_path, f"waiting for Kafka at {kafka.servers}: ")
                kafka.serve()
            wait_for_more(tmp_path, topic, process)
        wait_for_line(tmp_path, "going on after ")
        kafka.kill()
        try:
            # The wait for a broker lasts up to a minute. A stop ends it.
            time.sleep(1)
            process.terminate()
            assert wait_for_end(tmp_path, process) == 0
        finally:
            kafka.serve()
    finally:
        process.kill()
        process.communicate()
    check(tmp_path, orders, 0, "after the broker came back")


def wait_for_end(folder: Path, process: subprocess.Popen[str]) -> int:
    """The exit code of a process that was told to end. Fails with its stack if it doesn't."""
    try:
        return process.wait(15)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait(15)
        pytest.fail(f"it has not ended after 15 s: {(folder / 'stderr').read_text()[-10_000:]}")


def check_alive(folder: Path, process: subprocess.Popen[str]) -> None:
    """Fail with the last words of a process that ended by itself."""
    assert process.poll() is None, (folder / "stderr").read_text()[-2000:]


def wait_for_more(folder: Path, topic: KafkaTopic, process: subprocess.Popen[str]) -> None:
    """Wait until something is read and acknowledged."""
    before, deadline = sum(topic.committed().values()), time.monotonic() + DEADLINE_S
    while sum(topic.committed().values()) <= before + 20:
        check_alive(folder, process)
        assert time.monotonic() < deadline, f"nothing was read: {(folder / 'stderr').read_text()[-2000:]}"
        time.sleep(0.1)


def check(folder: Path, orders: Orders, keys: int, told: str) -> None:
    """The collection has what was acknowledged, each message once, or the last one of each key."""
    result = ingested(folder)
    assert result.exit_code == 0, f"{told}: {result.stderr}"
    assert orders.failed == [], told
    acknowledged = sorted(orders.acknowledged)
    assert len(acknowledged) > 100
    if keys:
        last = {number % keys: str(number) for number in acknowledged}
        assert rows(folder) == Counter(last.items()), told
    else:
        assert rows(folder) == Counter((number, str(number)) for number in acknowledged), told
