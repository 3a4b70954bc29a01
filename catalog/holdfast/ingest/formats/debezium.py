"""Debezium's change events, as JSON or Avro: what a message changes.

- An event of `op` c (create), r (read by a snapshot) or u (update) has the row in `after`.
- One of d (delete) has the row, or at least its key, in `before`. If it has not, the message's key counts.
- One of t (truncate) deletes all rows.
- An update whose `before` has another key also deletes that one. Apart from keys, `before` is not looked at:
  the collection's contents are the state.
- JSON may be wrapped as `{"schema": ..., "payload": ...}`. The schema is not looked at.

Both formats decode messages into the same columns, which `settled` then splits.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.ingest.formats.decoded import ANY_NUMBER, MOST_BAD, BadRecord, Decoded, TooManyBad
from holdfast.ingest.formats.json_lines import Json, converted, read_as

OP: Final = "_op"
HAS_BEFORE: Final = "_has_before"
HAS_AFTER: Final = "_has_after"
BEFORE: Final = "before."
AFTER: Final = "after."
_WRITES: Final = ("c", "r", "u")
_UNAVAILABLE: Final = ("__debezium_unavailable_value", '["__debezium_unavailable_value"]')
"""Stands for a value that an update of Postgres left as it was, also in an array."""
PAYLOAD: Final = "payload"


def event_columns(columns: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The columns of decoded events: the keys in `before`, and all columns in `after`."""
    return pa.schema(
        [
            (OP, pa.string()),
            (HAS_BEFORE, pa.bool_()),
            (HAS_AFTER, pa.bool_()),
            *((BEFORE + each, columns.field(each).type) for each in keys),
            *((AFTER + each.name, each.type) for each in columns),
        ]
    )


def settled(
    events: Decoded, messages: pa.RecordBatch, columns: pa.Schema, keys: Sequence[str], most_bad: int
) -> Decoded:
    """What decoded events change. Raises `TooManyBad`."""
    rows = events.rows
    op = pl.Series(rows[OP].fill_null(""))
    has_before, has_after = (_mask(rows[each]) for each in (HAS_BEFORE, HAS_AFTER))
    writes, updates, deletes, clears = (
        op.is_in(list(each)).to_numpy() for each in (_WRITES, ("u",), ("d",), ("t",))
    )
    after = _part(rows, AFTER, columns.names)
    before = _part(rows, BEFORE, keys)
    has_key = has_before.copy()
    for each in keys:
        has_key &= before[each].is_valid().to_numpy()
    reasons = _reasons(op, after, writes=writes, known=writes | deletes | clears, has_after=has_after)
    positions = messages["position"]
    bad = list(events.bad)
    for at, reason in reasons.items():
        message = int(events.index[at])
        bad.append(BadRecord(message, positions[message].as_py(), "decode", reason))
    if len(bad) > most_bad:
        raise TooManyBad(bad[-1].index, bad[-1].reason)
    good = np.ones(len(op), bool)
    good[list(reasons)] = False
    added = writes & good
    removed = (deletes & has_key) | (updates & good & has_key & _differ(before, after, keys))
    return Decoded(
        after.filter(pa.array(added)),
        events.index[added],
        sorted(bad, key=lambda each: each.index),
        removed=before.filter(pa.array(removed)),
        removed_index=events.index[removed],
        unkeyed=events.index[deletes & ~has_key],
        cleared=events.index[clears],
    )


