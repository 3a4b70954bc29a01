"""The history of a table: who wrote what, and when.

- What was written is counted from the rows themselves, which the table keeps as far back as its since. So the
  counts are exact for all writers.
- Who wrote them is recorded with each append (`holdfast.persist.state.appends`). Where that is not known, the
  history shows a write without a name.
- Other changes, such as an evolution or a handover, are the commands of the controller's record, which keeps
  them for 30 days.
- Memory is bounded: the latest entries are kept, and only times and counts are read.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.collections import CollectionReader
from holdfast.collections.record.state import CommandRecord
from holdfast.collections.who import Who, parse_who
from holdfast.errors import BadInput
from holdfast.persist import PersistClient
from holdfast.persist.parts.times import TimeSums
from holdfast.persist.state.appends import SAYS_WHAT
from holdfast.tables.opened import PURPOSE, OpenTable

MOST_ENTRIES: Final = 1_000_000
_LAST_MS: Final = 253_402_300_799_999
"""The last moment of the year 9999."""

KINDS: Final = frozenset({"append", "upsert", "delete", "update", "merge", "load", "revert"})
"""What a write may do. Any other is a "write"."""

HISTORY: Final = pa.schema(
    [
        ("when", pa.timestamp("ms", "UTC")),
        ("time", pa.uint64()),
        ("what", pa.string()),
        ("added", pa.int64()),
        ("removed", pa.int64()),
        ("who", pa.string()),
        ("user", pa.string()),
        ("pid", pa.int64()),
        ("host", pa.string()),
        ("detail", pa.string()),
    ]
)


def history(table: OpenTable, limit: int) -> tuple[int, pa.Table]:
    """Return the time at which the history begins, and its last `limit` entries, oldest first.

    Raises like `Table.history`.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_ENTRIES:
        raise BadInput(f"table {table.name}: limit must be a number from 1 to {MOST_ENTRIES}, not {limit!r}")
    table.check_open()
    collection = table.info.collection_id
    with table.controller.reader(collection, purpose=f"{PURPOSE} history") as reader:
        since, upper = reader.since(), reader.upper()
        writes = HISTORY.empty_table()
        if since < upper - 1:
            sums = reader.sum_changes(since, upper - 1, limit)
            writes = _writes(table.client, reader, sums, since)
    commands = _commands(table.controller.history(collection)[-limit:])
    found = pa.concat_tables([commands, writes])
    order = np.argsort(_order(found), kind="stable")[-limit:]
    return since, found.take(pa.array(order))


def _writes(client: PersistClient, reader: CollectionReader, sums: TimeSums, since: int) -> pa.Table:
    """The writes at the times of the sums, with what is known about who wrote them."""
    times = sums.times
    if not len(times):
        return HISTORY.empty_table()
    first, last = int(times[0]), int(times[-1])
    shards = reader.shards_between(max(since, first - 1), last)
    known = pa.concat_tables([client.appends(shard, first) for shard in shards])
    # All shards of a rendition have the same uppers, so each of them has the same writer at a time.
    uppers, places = np.unique(known["upper"].to_numpy(), return_index=True)
    found = np.searchsorted(uppers, times, side="right")
    rows = np.append(places, 0)[np.minimum(found, len(places))] if len(places) else np.zeros(len(times), int)
    is_known = np.zeros(len(times), bool)
    if len(places):
        is_known = (found < len(places)) & (known["lower"].to_numpy()[rows] <= times)
    taken = known.take(pa.array(np.where(is_known, rows, 0), mask=~is_known))
    purposes = [each or "" for each in taken["purpose"].to_pylist()]
    said = [_said(each) for each in purposes]
    columns = {
        "when": taken["wall_ms"].cast(pa.int64()).cast(pa.timestamp("ms", "UTC")),
        "time": pa.array(times),
        "what": [what for _, what in said],
        "added": pa.array(sums.sums[:, 0]),
        "removed": pa.array(sums.sums[:, 1]),
        "who": [who and who.program for who, _ in said],
        "user": [who and who.user for who, _ in said],
        "pid": [who and who.pid for who, _ in said],
        "host": taken["hostname"],
        "detail": pa.nulls(len(times), pa.string()),
    }
    return pa.table(columns, schema=HISTORY)


def _said(purpose: str) -> tuple[Who | None, str]:
    """Who wrote, and what the write did, from the purpose that was recorded with it."""
    who, _, what = purpose.rpartition(SAYS_WHAT)
    if what not in KINDS:
        who, what = purpose, "write"
    return (parse_who(who) if who else None), what


def _commands(commands: Sequence[CommandRecord]) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {
            "when": each.at_ms if each.at_ms <= _LAST_MS else None,
            "what": each.kind.name.lower().replace("_", " "),
            "who": who.program or None,
            "user": who.user,
            "pid": who.pid,
            "host": each.host or None,
            "detail": json.dumps(each.result) if each.result else None,
        }
        for each in commands
        for who in [parse_who(each.who)]
    ]
    return pa.Table.from_pylist(rows, schema=HISTORY)


def _order(entries: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What the entries are ordered by: their moments, or the time of a write whose moment is not known."""
    moments = entries["when"].cast(pa.int64())
    times = entries["time"].cast(pa.float64(), safe=False)
    filled = [
        moment if moment is not None else int(min(time or 0.0, float(_LAST_MS)))
        for moment, time in zip(moments.to_pylist(), times.to_pylist(), strict=True)
    ]
    return np.array(filled, np.int64)
