"""The format of messages' keys."""

import pyarrow as pa

from holdfast.ingest.envelope import Envelope
from holdfast.ingest.formats.debezium import PAYLOAD, DebeziumJsonKeys
from holdfast.ingest.formats.decoded import Format
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.ingest.spec import IngestSpec
from holdfast.persist import Schema


def key_format(spec: IngestSpec, schema: Schema, texts: SchemaTexts) -> Format:
    """Return what decodes the key columns from the keys of messages."""
    columns = pa.schema([schema.arrow.field(each) for each in schema.key_names])
    if spec.avro.keys != "avro":
        is_wrapped = spec.envelope is Envelope.DEBEZIUM and PAYLOAD not in columns.names
        return DebeziumJsonKeys(columns) if is_wrapped else Json(columns)
    from holdfast.ingest.formats.avro import Avro

    return Avro(columns, texts, head=True, bare=True)
