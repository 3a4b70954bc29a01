"""Reading ranges of a source and decoding them: the part of a step that many processes can share.

A runner decides where that happens. `LocalRunner` reads in this process, and `holdfast.spark.jobs.ingest` in
Spark's executors. The result is the same, because it depends only on the range, the spec and the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.rendition_writer import RenditionWriter
from holdfast.errors import SourceChanged, SourceStalled
from holdfast.ingest.checksum import RangeSum
from holdfast.ingest.envelope import DELETES, ORDER, Envelope
from holdfast.ingest.formats.decoded import BadRecord, Decoded, Format, TooManyBad
from holdfast.ingest.formats.keys import key_format, without_other_keys
from holdfast.ingest.schema_texts import SchemaTexts
from holdfast.ingest.source import Binding, Piece, Range, Source
from holdfast.ingest.spec import IngestSpec, PostgresSpec
from holdfast.ingest.standing import MESSAGE_KEY, RAW_BYTES, SETTLES, mark
from holdfast.persist import Schema, Upload
from holdfast.text import one_line

TIMESTAMP: Final = ORDER[0]
CREATED: Final = "created"
"""The column with the timestamps of messages, where `timestamp` only orders them."""
FILE_CHANGED: Final = "changed"
"""The kind of error of a file that changed after it was read."""
_OLDEST: Final = -(2**63)
_MOST_MS: Final = (2**63 - 1) // 1000
"""The greatest time in milliseconds that a column with microseconds can have."""


@dataclass
class RangeWork:
    """A range that was read: how far it is bound, its decoded rows and its bad records.

    If the rows are uploaded already, `uploads` has them, one for each shard, and `records` is empty. If it
    `clears`, what the collection had before is deleted. If a message deletes all, `cleared` is what orders
    the last such message among the records of the step. `schemas` are the texts of the schemas that were
    used.
    """

    partition: str
    binding: Binding
    records: list[pa.Table] = field(default_factory=list)
    bad: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0
    uploads: tuple[Upload, ...] = ()
    clears: bool = False
    schemas: dict[str, str] = field(default_factory=dict)
    cleared: tuple[int, str, int] | None = None
    newest: int = _OLDEST

    def clear(self) -> None:
        """Forget what came before, here and in the collection."""
        self.records, self.bad, self.clears, self.cleared = [], [], True, None


@dataclass(frozen=True)
class Order:
    """What a step reads: ranges of a source, for a time of the collection, within a number of bytes.

    `known` has the partitions that are bound already. If the ranges belong `together`, they are of no use
    unless all of them are read. If they are `in_sequence`, none is of use without those before it.
    """

    ranges: Sequence[Range]
    known: frozenset[str]
    at: int
    max_bytes: int
    together: bool = False
    in_sequence: bool = False


class Runner(Protocol):
    """Reads the ranges of a step somewhere."""

    def read(self, order: Order, source: "RangeReader", writer: RenditionWriter, /) -> list[RangeWork]:
        """Read the ranges, in their order. Leaves out those whose partition changed meanwhile, and those that
        are of no use without them.

        Raises `SourceStalled` if there are too many bad records, and the errors of the source.
        """


class LocalRunner:
    """Reads in this process, one range after the other."""

    def read(self, order: Order, source: "RangeReader", _: RenditionWriter) -> list[RangeWork]:
        """Read the ranges until `max_bytes` are read."""
        work: list[RangeWork] = []
        left = order.max_bytes
        for wanted in order.ranges:
            if left <= 0:
                break
            try:
                done = source.read(wanted, is_known=wanted.partition in order.known, max_bytes=left)
            except SourceChanged:
                # The next step finds it as it is then.
                if order.in_sequence:
                    break
                continue
            left -= done.bytes
            work.append(done)
        return work


class RangeReader:
    """Reads ranges of a source and decodes them for a collection with this name and schema."""

    def __init__(
        self,
        collection: str,
        spec: IngestSpec,
        schema: Schema,
        source: Source,
        form: Format,
        texts: SchemaTexts,
    ) -> None:
        self.texts = texts
        self._collection = collection
        self._spec = spec
        self._schema = schema
        self._source = source
        self._format = form
        self._keys = key_format(spec, schema, texts, most_bad=spec.error_limit)
        self._any_keys = key_format(spec, schema, texts)
        self._keyed = spec.envelope.is_keyed
        # Debezium's events are compared by their format. A table of Postgres itself says what the keys are.
        is_included = not set(spec.include.values()).isdisjoint(schema.key_names)
        is_compared = spec.envelope is Envelope.UPSERT and not isinstance(spec.source, PostgresSpec)
        self._compares_keys = is_compared and not is_included

    def read(self, wanted: Range, *, is_known: bool, max_bytes: int) -> RangeWork:
        """Read a range, or the beginning of one that can be split if it has more than `max_bytes`.

        `is_known` says whether the partition is bound already. Raises like `Source.read`, and `SourceStalled`
        if there are too many bad records.
        """
        total, reached, last = RangeSum(), wanted.begin, None
        self.texts.begin()
        work = RangeWork(wanted.partition, Binding(reached, wanted.identity, begin=reached))
        if wanted.whole and wanted.begin == wanted.end and is_known:
            work.bad.append(
                self._error(wanted, BadRecord(0, 0, FILE_CHANGED, "the file changed after it was read"))
            )
        for piece in self._source.read(wanted):
            total.add(piece.messages if piece.counted is None else piece.counted)
            reached, last = piece.reached, piece.last or last
            work.bytes += piece.messages.nbytes
            if piece.clears:
                work.clear()
            try:
                self._decode(piece, wanted, work)
            except TooManyBad as error:
                raise too_many_errors(
                    self._collection, self._spec.error_limit, error.reason, wanted.partition
                ) from None
            if piece.unfinished:
                continue
            if not wanted.whole and work.bytes >= max_bytes:
                break
            if wanted.sparse and total.rows >= self._spec.max_rows:
                break
        else:
            if not wanted.sparse:
                reached = wanted.end
        work.binding = Binding(
            reached, wanted.identity, total.rows, total.checksum, wanted.begin, total.rows, last
        )
        self.mark(work.bad)
        work.schemas = self.texts.taken()
        return work

    def mark(self, errors: Sequence[dict[str, Any]], *, stored: bool = False) -> None:
        """Add to rows of errors what ends them (`holdfast.ingest.standing`)."""
        if self._keyed:
            mark(errors, self._any_keys, stored=stored)

    def _decode(self, piece: Piece, wanted: Range, work: RangeWork) -> None:
        """Add the records of some messages, and the rows of `errors`."""
        messages = self._in_order(piece.messages, work)
        if piece.bad:
            positions = messages["position"]
            bad = [
                BadRecord(each.index, positions[each.index].as_py(), each.kind, each.reason)
                for each in piece.bad
            ]
            work.bad += [self._error(wanted, each, messages) for each in bad]
            self._hide(bad, messages, wanted, work)
            good = np.ones(messages.num_rows, bool)
            good[[each.index for each in bad]] = False
            messages = messages.filter(pa.array(good))
        empty = messages["value"].is_null()
        deleting = messages.filter(empty)
        if self._keyed and deleting.num_rows:
            messages = messages.filter(pc.invert(empty))
        decoded = without_nulls(
            self._format.decode(messages), messages, self._schema, include=self._spec.include
        )
        if self._compares_keys:
            decoded = without_other_keys(decoded, messages, self._any_keys, self._schema.key_names)
        work.records.append(self._records(decoded, messages, wanted, deletes=False))
        work.bad += [self._error(wanted, each, messages) for each in decoded.bad]
        if not self._keyed:
            return
        if decoded.removed is not None:
            removed = Decoded(decoded.removed, decoded.removed_index)
            work.records.append(self._records(removed, messages, wanted, deletes=True))
            deleting = pa.concat_batches([deleting, messages.take(pa.array(decoded.unkeyed))])
            self._note_cleared(decoded, messages, wanted, work)
            self._hide_changed(decoded, messages, wanted, work)
        if deleting.num_rows:
            keys = self._decoded_keys(deleting)
            work.records.append(self._records(keys, deleting, wanted, deletes=True))
            work.bad += [self._error(wanted, each, deleting) for each in keys.bad]
        self._hide(decoded.bad, messages, wanted, work)

    def _in_order(self, messages: pa.RecordBatch, work: RangeWork) -> pa.RecordBatch:
        """The messages, for envelopes with keys with timestamps that never go back.

        In a partition the greatest position wins, whatever the clocks of those who sent the messages.
        `CREATED` keeps the timestamps.
        """
        created = messages["timestamp"]
        if not self._keyed or (work.newest == _OLDEST and created.null_count == len(created)):
            return messages
        known = np.concatenate([[work.newest], created.fill_null(_OLDEST).to_numpy()])
        newest = np.maximum.accumulate(known)[1:]
        work.newest = int(newest[-1]) if len(newest) else work.newest
        times = pa.array(newest, pa.int64(), mask=newest == _OLDEST)
        messages = messages.append_column(CREATED, created)
        return messages.set_column(messages.schema.get_field_index("timestamp"), "timestamp", times)

    def _note_cleared(
        self, decoded: Decoded, messages: pa.RecordBatch, wanted: Range, work: RangeWork
    ) -> None:
        """Find the greatest of the messages that delete all."""
        for at in decoded.cleared.tolist():
            timestamp, position = (messages[each][at].as_py() for each in ("timestamp", "position"))
            order = (-1 if timestamp is None else timestamp, wanted.partition, position)
            work.cleared = max(work.cleared or order, order)

    def _hide_changed(
        self, decoded: Decoded, messages: pa.RecordBatch, wanted: Range, work: RangeWork
    ) -> None:
        """Delete the rows that bad messages have moved, and those that they may have changed."""
        for keys, index, applies in (
            (decoded.gone, decoded.gone_index, True),
            (decoded.hidden, decoded.hidden_index, not self._spec.keeps_row),
        ):
            if keys is not None and keys.num_rows and applies:
                of_bad = Decoded(keys, index)
                work.records.append(self._records(of_bad, messages, wanted, deletes=True, settles=False))

    def _hide(
        self, bad: Sequence[BadRecord], messages: pa.RecordBatch, wanted: Range, work: RangeWork
    ) -> None:
        """A bad value removes the row of its key, if the message says which key that is."""
        if not bad or not self._keyed or self._spec.keeps_row:
            return
        failed = messages.take(pa.array([each.index for each in bad]))
        failed = failed.filter(failed["key"].is_valid())
        keys = self._decoded_keys(failed)
        work.records.append(self._records(keys, failed, wanted, deletes=True, settles=False))

    def _decoded_keys(self, messages: pa.RecordBatch) -> Decoded:
        """The key columns of messages, from their keys."""
        keys = messages.set_column(messages.schema.get_field_index("value"), "value", messages["key"])
        decoded = self._keys.decode(keys)
        bad = [replace(each, reason=each.reason.replace("the message", "the key")) for each in decoded.bad]
        return without_nulls(replace(decoded, bad=bad), messages, self._schema, self._schema.key_names)

    def _records(
        self,
        decoded: Decoded,
        messages: pa.RecordBatch,
        wanted: Range,
        *,
        deletes: bool,
        settles: bool = True,
    ) -> pa.Table:
        """Decoded rows with the included columns, and for Upsert with what orders them and ends errors."""
        # The value is left out if nothing needs it: a file is the value of each of its records.
        needed = {"position", "timestamp", "key", CREATED, *self._spec.include}
        names = [name for name in messages.schema.names if name in needed]
        taken = messages.select(names).take(pa.array(decoded.index))
        if decoded.numbers is not None:
            # A file is one message. Its records have numbers.
            place = taken.schema.get_field_index("position")
            taken = taken.set_column(place, "position", pa.array(decoded.numbers, pa.int64()))
        arrays = {name: decoded.rows[name] for name in decoded.rows.column_names}
        count = decoded.rows.num_rows
        for what, name in self._spec.include.items():
            if what != "record" and not deletes:
                type_ = self._schema.arrow.field(name).type
                values = pa.repeat(wanted.partition, count) if what == "partition" else _part(taken, what)
                arrays[name] = included(values, what, type_)
        columns = [
            arrays[each.name] if each.name in arrays else pa.nulls(count, each.type)
            for each in self._schema.arrow
        ]
        if not self._keyed:
            return pa.table(columns, schema=self._schema.arrow)
        timestamp, partition, position = ORDER
        ordered = {
            timestamp: taken["timestamp"],
            partition: pa.repeat(wanted.partition, count),
            position: taken["position"],
            DELETES: pa.repeat(deletes, count),
            MESSAGE_KEY: taken["key"],
            SETTLES: pa.repeat(settles, count),
        }
        names = [*self._schema.arrow.names, *ordered]
        return pa.table([*columns, *ordered.values()], names=names)

    def _error(self, wanted: Range, bad: BadRecord, messages: pa.RecordBatch | None = None) -> dict[str, Any]:
        """The row of `errors` of a bad record."""
        key = value = timestamp = None
        if messages is not None:
            key, timestamp = (messages[each][bad.index].as_py() for each in ("key", "timestamp"))
            value = None if self._format.whole else messages["value"][bad.index].as_py()
        return {
            "partition": wanted.partition,
            "position": bad.position,
            "kind": bad.kind,
            "reason": bad.reason,
            # What has a key is cut by `mark`.
            "key": key if key is None or self._keyed else key[:RAW_BYTES],
            "value": None if value is None else value[:RAW_BYTES],
            TIMESTAMP: timestamp,
        }


def _part(messages: pa.RecordBatch, what: str) -> pa.Array:
    """A part of messages, as it was sent."""
    return messages[CREATED if what == "timestamp" and CREATED in messages.schema.names else what]


def included(values: pa.Array, what: str, type_: pa.DataType) -> pa.Array:
    """What messages have besides their fields, in the type of its column."""
    if what == "timestamp" and pa.types.is_timestamp(type_):
        # They are milliseconds, and a column has another unit.
        values = values.cast(pa.timestamp("ms"))
    return values.cast(type_)


def without_unfit(
    decoded: Decoded, messages: pa.RecordBatch, schema: Schema, include: Mapping[str, str]
) -> Decoded:
    """Leave out the rows whose message has a key or a timestamp that its column can't have. They are bad."""
    for what, name in include.items():
        type_ = schema.arrow.field(name).type
        if what == "key" and pa.types.is_string(type_):
            fits = _are_texts(messages["key"])
            reason = f"its key is not text in UTF-8, which column '{name}' takes"
        elif what == "timestamp" and pa.types.is_timestamp(type_):
            # Columns have microseconds.
            times = _part(messages, what).fill_null(0).to_numpy()
            fits = (times >= -_MOST_MS) & (times <= _MOST_MS)
            reason = f"its timestamp is beyond what column '{name}' can have"
        else:
            continue
        if fits.all():
            continue
        wrong = ~fits[decoded.index]
        known = {each.index for each in decoded.bad}
        bad = [
            BadRecord(at, messages["position"][at].as_py(), "decode", reason)
            for at in np.unique(decoded.index[wrong]).tolist()
            if at not in known
        ]
        decoded = decoded.without(wrong, bad)
    return decoded


