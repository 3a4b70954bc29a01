"""The clients of librdkafka end when they are closed, and not when garbage is collected."""

import gc
import weakref

from holdfast.ingest import parse
from holdfast.ingest.sources.kafka_client import KafkaClient
from holdfast.ingest.spec import KafkaSpec
from holdfast.ingest.waits import Waits


def test_a_client_is_part_of_no_cycle() -> None:
    # Nothing listens there. The request is pending when the client ends.
    spec = parse({"kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "t"}, "format": {"json": {}}}).source
    assert isinstance(spec, KafkaSpec)
    gc.disable()
    try:
        client = KafkaClient(spec, "group", Waits())
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
