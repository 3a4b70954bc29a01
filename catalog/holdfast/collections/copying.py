"""Copies a collection to another location, or to another name, with its history.

- A copy has the contents of the source at its since, and all changes from there up to an upper that is fixed
  when the copy begins. So whatever writers do meanwhile, the copy has a definite time. Times stay the same,
  and reads at each time of that range return the same rows.
- Until it is complete and verified, the copy has the name `<name>.copying`. A job of kind "copy", in the
  target, records what is copied: the source, its since, and the upper. The rename at the end is the last
  step.
- An interrupted copy continues if the same copy begins again. The upper of the copy says what it has. Each
  append expects that upper, so several runs don't hurt each other.
- A finished copy is brought up to date if the same copy begins again: it gets the changes after its upper.
  One more job records the upper that was checked last, because times below it can't change any more. If the
  copy has later times, an interrupted run has appended them, or others have written. So these are compared
  with the source before anything is appended.
- Memory is bounded: what doesn't fit goes to temporary files.
- The check reads both collections. A sum of hashes of rows and times, each times its diff, doesn't depend on
  how updates were merged or ordered.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.collections.controller import StorageController
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.jobs import BATCH, JobRecord, JobState, Json
from holdfast.collections.record.spec import CollectionInfo, CollectionSpec
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    CollectionNotFound,
    CorruptBlob,
    Fenced,
    UniquenessViolation,
    UpperMismatch,
)
from holdfast.persist import Updates
from holdfast.persist.rows.row_hash import row_hash
from holdfast.persist.rows.schema import DIFF, TIME, Schema
from holdfast.persist.rows.stored import logical_rows

COPY: Final = "copy"
"""The kind of the jobs of copies."""

_SLOT: Final = "1"
_UPDATES: Final = "updates"
"""The slot of the record that a finished copy was brought up to date."""
_SUFFIX: Final = ".copying"
_PURPOSE: Final = "copy"
_LEASE_S: Final = 60.0
_CHUNK_ROWS: Final = 128 * 1024
_MODULUS: Final = 1 << 64

OnRows = Callable[[str, int], object]
"""Called with what is done, and the number of updates so far."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A finished copy: its name and id in the target, and what it has.

    You can read it at times from `since` on and before `upper`, in milliseconds. `rows` are there at the last
    of them, and `changes` is the number of updates that the source had after `since`. `checksum` is that of
    the rows and changes. `was_there` says that an earlier run had finished it, and nothing was missing.
    `brought_from` is the upper that an older copy had before this run brought it up to date. `was_fed` says
    that a source feeds what was copied. The copy is an ordinary table, without bindings, errors and state.
    """

    name: str
    id: str
    since: int
    upper: int
    rows: int
    changes: int
    checksum: str
    was_there: bool = False
    brought_from: int | None = None
    was_fed: bool = False


@dataclass(frozen=True, slots=True)
class _Sums:
    """What a collection has from a time on, independent of how updates are stored."""

    rows: int
    first: int
    changes: int
    last: int

    @property
    def checksum(self) -> str:
        return _hex(self.first + self.changes + self.last)


@dataclass(frozen=True, slots=True)
class _ChangeSums:
    """What changes between two times, independent of how updates are stored: rows, with times and without."""

    rows: int
    timed: int
    plain: int


def _hex(total: int) -> str:
    return f"{total % _MODULUS:016x}"


def copy_collection(
    source: StorageController,
    target: StorageController,
    collection_id: str,
    name: str,
    *,
    upper: int | None = None,
    on_rows: OnRows = lambda *_: None,
) -> CopiedTable:
    """Copy a collection to `name` in the target, continue that, or bring the finished copy up to date.

    `upper` is the upper of the copy. Default: the upper of the source now. An unfinished copy keeps the one
    with which it began.

    Raises:
        UniquenessViolation: the target has another collection with this name. Nothing was changed.
        BadInput: the source has given up history that the copy still needs. Or others have written to the
            finished copy, or columns were renamed or dropped since. Nothing was changed.
        CorruptBlob: the copy differs from the source.
    """
    info = source.describe(collection_id)
    copied = _copied(source, target, info, name, upper, on_rows)
    return replace(copied, was_fed=info.holding.pipeline is not None)


def _copied(
    source: StorageController,
    target: StorageController,
    info: CollectionInfo,
    name: str,
    upper: int | None,
    on_rows: OnRows,
) -> CopiedTable:
    wanted = {"location": str(source.client.location_id), "collection": info.collection_id}
    if (done := _finished(target, name, wanted)) is not None:
        return _brought_up(source, target, done, wanted, upper, on_rows)
    with source.reader(info.collection_id, purpose=_PURPOSE, stored=True, lease_s=_LEASE_S) as reader:
        # The reader holds the history before its since is read. The record is read after the upper, so it has
        # every column that rows below the upper have.
        frontiers = source.frontiers(info.collection_id)
        info = source.describe(info.collection_id)
        times = {"since": frontiers.since, "upper": frontiers.upper if upper is None else upper}
        found = _begun(target, info, name, wanted, times)
        if isinstance(found, CopiedTable):
            return found
        job = target.start_job(found.collection_id, COPY, _SLOT, spec={**wanted, **times})
        if job.state is not JobState.DONE:
            copy = _Copy(reader, target, found, job.spec["since"], job.spec["upper"], on_rows)
            with _history_needed(f"the unfinished copy {found.name!r}", "finished", found.name):
                copy.fill()
                result = copy.checked()
            try:
                target.finish_job(job.job_id, job.attempt, result)
            except Fenced:
                known = target.job(job.job_id)
                if known is None or known.state is not JobState.DONE:
                    raise
    target.rename(found.collection_id, name)
    finished = _finished(target, name, wanted)
    assert finished is not None
    return replace(finished, was_there=False)


def _brought_up(
    source: StorageController,
    target: StorageController,
    done: CopiedTable,
    wanted: Json,
    upper: int | None,
    on_rows: OnRows,
) -> CopiedTable:
    """Give a finished copy the times before an upper that it lacks. Raises like `copy_collection`."""
    with source.reader(wanted["collection"], purpose=_PURPOSE, stored=True, lease_s=_LEASE_S) as reader:
        frontiers = source.frontiers(wanted["collection"])
        info = source.describe(wanted["collection"])
        reached = target.frontiers(done.id).upper
        if reached > frontiers.upper:
            raise _diverged(
                done.name, f"it has times before {reached}, and the table before {frontiers.upper}"
            )
        # An interrupted run may have wanted a later upper.
        upper = max(frontiers.upper if upper is None else upper, reached)
        if upper <= done.upper:
            return done
        made = _evolved(target, target.describe(done.id), info)
        # A copy of a table that nobody had written begins with the times of now.
        since = done.since if done.upper else frontiers.since
        copy = _Copy(reader, target, made, since, upper, on_rows)
        with _history_needed(f"the copy {done.name!r}", "brought up to date", done.name):
            if done.upper < reached and not copy.is_same(done.upper, reached):
                raise _diverged(done.name, "its latest times have other rows than the table")
            copy.fill()
            result = copy.checked_after(done) if done.upper else copy.checked()
    target.record_batch(done.id, COPY, _UPDATES, upper, spec=wanted, result=result, effects=lambda: ())
    return CopiedTable(done.name, done.id, **result, brought_from=done.upper)


def _diverged(name: str, why: str) -> BadInput:
    return BadInput(
        f"the copy {name!r} was written by others, so it can't be brought up to date: {why}",
        hint=f"give a new copy another name, or drop this one: holdfast drop {name!r}",
    )


def _evolved(target: StorageController, made: CollectionInfo, info: CollectionInfo) -> CollectionInfo:
    """The copy, with the columns that the table has got since. Raises `BadInput` for other changes."""
    if (made.schema, made.names) == (info.schema, info.names):
        return made
    try:
        names = made.names.with_new(made.schema, info.schema)
        if (names, names.stored_schema(info.schema)) == (info.names, info.stored_schema):
            return target.evolve_collection(made.collection_id, info.schema)
    except (BadInput, CodecMismatch):
        pass
    raise BadInput(
        f"columns of the table were renamed or dropped, or the copy {made.name!r} was altered, so it can't be"
        " brought up to date",
        hint=f"give a new copy another name, or drop this one: holdfast drop {made.name!r}",
    )


@contextmanager
def _history_needed(what: str, done: str, name: str) -> Iterator[None]:
    """Explain `AsOfTooEarly`: the source has given up times that the copy lacks."""
    try:
        yield
    except AsOfTooEarly as error:
        raise BadInput(
            f"{what} can't be {done}: the source has given up its history before {error.since}",
            hint=f"drop it, and copy again: holdfast drop {name!r} --force",
        ) from None


def _begun(
    target: StorageController, info: CollectionInfo, name: str, wanted: Json, times: dict[str, int]
) -> CollectionInfo | CopiedTable:
    """The unfinished copy, which is created if there is none; or the finished one of another run."""
    while True:
        if (done := _finished(target, name, wanted)) is not None:
            return done
        if (made := _unfinished(target, info, name, wanted)) is not None:
            return made
        if 0 < times["upper"] <= times["since"]:
            raise BadInput(
                f"the source has given up the history of {info.name!r} before {times['since']}, and the copy"
                f" was to end before {times['upper']}",
                hint="copy to another location, which begins with the times of now",
            )
        # If another run creates it just now, this one finds it.
        with suppress(UniquenessViolation):
            made = target.create_collection(_spec(info, name + _SUFFIX))
            if (done := _finished(target, name, wanted)) is None:
                return made
            # The other run had ended between the two looks.
            target.drop_collection(made.collection_id)
            return done


def _finished(target: StorageController, name: str, wanted: Json) -> CopiedTable | None:
    """The finished copy with this name. Raises `UniquenessViolation` if the name is another collection's."""
    info = _named(target, name)
    if info is None:
        return None
    job = _job(target, info)
    if job is None or job.state is not JobState.DONE or not _is_of(job, wanted):
        raise UniquenessViolation(
            f"the target has a table {name!r}, which is no copy of this one",
            hint="give the copy another name, or drop that table",
        )
    latest = _job(target, info, _UPDATES) or job
    result = {name: value for name, value in latest.result.items() if name != BATCH}
    return CopiedTable(name, info.collection_id, **result, was_there=True)


