"""A topic of a real Kafka broker, as those who write to it and delete from it see it."""

import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import NewPartitions

from holdfast.ingest.sources.kafka import Kafka
from holdfast.ingest.spec import KafkaSpec, parse
from holdfast.ingest.waits import Waits
from testbed.kafka import Kafka as Broker

DEADLINE_S: Final = 60.0


class KafkaTopic:
    """Messages are dicts as JSON, bytes as they are, or None."""

    def __init__(self, broker: Broker, partitions: int = 1, name: str | None = None, **settings: str) -> None:
        self.broker = broker
        self.name = broker.make_topic(partitions, name, **{"retention_ms": "-1", **settings})
        self.group = f"group-{self.name}"
        self._producer = broker.producer(linger_ms=0)

    def send(self, *rows: object, partition: int = 0, key: object = None, at: int = 0) -> None:
        """Send messages, and wait until the broker has them. `at` is their timestamp."""
        for row in rows:
            put(self._producer, self.name, partition, row, key, at)
        assert self._producer.flush(DEADLINE_S) == 0

    def transaction(self) -> Any:
        """A producer with a transaction that has begun."""
        producer = self.broker.producer(transactional_id=f"t-{time.monotonic_ns()}")
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        return producer

    def block(self, **changed: Any) -> dict[str, Any]:
        """The block `kafka` of a spec."""
        return {
            "bootstrapServers": self.broker.servers,
            "topic": self.name,
            "group": self.group,
            **changed,
        }

    def source(self, **changed: Any) -> Kafka:
        """A new source, as that of another process."""
        spec = parse({"kafka": self.block(**changed), "format": {"json": {}}}).source
        assert isinstance(spec, KafkaSpec)
        return Kafka(spec, spec.group, Waits())

    def delete_below(self, offsets: Mapping[int, int]) -> None:
        """Delete the messages below these offsets, as retention does."""
        wanted = [TopicPartition(self.name, partition, offset) for partition, offset in offsets.items()]
        for future in self.broker.admin.delete_records(wanted).values():
            future.result(DEADLINE_S)

    def committed(self) -> dict[int, int]:
        """The offsets of the consumer group."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                partitions = self.broker.admin.list_topics(self.name, 5).topics[self.name].partitions
                wanted = [TopicPartition(self.name, each) for each in partitions]
                found = self._of_group.committed(wanted, timeout=5)
                return {each.partition: each.offset for each in found if each.offset >= 0}
            except KafkaException:
                # A broker that has just started may not have read its groups yet.
                assert time.monotonic() < deadline
                time.sleep(0.1)

    @cached_property
    def _of_group(self) -> Consumer:
        """A consumer that only asks. An admin client that asks ends its process if the broker restarts.

        librdkafka 2.16 then looks for the group of the client, and an admin client has none.
        """
        return Consumer({"bootstrap.servers": self.broker.servers, "group.id": self.group, "log_level": 0})

    def add_partitions(self, total: int) -> None:
        """Give it more partitions."""
        self.broker.admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while len(self.broker.admin.list_topics(self.name).topics[self.name].partitions) < total:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # The old one does not know them yet.
        self._producer = self.broker.producer(linger_ms=0)

    def delete(self) -> None:
        """Delete the topic."""
        self.broker.admin.delete_topics([self.name])[self.name].result(DEADLINE_S)

    def recreate(self, partitions: int = 1) -> None:
        """Delete it, and create another one of its name."""
        self.delete()
        deadline = time.monotonic() + DEADLINE_S
        while self.name in self.broker.admin.list_topics().topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.broker.make_topic(partitions, self.name)


def put(producer: Any, topic: str, partition: int, row: object, key: object = None, at: int = 0) -> None:
    """Hand a message to a producer."""
    value = row if row is None or isinstance(row, bytes) else json.dumps(row).encode()
    encoded = key if key is None or isinstance(key, bytes) else json.dumps(key).encode()
    producer.produce(topic, value, encoded, partition, timestamp=at)
