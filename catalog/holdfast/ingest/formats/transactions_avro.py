"""What Debezium says about transactions, in Avro."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.ingest.formats.avro import Avro, Layout
from holdfast.ingest.formats.avro_records import AvroRecords
from holdfast.ingest.formats.avro_schema import UnreadableSchema, parse_schema
from holdfast.ingest.formats.transactions import ALL, BOUNDS, MARKS, TABLE
from holdfast.ingest.schema_texts import SchemaTexts


class AvroMarks(Avro):
    """Decodes change events into `MARKS`."""

    def __init__(self, texts: SchemaTexts) -> None:
        super().__init__(MARKS, texts, head=True, most_bad=ALL)

    def _layout_of(self, text: str) -> "_MarkLayout":
        return _MarkLayout(text)


class AvroBounds(Avro):
    """Decodes messages of the topic of transactions into `BOUNDS`."""

    def __init__(self, texts: SchemaTexts) -> None:
        super().__init__(BOUNDS, texts, head=True, most_bad=ALL)

    def _layout_of(self, text: str) -> "_BoundLayout":
        return _BoundLayout(text)


class _MarkLayout(Layout):
    """How events with one schema become rows of `MARKS`."""

    def __init__(self, text: str) -> None:
        schema = parse_schema(text)
        self.records = AvroRecords(schema)

    def table(self, records: Sequence[Any]) -> pa.Table:
        found = [each.get("transaction") if isinstance(each, dict) else None for each in records]
        blocks = [each if isinstance(each, dict) else {} for each in found]
        sources = [each.get("source") if isinstance(each, dict) else None for each in records]
        tables = [each if isinstance(each, dict) else {} for each in sources]
        arrays = [
            pa.array([each is not None for each in found]),
            pa.array([each.get("id") for each in blocks], pa.string()),
            pa.array([each.get("data_collection_order") for each in blocks], pa.int64()),
            *(pa.array([each.get(name) for each in tables], pa.string()) for name in TABLE),
        ]
        return pa.table(arrays, schema=MARKS)


class _BoundLayout(Layout):
    """How messages with one schema become rows of `BOUNDS`."""

    def __init__(self, text: str) -> None:
        schema = parse_schema(text)
        if not {"status", "id"} <= set(schema.fields):
            raise UnreadableSchema(
                "it has no 'status' and 'id', so it is not that of Debezium's transactions"
            )
        self.records = AvroRecords(schema)

    def table(self, records: Sequence[Any]) -> pa.Table:
        names = ("status", "id", "data_collections")
        columns = [[each.get(name) for each in records] for name in names]
        arrays = [pa.array(each, field.type) for each, field in zip(columns, BOUNDS, strict=True)]
        return pa.table(arrays, schema=BOUNDS)