def _spec(info: CollectionInfo, name: str) -> CollectionSpec:
    """A new collection with the columns and policies of a collection."""
    return CollectionSpec(
        str(uuid.uuid4()),
        name,
        info.schema,
        len(info.holding.shards),
        info.holding.hash_columns,
        comments=info.comments,
        retain_ms=info.retain_ms,
        names=info.names,
    )


def _unfinished(
    target: StorageController, info: CollectionInfo, name: str, wanted: Json
) -> CollectionInfo | None:
    """The unfinished copy, if there is one. Raises `UniquenessViolation` if its name is that of another."""
    known = _named(target, name + _SUFFIX)
    if known is None:
        return None
    job = _job(target, known)
    is_other = job is None and (target.frontiers(known.collection_id).upper or known.schema != info.schema)
    if is_other:
        # A run starts its job before it writes. So if another one has written just now, its job is there.
        job = _job(target, known)
    if job is not None and not _is_of(job, wanted):
        raise UniquenessViolation(
            f"the target has {known.name!r}, an unfinished copy of another table",
            hint=f"finish that copy, or drop it: holdfast drop {known.name!r} --force",
        )
    if job is None and is_other:
        raise UniquenessViolation(
            f"the target has a table {known.name!r}, which is no copy",
            hint="give the copy another name, or rename that table",
        )
    return known


