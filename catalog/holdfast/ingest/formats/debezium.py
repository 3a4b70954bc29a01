"""Debezium's change events, as JSON or Avro: what a message changes.

- An event of `op` c (create), r (read by a snapshot) or u (update) has the row in `after`.
- One of d (delete) has the row, or at least its key, in `before`. If it has not, the message's key counts.
- One of t (truncate) deletes all rows.
- An update whose `before` has another key also deletes that one. Apart from keys, `before` is not looked at:
  the collection's contents are the state.
- An event is bad if it can't say which row it replaces or deletes: an update has no `before` and its message
  the key of another row or table, or a deletion names another row than its message.
- A bad event may still say which rows it has changed. They are hidden. If it moved a row, the old one is
  gone.
- The error of a bad event ends with the next good event of its key, unless that can't settle the rows that it
  may have changed. Such an error is of kind `UNCLEAR`, and stays.
- JSON may be wrapped as `{"schema": ..., "payload": ...}`. The schema is not looked at.

Both formats decode messages into the same columns, which `Debezium` then splits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.ingest.formats.decoded import (
    ANY_NUMBER,
    MOST_BAD,
    UNCLEAR,
    BadRecord,
    Decoded,
    Format,
    TooManyBad,
    full_rows,
)
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
_TWO_KEYS: Final = (
    "the change has no 'before', and not the key of its message: it may have replaced either row"
)
_NO_KEY: Final = (
    "the change has no 'before', and the key of its message lacks a key column, so nothing says which row it"
    " replaces (Postgres sends 'before' with REPLICA IDENTITY FULL)"
)
_OTHER_DELETED: Final = "the change deletes a row that has not the key of its message"


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


class Debezium:
    """Decodes change events.

    `events` decodes messages into `event_columns`, and `key_events` into those of the keys alone. `keys`
    decodes the keys of messages.
    """

    whole = False

    def __init__(
        self,
        events: Format,
        key_events: Format,
        keys: Format,
        columns: pa.Schema,
        names: Sequence[str],
        most_bad: int,
    ) -> None:
        self._events = events
        self._key_events = key_events
        self._keys = keys
        self._columns = columns
        self._names = list(names)
        self._most_bad = most_bad

    def check(self) -> None:
        """Raise `BadInput` if the format can't fill the columns."""
        self._events.check()

    def decode(self, messages: pa.RecordBatch) -> Decoded:
        """Decode messages. One that is not exactly one change event is a bad record."""
        events = self._events.decode(messages)
        rows, names = events.rows, self._names
        op = pl.Series(rows[OP].fill_null(""))
        has_after = _mask(rows[HAS_AFTER])
        writes, updates, deletes, clears = (
            op.is_in(list(each)).to_numpy() for each in (_WRITES, ("u",), ("d",), ("t",))
        )
        after, before = _part(rows, AFTER, self._columns.names), _part(rows, BEFORE, names)
        has_key = _mask(rows[HAS_BEFORE]) & full_rows(before)
        reasons = _reasons(op, after, writes=writes, known=writes | deletes | clears, has_after=has_after)
        asked = (updates & ~has_key) | (deletes & has_key)
        asked[list(reasons)] = False
        nulls = _nulls(after, self._columns, writes)
        asked[list(nulls)] = False
        reasons |= self._contradictions(messages, events.index, asked, updates, before, after)
        bad = list(events.bad)
        kinds = {**dict.fromkeys(nulls, "null"), **dict.fromkeys(reasons, "decode")}
        reasons = nulls | reasons
        for at, reason in reasons.items():
            message = int(events.index[at])
            bad.append(BadRecord(message, messages["position"][message].as_py(), kinds[at], reason))
        if len(bad) > self._most_bad:
            raise TooManyBad(bad[-1].index, bad[-1].reason)
        good = np.ones(len(op), bool)
        good[list(reasons)] = False
        added = writes & good
        removed = good & has_key & (deletes | (updates & _differ(before, after, names)))
        decoded = Decoded(
            after.filter(pa.array(added)),
            events.index[added],
            sorted(bad, key=lambda each: each.index),
            removed=before.filter(pa.array(removed)),
            removed_index=events.index[removed],
            unkeyed=events.index[deletes & ~has_key],
            cleared=events.index[clears],
        )
        return self._hiding(decoded, messages) if bad else decoded

    def _contradictions(
        self,
        messages: pa.RecordBatch,
        index: np.ndarray,
        asked: np.ndarray,
        updates: np.ndarray,
        before: pa.Table,
        after: pa.Table,
    ) -> dict[int, str]:
        """Why events can't be used whose message has another key than they say, by number.

        Messages without a key, or with one in another format, contradict nothing.
        """
        which = np.flatnonzero(asked)
        found, is_read = self._message_keys(messages.take(pa.array(index[which])))
        is_update, is_full = updates[which], full_rows(found)
        old, new = (part.select(self._names).take(pa.array(which)) for part in (before, after))
        other = is_full & np.where(
            is_update, _differ(found, new, self._names), _differ(found, old, self._names)
        )
        reasons = dict.fromkeys(which[other & is_update].tolist(), _TWO_KEYS)
        reasons |= dict.fromkeys(which[other & ~is_update].tolist(), _OTHER_DELETED)
        return reasons | dict.fromkeys(which[is_update & is_read & ~is_full].tolist(), _NO_KEY)

    def _message_keys(self, messages: pa.RecordBatch) -> tuple[pa.Table, np.ndarray]:
        """The keys of messages, null where they can't be read, and whether they were."""
        some = np.flatnonzero(np.asarray(messages["key"].is_valid()))
        keys = messages.take(pa.array(some))
        place = keys.schema.get_field_index("value")
        decoded = self._keys.decode(keys.set_column(place, "value", keys["key"]))
        return _aligned(decoded, messages.num_rows, some)

    def _hiding(self, decoded: Decoded, messages: pa.RecordBatch) -> Decoded:
        """With the keys of the rows that bad messages may have changed."""
        index = np.unique([each.index for each in decoded.bad])
        failed, names = messages.take(pa.array(index)), self._names
        events, _ = _aligned(self._key_events.decode(failed), len(index))
        keys, _ = self._message_keys(failed)
        op = pl.Series(events[OP].fill_null(""))
        before, after = (_part(events, each, names) for each in (BEFORE, AFTER))
        in_before, in_after, in_key = map(full_rows, (before, after, keys))
        in_before &= ~op.is_in(["c", "r"]).to_numpy()
        updates = (op == "u").to_numpy()
        gone = updates & in_before & in_after & _differ(before, after, names)
        told = in_before & ~gone
        others = in_key & ((told & _differ(before, keys, names)) | (in_after & _differ(after, keys, names)))
        nowhere = ~in_key & ~in_before & (updates | ~in_after)
        unclear = set(index[others | nowhere].tolist())
        return replace(
            decoded,
            bad=[replace(each, kind=UNCLEAR) if each.index in unclear else each for each in decoded.bad],
            gone=before.filter(pa.array(gone)),
            gone_index=index[gone],
            hidden=pa.concat_tables([before.filter(pa.array(told)), after.filter(pa.array(in_after))]),
            hidden_index=np.concatenate([index[told], index[in_after]]),
        )


