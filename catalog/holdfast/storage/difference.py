"""What a reader has to be told where a collection is handed over: `new - old`, both just before that time."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.persist import Schema, Snapshot
from holdfast.persist.consolidate import consolidate_updates
from holdfast.persist.schema import DIFF, TIME


def difference(schema: Schema, new: Iterable[Snapshot], old: Iterable[Snapshot], at: int) -> pa.Table:
    """The updates, all at `at`, that turn the contents `old` into `new`; each row once, sorted."""
    tables = [
        *(_updates(schema, contents.to_table(), at) for contents in new),
        *(_updates(schema, _negated(contents.to_table()), at) for contents in old),
    ]
    return consolidate_updates(schema, tables, at)


def _negated(contents: pa.Table) -> pa.Table:
    return contents.set_column(contents.schema.get_field_index(DIFF), DIFF, pc.negate_checked(contents[DIFF]))


def _updates(schema: Schema, contents: pa.Table, at: int) -> pa.Table:
    times = pa.repeat(pa.scalar(at, pa.uint64()), contents.num_rows)
    updates = contents.append_column(TIME, times).select(schema.arrow_updates.names)
    return updates.cast(schema.arrow_updates)
