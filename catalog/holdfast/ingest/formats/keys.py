"""The format of messages' keys."""

import json
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ingest.envelope import Envelope
from holdfast.ingest.formats.debezium import PAYLOAD, DebeziumJsonKeys
from holdfast.ingest.formats.decoded import ANY_NUMBER, Decoded, Format, stripped
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.ingest.spec import IngestSpec
from holdfast.persist import Schema

_BARE: Final = r'^("([^"\\]|\\.)*"|[^",{}\[\]\s]+)$'
"""A text, a number or another single value of JSON."""


class JsonKeys(Json):
    """Decodes keys that are JSON objects. If there is one key column, a key may be its bare value."""

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode keys."""
        if len(self._columns) == 1:
            keys = stripped(messages["value"])
            values = pl.Series(keys)
            name = f"{{{json.dumps(self._columns.names[0])}:".encode()
            named = pl.lit(name) + values + pl.lit(b"}")
            bare = pl.Series(pc.match_substring_regex(keys, _BARE)).fill_null(value=False)
            named_keys = pl.select(pl.when(bare).then(named).otherwise(values)).to_series()
            place = messages.schema.get_field_index("value")
            messages = messages.set_column(place, "value", named_keys.to_arrow().cast(pa.binary()))
        return super().decode(messages)


def key_format(spec: IngestSpec, schema: Schema, texts: SchemaTexts, *, most_bad: int = ANY_NUMBER) -> Format:
    """Return what decodes the key columns from the keys of messages."""
    columns = pa.schema([schema.arrow.field(each) for each in schema.key_names])
    if spec.avro.keys != "avro":
        is_wrapped = spec.envelope is Envelope.DEBEZIUM and PAYLOAD not in columns.names
        form = DebeziumJsonKeys if is_wrapped else JsonKeys
        return form(columns, most_bad=most_bad)
    from holdfast.ingest.formats.avro import Avro

    return Avro(columns, texts, head=True, bare=True, most_bad=most_bad)