def _aligned(decoded: Decoded, count: int, places: np.ndarray | None = None) -> tuple[pa.Table, np.ndarray]:
    """A row for each of `count` messages, with nulls where there is none, and whether there is one.

    `places` are the messages that were decoded. Default: all.
    """
    at = np.full(count, -1)
    at[decoded.index if places is None else places[decoded.index]] = np.arange(len(decoded.index))
    return decoded.rows.take(pa.array(at, mask=at < 0)), at >= 0


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


def _nulls(after: pa.Table, columns: pa.Schema, writes: np.ndarray) -> dict[int, str]:
    """The events whose row has a null where the collection allows none."""
    reasons: dict[int, str] = {}
    for each in columns:
        if not each.nullable and after[each.name].null_count:
            null = np.flatnonzero(writes & ~_mask(after[each.name].is_valid())).tolist()
            reasons |= dict.fromkeys(null, f"column '{each.name}' is missing or null")
    return reasons


def _part(rows: pa.Table, prefix: str, names: Sequence[str]) -> pa.Table:
    return pa.table([rows[prefix + each] for each in names], names=list(names))


def _mask(column: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = column.to_numpy()
    return found.astype(bool)


class DebeziumJson(Debezium):
    """Decodes change events in JSON. `keys` decodes the keys of messages. Default: JSON as well."""

    def __init__(
        self,
        columns: pa.Schema,
        names: Sequence[str],
        *,
        keys: Format | None = None,
        most_bad: int = MOST_BAD,
    ) -> None:
        of_keys = pa.schema([columns.field(each) for each in names])
        super().__init__(
            _JsonEvents(columns, names, most_bad),
            _JsonEvents(of_keys, names, ANY_NUMBER),
            keys or DebeziumJsonKeys(of_keys),
            columns,
            names,
            most_bad,
        )


class _JsonEvents(Json):
    """Decodes change events in JSON into `event_columns`."""

    def __init__(self, columns: pa.Schema, keys: Sequence[str], most_bad: int) -> None:
        super().__init__(event_columns(columns, keys), most_bad=most_bad)
        self._rows = columns
        self._key_names = list(keys)
        event = [
            pa.field("op", pa.string()),
            pa.field("before", _struct([columns.field(each) for each in keys])),
            pa.field("after", _struct(list(columns))),
        ]
        self._read(pa.schema([*event, pa.field(PAYLOAD, pa.struct(event))]))

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
        return [converted(key[each.name], each) for each in self._columns]


def _struct(fields: Sequence[pa.Field]) -> pa.DataType:
    return pa.struct([pa.field(each.name, read_as(each.type)) for each in fields])


def fields_of(struct: pa.Array, wanted: Sequence[pa.Field]) -> list[pa.Array]:
    """The fields of a struct. They are null where the struct is."""
    found = dict(zip((each.name for each in struct.type), struct.flatten(), strict=True))
    return [converted(pa.chunked_array([found[each.name]]), each) for each in wanted]


def unwrapped(table: pa.Table, names: Sequence[str]) -> Mapping[str, pa.Array]:
    """The fields of each message, or of its payload."""
    payload = table[PAYLOAD].combine_chunks()
    plain = {each: table[each].combine_chunks() for each in names}
    if payload.null_count == len(payload):
        return plain
    inner = dict(zip((each.name for each in payload.type), payload.flatten(), strict=True))
    is_wrapped = payload.is_valid()
    return {each: pc.if_else(is_wrapped, inner[each], plain[each]) for each in names}