def _are_texts(values: pa.Array) -> np.ndarray:
    """Whether each value is text in UTF-8, or null."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_text(each) for each in values.to_pylist()], bool)
    return np.ones(len(values), bool)


def _is_text(value: bytes | None) -> bool:
    try:
        str(value or b"", "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def without_nulls(
    decoded: Decoded,
    messages: pa.RecordBatch,
    schema: Schema,
    names: Sequence[str] | None = None,
    *,
    include: Mapping[str, str] | None = None,
) -> Decoded:
    """Leave out the rows that have a null where the collection allows none. They are bad records.

    So are those whose message has a key or a timestamp that its column can't have. With `names`, only these
    columns count. `include` names the columns that messages fill themselves.
    """
    if include:
        decoded = without_unfit(decoded, messages, schema, include)
    parts = {name: what for what, name in (include or {}).items() if what in ("timestamp", "key")}
    for each in schema.arrow:
        if each.nullable or (names is not None and each.name not in names):
            continue
        if each.name in parts:
            values = _part(messages, parts[each.name]).take(pa.array(decoded.index))
            reason = f"column '{each.name}' allows no nulls, and the message has no {parts[each.name]}"
        elif each.name in decoded.rows.column_names:
            values, reason = decoded.rows[each.name], f"column '{each.name}' is missing or null"
        else:
            continue
        if not values.null_count:
            continue
        null = values.is_null().to_numpy(zero_copy_only=False)
        bad = []
        for at in np.flatnonzero(null).tolist():
            message, numbers = int(decoded.index[at]), decoded.numbers
            position = messages["position"][message].as_py() if numbers is None else int(numbers[at])
            bad.append(BadRecord(message, position, "null", reason))
        decoded = decoded.without(null, bad)
    return decoded


def too_many_errors(
    collection: str, limit: int, reason: str, partition: str = "", position: int | None = None
) -> SourceStalled:
    """Return the error for more bad records than the limit. The reason and the place are of the next one."""
    where = f" in partition {one_line(partition)}" if partition else ""
    where += "" if position is None else f" at position {position}"
    return SourceStalled(
        f"collection {collection} would keep more bad records than the limit {limit:,}; the next one"
        f"{where and f' is{where}'}: {reason}",
        hint="correct the source or the columns, or raise onError.collect.limit",
    )


def order_of(bad: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return what orders a bad record among others of its key in a step."""
    timestamp = bad[TIMESTAMP]
    return (-1 if timestamp is None else timestamp, bad["partition"], bad["position"])
