"""Rows of a table of Postgres as messages: the key and the row as JSON.

The values come as text. They become JSON by columns, because a row at a time would take most of the time of a
step.
"""

import base64
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from holdfast.ingest.source import MESSAGES, BadMessage, Piece
from holdfast.ingest.sources.pgoutput import UNCHANGED, Relation, RowChange, Value
from holdfast.ingest.sources.postgres_table import NEW_EPOCH, Unfit

PIECE_BYTES: Final = 8 << 20
_PIECE_ROWS: Final = 20_000
_ESCAPED: Final = r"[^ !#-\[\]-~]"
"""What a JSON string can't have as it is, if it is ASCII."""


class Messages:
    """Messages that become a piece. If it `clears`, everything before it is deleted."""

    def __init__(
        self, columns: pa.Schema, keys: Sequence[str], position: int = 0, *, clears: bool = False
    ) -> None:
        self.position = position
        self._columns = columns
        self._keys = [columns.names.index(each) for each in keys]
        self._clears = clears
        self._batches: list[pa.RecordBatch] = []
        self._bad: list[BadMessage] = []
        self._count = 0
        self._bytes = 0
        self._sent = 0
        self._rows: list[Sequence[Value]] = []
        self._positions: list[int] = []
        self._deletes: list[bool] = []

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages. The last ones count as many as Postgres sent."""
        return self._bytes + self._sent

    @property
    def is_full(self) -> bool:
        """Whether the messages are enough for a piece."""
        return self._count + len(self._rows) >= _PIECE_ROWS or self.size_bytes >= PIECE_BYTES

    def next(self, *, clears: bool = False) -> "Messages":
        """Return an empty one for the messages that follow."""
        keys = [self._columns.names[each] for each in self._keys]
        return Messages(self._columns, keys, self.position, clears=clears)

    def add(self, values: Sequence[Value], sent: int, *, deletes: bool = False) -> None:
        """Add a message for a row that is written or deleted, at the next position.

        `sent` is how many bytes Postgres sent for it. Raises `Unfit` if the row has no key.
        """
        for at in self._keys:
            if type(values[at]) is not bytes:
                raise Unfit(
                    f"sends a change without the key '{self._columns.names[at]}'", "use REPLICA IDENTITY FULL"
                )
        self.position += 1
        if UNCHANGED in values:
            name = self._columns.names[values.index(UNCHANGED)]
            reason = (
                f"column '{name}' has a large value (TOAST) that the update doesn't change and Postgres"
                " doesn't send: ALTER TABLE ... REPLICA IDENTITY FULL"
            )
            self._bad.append(BadMessage(self._count + len(self._rows), "unchanged", reason))
            values = [None if each is UNCHANGED else each for each in values]
        self._rows.append(values)
        self._positions.append(self.position)
        self._deletes.append(deletes)
        self._sent += sent
        if len(self._rows) >= _PIECE_ROWS or self._sent >= PIECE_BYTES:
            self._flush()

    def add_csv(self, rows: bytes) -> None:
        """Add messages for rows that COPY wrote as CSV."""
        if not rows:
            return
        names = self._columns.names
        table = csv.read_csv(
            pa.py_buffer(rows),
            csv.ReadOptions(use_threads=False, column_names=names, block_size=len(rows) + 1),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            # A null has no quotes, and an empty text has some.
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        positions = pa.array(range(self.position + 1, self.position + 1 + len(table)), pa.int64())
        self.position += len(table)
        self._append(positions, [each.combine_chunks() for each in table.columns])

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [pa.array(each, pa.binary()).cast(pa.string()) for each in zip(*self._rows, strict=True)]
        self._append(pa.array(self._positions, pa.int64()), columns, pa.array(self._deletes))
        self._rows, self._positions, self._deletes, self._sent = [], [], [], 0

    def _append(
        self, positions: pa.Array, columns: Sequence[pa.Array], deletes: pa.Array | None = None
    ) -> None:
        written = [_written(field, each) for field, each in zip(self._columns, columns, strict=True)]
        rows = _objects(written)
        if deletes is not None:
            rows = pc.if_else(deletes, pa.scalar(None, rows.type), rows)
        keys = _objects([written[each] for each in self._keys])
        timestamps = pa.nulls(len(positions), pa.int64())
        batch = pa.RecordBatch.from_arrays([positions, timestamps, keys, rows], schema=MESSAGES)
        self._batches.append(batch)
        self._count += len(positions)
        self._bytes += keys.nbytes + rows.nbytes

    def piece(self, reached: int) -> Piece:
        """Return the piece, up to a position."""
        self._flush()
        batches = self._batches or [pa.RecordBatch.from_pylist([], MESSAGES)]
        return Piece(pa.concat_batches(batches), reached, self._bad, self._clears)


def _objects(written: Sequence[pa.Array]) -> pa.Array:
    """JSON objects of these members. A null is left out."""
    members = pc.binary_join_element_wise(*written, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", members, "}", "").cast(pa.binary())


def _written(field: pa.Field, values: pa.Array) -> pa.Array:
    """The members of objects for a column: its name, and the value as JSON."""
    type_ = field.type
    if pa.types.is_boolean(type_):
        values = pc.if_else(pc.equal(values, "t"), "true", "false")
    elif pa.types.is_binary(type_):
        values = pa.array([each and _base64(each) for each in values.to_pylist()], pa.string())
    elif not (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)):
        values = _quoted(values)
    return pc.binary_join_element_wise(f"{encode_basestring_ascii(field.name)}:", values, "")


def _quoted(values: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', values, '"', "")
    odd = pc.fill_null(pc.match_substring_regex(values, _ESCAPED), False)
    found = [encode_basestring_ascii(each) for each in values.filter(odd).to_pylist()]
    return pc.replace_with_mask(quoted, odd, pa.array(found, pa.string())) if found else quoted


def _base64(value: str) -> str:
    """A value of type bytea, which Postgres writes in hexadecimal digits, as JSON."""
    return f'"{base64.b64encode(bytes.fromhex(value[2:])).decode()}"'


class ChangesAsMessages:
    """Makes messages of changes of a table: first its `Relation`, then the changes.

    `places` is where the table has the columns now, and `facts` has where it had them when the log began.
    New columns come last. So a column that is found elsewhere is another one, which had its name.
    """

    def __init__(
        self,
        columns: pa.Schema,
        keys: Sequence[str],
        facts: Mapping[str, Any],
        places: Mapping[str, int],
    ) -> None:
        self._columns = columns
        self._keys = keys
        self._key_places = [columns.names.index(each) for each in keys]
        self._facts = facts
        self._last_places = places
        known = facts.get("traces", {}).get("places")
        self._first_places = known[0][1] if known else None
        self._places: list[int] = []
        self._why = ""

    def relate(self, relation: Relation) -> None:
        """Learn where a change has the columns."""
        self._why = self._unusable(relation)
        if not self._why:
            places = {each.name: at for at, each in enumerate(relation.columns)}
            self._places = [places[each] for each in self._columns.names]

    def _unusable(self, relation: Relation) -> str:
        """Why the collection can't use such changes, or ""."""
        found = {each.name: each for each in relation.columns}
        places = {each.name: at for at, each in enumerate(relation.columns)}
        for each in self._columns.names:
            if each not in found:
                return f"column '{each}' was dropped"
            has = found[each]
            if [has.type_id, has.type_modifier] != self._facts["columns"][each][1:]:
                return f"column '{each}' was changed to another type"
            if self._first_places and not (
                self._last_places[each] <= places[each] <= self._first_places[each]
            ):
                return f"column '{each}' was renamed, and another one had its name for a while"
            if each in self._keys and not has.is_key:
                return f"updates and deletes don't have the key column '{each}' any more"
        return ""

    def add(self, change: RowChange, sent: int, messages: Messages) -> None:
        """Add the messages of a change. Raises `Unfit` if the collection can't use it."""
        if self._why:
            raise Unfit(f"has changed: {self._why}", NEW_EPOCH)
        old = None if change.old is None else [change.old[at] for at in self._places]
        if change.new is None:
            assert old is not None
            messages.add(old, sent, deletes=True)
            return
        new = [change.new[at] for at in self._places]
        if old is not None:
            # The old row has the keys, or all values.
            known = range(len(old)) if change.is_old_whole else self._key_places
            for at in known:
                if new[at] is UNCHANGED:
                    new[at] = old[at]
            if any(old[at] != new[at] for at in self._key_places):
                messages.add(old, 0, deletes=True)
        messages.add(new, sent)
