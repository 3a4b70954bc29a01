"""Only for a source that is another collection: the loop that keeps the times of its changes.

Other sources get their times from the commits of `ingest.ingestion`.

- The rendition has at each time what the source has at that time, decoded. Only its first time is chosen: at
  that time it has all that the source contains then. The since of the collection moves there, because
  nothing is known about earlier times.
- A step commits one or more whole times, with a binding for each time at which the source changed, and for
  the last one. Its upper follows that of the source, also if nothing changed.
- The binding says up to which time the contents have the source. This is the upper, except after a restore:
  then the next step commits, at its time, all changes since.
- A change of the source is a row with a count, which may be negative. The rows that it decodes to get the
  same count. So does a bad record. If the source retracts a row, its rows or its bad record are retracted.
- A step is bounded by `max_rows` and `max_bytes`. One time can't be divided. If a time has more changes than
  `max_rows`, its rows are uploaded in pieces, and memory stays bounded. So are the first contents.
- Another rendition follows nobody: it reads the source itself, and has the same times.
- A binding has the checksum of the changes at its time. If the hold on the source is older than the binding,
  as after a crash, the changes between the two are read again and compared. Others show that the source was
  restored to an earlier state, even if it is complete up to a later time again.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections import RenditionState
from holdfast.collections.pipeline import BESIDE, ERRORS_SCHEMA, REMAP_SCHEMA, SCHEMAS
from holdfast.collections.uploads import upload_rows
from holdfast.errors import HoldfastError, SourceStalled
from holdfast.ingest.following import rows_at
from holdfast.ingest.formats.decoded import Decoded, TooManyBad
from holdfast.ingest.ingestion import PURPOSE, Ingestion, IngestStep, StepOutcome
from holdfast.ingest.made_from import spec_of_other
from holdfast.ingest.reading import included, too_many_errors, without_nulls
from holdfast.ingest.source import Binding, Range
from holdfast.ingest.sources.collection import PARTITION, CollectionSource
from holdfast.ingest.spec import IngestSpec
from holdfast.ingest.standing import RAW_BYTES
from holdfast.persist.handles.read import ReadHandle, Updates
from holdfast.persist.rows.row_hash import row_hash
from holdfast.persist.rows.schema import DIFF, TIME

_NO_POSITION: Final = (1 << 63) - 1
_KEEP_S: Final = 5.0
"""Seconds between two moves of the hold on the source."""

Address = tuple[str, int, bytes | None, bytes | None]
"""What distinguishes bad records: partition, position, and the raw key and value, cut."""


def _address(row: Mapping[str, Any]) -> Address:
    return row["partition"], row["position"], row["key"], row["value"]


@dataclass
class _Changes:
    """What a step has read: the number of changes, their sums by time, and the changes of bad records."""

    messages: int = 0
    updates: int = 0
    bytes: int = 0
    sums: "_Sums" = field(default_factory=lambda: _Sums())
    bad: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)

    def count(self, rows: pa.RecordBatch, messages: pa.RecordBatch) -> None:
        """Count the changes of a batch with times, which are these messages."""
        self.messages += rows.num_rows
        self.bytes += rows.nbytes
        self.sums.add(rows, messages)


@dataclass
class _Sums:
    """The sums of the changes at each time: their counts, and the counts times the hashes of their messages.

    So they are the same however changes are divided and merged.
    """

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch, messages: pa.RecordBatch) -> None:
        """Add the changes of a batch with times and counts. `messages` has what counts of each."""
        names = [each for each in messages.schema.names if each not in (TIME, DIFF)]
        counts, hashes = rows[DIFF].to_numpy(), row_hash(messages, names)
        times, index = np.unique(rows[TIME].to_numpy(), return_inverse=True)
        sums = _summed(index, len(times), counts)
        self.parts.append((times, sums, _summed(index, len(times), counts.astype(np.uint64) * hashes)))

    def by_time(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The times of the changes, in order, with the sums at each."""
        if not self.parts:
            return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.uint64)
        every, *values = (np.concatenate(each) for each in zip(*self.parts, strict=True))
        times, index = np.unique(every, return_inverse=True)
        counts, checksums = (_summed(index, len(times), each) for each in values)
        return times, counts, checksums