def _named(controller: StorageController, name: str) -> CollectionInfo | None:
    return next((each for each in controller.list_collections() if each.name == name), None)


def _job(target: StorageController, info: CollectionInfo, slot: str = _SLOT) -> JobRecord | None:
    jobs = target.jobs(info.collection_id)
    return next((each for each in jobs if (each.kind, each.slot) == (COPY, slot)), None)


def _is_of(job: JobRecord, wanted: Json) -> bool:
    return all(job.spec.get(name) == value for name, value in wanted.items())


class _Copy:
    """One run of a copy."""

    def __init__(
        self,
        reader: CollectionReader,
        target: StorageController,
        made: CollectionInfo,
        since: int,
        upper: int,
        on_rows: OnRows,
    ) -> None:
        self._reader = reader
        self._target = target
        self._made = made
        self._since = since
        self._upper = upper
        self._on_rows = on_rows
        self._done = 0

    def fill(self) -> None:
        """Copy what is missing."""
        id_ = self._made.collection_id
        writer = self._target.writer(id_, purpose=self._target.purpose_of("load"))
        while (reached := writer.upper()) < self._upper:
            # If another run of this copy was faster, the next look shows how far it is.
            with suppress(UpperMismatch):
                self._step(writer, reached)
        if self._upper and self._target.frontiers(id_).since < self._since:
            # Times before it would be shown as empty.
            self._target.set_retention_hold(id_, self._since)

    def _step(self, writer: CollectionWriter, reached: int) -> None:
        """Append what comes next: the contents at the since, or some changes after it."""
        if not reached:
            rows = _at(self._reader.snapshot(self._since), self._since)
            self._append(writer, rows, reached, self._since + 1)
            return
        for until, changes in _changes(self._reader, reached - 1, self._upper - 1):
            self._append(writer, changes, reached, until + 1)
            reached = until + 1

    def _append(
        self, writer: CollectionWriter, rows: Iterable[pa.Table], expected: int, new_upper: int
    ) -> None:
        names = writer.info.names.with_hidden()
        with writer.bulk(far_ahead=True, hidden=True) as bulk:
            for piece in rows:
                stored = _fitted(piece, writer.info.stored_schema)
                bulk.add(logical_rows(names.shown_rows(stored), writer.full_schema))
                self._done += piece.num_rows
                self._on_rows("copying", self._done)
            position = writer.position()
            if position.upper != expected:
                raise UpperMismatch(expected, position.upper, shard_id=f"collection {self._made.name}")
            self._target.client.multi_write(bulk.prepare(position, new_upper).steps)

    def checked(self) -> Json:
        """The result of the copy. Raises `CorruptBlob` if it differs from the source."""
        if not self._upper:
            return {"since": 0, "upper": 0, "rows": 0, "changes": 0, "checksum": f"{0:016x}"}
        # A run that continues may find that the source has given up the first times.
        since = max(self._since, self._reader.since())
        wanted, changes = self._sums(self._reader, since)
        with self._copied() as reader:
            found, _ = self._sums(reader, since)
        if found != wanted:
            raise self._differs(wanted.rows, wanted.checksum, found.rows, found.checksum)
        return {
            "since": self._since,
            "upper": self._upper,
            "rows": found.rows,
            "changes": changes,
            "checksum": found.checksum,
        }

    def checked_after(self, done: CopiedTable) -> Json:
        """The result of bringing a copy up to date, whose times below an upper were checked before.

        What was the same in both at a time is the same later if the changes are. So only these are read.
        Raises `CorruptBlob` if they differ.
        """
        wanted, changes = self._change_sums(self._reader, done.upper - 1, self._upper - 1)
        with self._copied() as reader:
            found, _ = self._change_sums(reader, done.upper - 1, self._upper - 1)
        if found != wanted:
            raise self._differs(wanted.rows, _hex(wanted.timed), found.rows, _hex(found.timed))
        return {
            "since": self._since,
            "upper": self._upper,
            "rows": done.rows + wanted.rows,
            "changes": done.changes + changes,
            "checksum": _hex(int(done.checksum, 16) + wanted.timed + wanted.plain),
        }

    def is_same(self, known: int, reached: int) -> bool:
        """Whether the copy has the changes of the source from a time on and before another."""
        wanted, _ = self._change_sums(self._reader, known - 1, reached - 1)
        with self._copied() as reader:
            return self._change_sums(reader, known - 1, reached - 1)[0] == wanted

    def _copied(self) -> CollectionReader:
        id_ = self._made.collection_id
        return self._target.reader(id_, purpose=_PURPOSE, stored=True, lease_s=_LEASE_S)

    def _differs(self, rows: int, checksum: str, found_rows: int, found_checksum: str) -> CorruptBlob:
        return CorruptBlob(
            self._made.name,
            f"{rows} rows with checksum {checksum}, as in the source",
            f"{found_rows} rows with checksum {found_checksum}",
            hint=f"drop it, and copy again: holdfast drop {self._made.name!r} --force",
        )

    def _change_sums(self, reader: CollectionReader, after: int, until: int) -> tuple[_ChangeSums, int]:
        """The sums of the changes after a time and up to another one, and the number of updates."""
        schema = self._made.stored_schema
        rows = timed = plain = updates = 0
        for _, pieces in _changes(reader, after, until):
            for piece in pieces:
                counted, total = self._sum([piece], schema, [*schema.names, TIME], updates)
                rows, timed = rows + counted, timed + total
                plain += self._sum([piece], schema, schema.names, updates)[1]
                updates += piece.num_rows
        return _ChangeSums(rows, timed % _MODULUS, plain % _MODULUS), updates

    def _sums(self, reader: CollectionReader, since: int) -> tuple[_Sums, int]:
        schema, until = self._made.stored_schema, self._upper - 1
        _, first = self._sum(_at(reader.snapshot(since), since), schema, schema.names)
        changes = total = 0
        for _, rows in _changes(reader, since, until):
            counted = _Counted(rows)
            total += self._sum(counted, schema, [*schema.names, TIME])[1]
            changes += counted.rows
        rows_, last = self._sum(_at(reader.snapshot(until), until), schema, schema.names)
        return _Sums(rows_, first, total % _MODULUS, last), changes

    def _sum(
        self, rows: Iterable[pa.Table], schema: Schema, columns: Sequence[str], done: int = 0
    ) -> tuple[int, int]:
        """The number of rows, and the sum of their hashes. Both count a row as often as its diff says.

        So many rows were `done` before.
        """
        count = total = 0
        for piece in rows:
            for batch in _fitted(piece, schema).to_batches():
                diffs = batch.column(DIFF).to_numpy()
                hashes = row_hash(batch, columns)
                count += int(diffs.sum())
                total += int((hashes * diffs.astype(np.int64).view(np.uint64)).sum(dtype=np.uint64))
                done += batch.num_rows
                self._on_rows("checking", done)
        return count, total % _MODULUS


