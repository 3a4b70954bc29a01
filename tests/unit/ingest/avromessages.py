"""Messages of Avro, as producers with a schema registry write them."""

import io
from typing import Any, Final

import fastavro

ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
"""The schema of records of `unit.ingest.pipelines.SCHEMA`."""
ORDER_KEY: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "long"}],
}


def bare(record: object, schema: Any = ORDER) -> bytes:
    """A record without a head."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def wire(record: object, id_: int = 1, schema: Any = ORDER) -> bytes:
    """A record in Confluent's wire format."""
    return b"\0" + id_.to_bytes(4, "big") + bare(record, schema)


def container(records: list[Any], schema: Any = ORDER, codec: str = "null") -> bytes:
    """An object container file."""
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), records, codec=codec)
    return stream.getvalue()
