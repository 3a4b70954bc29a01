"""The clients of librdkafka end when they are closed, and not when garbage is collected."""

import gc
import time
import weakref

from confluent_kafka import TopicPartition

from holdfast.ingest import parse
from holdfast.ingest.sources.kafka_client import KafkaClient
from holdfast.ingest.spec import KafkaSpec
from holdfast.ingest.waits import Waits


def to_nobody(waits: Waits) -> KafkaClient:
    """A client of a broker that doesn't listen."""
    spec = parse({"kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "t"}, "format": {"json": {}}}).source
    assert isinstance(spec, KafkaSpec)
    return KafkaClient(spec, "group", waits)


def test_a_commit_that_no_broker_takes_does_not_delay_the_end() -> None:
    waits = Waits()
    waits.stopped = lambda _: True
    client = to_nobody(waits)
    assert client.committed([TopicPartition("t", 0, 1)]) is not None
    began_s = time.monotonic()
    client.close()
    # Librdkafka waits for 45 s by default.
    assert time.monotonic() - began_s < 10


def test_a_client_is_part_of_no_cycle() -> None:
    # The request is pending when the client ends.
    gc.disable()
    try:
        client = to_nobody(Waits())
        admin, whole = weakref.ref(client.admin), weakref.ref(client)
        pending = client.admin.describe_cluster(request_timeout=1)
        client.close()
        assert admin() is None
        assert pending.exception(timeout=10) is not None
        # Nothing else refers to the consumer.
        del client
        assert whole() is None
    finally:
        gc.enable()
