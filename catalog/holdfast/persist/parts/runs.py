"""Reads the runs of a shard as batches of rows in the total order, piece by piece.

Invariants:

- A blob's checksum is verified over the whole object, in one pass before its first row is decoded, through
  the same open file. It costs a second read of the bytes, which are in the page cache by then. A read with a
  filter, of some columns, or of a part of the rows verifies the footer and the blocks that it reads
  (`holdfast.persist.parts.verified`). So unverified bytes never decide what is skipped.
- A row group is skipped only if its bounds exclude every wanted row. `audit_pushdown` reads it anyway, and
  raises an error if there is a wanted row in it.
- A read of some columns reads `_time` and `_diff` only where the footer does not say enough of them. With a
  filter, it reads the columns of the filter first, and the others only of row groups with chosen rows.
- A read of some columns decodes the next `READ_AHEAD` batches in threads while the caller uses one.
- One batch per run, those that are decoded ahead, the buffers that it is read through, and what a store keeps
  of an open object are in memory. A batch has a run's share of `BUFFER_BYTES`, or `_LEAST_COLUMN_BYTES` per
  column, but at most its share of `_WIDE_BYTES`. A batch of large values has at most `_WIDE_VALUES_BYTES`. If
  a single row is larger, the batch is that row. Values with a dictionary are measured first
  (`holdfast.persist.parts.dictionaries`). The buffers are the pages of a row group that exceeds a batch, or
  one page of each column, and what has a dictionary. A row group that is one batch is read as a whole,
  without buffers afterwards.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat, takewhile
from typing import Final, Protocol, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import CLOSED, CorruptBlob, Determinate, Indeterminate
from holdfast.persist.parts.ahead import READ_AHEAD, in_threads
from holdfast.persist.parts.dictionaries import (
    coded_bytes,
    columns_with_dictionary,
    decoded,
    decoded_bytes,
    decoded_pieces,
)
from holdfast.persist.parts.part_store import PartGone, read_inline, within
from holdfast.persist.parts.row_groups import Sizes, least_width, sizes, sizes_of, times_and_diff
from holdfast.persist.parts.verified import KnownPart, forget, known_part, open_shared, small_rows
from holdfast.persist.rows.canonical import empty_updates, sort_updates
from holdfast.persist.rows.constants import repeated
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.fold import naming_shard
from holdfast.persist.rows.groups import GroupBounds, bounds_through
from holdfast.persist.rows.merge import MERGE_BYTES, Buffered, HeldRows, merge_runs
from holdfast.persist.rows.order import EVERYTHING, KeyRange, RowKey
from holdfast.persist.rows.part import (
    PAGE_BYTES,
    ROW_GROUP_ROWS,
    UNREADABLE,
    check_footer,
    check_size,
    has_wide_values,
    read_error,
)
from holdfast.persist.rows.row_filter import RowFilter, chosen
from holdfast.persist.rows.schema import TIME, Schema
from holdfast.persist.rows.values import values_of
from holdfast.persist.state.machine import Machine, Patience, read_twice, retry
from holdfast.persist.state.state import Part

# Rows in memory of all runs together, by their size in memory: small enough for a cache to help, and large
# enough that a batch outweighs the engine's start.
BUFFER_BYTES: Final = 16 * 1024 * 1024
# A batch costs some time per column, so it has at least this many rows, or bytes per column.
_LEAST_ROWS: Final = 1024
_LEAST_COLUMN_BYTES: Final = 16 * 1024
_WIDE_VALUES_BYTES: Final = 4 * 1024 * 1024
_WIDE_BYTES: Final = MERGE_BYTES * 3 // 4
# How much of each column is read ahead, for a row group that is larger than a batch.
_COLUMN_BUFFER: Final = 64 * 1024
_LEAST_PAGE_ROWS: Final = 1024
# With less of each column, threads cost more than they save.
_THREADS_COLUMN_BYTES: Final = 2 * 1024
_READ_BYTES: Final = 1024 * 1024
# The footer's sizes are about right unless a dictionary hides what rows take.
_MUCH_LARGER: Final = 2
_CODED: Final = "columns with a dictionary"

Run: TypeAlias = Sequence[Part]
_Batches: TypeAlias = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class At:
    """Sees rows up to a time without their times: the contents at that time."""

    as_of: int
    earliest: int = 0
    """The first time. If it is above 0, the rows are not contents, but a difference of contents."""

    @property
    def latest(self) -> int:
        """The latest time of wanted rows."""
        return self.as_of

    def names(self, schema: Schema) -> list[str]:
        """Return the columns that distinguish rows."""
        return [*schema.names]

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of updates as this view sees it."""
        times = values_of(rows.column(TIME))
        if len(times) and not self.earliest <= int(times.min()) <= int(times.max()) <= self.as_of:
            wanted = (times >= np.uint64(self.earliest)) & (times <= np.uint64(self.as_of))
            rows = rows.filter(pa.array(wanted))
        return rows.drop_columns([TIME])