class _Counted:
    """Tables, and the number of their rows so far."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.rows += table.num_rows
            yield table


def _changes(reader: CollectionReader, after: int, until: int) -> Iterator[tuple[int, Iterable[pa.Table]]]:
    """The changes after `after` and up to `until`, in pieces: the last time of each, and its updates.

    Take the updates of a piece before the next one.
    """
    while after < until:
        last = reader.changed_within(after, until, _CHUNK_ROWS)
        if reader.changes_at(last, _CHUNK_ROWS) <= _CHUNK_ROWS:
            yield last, _listened(reader, after, last)
        elif last > after + 1:
            # Without updates, but there may be a difference at a handover.
            last -= 1
            yield last, _listened(reader, after, last)
        else:
            # One time with many updates: their sums, with bounded memory.
            yield last, _at(reader.changes(last - 1, last), last)
        after = last


def _listened(reader: CollectionReader, after: int, until: int) -> Iterator[pa.Table]:
    for event in reader.listen(after, until):
        if isinstance(event, Updates):
            yield event.table


def _at(batches: Iterable[pa.RecordBatch], time: int) -> Iterator[pa.Table]:
    for batch in batches:
        times = pa.repeat(pa.scalar(time, pa.uint64()), batch.num_rows)
        index = batch.schema.get_field_index(DIFF)
        field = pa.field(TIME, pa.uint64(), nullable=False)
        yield pa.Table.from_batches([batch]).add_column(index, field, times)


def _fitted(rows: pa.Table, stored: Schema) -> pa.Table:
    """Rows of the source as the copy stores them: columns that the source got later have no values yet."""
    wanted = stored.arrow_updates
    columns = [
        rows.column(field.name)
        if field.name in rows.schema.names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in wanted
    ]
    fitted = pa.Table.from_arrays(
        [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, wanted, strict=True)
        ],
        schema=wanted,
    )
    # One chunk for each column, so that hashes and conversions take whole columns.
    return fitted.combine_chunks()


def copy_all(
    source: StorageController,
    target: StorageController,
    *,
    on_table: Callable[[CopiedTable], object] = lambda _: None,
    on_rows: OnRows = lambda *_: None,
    on_gone: Callable[[str], object] = lambda _: None,
) -> list[CopiedTable]:
    """Copy all collections of a location to another one, continue that, or bring the copies up to date.

    Returns the copies. All have the uppers of one moment, so a write of several tables is in all of the
    copies or in none. Collections that were created after that moment are copied by the next run. `on_gone`
    is called with the id of a collection that was dropped before it was copied. Raises like
    `copy_collection`.
    """
    if source.client.location_id == target.client.location_id:
        raise BadInput("the target is the location itself", hint="give another location")
    ids = [each.collection_id for each in source.list_collections() if not each.dropped]
    location = str(source.client.location_id)
    job = _run(target, location) or target.start_job(
        location, COPY, str(len(_runs(target, location)) + 1), spec={"uppers": source.uppers(ids)}
    )
    copies = []
    names = {each.collection_id: each.name for each in source.list_collections()}
    for id_, upper in sorted(job.spec["uppers"].items(), key=lambda each: names.get(each[0], "")):
        try:
            info = source.describe(id_)
            if info.dropped:
                raise CollectionNotFound(info.end)
            copied = copy_collection(
                source,
                target,
                id_,
                info.name,
                upper=upper,
                on_rows=partial(_with_name, on_rows, info.name),
            )
        except CollectionNotFound:
            on_gone(id_)
            continue
        copies.append(copied)
        on_table(copied)
    if job.state is JobState.RUNNING:
        # Another run may have finished it.
        with suppress(Fenced):
            target.finish_job(job.job_id, job.attempt, {"tables": len(copies)})
    return copies


def _runs(target: StorageController, location: str) -> list[JobRecord]:
    """The runs that copied this location, oldest first."""
    return [each for each in target.jobs(location) if each.kind == COPY]


def _run(target: StorageController, location: str) -> JobRecord | None:
    """The run that isn't finished."""
    return next((each for each in _runs(target, location) if each.state is JobState.RUNNING), None)


def _with_name(on_rows: OnRows, name: str, what: str, rows: int) -> None:
    on_rows(f"{what} {name}", rows)
