"""What Debezium says about transactions, in JSON: in change events, and in its topic of transactions.

- A change event has `transaction: {id, total_order, data_collection_order}`. Events without it, such as those
  of a snapshot, belong to no transaction.
- The topic has a message with `status` BEGIN when a transaction begins, and one with END when it ends. END
  has the number of events for each table in `data_collections`.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from holdfast.ingest.formats.debezium import PAYLOAD, fields_of, unwrapped
from holdfast.ingest.formats.json_lines import Json

TABLE: Final = ("connector", "db", "schema", "table")
"""What the `source` block of an event says about its table."""
MARKS: Final = pa.schema(
    [
        ("in_transaction", pa.bool_()),
        ("id", pa.string()),
        ("order", pa.int64()),
        *((each, pa.string()) for each in TABLE),
    ]
)
"""What a change event says about its transaction. `order` is that of the event among those of its table."""
COUNTS: Final = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))
BOUNDS: Final = pa.schema([("status", pa.string()), ("id", pa.string()), ("counts", COUNTS)])
"""What a message of the topic of transactions says. BEGIN has no counts."""
ALL: Final = 1 << 62
_TRANSACTION: Final = [pa.field("id", pa.string()), pa.field("data_collection_order", pa.int64())]
_SOURCE: Final = [pa.field(each, pa.string()) for each in TABLE]


class JsonMarks(Json):
    """Decodes change events into `MARKS`."""

    def __init__(self) -> None:
        super().__init__(MARKS, most_bad=ALL)
        event = [pa.field("transaction", pa.struct(_TRANSACTION)), pa.field("source", pa.struct(_SOURCE))]
        self._read(pa.schema([*event, pa.field(PAYLOAD, pa.struct(event))]))

    def _arrays(self, table: pa.Table, _: pa.Array, /) -> Sequence[pa.Array]:
        event = unwrapped(table, ["transaction", "source"])
        return [
            event["transaction"].is_valid(),
            *fields_of(event["transaction"], _TRANSACTION),
            *fields_of(event["source"], _SOURCE),
        ]


class JsonBounds(Json):
    """Decodes messages of the topic of transactions into `BOUNDS`."""

    def __init__(self) -> None:
        super().__init__(BOUNDS, most_bad=ALL)
        names = {"status": pa.string(), "id": pa.string(), "data_collections": COUNTS}
        event = [pa.field(name, type_) for name, type_ in names.items()]
        self._read(pa.schema([*event, pa.field(PAYLOAD, pa.struct(event))]), self._texts)

    def _arrays(self, table: pa.Table, _: pa.Array, /) -> Sequence[pa.Array]:
        return list(unwrapped(table, ["status", "id", "data_collections"]).values())
