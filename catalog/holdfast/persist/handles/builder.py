"""Builds one append of any size, with updates in any order, in bounded memory.

- Updates are gathered up to a share of the memory, sorted, consolidated, and spilled to a temporary file. If
  there are many files, they are merged into longer ones. In the end they are merged into the parts of one
  run.
- Memory is bounded in bytes: a chunk takes a share of it, and each file that is merged takes a batch. If rows
  are larger than that, about ten rows are in memory.
- Nothing is uploaded before the append is prepared. If the append is not committed, its uploads are deleted
  with the builder.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final, Protocol, Self

import pyarrow as pa

from holdfast.errors import BadInput, DiffOverflow, HoldfastError
from holdfast.forks import OwnerProcess
from holdfast.persist.multi_write import Prepared
from holdfast.persist.rows.canonical import prepare_updates, time_bounds
from holdfast.persist.rows.merge import consolidate_chunk, merge_runs
from holdfast.persist.rows.schema import TIME, Schema
from holdfast.persist.rows.sizes import pieces_of
from holdfast.persist.rows.spill import Spill
from holdfast.persist.rows.values import Rows

MEMORY_BYTES: Final = 64 * 1024 * 1024
# While a chunk is sorted, it exists several times, and the next one is being gathered.
_CHUNK_SHARE: Final = 8
_FAN_IN: Final = 32
_MOST_ROWS: Final = 64 * 1024


class Appends(Protocol):
    """The write handle that commits the updates of a builder."""

    schema: Schema

    @property
    def shard_id(self) -> str:
        """The shard that it writes."""

    def check_upper(self, expected_upper: int) -> None:
        """Raise `UpperMismatch` unless the upper is `expected_upper`. Linearized."""

    def prepare_run(self, pieces: Iterable[Rows], expected_upper: int, new_upper: int) -> Prepared:
        """Prepare an append of rows that are sorted as a whole, for `multi_write`."""

    def commit(self, prepared: Prepared) -> None:
        """Commit the append."""


class BatchBuilder:
    """Gathers updates for one append. Not thread-safe. Made by `WriteHandle.batch_builder`.

    Use it in a `with` block, and commit in the block. The end of the block deletes what was uploaded and not
    committed.
    """

    def __init__(self, writer: Appends, *, memory_bytes: int, threads: bool) -> None:
        if memory_bytes < 1:
            raise BadInput(f"memory_bytes of a batch builder is {memory_bytes}: expected 1 or more")
        self._writer = writer
        self._owner = OwnerProcess()
        self._schema = writer.schema
        self._names = [*writer.schema.names, TIME]
        self._chunk_bytes = max(1, memory_bytes // _CHUNK_SHARE)
        self._spill_bytes = max(1, self._chunk_bytes // _FAN_IN)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._spills: list[Spill] = []
        self._spiller = ThreadPoolExecutor(1, "holdfast-spill") if threads else None
        self._spilling: Future[None] | None = None
        self._timed: bool | None = None
        self._times: tuple[int, int] | None = None
        self._prepared: list[Prepared] = []
        self._unusable = ""

    def add(self, updates: object) -> None:
        """Add updates in any order: anything that an append takes, or an iterable of such pieces.

        Either all updates of a builder have a `_time`, or none has. In the second case, all are at the
        `expected_upper` of the append.

        Raises:
            BadInput: the updates don't fit the schema. Earlier pieces were added, so the builder can't be
                used any more.
            Determinate: there is no space for a temporary file. The builder can't be used any more.
        """
        self._check_usable()
        # This stays set until everything was added.
        self._unusable = "failed to add some updates"
        for piece in _pieces(updates, self._chunk_bytes):
            self._add_batch(prepare_updates(self._schema, piece, default_time=0), timed=_has_times(piece))
        self._unusable = ""

    def compare_and_append(self, expected_upper: int, new_upper: int) -> None:
        """Append the updates and move the upper, durably, or do nothing. Afterwards the builder is done.

        Raises:
            UpperMismatch: the shard has another upper; nothing happened. You can call it again.
            BadInput: an update's time is not in `[expected_upper, new_upper)`, or the sum of the diffs of one
                update does not fit int64; nothing happened.
            Indeterminate: the append may have happened. The writer can't be used any more.
        """
        self._check_usable()
        # Check before everything is uploaded rather than afterwards.
        self._writer.check_upper(expected_upper)
        self._writer.commit(self.prepare_append(expected_upper, new_upper))
        self._end("has appended what was added")

    def prepare_append(self, expected_upper: int, new_upper: int, *, time: int | None = None) -> Prepared:
        """Prepare the append for `multi_write`, in the builder's block: upload everything, commit nothing.

        `time` is the time of updates without one. The default is `expected_upper`.
        """
        self._check_usable()
        time = expected_upper if time is None else time
        if self._times is not None:
            first, last = self._times if self._timed else (time, time)
            if not (expected_upper <= first and last < new_upper):
                wrong = first if first < expected_upper else last
                raise BadInput(
                    f"an update is at time {wrong}: expected times in [{expected_upper}, {new_upper})"
                )
        pieces = self._merged() if self._timed else (_at(rows, time) for rows in self._merged())
        prepared = self._writer.prepare_run(pieces, expected_upper, new_upper)
        self._prepared.append(prepared)
        return prepared

    def updates(self) -> Iterator[pa.RecordBatch]:
        """Yield the updates, consolidated, in the total order. `_time` is 0 if the updates have none."""
        self._check_usable()
        return self._merged()

    def close(self) -> None:
        """Delete the temporary files, and uploads that were not committed.

        In a forked child it does nothing, because the parent may continue to use them.
        """
        if not self._owner.is_here:
            return
        self._end("is closed")
        if self._spiller is not None:
            self._spiller.shutdown()
        for prepared in self._prepared:
            prepared.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        self._owner.check("this batch builder")
        if self._unusable:
            raise BadInput(f"this batch builder of {self._writer.shard_id} {self._unusable}")

    def _add_batch(self, rows: pa.RecordBatch, *, timed: bool) -> None:
        bounds = time_bounds(rows)
        if bounds is None:
            return
        if self._timed not in (None, timed):
            raise BadInput(f"some updates have a {TIME} and some have none", hint="give all of them one")
        self._timed = timed
        first, last = self._times or bounds
        self._times = min(first, bounds[0]), max(last, bounds[1])
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._chunk_bytes:
            self._spill()

    def _spill(self) -> None:
        chunk, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self._spiller is None:
            self._sort_and_spill(chunk)
            return
        self._wait()
        self._spilling = self._spiller.submit(self._sort_and_spill, chunk)

    def _wait(self) -> None:
        spilling, self._spilling = self._spilling, None
        if spilling is None:
            return
        try:
            spilling.result()
        except BaseException:
            # The rows of the chunk are lost.
            self._unusable = "failed to add some updates"
            raise

    def _sort_and_spill(self, chunk: Sequence[pa.RecordBatch]) -> None:
        with _refused():
            rows = consolidate_chunk(self._names, chunk)
        self._spills.append(Spill(_cut(rows, self._spill_bytes), 0))
        while True:
            last = self._spills[-self._fan_in() :]
            if len(last) < self._fan_in() or last[0].level != last[-1].level:
                return
            self._merge_spills(last)

    def _fan_in(self) -> int:
        """Return how many files are merged at once. A batch of each is in memory, maybe one large row."""
        largest = max((spill.largest_batch for spill in self._spills), default=0)
        return max(2, min(_FAN_IN, _FAN_IN * self._spill_bytes // max(1, largest)))

    def _merge_spills(self, spills: "Sequence[Spill]") -> None:
        """Merge the last spills into one."""
        rows = merge_runs(self._names, map(iter, spills))
        pieces = (piece for chunk in rows for piece in _cut(chunk, self._spill_bytes))
        with _refused():
            merged = Spill(pieces, spills[0].level + 1)
        for spill in spills:
            spill.close()
        self._spills[-len(spills) :] = [merged]

    def _merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all updates, consolidated, in the total order."""
        self._wait()
        while len(self._spills) > self._fan_in():
            # The last ones are the shortest.
            self._merge_spills(self._spills[-self._fan_in() :])
        if self._waiting:
            with _refused():
                self._waiting = [consolidate_chunk(self._names, self._waiting)]
        last = [_cut(rows, self._spill_bytes) for rows in self._waiting]
        runs = [*map(iter, self._spills), *last]
        # A single run is consolidated already.
        with _refused():
            yield from runs[0] if len(runs) == 1 else merge_runs(self._names, runs)

    def _end(self, why: str) -> None:
        self._unusable = why
        with suppress(HoldfastError):
            self._wait()
        for spill in self._spills:
            spill.close()
        self._spills.clear()
        self._waiting.clear()


