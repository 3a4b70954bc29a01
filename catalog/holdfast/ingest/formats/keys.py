"""The format of messages' keys, and the comparison of keys with the values that they belong to."""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ingest.envelope import Envelope
from holdfast.ingest.formats.debezium import PAYLOAD, DebeziumJsonKeys
from holdfast.ingest.formats.decoded import (
    ANY_NUMBER,
    BadRecord,
    Decoded,
    Format,
    full_rows,
    stripped,
)
from holdfast.ingest.formats.json_lines import Json
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.ingest.spec import IngestSpec
from holdfast.persist import Schema
from holdfast.persist.rows.row_hash import canonical_bytes

_OTHER_KEY: Final = (
    "the key of the message is not the one in its value, so nothing says which row it replaces"
)
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


def without_other_keys(
    decoded: Decoded, messages: pa.RecordBatch, keys: Format, names: Sequence[str]
) -> Decoded:
    """Leave out the rows whose message has another key than its value. They are bad records.

    `keys` decodes the keys of messages into the columns `names`. A message without a key, or with one that
    can't be decoded, contradicts nothing.
    """
    which = np.flatnonzero(np.asarray(messages["key"].is_valid())[decoded.index])
    if not len(which):
        return decoded
    of_rows = messages.take(pa.array(decoded.index[which]))
    place = of_rows.schema.get_field_index("value")
    found = keys.decode(of_rows.set_column(place, "value", of_rows["key"]))
    is_full = full_rows(found.rows)
    at = which[found.index[is_full]]
    theirs = canonical_bytes(found.rows.filter(pa.array(is_full)), names)
    mine = canonical_bytes(decoded.rows.select(list(names)).take(pa.array(at)), names)
    differs = np.zeros(len(decoded.index), bool)
    differs[at] = pc.not_equal(theirs, mine).to_numpy(zero_copy_only=False)
    if not differs.any():
        return decoded
    bad = [
        BadRecord(index, messages["position"][index].as_py(), "decode", _OTHER_KEY)
        for index in decoded.index[differs].tolist()
    ]
    return decoded.without(differs, bad)