@dataclass(frozen=True, slots=True)
class Since:
    """Sees rows as updates whose times below `since` are moved up to it, which keeps their order."""

    since: int

    @property
    def earliest(self) -> int:
        """The earliest time of wanted rows."""
        return 0

    @property
    def latest(self) -> int:
        """The latest time of wanted rows."""
        return CLOSED

    def names(self, schema: Schema) -> list[str]:
        """Return the columns that distinguish rows."""
        return [*schema.names, TIME]

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of updates as this view sees it."""
        times = np.maximum(values_of(rows.column(TIME)), np.uint64(min(self.since, CLOSED - 1)))
        return rows.set_column(rows.num_columns - 2, rows.schema.field(TIME), pa.array(times, pa.uint64()))


class RowView(Protocol):
    """Which updates of a run are wanted, and how they are seen."""

    @property
    def earliest(self) -> int:
        """The earliest time of wanted rows."""

    @property
    def latest(self) -> int:
        """The latest time of wanted rows."""

    def names(self, schema: Schema) -> list[str]:
        """Return the columns that distinguish rows."""

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of updates as this view sees it."""


def open_runs(
    machine: Machine,
    schema: Schema,
    runs: Iterable[Run],
    view: RowView,
    wanted: KeyRange = EVERYTHING,
    *,
    row_filter: RowFilter | None = None,
    columns: Collection[str] | None = None,
    buffer_bytes: int | None = None,
) -> list[Iterator[pa.RecordBatch]]:
    """Open the rows of each run that are in the range, seen through `view`, in the total order.

    With a filter, which needs a view without times, only the rows that it chooses. With `columns`, only these
    columns of parts that are not inline, and all rows: they must include those that the filter needs.

    About `buffer_bytes` of rows are decoded at a time (None: `BUFFER_BYTES`). If it is given, one thread
    decodes, because each decoding thread keeps the memory that it has used.

    Iterating raises:
        PartGone: a blob does not exist.
        CorruptBlob: its bytes are damaged.
        VersionTooNew: a newer version wrote it.
    """
    wanted_runs = [
        [part for part in run if part.lower <= view.latest and view.earliest < part.upper] for run in runs
    ]
    inline = [part for run in wanted_runs for part in run if part.inline is not None]
    stored = [[part for part in run if part.inline is None] for run in wanted_runs]
    count = max(1, sum(map(bool, stored)))
    share, most = (buffer_bytes or BUFFER_BYTES) // count, _WIDE_BYTES // count
    threads = buffer_bytes is None
    seen = schema if columns is None else schema.narrowed(columns)
    reader = _Reader(
        machine, schema, seen, view, wanted, share, most, threads, row_filter, columns is not None
    )
    found: list[Iterator[pa.RecordBatch]] = [reader.stored(run) for run in stored if run]
    return [*found, reader.inline(inline)] if inline else found


