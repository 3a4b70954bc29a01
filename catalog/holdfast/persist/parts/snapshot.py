"""Snapshots: the contents of a shard at a time, all at once, as a sorted stream, or in pieces by key.

- A snapshot at `as_of` is the same on every version with `since <= as_of < upper`. If a part is gone, the
  reader plans again on the newest version. It raises `AsOfTooEarly` only if that version can't be read at
  `as_of`. A stream continues after the last row that it yielded.
- A snapshot keeps the schema of the version that it was first planned on. Later versions may have a later
  schema. The contents at `as_of` were complete before that, so they are converted back.
- The pieces are ranges of the first column that cover all of it. The cuts are chosen by statistics, which are
  not verified. Bad statistics can only make the pieces uneven.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    CorruptBlob,
    ShardFinalized,
)
from holdfast.persist.checks import check_time
from holdfast.persist.parts.direct import after_copies, copies_of, direct
from holdfast.persist.parts.met import audit_left_out, met_runs
from holdfast.persist.parts.part_store import PartGone, read_part
from holdfast.persist.parts.picked import inline_contents, picked
from holdfast.persist.parts.runs import At, Run, merged
from holdfast.persist.parts.split import cuts
from holdfast.persist.parts.unsummed import unsummed
from holdfast.persist.parts.whole import VerifiedFile, whole_parts
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.consolidate import Source, consolidate_at
from holdfast.persist.rows.evolution import lowered, newest, upgraded_range
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.order import EVERYTHING, Key, KeyRange, RowKey
from holdfast.persist.rows.row_filter import ConditionFailed, RowFilter, chosen
from holdfast.persist.rows.schema import DIFF, Schema
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import Part, ShardState, live_keys

BATCH_ROWS = 64 * 1024

_T = TypeVar("_T")


class Pins(Protocol):
    """Keeps the parts of a version from deletion while they are read."""

    @contextmanager
    def pin(self, state: ShardState) -> Iterator[None]:
        """Keep the parts of `state` while the block runs."""

    def beat(self) -> None:
        """Renew the reader's lease, if that is due."""

    def too_early(self, as_of: int, since: int) -> AsOfTooEarly:
        """Return the error for a read at `as_of` that `since` has passed."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """All that is needed, in addition to the location, to read a piece of a snapshot. Picklable.

    It contains the rows whose first column is at or after `lower` and before `upper`. None means no limit.
    The values are those of `holdfast.persist.rows.order` (floats as ordered integers, dates and times as
    counts). All pieces have the schema of the version that they were planned on, `schema_id`.
    """

    shard_id: str
    as_of: int
    lower: Any = None
    upper: Any = None
    schema_id: int = 1

    @property
    def range(self) -> KeyRange:
        """The rows of the piece."""
        return KeyRange(lower=_limit(self.lower), upper=_limit(self.upper))


def _limit(value: Any) -> Key | None:
    return None if value is None else ((True, value),)


class _Narrow(NamedTuple):
    """A planned read of some columns, which merges no rows or few of them: the one or the other.

    Rows that need no sum are in the total order. The others come with the key at which another read goes on.
    """

    direct: Iterator[pa.Table] | None = None
    unsummed: Iterator[tuple[pa.Table, Key | None]] | None = None


class Snapshot:
    """The contents of a shard at `as_of`: each (key, value) once, with `_diff` copies of it, never 0.

    Thread-safe: each iteration reads anew. One iterator belongs to one thread.

    With a time `after`, it is the difference to the contents at `after`. Then it reads only what was written
    since.

    Iterate over it to get record batches in the total order of (key, value), with bounded memory. Or call
    `to_table` to get everything at once, which is faster and in no order. The columns are those of the schema
    and `_diff` (int64). With `columns` they are only these and `_diff`. Then nothing is summed that need not
    be, so equal rows may come several times and in no order, and columns that no sum needs are not read.
    """

    def __init__(
        self,
        machine: Machine,
        pins: Pins,
        schema: Schema,
        as_of: int,
        wanted: KeyRange = EVERYTHING,
        columns: Sequence[str] | None = None,
        buffer_bytes: int | None = None,
        after: int | None = None,
        row_filter: RowFilter | None = None,
        between: Callable[[], None] | None = None,
    ) -> None:
        self.schema = schema
        self._machine = machine
        self._pins = pins
        self._wanted = wanted
        self._columns = None if columns is None else list(columns)
        self._buffer_bytes = buffer_bytes
        self._after = after
        self._filter = row_filter
        self._between = between
        self.as_of = as_of

    def filtered(self, row_filter: RowFilter) -> "Snapshot":
        """Return the same snapshot with only the rows that a filter chooses.

        Parts are verified as in `holdfast.persist.parts.verified`.
        """
        return self._of(self._columns, row_filter)

    def narrowed(self, columns: Sequence[str]) -> "Snapshot":
        """Return the same snapshot with only these columns. What is not needed for them may not be read."""
        return self._of(columns, self._filter)

    def within(
        self,
        wanted: KeyRange,
        *,
        buffer_bytes: int | None = None,
        between: Callable[[], None] | None = None,
    ) -> "Snapshot":
        """Return the same snapshot with only the rows of a range, and with this size of its buffers.

        An iteration calls `between` from time to time, also if there are no rows. It may raise an error.
        """
        return Snapshot(
            self._machine,
            self._pins,
            self.schema,
            self.as_of,
            wanted,
            self._columns,
            buffer_bytes,
            self._after,
            self._filter,
            between,
        )

    def _of(self, columns: Sequence[str] | None, row_filter: RowFilter | None) -> "Snapshot":
        return Snapshot(
            self._machine,
            self._pins,
            self.schema,
            self.as_of,
            self._wanted,
            columns,
            self._buffer_bytes,
            self._after,
            row_filter,
            self._between,
        )

    def to_table(self) -> pa.Table:
        """Return everything as one table.

        Raises:
            AsOfTooEarly: `since` has passed `as_of`, and the parts are gone.
            CorruptBlob: a part is damaged.
            DiffOverflow: the updates add up to more copies of a row than int64 holds; the error names the
                row.
        """
        if (few := self._picked(few=False)) is not None:
            return few
        empty = self._project(self.schema.arrow_diff.empty_table()).schema
        state = self._readable()
        if self._wanted != EVERYTHING or self._after is not None or self._filter is not None:
            return pa.Table.from_batches(self._streamed(state, None), empty)
        # What is gone is gone for the plan only: everything is read below, on a newer version.
        with suppress(PartGone), self._pins.pin(state):
            if (narrow := self._narrow(state)) is not None:
                return pa.Table.from_batches(self._streamed(state, narrow), empty)
        runs = [run for batch in state.batches for run in batch.runs]
        with naming_shard(self._machine.shard_id):
            if (few := inline_contents(self._machine, state.schema, runs, self.as_of)) is not None:
                return self._project(self._lower(state.schema, few))
        schema, sources = self.sources()
        with naming_shard(self._machine.shard_id):
            contents = consolidate_at(schema, sources, self.as_of)
        return self._project(self._lower(schema, contents))

    def sources(self, at_least: Schema | None = None) -> tuple[Schema, list[Source]]:
        """Read all updates that may have times up to `as_of` into memory. Return their schema and them.

        It is the shard's newest schema, or `at_least` if that one follows it. Raises the same errors as
        `to_table`.
        """
        state = self._readable()
        while True:
            schema = newest([state.schema, *([at_least] if at_least is not None else [])])
            try:
                with self._pins.pin(state):
                    parts = [read_part(self._machine, schema, part) for part in self._parts(state)]
                    return schema, parts
            except PartGone as gone:
                state = self._replanned(state, gone)

    @contextmanager
    def files(
        self, least_rows: int = 0, *, most: int = sys.maxsize, only_known: bool = False
    ) -> Iterator[list[VerifiedFile] | None]:
        """The parts whose rows, without `_time` and `_diff`, are the contents; None if there are none.

        They are Parquet files of the snapshot's schema, and are kept while the block runs. Also None if there
        are fewer than `least_rows` rows or more than `most` parts, for a piece, a difference or a filtered
        snapshot, and with `only_known` if a part is to be verified first. Raises the errors of `to_table`.
        """
        if self._wanted != EVERYTHING or self._after is not None or self._filter is not None:
            yield None
            return
        state = self._readable()
        runs = [run for batch in state.batches for run in batch.runs]
        with self._pins.pin(state), ExitStack() as opened:
            found: list[VerifiedFile] | None = None
            # What is gone is gone for this version only: the others read a newer one.
            with suppress(PartGone):
                known = whole_parts(
                    self._machine,
                    self.schema,
                    runs,
                    self.as_of,
                    least_rows,
                    most=most,
                    only_known=only_known,
                )
                if known is not None:
                    files = [VerifiedFile(self._machine, each, self._pins.beat) for each in known]
                    for each in files:
                        opened.callback(each.close)
                    found = files
            yield found

    def stored_bytes(self) -> int:
        """Estimate how many stored bytes a read covers."""
        return sum(part.size_bytes for part in self._parts(self._machine.state))

    def _parts(self, state: ShardState) -> Iterator[Part]:
        return (part for batch in state.batches for part in batch.parts if part.lower <= self.as_of)

    def _lower(self, schema: Schema, rows: pa.Table) -> pa.Table:
        return lowered(rows, schema, self.schema, where=f"a part of {self._machine.shard_id}")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order. Raises the same errors as `to_table`, maybe after some batches."""
        if self._columns is not None and (few := self._picked(few=True)) is not None:
            yield from self._batches(few)
            return
        yield from self._streamed(self._readable(), None)

    def _streamed(self, state: ShardState, narrow: "_Narrow | None") -> Iterator[pa.RecordBatch]:
        """Yield the batches. `narrow` is what `_narrow` has planned on the version, if it was asked."""
        left, last = self._wanted, None
        # How many rows direct reads have yielded, counted with their copies: the first ones of the contents.
        copies = 0
        # Whether the filter chooses rows of the contents, and not of the updates that they are the sums of.
        is_late = False
        while True:
            try:
                with self._pins.pin(state):
                    is_first = last is None and left == self._wanted and not is_late
                    if is_first and narrow is None:
                        narrow = self._narrow(state, begun=copies > 0)
                    if narrow is not None and narrow.unsummed is not None:
                        for rows, before in narrow.unsummed:
                            yield from self._batches(rows)
                            if before is not None:
                                left = replace(self._wanted, lower=before)
                            self._beat()
                        return
                    direct_rows, skip = None if narrow is None else narrow.direct, copies
                    for rows in direct_rows or self._merged(state, left, None if is_late else self._filter):
                        wanted, skip = after_copies(self._chosen(rows) if is_late else rows, skip)
                        yield from self._batches(wanted)
                        if direct_rows is not None:
                            copies += copies_of(wanted)
                        else:
                            chunk, copies = rows.to_batches()[-1], skip
                            last = RowKey(self.schema.names, chunk, chunk.num_rows - 1)
                        self._beat()
                return
            except PartGone as gone:
                state = self._replanned(state, gone)
            except ConditionFailed:
                # Perhaps for a row that was removed. All rows are summed now, and the rest are there.
                is_late = True
            narrow = None
            left = left if last is None else left.beyond(last.key())

    def _chosen(self, rows: pa.Table) -> pa.Table:
        """The rows of contents that the filter chooses. Raises its error if one of them has none."""
        assert self._filter is not None
        try:
            found = [chosen(each, self.schema, self._filter) for each in rows.to_batches()]
        except ConditionFailed as failed:
            raise failed.error from None
        return pa.Table.from_batches(found, rows.schema)

    def _batches(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        for batch in self._project(rows).to_batches(max_chunksize=BATCH_ROWS):
            if not batch.num_rows:
                continue
            yield batch
            # A forked child would move the parent's position in an open file.
            self._machine.owner.check("this snapshot")

    def _readable(self) -> ShardState:
        return check_readable(self._machine, self.as_of, self._after)

    def _replanned(self, state: ShardState, gone: PartGone) -> ShardState:
        earliest = self.as_of if self._after is None else self._after
        return replan_at(self._machine, self._pins, state, gone, earliest)

    def _picked(self, *, few: bool) -> pa.Table | None:
        """The rows that the filter chooses, if they are few. `few` is as for `picked`."""
        if self._filter is None or self._after is not None or self._wanted != EVERYTHING:
            return None
        state = self._readable()
        while True:
            try:
                with self._pins.pin(state):
                    rows = picked(
                        self._machine,
                        state.schema,
                        met_runs(state, EVERYTHING, self._filter),
                        self.as_of,
                        self._filter,
                        few=few,
                        between=self._pins.beat,
                    )
                return None if rows is None else self._project(self._lower(state.schema, rows))
            except PartGone as gone:
                state = self._replanned(state, gone)

    def _narrow(self, state: ShardState, *, begun: bool = False) -> "_Narrow | None":
        """Plan a read that merges no rows, or few of them, if only some columns of all rows are needed.

        The parts of the version must be pinned, also while the plan is read. If some rows have been yielded
        (`begun`), only a plan in the total order can go on after them. Raises `PartGone` and `CorruptBlob`.
        """
        if self._columns is None or self._after is not None or self._wanted != EVERYTHING:
            return None
        runs = self._met(state, EVERYTHING, self._filter, At(self.as_of))
        if (found := self._planned(direct, state, runs)) is not None:
            schema, batches = found
            return _Narrow(
                direct=(self._lower_narrow(schema, pa.Table.from_batches([each])) for each in batches)
            )
        if begun or (some := self._planned(unsummed, state, runs)) is None:
            return None
        schema, tables = some
        return _Narrow(unsummed=((self._lower_narrow(schema, rows), before) for rows, before in tables))

    def _planned(
        self, read: Callable[..., tuple[Schema, Iterator[_T]] | None], state: ShardState, runs: Sequence[Run]
    ) -> tuple[Schema, Iterator[_T]] | None:
        """What `direct` or `unsummed` reads."""
        return read(
            self._machine,
            state.schema,
            runs,
            self.as_of,
            self._columns,
            row_filter=self._filter,
            buffer_bytes=self._buffer_bytes,
            between=self._pins.beat,
        )

    def _lower_narrow(self, schema: Schema, rows: pa.Table) -> pa.Table:
        where = f"a part of {self._machine.shard_id}"
        return lowered(rows, schema, self.schema.narrowed(schema.names), where=where)

    def _merged(
        self, state: ShardState, wanted: KeyRange, row_filter: RowFilter | None
    ) -> Iterator[pa.Table]:
        wanted = upgraded_range(wanted, self.schema, state.schema)
        view = At(self.as_of, 0 if self._after is None else self._after + 1)
        runs = self._met(state, wanted, row_filter, view)
        buffer_bytes = self._buffer_bytes
        for rows in merged(
            self._machine,
            state.schema,
            runs,
            view,
            wanted,
            row_filter=row_filter,
            buffer_bytes=buffer_bytes,
            between=self._beat,
        ):
            yield self._lower(state.schema, rows)

    def _met(self, state: ShardState, wanted: KeyRange, row_filter: RowFilter | None, view: At) -> list[Run]:
        """The runs without the parts that can't have wanted rows."""
        if self._machine.config.audit_pushdown:
            audit_left_out(self._machine, state, view, wanted, row_filter)
        return met_runs(state, wanted, row_filter)

    def _beat(self) -> None:
        self._pins.beat()
        if self._between is not None:
            self._between()

    def _project(self, rows: pa.Table) -> pa.Table:
        return rows if self._columns is None else rows.select([*self._columns, DIFF])


def plan_parts(machine: Machine, pins: Pins, as_of: int, max_parts: int | None) -> list[SnapshotPart]:
    """Plan pieces of the snapshot by key. Raises the errors of `ReadHandle.snapshot_parts`."""
    if max_parts is not None and (not isinstance(max_parts, int) or max_parts < 1):
        raise BadInput(f"a snapshot can't be cut into {shown(max_parts)} parts: expected at least 1")
    state = check_readable(machine, as_of)
    while max_parts != 1:
        try:
            with pins.pin(state):
                limits = [None, *cuts(machine, state, as_of, max_parts), None]
            schema_id = max(state.schemas)
            return [SnapshotPart(machine.shard_id, as_of, *limit, schema_id) for limit in pairwise(limits)]
        except PartGone as gone:
            state = replan_at(machine, pins, state, gone, as_of)
    return [SnapshotPart(machine.shard_id, as_of, schema_id=max(state.schemas))]


def check_readable(machine: Machine, as_of: int, after: int | None = None) -> ShardState:
    """Return a version that has contents at `as_of`. Reads the newest one if the cached version has none.

    If `after` is given, the version also has contents at `after`.

    Raises:
        BadInput: a time is invalid, `after` is beyond `as_of`, or the client is closed.
        AsOfTooEarly: the earlier time is before `since`.
        AsOfNotYetAvailable: `as_of` is not before the upper.
        ShardFinalized: the shard was finalized.
    """
    check_time(as_of)
    earliest = as_of if after is None else check_time(after)
    if earliest > as_of:
        raise BadInput(
            f"can't read the changes after {earliest} up to {as_of}: the first time is the later one",
            hint="give the earlier time first",
        )
    machine.check_open()
    state = machine.state
    if not (state.exists and as_of < state.upper) or state.finalized:
        state = machine.refresh()
    if not state.exists:
        raise BadInput(f"shard {machine.shard_id} does not exist")
    if state.finalized:
        raise ShardFinalized(f"shard {machine.shard_id} was finalized")
    if earliest < state.since:
        raise AsOfTooEarly(earliest, state.since)
    if as_of >= state.upper:
        raise AsOfNotYetAvailable(as_of, state.upper)
    return state


def replan(machine: Machine, planned: ShardState, gone: PartGone) -> ShardState:
    """Return the newest version, after a part of `planned` was not found.

    Raises:
        CorruptBlob: the newest version names the part too, so it is lost.
    """
    state = machine.refresh()
    if state.seqno == planned.seqno or str(gone) in live_keys(state):
        raise CorruptBlob.missing(str(gone), "it is a part of the newest version") from None
    return state


def replan_at(machine: Machine, pins: Pins, planned: ShardState, gone: PartGone, as_of: int) -> ShardState:
    """Like `replan`, for a read at `as_of`. Raises `AsOfTooEarly` if the newest since has passed it."""
    state = replan(machine, planned, gone)
    if state.since > as_of:
        raise pins.too_early(as_of, state.since) from None
    return state
