"""Debezium's change events in Avro."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.ingest.formats.avro import Avro, Layout
from holdfast.ingest.formats.avro_records import AvroRecords, as_table
from holdfast.ingest.formats.avro_schema import AvroType, UnreadableSchema, parse_schema, ways_of
from holdfast.ingest.formats.debezium import Debezium, event_columns
from holdfast.ingest.formats.decoded import ANY_NUMBER, MOST_BAD, Format
from holdfast.ingest.schema_texts import SchemaTexts


class DebeziumAvro(Debezium):
    """Decodes change events in Avro. `keys` decodes the keys of messages."""

    def __init__(
        self,
        columns: pa.Schema,
        names: Sequence[str],
        texts: SchemaTexts,
        *,
        keys: Format,
        head: bool,
        most_bad: int = MOST_BAD,
    ) -> None:
        of_keys = pa.schema([columns.field(each) for each in names])
        super().__init__(
            _AvroEvents(columns, names, texts, head=head, most_bad=most_bad),
            _AvroEvents(of_keys, names, texts, head=head, most_bad=ANY_NUMBER),
            keys,
            columns,
            names,
            most_bad,
        )


class _AvroEvents(Avro):
    """Decodes change events in Avro into `event_columns`."""

    def __init__(
        self, columns: pa.Schema, keys: Sequence[str], texts: SchemaTexts, *, head: bool, most_bad: int
    ) -> None:
        super().__init__(event_columns(columns, keys), texts, head=head, most_bad=most_bad)
        self._rows = columns
        self._key_names = list(keys)

    def _layout_of(self, text: str) -> "_EventLayout":
        return _EventLayout(text, self._columns, self._rows, self._key_names)


class _EventLayout(Layout):
    """How events with one schema become rows of `event_columns`."""

    def __init__(self, text: str, events: pa.Schema, columns: pa.Schema, keys: Sequence[str]) -> None:
        schema = parse_schema(text)
        self._events = events.with_metadata(None)
        self._rows = columns
        self._keys = pa.schema([columns.field(each) for each in keys])
        if (op := schema.fields.get("op")) is None or op.kind not in {"string", "enum"}:
            raise UnreadableSchema("it has no text 'op', so it is not that of a change event of Debezium")
        self._before_ways = ways_of(_row_of(schema, "before"), self._keys)
        self._after_ways = ways_of(_row_of(schema, "after"), columns)
        self.records = AvroRecords(schema)

    def table(self, records: Sequence[Any]) -> pa.Table:
        before = [each["before"] for each in records]
        after = [each["after"] for each in records]
        arrays = [
            pa.array([each["op"] for each in records], pa.string()),
            pa.array([each is not None for each in before]),
            pa.array([each is not None for each in after]),
            *as_table(before, self._before_ways, self._keys).columns,
            *as_table(after, self._after_ways, self._rows).columns,
        ]
        return pa.table(arrays, names=self._events.names)


def _row_of(schema: AvroType, name: str) -> dict[str, AvroType]:
    """The fields of the row that events have under this name."""
    found = schema.fields.get(name)
    if found is None or found.kind != "record":
        raise UnreadableSchema(f"it has no record '{name}', so it is not that of a change event of Debezium")
    return dict(found.fields)