def merged(
    machine: Machine,
    schema: Schema,
    runs: Iterable[Run],
    view: RowView,
    wanted: KeyRange = EVERYTHING,
    *,
    row_filter: RowFilter | None = None,
    buffer_bytes: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> Iterator[pa.Table]:
    """Consolidate the rows of all runs with `merge_runs`. Raises its errors and those of `open_runs`."""
    opened = open_runs(machine, schema, runs, view, wanted, row_filter=row_filter, buffer_bytes=buffer_bytes)
    with naming_shard(machine.shard_id):
        for rows in merge_runs(view.names(schema), opened, between):
            yield pa.Table.from_batches([rows])


@dataclass(frozen=True, slots=True)
class _Reader:
    machine: Machine
    schema: Schema
    seen: Schema
    """The schema of the columns that are read."""
    view: RowView
    wanted: KeyRange
    buffer_bytes: int
    most_bytes: int
    threads: bool
    row_filter: RowFilter | None
    needs_no_sums: bool

    @property
    def is_narrow(self) -> bool:
        """Whether only some columns are read."""
        return self.seen is not self.schema

    def inline(self, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
        """Read all inline parts as one run, because they are small and unsorted."""
        tables = [read_inline(self.machine, self.schema, part) for part in parts]
        rows = pa.concat_tables(tables).combine_chunks()
        if self.row_filter is not None and self.row_filter.schema == self.schema:
            # To sort the others would take most of the time of a read of a few keys.
            rows = pa.Table.from_batches(
                [each.filter(self.row_filter.mask(each)) for each in rows.to_batches()], rows.schema
            )
        for batch in sort_updates(self.schema, rows).combine_chunks().to_batches():
            yield self._chosen(self.view.apply(batch))

    def stored(self, run: Run) -> HeldRows:
        """Read the parts of a run one after the other."""
        held = Buffered()
        return HeldRows(self._parts(run, held), held)

    def _parts(self, run: Run, held: Buffered) -> Iterator[pa.RecordBatch]:
        names = self.view.names(self.seen)
        if self.is_narrow:
            # Rows are in order of the first columns.
            pairs = zip(names, self.schema.names, strict=False)
            names = [name for name, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        last: RowKey | None = None
        for part in run:
            for batch in self._part(part, held):
                rows = self._see(batch, part)
                if not rows.num_rows:
                    continue
                if last is not None and RowKey(names, rows, 0) < last:
                    raise CorruptBlob(
                        str(part.blob_key), "sorted rows", "a row that sorts before the previous one"
                    )
                last = RowKey(names, rows, rows.num_rows - 1)
                yield rows

    def _part(self, part: Part, held: Buffered) -> Iterator["_Read"]:
        """Yield the batches of a part that may have wanted rows.

        If the store fails during the read, the read is retried until the retry deadline after the last batch.
        The part is opened and verified again, and the read continues after the rows that were yielded.
        """
        own = self.machine.schema_of(part)
        clock = self.machine.clock
        patience = Patience(self.machine.config, clock)
        given, is_again = 0, False
        by_blocks = self.row_filter is not None or self.needs_no_sums or self._reads_few(part)
        while True:
            try:
                with ExitStack() as stack:
                    known = groups = None
                    source: Callable[[], pa.NativeFile]
                    if not by_blocks:
                        file = stack.enter_context(open_part(self.machine, part, self.buffer_bytes))
                        source = partial(_same, file)
                    else:
                        known = known_part(self.machine, part)
                        groups = self._known_groups(known, own)
                        if not self.machine.config.audit_pushdown:
                            if not groups:
                                return
                            if (rows := self._small(known, own)) is not None:
                                yield _Read(rows.slice(given), rows.num_rows - given)
                                return
                        others = self.machine.config.audit_pushdown
                        opened = range(known.metadata.num_row_groups) if others else groups
                        source = stack.enter_context(open_shared(self.machine, known, opened))
                    for read in self._batches(source, part, own, given, held, known, groups):
                        yield read
                        given += read.count
                        patience = Patience(self.machine.config, clock)
                return
            except CorruptBlob as error:
                # A cached copy may be damaged since it was verified. The second error is the store's.
                if not by_blocks:
                    raise
                if is_again:
                    location = self.machine.location
                    raise error.in_store(location.blob.description, location.arguments) from None
                is_again = forget(self.machine, part)
                if not is_again:
                    raise
            except (Determinate, Indeterminate) as error:
                if error.lasting or not patience.wait():
                    raise

    def _reads_few(self, part: Part) -> bool:
        """Whether the range of keys may leave out some of a part whose blocks can be verified one by one."""
        return self.wanted != EVERYTHING and part.footer_bytes > 0

    def _small(self, known: KnownPart, own: Schema) -> pa.RecordBatch | None:
        """All rows of a part with few rows, which was written under `own`. None if it has more."""
        try:
            rows = small_rows(self.machine, known)
        except UNREADABLE as error:
            raise read_error(error, str(known.part.blob_key)) from error
        if rows is None:
            return None
        was = own.narrowed(self.seen.names) if self.is_narrow else own
        return upgraded(rows.select(was.arrow_updates.names), was, self.seen)

    def _see(self, read: "_Read", part: Part) -> pa.RecordBatch:
        rows = read.rows
        if TIME in rows.schema.names:
            rows = self.view.apply(within(rows, part))
        return rows if read.is_chosen else self._chosen(rows)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.row_filter is not None:
            rows = chosen(rows, self.seen, self.row_filter)
        return rows if self.wanted == EVERYTHING else self.wanted.slice(self.schema.names, rows)

    def _batches(
        self,
        source: Callable[[], pa.NativeFile],
        part: Part,
        own: Schema,
        given: int,
        held: Buffered,
        known: KnownPart | None,
        groups: list[int] | None,
    ) -> Iterator["_Read"]:
        """Yield the row groups that may have wanted rows, of a part that was written under `own`, in batches.

        `source` opens the part. The first `given` rows are left out. `known` is what is known of the part,
        and `groups` are those row groups, if they are known already.
        """
        key = str(part.blob_key)
        try:
            metadata = pq.read_metadata(source()) if known is None else known.metadata
            check_footer(metadata, own, key=key)
            coded = self._coded(metadata, known, own)

            def opened(buffer_size: int = 0) -> pq.ParquetFile:
                return pq.ParquetFile(
                    source(),
                    metadata=metadata,
                    read_dictionary=coded,
                    pre_buffer=False,
                    buffer_size=buffer_size,
                )

            with opened() as parquet:
                if groups is None:
                    groups = self._met(bounds_through(self.schema, own, parquet.metadata))
                if self.machine.config.audit_pushdown:
                    others = [i for i in range(parquet.metadata.num_row_groups) if i not in groups]
                    self._audit(opened, parquet, part, own, known, others)
                while groups and given >= (skipped := parquet.metadata.row_group(groups[0]).num_rows):
                    given -= skipped
                    del groups[0]
                for read in self._decode(opened, parquet, part, own, known, groups, held):
                    if given < read.count:
                        yield read.after(given)
                    given = max(0, given - read.count)
        except UNREADABLE as error:
            raise read_error(error, key) from error

    def _met(self, bounds: Sequence[GroupBounds]) -> list[int]:
        """The row groups that may have rows in the range, at wanted times."""
        times = self.view.earliest, self.view.latest
        return [i for i, group in enumerate(bounds) if group.may_meet(self.wanted, *times)]

    def _known_groups(self, known: KnownPart, own: Schema) -> list[int]:
        """The row groups of a known part that may have wanted rows."""
        met = self._met(known.groups_through(self.schema, own))
        if self.row_filter is None or not met:
            return met
        wanted = set(self.row_filter.groups(known.bounds))
        return [i for i in met if i in wanted]

    def _audit(
        self,
        opened: Callable[..., pq.ParquetFile],
        parquet: pq.ParquetFile,
        part: Part,
        own: Schema,
        known: KnownPart | None,
        skipped: Sequence[int],
    ) -> None:
        for group in skipped:
            reads = self._decode(opened, parquet, part, own, known, [group], Buffered())
            if found := sum(self._see(read, part).num_rows for read in reads):
                what = f"no wanted row in row group {group}"
                raise CorruptBlob(str(part.blob_key), what, f"{found}")

    def _decode(
        self,
        opened: Callable[..., pq.ParquetFile],
        parquet: pq.ParquetFile,
        part: Part,
        own: Schema,
        known: KnownPart | None,
        groups: Sequence[int],
        held: Buffered,
    ) -> Iterator["_Read"]:
        buffered: pq.ParquetFile | None = None
        was = own.narrowed(self.seen.names) if self.is_narrow else own
        names = was.arrow_updates.names
        if known is None:
            first, found = [], sizes(parquet.metadata, part.size_bytes, groups)
        else:
            first, found = self._first_names(known, own, was, groups), sizes_of(known, names, groups)
        fetch = partial(self._fetch, was, first)

        def fetch_whole(span: _Span, columns: _Columns) -> "_Read | _Batches | None":
            """The same, and all of it in memory. None if that is more than one batch. For any thread."""
            if span.batch_rows < span.rows:
                return None
            try:
                source = idle.pop()
            except IndexError:
                # A file has a position, which only one thread may move.
                source = files.enter_context(opened())
            try:
                some = fetch(source, span, columns)
                return some if isinstance(some, _Read) else (batch for batch in list(some))
            finally:
                idle.append(source)

        idle: list[pq.ParquetFile] = []
        planned = [
            (span, self._columns(known, part, was, span.groups)) for span in self._spans(found, groups)
        ]
        is_ahead = self.threads and self.needs_no_sums and len(planned) > READ_AHEAD
        ahead = (
            closing(in_threads(fetch_whole, planned)) if is_ahead else nullcontext(repeat(None, len(planned)))
        )
        with ExitStack() as files, ahead as fetched:
            for (span, columns), some in zip(planned, fetched, strict=True):
                if some is None:
                    source = parquet
                    if span.is_buffered:
                        source = buffered = buffered or opened(_COLUMN_BUFFER)
                    some = fetch(source, span, columns)
                if isinstance(some, _Read):
                    yield some
                    continue
                for batch in self._pieces(some, span, held):
                    rows = upgraded(columns.rows(batch, batch.num_rows), was, self.seen)
                    yield _Read(rows, rows.num_rows)

    def _pieces(self, batches: "_Batches", span: "_Span", held: Buffered) -> Iterator[pa.RecordBatch]:
        """The rows of a span without dictionaries, in pieces that fit."""
        left = span.rows
        for coded in batches:
            left -= coded.num_rows
            held.size = span.held_bytes
            if not left:
                # Free the reader's buffers before the last batch is used.
                held.size = 0
                batches.close()
            buffers, held.size = held.size, held.size + coded_bytes(coded)
            yield from decoded_pieces(coded, self._share)
            held.size = buffers

    def _fetch(
        self, was: Schema, first: Sequence[str], source: pq.ParquetFile, span: "_Span", columns: "_Columns"
    ) -> "_Read | _Batches":
        """The rows of a span, if the filter has chosen them or no column is read. Otherwise their batches."""
        if not columns.read:
            return _Read(upgraded(columns.rows(None, span.rows), was, self.seen), span.rows)
        threads = self.threads and span.raw_bytes >= _THREADS_COLUMN_BYTES * len(was.columns)
        # A condition may raise an error for a row that is not there at these times.
        is_one = span.batch_rows == span.rows and TIME not in columns.schema.names
        some = self._chosen_first(source, columns, span, first, threads) if first and is_one else None
        if some is not None:
            return some
        batches: _Batches = source.iter_batches(
            span.batch_rows, row_groups=span.groups, columns=columns.read, use_threads=threads
        )
        return batches

    def _coded(self, metadata: pq.FileMetaData, known: KnownPart | None, own: Schema) -> list[str]:
        """The columns that are read with their dictionaries, because they may be much larger without."""
        names = frozenset(self.seen.names)
        if known is None:
            return columns_with_dictionary(metadata, own, names)
        derived = known.bounds.derived
        if (_CODED, names) not in derived:
            derived[_CODED, names] = columns_with_dictionary(metadata, own, names)
        found: list[str] = derived[_CODED, names]
        return found

    def _columns(self, known: KnownPart | None, part: Part, was: Schema, groups: Sequence[int]) -> "_Columns":
        """Which columns to read of some row groups. The footer may make times and diffs unnecessary."""
        if known is None or not self.needs_no_sums:
            return _Columns(was.arrow_updates.names, was.arrow_updates, None)
        times, diff = times_and_diff(known, groups)
        least, greatest = max(part.lower, self.view.earliest), min(part.upper - 1, self.view.latest)
        are_wanted = times is not None and least <= times[0] and times[1] <= greatest
        schema = was.arrow_diff if are_wanted else was.arrow_updates
        read = schema.names if diff is None else schema.names[:-1]
        return _Columns(read, schema, diff)

    def _first_names(self, known: KnownPart, own: Schema, was: Schema, groups: Sequence[int]) -> list[str]:
        """The columns to read before the others, which are then read only where rows are chosen."""
        if self.row_filter is None or not self.needs_no_sums or self.wanted != EVERYTHING:
            return []
        if not own == self.schema == self.row_filter.schema:
            return []
        first = [name for name in was.names if name in self.row_filter.columns]
        others = [name for name in was.names if name not in first]
        if not first or not others:
            return []
        # Two reads cost more than one, so the others must be most of the bytes.
        weights = [
            sum(each.raw_bytes for each in sizes_of(known, names, groups).values())
            for names in (first, others)
        ]
        return first if weights[0] <= weights[1] else []

    def _chosen_first(
        self,
        source: pq.ParquetFile,
        columns: "_Columns",
        span: "_Span",
        first: Sequence[str],
        threads: bool,
    ) -> "_Read | None":
        """Read the columns `first`, and the others only of row groups that have chosen rows.

        None if they are too large to be in memory all at once.
        """
        assert self.row_filter is not None

        def read(groups: Sequence[int], names: Sequence[str]) -> pa.RecordBatch | None:
            batches = source.iter_batches(span.rows, row_groups=groups, columns=names, use_threads=threads)
            coded = list(batches)
            size, rows = sum(map(decoded_bytes, coded)), sum(batch.num_rows for batch in coded)
            if size > _MUCH_LARGER * self._share(size // max(1, rows)):
                return None
            return pa.concat_batches(list(map(decoded, coded)))

        seen = read(span.groups, first)
        if seen is None:
            return None
        mask = self.row_filter.mask(seen)
        groups, places, start = [], [], 0
        for group in span.groups:
            rows = source.metadata.row_group(group).num_rows
            if mask.slice(start, rows).true_count:
                groups.append(group)
                places.append((start, rows))
            start += rows
        if not groups:
            return _Read(empty_updates(self.seen), span.rows, is_chosen=True)
        if len(groups) < len(span.groups):
            seen = pa.concat_batches([seen.slice(*place) for place in places])
            mask = pa.concat_arrays([mask.slice(*place) for place in places])
        others = [name for name in columns.read if name not in first]
        arrays = {name: seen.column(name) for name in first}
        if others:
            rest = read(groups, others)
            if rest is None:
                return None
            arrays |= {name: rest.column(name) for name in others}
        found = pa.RecordBatch.from_pydict(arrays).filter(mask)
        return _Read(columns.rows(found, found.num_rows), span.rows, is_chosen=True)

    def _spans(self, sizes: Mapping[int, Sizes], groups: Sequence[int]) -> Iterator["_Span"]:
        """Yield the row groups as they are read: several that make a batch, or one that exceeds a batch."""
        waiting: list[int] = []
        waiting_rows = waiting_bytes = 0
        least = least_width(self.seen)
        for index in groups:
            group = sizes[index]
            # Dictionaries and bit packing save space only in the file, not in memory.
            rows, width = group.rows, max(least, group.raw_bytes // max(1, group.rows))
            full = waiting_bytes + rows * width > self._share(width) or waiting_rows + rows > ROW_GROUP_ROWS
            if waiting and full:
                yield _Span(waiting, waiting_rows, waiting_rows, waiting_bytes)
                waiting, waiting_rows, waiting_bytes = [], 0, 0
            if rows > self._batch_rows(width):
                yield self._large(group, index, width)
                continue
            waiting.append(index)
            waiting_rows += rows
            waiting_bytes += rows * width
        if waiting:
            yield _Span(waiting, waiting_rows, waiting_rows, waiting_bytes)

    def _large(self, group: Sizes, index: int, width: int) -> "_Span":
        """Plan a large row group: read it page by page, or as a whole if that takes no more memory."""
        rows, columns, raw_bytes, stored_bytes = group
        batch_rows = self._batch_rows(width)
        is_buffered = columns * _COLUMN_BUFFER < stored_bytes
        held = columns * _COLUMN_BUFFER if is_buffered else stored_bytes
        # A page has at least this many rows. There is a dictionary in addition.
        held += raw_bytes if rows <= _LEAST_PAGE_ROWS else min(raw_bytes, columns * 2 * PAGE_BYTES)
        if rows * width <= batch_rows * width + held and self.threads:
            return _Span([index], rows, rows, raw_bytes)
        return _Span([index], rows, batch_rows, raw_bytes, held, is_buffered)

    def _share(self, width: int) -> int:
        """Return how many bytes of rows of this width make a batch."""
        columns = len(self.seen.columns)
        if has_wide_values(width, columns):
            # Larger batches would save nothing.
            return min(self.buffer_bytes, _WIDE_VALUES_BYTES)
        least = min(_LEAST_ROWS * width, columns * _LEAST_COLUMN_BYTES, self.most_bytes)
        return max(least, self.buffer_bytes)

    def _batch_rows(self, width: int) -> int:
        return max(1, min(ROW_GROUP_ROWS, self._share(width) // width))


@dataclass(frozen=True, slots=True)
class _Span:
    """Row groups that are read together, their rows per batch, and the bytes held between two batches."""

    groups: list[int]
    rows: int
    batch_rows: int
    raw_bytes: int
    held_bytes: int = 0
    is_buffered: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows that were read, and how many rows of the part they stand for.

    They have no `_time` if all of their times are wanted. They stand for more rows if the filter has chosen
    them already.
    """

    rows: pa.RecordBatch
    count: int
    is_chosen: bool = False

    def after(self, given: int) -> "_Read":
        """The same without the first rows."""
        if not given:
            return self
        # A read goes on in the middle only of a row group that is read in several batches.
        assert not self.is_chosen
        return _Read(self.rows.slice(given), self.count - given)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns that are read of some row groups, and the schema and the one diff of their rows.

    If `diff` is None, it is read. `_time` is neither read nor in the rows if all times are wanted.
    """

    read: Sequence[str]
    schema: pa.Schema
    diff: int | None

    def rows(self, batch: pa.RecordBatch | None, count: int) -> pa.RecordBatch:
        """The rows of a batch of the columns that are read. None if these are no columns."""
        arrays = [] if batch is None else [batch.column(name) for name in self.read]
        if self.diff is not None:
            arrays.append(repeated(self.diff, pa.int64(), count))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _same(file: pa.NativeFile) -> pa.NativeFile:
    return file


def open_part(machine: Machine, part: Part, memory_bytes: int = 0) -> "closing[pa.NativeFile]":
    """Open a stored part for random access, after verifying it against the state.

    A part of at most `memory_bytes` is in memory then. That spares a read of the file for each column.

    Raises:
        PartGone: its blob does not exist.
        CorruptBlob: its bytes are damaged.
    """
    key = part.blob_key
    assert key is not None

    def attempt() -> pa.NativeFile:
        file = machine.location.blob.open_input(key, part.size_bytes + 1)
        if file is None:
            raise PartGone(key)
        try:
            data = _verify(file, part, key, keep=part.size_bytes <= memory_bytes)
        except BaseException:
            file.close()
            raise
        if data is None:
            return file
        file.close()
        return pa.BufferReader(data)

    def read() -> pa.NativeFile:
        return retry(attempt, machine.config, machine.clock)

    return closing(read_twice(machine.location, key, read))


def _verify(file: pa.NativeFile, part: Part, key: str, *, keep: bool) -> bytes | None:
    """Compare the bytes of a file with the state. Returns them if `keep` is set."""
    crc32c, kept = 0, []
    try:
        check_size(file.size(), part.size_bytes, key)
        while data := file.read(_READ_BYTES):
            crc32c = google_crc32c.extend(crc32c, data)
            if keep:
                kept.append(data)
        file.seek(0)
    except OSError as error:
        raise Determinate(f"can't read {key}: {error}") from error
    if crc32c != part.crc32c:
        raise CorruptBlob(key, f"crc32c {part.crc32c:08x}", f"{crc32c:08x}")
    return b"".join(kept) if keep else None