def _summed(index: np.ndarray, count: int, values: np.ndarray) -> np.ndarray:
    sums = np.zeros(count, values.dtype)
    np.add.at(sums, index, values)
    return sums


class ReclockedIngestion(Ingestion):
    """Feeds a rendition from another collection. See `Ingestion`."""

    _source: CollectionSource
    opens: Callable[[str, IngestSpec], AbstractContextManager[Ingestion]]
    """Opens the pipeline of another rendition of the collection."""

    def _open(self) -> None:
        super()._open()
        self._columns: list[str] = []
        self._kept_s = -_KEEP_S
        self._is_first_kept = False
        self._is_compared = False

    @property
    def is_following(self) -> bool:
        """Always false: the source itself says what belongs to which time."""
        return False

    def load(self) -> None:
        """Read the upper, the bindings and the errors."""
        super().load()
        binding = self._bound.get(PARTITION)
        self._decode_into(self.schema.names if binding is None else json.loads(binding.identity))

    def _decode_into(self, columns: Sequence[str]) -> None:
        """Decode rows with these columns. Later ones stay null, because a row must be retracted as it came.

        Raises `BadInput` if the source doesn't fit them.
        """
        if columns != self._columns:
            value = tuple(each for each in self.schema.value if each.name in columns)
            self._form_of_rows = self._form(replace(self.schema, value=value), self._texts)
            self._source.check(self._form_of_rows)
            self._columns = list(columns)

    def step(self, within: Mapping[str, int] | None = None) -> IngestStep:
        """Read what is new, and commit it. See `Ingestion.step`."""
        if not self._known:
            self.load()
        if self._is_look_due() and self._is_moved():
            return IngestStep(StepOutcome.LOST, self._upper)
        self._complete_before()
        if self._upper >= self.rendition.held_to:
            return self._end()
        try:
            return self._copied(within)
        except SourceStalled:
            # Another instance may have gone on, so that the source was compacted.
            if not self._is_overtaken():
                raise
            return IngestStep(StepOutcome.LOST, self._upper)

    def _complete_before(self) -> bool:
        """Complete the rendition before this one, with its own format, in case its pipeline doesn't.

        If its format is not known here, only its own pipeline can do that.
        """
        mine = self.rendition
        if self._is_complete_before or not 0 < mine.held_from <= self._client.now_ms():
            return False
        before = self.info.held_before(mine)
        if before is None or before.pipeline is None or self._may_seal(before.pipeline):
            return super()._complete_before()
        spec = spec_of_other(before, self._spec)
        sources = {row["source"] for row in self._remap_of(before.pipeline)} - BESIDE
        if spec is None or sources != {self._source.name}:
            self._is_complete_before = True
            return False
        with self.opens(before.id, spec) as other:
            step = other.step()
            while step.outcome in {StepOutcome.COMMITTED, StepOutcome.LOST}:
                step = other.step()
        self._is_complete_before = step.outcome is StepOutcome.HANDED_OVER
        return False

    def _copied(self, within: Mapping[str, int] | None) -> IngestStep:
        if not self._is_compared:
            if PARTITION in self._bound:
                self._source.upper(self._position)
                self._compare()
            self._is_compared = True
            self._acknowledge()
        end = min(self._source.upper(self._position), self.rendition.held_to)
        if within is not None:
            end = min(end, within.get(PARTITION, end))
        if PARTITION not in self._bound:
            first = self._source.first_time(self._client.now_ms())
            if first is None or max(first, self._upper) >= end:
                return IngestStep(StepOutcome.IDLE, self._upper)
            first = max(first, self._upper)
            return self._at_once(first, self._source.contents(first), end)
        if end <= self._upper:
            return IngestStep(StepOutcome.IDLE, self._upper)
        if self._position < min(self._upper, _NO_POSITION):
            # The contents are restored. What came since the restored time comes now.
            changed = self._source.changed(self._position - 1, self._upper)
            return self._at_once(self._upper, changed, end)
        until, is_large = self._source.bounded(self._upper - 1, end - 1, self._spec.max_rows)
        if is_large:
            return self._at_once(until, self._source.changed(until - 1, until), end)
        return self._some(until, end)

    def _compare(self) -> None:
        """Compare what the hold keeps with what is bound. Raises `SourceStalled` if it differs."""
        pipeline = self.rendition.pipeline
        assert pipeline is not None
        # What came before was bound by others, or at another time than that of the source.
        after = max(self._source.held_since(), self._bound[PARTITION].begin, self.rendition.held_from)
        if self._position == self._upper and after < self._upper - 1:
            with self._client.reader(pipeline.remap, purpose=PURPOSE) as remap:
                after = max(after, remap.since())
                bound = _bound_by_time(remap, after)
            there = _Sums()
            for event in self._source.changes(after, self._upper - 1) if after < self._upper - 1 else ():
                if isinstance(event, pa.Table):
                    for batch in event.combine_chunks().to_batches():
                        there.add(batch, self._hashed(batch))
            found = {time: sums for time, *sums in zip(*map(np.ndarray.tolist, there.by_time()), strict=True)}
            differing = [
                time
                for time in sorted(bound.keys() | found.keys())
                if bound.get(time, [0, 0]) != found.get(time, [0, 0])
            ]
            counted = [time for time in differing if bound.get(time, [0, 0]) == [found.get(time, [0])[0], 0]]
            if counted:
                # Bindings of earlier builds have counts, but no checksums.
                first = self._first_summed()
                differing = [time for time in differing if time not in counted or time >= first]
            if differing:
                raise SourceStalled(
                    f"collection {self._source.info.name}, the source of {self.info.name}, has other changes"
                    f" at times {differing[0]} to {differing[-1]} than {self.info.name} has: the location of"
                    " the source was restored to an earlier state, and has gone on since",
                    hint="feed another collection from it",
                )

    def _first_summed(self) -> int:
        """The first time with a binding that has a checksum, or the upper if there is none."""
        pipeline = self.rendition.pipeline
        assert pipeline is not None
        with self._client.reader(pipeline.remap, purpose=PURPOSE) as remap:
            since = remap.since()
            if any(row["checksum"] for row in rows_at(remap, since) if row["source"] not in BESIDE):
                return since
            bound = _bound_by_time(remap, since)
        return min((time for time, (_, checksum) in bound.items() if checksum), default=self._upper)

    @property
    def _position(self) -> int:
        """The time of the source up to which the contents go. 0 if there are none."""
        return self._bound[PARTITION].position if PARTITION in self._bound else 0

    def _some(self, until: int, end: int) -> IngestStep:
        """Commit the changes up to a time, or up to an earlier one if they have more than `max_bytes`."""
        work = _Changes()
        done: list[pa.Table] = []
        waiting: list[pa.Table] = []
        size, reached = 0, self._upper - 1
        for event in self._source.changes(reached, until):
            if isinstance(event, pa.Table):
                waiting.append(event)
                size += event.nbytes
                if sum(each.num_rows for each in waiting) > self._spec.max_rows:
                    break
                continue
            done, waiting, reached = [*done, *waiting], [], event
            if size >= self._spec.max_bytes:
                break
        if reached < self._upper:
            # The difference at a handover of the source, which nobody counts before.
            first = int(pc.min(waiting[0][TIME]).as_py())
            return self._at_once(first, self._source.changed(first - 1, first), end)
        self._texts.begin()
        tables = []
        for table in done:
            for batch in table.combine_chunks().to_batches():
                tables.append(self._decoded(batch, work))
                work.updates += tables[-1].num_rows
        updates = pa.concat_tables(tables) if tables else None
        return self._committed(work, reached, end, updates)

    def _at_once(self, at: int, contents: Iterable[pa.RecordBatch], end: int) -> IngestStep:
        """Commit all changes at one time. Many rows are uploaded in pieces."""
        work = _Changes()
        self._texts.begin()
        pieces = self._pieces(at, contents, work)
        held: list[pa.Table] = []
        for piece in pieces:
            held.append(piece)
            if work.messages > self._spec.max_rows or work.bytes > self._spec.max_bytes:
                break
        else:
            return self._committed(work, at, end, pa.concat_tables(held) if held else None)

        def batches() -> Iterator[pa.RecordBatch]:
            while held:
                yield from held.pop(0).to_batches()
            yield from chain.from_iterable(each.to_batches() for each in pieces)

        uploads = upload_rows(
            self._client,
            batches(),
            self.rendition,
            self._writer.upload_tickets(),
            meanwhile=self._writer.keep_alive,
        )
        try:
            return self._committed(work, at, end, None, [uploads])
        except SourceStalled:
            self._client.discard(uploads)
            raise

    def _pieces(self, at: int, contents: Iterable[pa.RecordBatch], work: _Changes) -> Iterator[pa.Table]:
        for rows in contents:
            if rows.num_rows:
                times = pa.repeat(pa.scalar(at, pa.uint64()), rows.num_rows)
                piece = self._decoded(rows.append_column(TIME, times), work)
                work.updates += piece.num_rows
                yield piece

    # Decoding

    def _decoded(self, rows: pa.RecordBatch, work: _Changes) -> pa.Table:
        """The updates that changes of the source make. Adds to the work what is not an update."""
        work.count(rows, self._hashed(rows))
        added = pc.greater(rows[DIFF], 0)
        if pc.all(added).as_py():
            return self._added(rows, work)
        new = self._added(rows.filter(added), work)
        return pa.concat_tables([new, self._removed(rows.filter(pc.invert(added)), work)])

    def _added(self, rows: pa.RecordBatch, work: _Changes) -> pa.Table:
        messages = self._messages(rows)
        try:
            decoded = self._decoded_messages(messages)
        except TooManyBad as error:
            times = np.unique(rows[TIME].to_numpy())
            if len(times) == 1:
                raise too_many_errors(self.info.name, self._spec.error_limit, error.reason) from None
            # There may be fewer at each time.
            before = pc.less(rows[TIME], pa.scalar(int(times[len(times) // 2]), pa.uint64()))
            parts = (rows.filter(before), rows.filter(pc.invert(before)))
            return pa.concat_tables([self._added(part, work) for part in parts])
        for bad in decoded.bad:
            message = messages.slice(bad.index, 1).to_pylist()[0]
            row = self._error_row(message) | {"kind": bad.kind, "reason": bad.reason}
            work.bad.append((*self._when(rows, bad.index), row))
        return self._updates(decoded, messages, rows)

    def _removed(self, rows: pa.RecordBatch, work: _Changes) -> pa.Table:
        """Retract what the rows were decoded to before: bad records, or rows of the collection.

        A row that was a bad record is one now, even if it could be decoded meanwhile.
        """
        messages = self._messages(rows)
        known = {_address(each): each for each in self._standing}
        known |= {_address(row): row for _, _, row in work.bad}
        is_bad = np.zeros(rows.num_rows, bool)
        if known:
            values = pa.array({value for _, _, _, value in known}, pa.binary())
            cut = pc.binary_slice(messages["value"], 0, RAW_BYTES)
            for index in np.flatnonzero(pc.is_in(cut, values).to_numpy(zero_copy_only=False)).tolist():
                message = messages.slice(index, 1).to_pylist()[0]
                row = known.get(_address(self._error_row(message)))
                if row is not None:
                    is_bad[index] = True
                    work.bad.append((*self._when(rows, index), row))
        good = pa.array(~is_bad)
        rows, messages = rows.filter(good), messages.filter(good)
        try:
            decoded = self._decoded_messages(messages)
        except TooManyBad as error:
            raise self._undecodable(error.reason) from None
        if decoded.bad:
            raise self._undecodable(decoded.bad[0].reason)
        return self._updates(decoded, messages, rows)

    def _undecodable(self, why: str) -> SourceStalled:
        return SourceStalled(
            f"the source of collection {self.info.name} retracts a row that could be decoded when it came and"
            f" can't be now: {why}",
            hint=f"feed another collection from {self._source.info.name}",
        )

    def _hashed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """What of the rows this rendition looks at. It stays the same if the source gets other columns."""
        if self._source.columns is not None:
            return self._source.columns.messages(rows)
        types = self.schema.arrow
        columns = [
            rows[each] if each in rows.schema.names else pa.nulls(rows.num_rows, types.field(each).type)
            for each in self._columns
        ]
        return pa.RecordBatch.from_arrays(columns, self._columns)

    def _messages(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if self._source.columns is None else self._source.columns.messages(rows)

    def _decoded_messages(self, messages: pa.RecordBatch) -> Decoded:
        decoded = self._form_of_rows.decode(messages)
        if self._source.columns is None:
            return decoded
        return without_nulls(decoded, messages, self.schema, include=self._spec.include)

    def _error_row(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._source.columns is not None
        partition, position = self._source.columns.address(message)
        key, value = (
            None if message[each] is None else message[each][:RAW_BYTES] for each in ("key", "value")
        )
        return {"partition": partition, "position": position, "key": key, "value": value}

    @staticmethod
    def _when(rows: pa.RecordBatch, index: int) -> tuple[int, int]:
        return rows[TIME][index].as_py(), rows[DIFF][index].as_py()

    def _updates(self, decoded: Decoded, messages: pa.RecordBatch, rows: pa.RecordBatch) -> pa.Table:
        """Decoded rows with the included columns, and with the time and count of the rows they are from."""
        index = pa.array(decoded.index)
        arrays = {name: decoded.rows[name] for name in decoded.rows.column_names}
        for what, name in self._spec.include.items():
            if what != "record":
                type_ = self.schema.arrow.field(name).type
                arrays[name] = included(messages[what].take(index), what, type_)
        arrays |= {each: rows[each].take(index) for each in (TIME, DIFF)}
        columns = [
            arrays[each.name] if each.name in arrays else pa.nulls(len(index), each.type)
            for each in self.schema.arrow_updates
        ]
        return pa.table(columns, schema=self.schema.arrow_updates)

    # The commit

    def _committed(
        self, work: _Changes, until: int, end: int, updates: pa.Table | None, uploads: Any = ()
    ) -> IngestStep:
        """Commit everything up to a time."""
        standing, errors = self._judged_errors(work)
        remap, binding = self._remapped(work, until)
        schemas = {id_: text for id_, text in self._texts.taken().items() if id_ not in self._texts.stored}
        texts = [
            {**self._remap_row(each, Binding(0, text), SCHEMAS), TIME: until, DIFF: 1}
            for each, text in schemas.items()
        ]
        remap = pa.concat_tables([remap, pa.Table.from_pylist(texts, REMAP_SCHEMA.arrow_updates)])
        # A rendition that is being filled may begin at any time. A collection has all its times.
        is_begun = self._upper or self.rendition.state is not RenditionState.HYDRATING
        expected = self._upper if is_begun else until
        if not self._is_appended(updates, expected, until + 1, (remap, errors), uploads):
            return IngestStep(StepOutcome.LOST, self._upper)
        self._upper, self._moved_s = until + 1, time.monotonic()
        self._bound[PARTITION] = binding
        self._texts.stored |= schemas
        self._standing = standing
        self._acknowledge()
        more = until + 1 < end
        bad = sum(1 for _, diff, _ in work.bad if diff > 0)
        done = (work.messages, work.updates, bad, work.bytes)
        return IngestStep(StepOutcome.COMMITTED, self._upper, *done, more=more)

    def _remapped(self, work: _Changes, until: int) -> tuple[pa.Table, Binding]:
        """The updates of the remap, and the last binding.

        Each time that has changes has a binding, and so has the last time.
        """
        times, sums, checksums = work.sums.by_time()
        before = self._bound.get(PARTITION)
        if len(times) and times[-1] >= _NO_POSITION:
            raise SourceStalled(
                f"collection {self._source.info.name}, the source of {self.info.name}, has changes at"
                f" {times[-1]}, which is no time that a binding can have",
                hint="write times in milliseconds since 1970",
            )
        if not len(times) or times[-1] != until:
            times, sums = np.append(times, np.uint64(until)), np.append(sums, 0)
            checksums = np.append(checksums, np.uint64(0))
        totals = np.cumsum(sums) + (before.total if before else 0)
        begin = before.begin if before else until
        positions = np.minimum(times, np.uint64(_NO_POSITION - 1)).astype(np.int64) + 1
        new = _Bindings(positions, sums, totals, checksums)
        old = _Bindings(positions[:-1], sums[:-1], totals[:-1], checksums[:-1])
        removed_at = times[1:]
        if before is not None:
            old = _Bindings(
                np.append(np.int64(before.position), old.positions),
                np.append(np.int64(before.rows), old.rows),
                np.append(np.int64(before.total), old.totals),
                np.append(np.uint64(before.checksum), old.checksums),
            )
            removed_at = times
        tables = [
            self._binding_rows(old, begin, removed_at, -1),
            self._binding_rows(new, begin, times, 1),
        ]
        last = Binding(
            int(positions[-1]), self._identity, int(sums[-1]), int(checksums[-1]), begin, int(totals[-1])
        )
        return pa.concat_tables(tables), last

    @property
    def _identity(self) -> str:
        """The columns of a binding, which never change for a rendition."""
        return json.dumps(self._columns)

    def _binding_rows(self, rows: "_Bindings", begin: int, times: np.ndarray, diff: int) -> pa.Table:
        count = len(times)
        values = {
            "source": pa.repeat(self._source.name, count),
            "partition": pa.repeat(PARTITION, count),
            "position": pa.array(rows.positions),
            "identity": pa.repeat(self._identity, count),
            "rows": pa.array(rows.rows),
            "checksum": pa.array(rows.checksums),
            "begin": pa.array(np.full(count, begin, np.int64)),
            "total": pa.array(rows.totals),
            TIME: pa.array(times),
            DIFF: pa.array(np.full(count, diff, np.int64)),
        }
        schema = REMAP_SCHEMA.arrow_updates
        return pa.table([values[name] for name in schema.names], schema=schema)

    def _judged_errors(self, work: _Changes) -> tuple[list[dict[str, Any]], pa.Table | None]:
        """The bad records after the step, with their counts, and the updates of the errors.

        Raises `SourceStalled` if there are more than the limit at some time.
        """
        if not work.bad:
            return self._standing, None
        rows = {_address(each): each for each in self._standing}
        counts = Counter({_address(each): each[DIFF] for each in self._standing})
        updates: list[dict[str, Any]] = []
        by_time: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for at, diff, row in work.bad:
            by_time.setdefault(at, []).append((diff, row))
        for at, changed in sorted(by_time.items(), key=lambda one: one[0]):
            for diff, row in changed:
                known = rows.setdefault(_address(row), row)
                counts[_address(row)] += diff
                updates.append({**known, TIME: at, DIFF: diff})
            for _, row in changed:
                if counts[_address(row)] < 0:
                    raise self._undecodable(row["reason"])
            added = [row for diff, row in changed if diff > 0]
            self._check_limit(added, sum(counts.values()))
        standing = [{**rows[each], DIFF: number} for each, number in counts.items() if number]
        return standing, pa.Table.from_pylist(updates, ERRORS_SCHEMA.arrow_updates)

    def _acknowledge(self) -> None:
        """Hold what is needed next, and nothing before it, but not before a step has compared it."""
        if not self._is_compared or not self._position or self._upper >= self.rendition.held_to:
            return
        self._keep_first()
        now_s = self._client.clock.monotonic()
        if now_s - self._kept_s >= _KEEP_S:
            self._source.keep(self._position - 1)
            self._kept_s = now_s

    def _keep_first(self) -> None:
        """Let nobody read times before the first one, at which the collection only seems empty."""
        binding = self._bound.get(PARTITION)
        if self._is_first_kept or binding is None or self.rendition.state is not RenditionState.HOLDING:
            return
        held_from, id_ = self.rendition.held_from, self.info.collection_id
        if binding.begin > held_from and self._controller.frontiers(id_).since < binding.begin:
            self._controller.set_retention_hold(self.info.collection_id, binding.begin)
        self._is_first_kept = True

    def _probed(self) -> list[Range]:
        """The times that are not read yet."""
        upper = self._source.upper(self._position)
        return [Range(PARTITION, self._upper, upper)] if upper > self._upper else []

    def close(self) -> None:
        """Leave the hold where the next instance begins."""
        if self._known and self._is_compared and self._position and self._upper < self.rendition.held_to:
            # The hold may stay where it is. The next instance moves it.
            with suppress(HoldfastError):
                self._source.move(self._position - 1)
        super().close()


def _bound_by_time(remap: ReadHandle, after: int) -> dict[int, list[int]]:
    """The counts and checksums of changes that are bound at each time after one."""
    listen, upper = remap.listen(after), remap.upper()
    bound: dict[int, list[int]] = {}
    while listen.frontier < upper:
        for event in listen.next():
            if isinstance(event, Updates):
                for row in event.table.to_pylist():
                    if row["source"] not in BESIDE and row[DIFF] > 0:
                        bound[row[TIME]] = [row["rows"], row["checksum"]]
    return bound


@dataclass(frozen=True, slots=True)
class _Bindings:
    """Positions with their numbers of rows, and with the checksums of their changes."""

    positions: np.ndarray
    rows: np.ndarray
    totals: np.ndarray
    checksums: np.ndarray