def _reasons(
    op: pl.Series, after: pa.Table, *, writes: np.ndarray, known: np.ndarray, has_after: np.ndarray
) -> dict[int, str]:
    """Why events are bad, by number."""
    reasons: dict[int, str] = {}
    for at in np.flatnonzero(~known).tolist():
        reasons[at] = (
            f"the change has the unknown op '{op[at][:20]}'"
            if op[at]
            else "the message has no 'op', so it is not a change event of Debezium"
        )
    for at in np.flatnonzero(writes & ~has_after).tolist():
        reasons[at] = f"the change has op '{op[at]}' and no 'after'"
    for each in after.schema:
        if pa.types.is_string(each.type) or pa.types.is_binary(each.type):
            absent = pc.is_in(after[each.name], pa.array(_UNAVAILABLE).cast(each.type))
            for at in np.flatnonzero(_mask(absent) & writes).tolist():
                reasons[at] = (
                    f"the change does not have the value of column '{each.name}', which it left as it was"
                )
    return reasons


def _differ(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """Whether the keys differ. A float that is not a number equals itself."""
    differs = np.zeros(len(before), bool)
    for each in keys:
        old, new = (pl.Series(part[each].combine_chunks()) for part in (before, after))
        differs |= old.ne_missing(new).to_numpy()
    return differs


def _part(rows: pa.Table, prefix: str, names: Sequence[str]) -> pa.Table:
    return pa.table([rows[prefix + each] for each in names], names=list(names))


def _mask(column: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = column.to_numpy()
    return found.astype(bool)


class DebeziumJson(Json):
    """Decodes change events in JSON."""

    def __init__(self, columns: pa.Schema, keys: Sequence[str], *, most_bad: int = MOST_BAD) -> None:
        super().__init__(event_columns(columns, keys), most_bad=most_bad)
        self._rows = columns
        self._key_names = list(keys)
        event = [
            pa.field("op", pa.string()),
            pa.field("before", _struct([columns.field(each) for each in keys])),
            pa.field("after", _struct(list(columns))),
        ]
        self._read(pa.schema([*event, pa.field(PAYLOAD, pa.struct(event))]))

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode messages. One that is not exactly one change event is a bad record."""
        return settled(super().decode(messages), messages, self._rows, self._key_names, self._most_bad)

    def _arrays(self, table: pa.Table, _: pa.Array, /) -> Sequence[pa.Array]:
        event = unwrapped(table, ["op", "before", "after"])
        before, after = event["before"], event["after"]
        return [
            event["op"],
            before.is_valid(),
            after.is_valid(),
            *fields_of(before, [self._rows.field(each) for each in self._key_names]),
            *fields_of(after, list(self._rows)),
        ]


class DebeziumJsonKeys(Json):
    """Decodes keys of messages in JSON."""

    def __init__(self, columns: pa.Schema, *, most_bad: int = ANY_NUMBER) -> None:
        super().__init__(columns, most_bad=most_bad)
        fields = [pa.field(each.name, read_as(each.type)) for each in columns]
        self._read(pa.schema([*fields, pa.field(PAYLOAD, pa.struct(fields))]))

    def _arrays(self, table: pa.Table, _: pa.Array, /) -> Sequence[pa.Array]:
        key = unwrapped(table, self._columns.names)
        return [converted(key[each.name], each.type) for each in self._columns]


def _struct(fields: Sequence[pa.Field]) -> pa.DataType:
    return pa.struct([pa.field(each.name, read_as(each.type)) for each in fields])


def fields_of(struct: pa.Array, wanted: Sequence[pa.Field]) -> list[pa.Array]:
    """The fields of a struct. They are null where the struct is."""
    found = dict(zip((each.name for each in struct.type), struct.flatten(), strict=True))
    return [converted(pa.chunked_array([found[each.name]]), each.type) for each in wanted]


def unwrapped(table: pa.Table, names: Sequence[str]) -> Mapping[str, pa.Array]:
    """The fields of each message, or of its payload."""
    payload = table[PAYLOAD].combine_chunks()
    plain = {each: table[each].combine_chunks() for each in names}
    if payload.null_count == len(payload):
        return plain
    inner = dict(zip((each.name for each in payload.type), payload.flatten(), strict=True))
    is_wrapped = payload.is_valid()
    return {each: pc.if_else(is_wrapped, inner[each], plain[each]) for each in names}