@contextmanager
def _refused() -> Iterator[None]:
    """Turn an overflow into `BadInput`, because here the caller's updates overflow."""
    try:
        yield
    except DiffOverflow as error:
        raise BadInput(str(error)) from None


def _pieces(updates: object, most_bytes: int) -> Iterator[object]:
    """Yield the updates in pieces that are small enough to prepare one by one."""
    match updates:
        case None:
            return
        case pa.RecordBatch():
            yield from _cut(updates, most_bytes)
        case pa.Table():
            for batch in updates.to_batches():
                yield from _cut(batch, most_bytes)
        case list() | tuple() if not updates or isinstance(updates[0], Mapping):
            yield from _cut_rows(updates, most_bytes)
        case str() | bytes() | Mapping():
            yield updates
        case _ if hasattr(updates, "__arrow_c_stream__"):
            for batch in pa.RecordBatchReader.from_stream(updates):
                yield from _cut(batch, most_bytes)
        case Iterable():
            for piece in updates:
                yield from _pieces(piece, most_bytes)
        case _:
            yield updates


def _cut(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about so many bytes."""
    return pieces_of(rows, most_bytes, _MOST_ROWS)


def _cut_rows(rows: Sequence[object], most_bytes: int) -> Iterator[Sequence[object]]:
    """Like `_cut`, for dicts. It counts the bytes of long values."""
    start = held = 0
    for index, row in enumerate(rows):
        values = row.values() if isinstance(row, Mapping) else ()
        held += sum(len(value) for value in values if isinstance(value, str | bytes))
        if index + 1 - start == _MOST_ROWS or held >= most_bytes:
            yield rows[start : index + 1]
            start, held = index + 1, 0
    if start < len(rows):
        yield rows[start:]


def _has_times(piece: object) -> bool:
    if isinstance(piece, pa.RecordBatch):
        return TIME in piece.schema.names
    return isinstance(piece, list | tuple) and any(TIME in row for row in piece)


def _at(rows: pa.RecordBatch, time: int) -> pa.RecordBatch:
    """Move rows, which all have the same time, to another time."""
    index = rows.schema.get_field_index(TIME)
    times = pa.repeat(pa.scalar(time, pa.uint64()), rows.num_rows)
    return rows.set_column(index, rows.schema.field(TIME), times)
