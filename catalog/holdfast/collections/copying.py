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
- The source may have been returned to an earlier state since, and written again. A mark at the source shows
  that it was not (`copy_marks`). Without the mark of its copy, all times of both are compared first.
- A copy of a collection that a source feeds also has its bindings and its bad records, in the commits of the
  rows. So at each time it has exactly the messages that its bindings name, and a pipeline of its own may
  continue from there. It has its own id, and so its own consumer group and replication slot. Once its
  pipeline has moved it, it is no copy any more: the comparison of its later times finds that.
- Memory is bounded: what doesn't fit goes to temporary files.
- The check reads both collections. A sum of hashes of rows and times, each times its diff, doesn't depend on
  how updates were merged or ordered.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.collections.complete_times import ReadSeal, sealed_past
from holdfast.collections.controller import StorageController
from holdfast.collections.copy_marks import MARK, mark_of, new_mark
from holdfast.collections.pipeline import BESIDE, FORGOTTEN, PIPELINE_SCHEMAS
from holdfast.collections.pipeline_history import KEPT, PipelineHistory
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.jobs import BATCH, JobRecord, JobState, Json
from holdfast.collections.record.spec import CollectionInfo, CollectionSpec, Recipe, RenditionInfo
from holdfast.collections.uploads import upload_rows, upload_updates
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    CollectionNotFound,
    CopiesRefused,
    CorruptBlob,
    Fenced,
    ShardFinalized,
    UniquenessViolation,
    UpperMismatch,
)
from holdfast.persist import PersistClient, Updates, Upload
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
_NOT_REPLAYED: Final = "postgres://"
"""How the names of sources begin that a restored rendition doesn't read again."""
_LEASE_S: Final = 60.0
_CHUNK_ROWS: Final = 128 * 1024
_KEPT_BYTES: Final = 64 << 20
"""At most about this much of what a pipeline kept is in memory. More is uploaded in pieces."""
_MODULUS: Final = 1 << 64
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXING: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT: Final = np.uint64(31)

OnRows = Callable[[str, int], object]
"""Called with what is done, and the number of updates so far."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A finished copy: its name and id in the target, and what it has.

    You can read it at times from `since` on and before `upper`, in milliseconds. `rows` are there at the last
    of them, and `changes` is the number of updates that the source had after `since`. `checksum` is that of
    the rows and changes. `was_there` says that an earlier run had finished it, and nothing was missing.
    `brought_from` is the upper that an older copy had before this run brought it up to date. `was_fed` says
    that a source feeds what was copied. Then the copy also has its bindings and bad records at all its times,
    and only a pipeline of its own may write it.
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
    updates: int = field(compare=False)
    """The number of updates, which depends on how they are stored."""

    @property
    def checksum(self) -> str:
        return _hex(self.first + self.changes + self.last)


class _Sum(NamedTuple):
    """What some updates have, independent of how they are stored: rows, and hashes without and with times."""

    rows: int
    plain: int
    timed: int


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
            finished copy, or columns were renamed or dropped since. Or the collection was restored, and its
            pipeline has not yet read again what it had before. Nothing was changed.
        CorruptBlob: the copy differs from the source.
    """
    copied = _copied(source, target, source.describe(collection_id), name, upper, on_rows)
    return replace(copied, was_fed=target.describe(copied.id).holding.pipeline is not None)


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
        fed = _fed_at(source, info, times["upper"])
        found = _begun(target, info, fed, name, wanted, times)
        if isinstance(found, CopiedTable):
            return found
        job = target.start_job(found.collection_id, COPY, _SLOT, spec={**wanted, **times})
        if job.state is not JobState.DONE:
            since, until = job.spec["since"], job.spec["upper"]
            _check_reached(source, info, found.name, until)
            _check_fed(found, _fed_at(source, info, until))
            with (
                _history_needed(f"the unfinished copy {found.name!r}", "finished", found.name),
                _Copy(source, reader, target, found, since, until, on_rows) as copy,
            ):
                # What others may have written to it is found by the check of the whole.
                copy.fill()
                result = copy.checked()
            result[MARK] = new_mark(source, info.collection_id, found.collection_id, until)
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
        made = target.describe(done.id)
        reached = target.frontiers(done.id).upper
        latest = _latest(target, made)
        is_known = not done.upper or (
            latest.result.get(MARK, "") == mark_of(source, info.collection_id, done.id) != ""
        )
        if not is_known and done.upper > frontiers.upper:
            raise _other_history(made, done.upper, f"it ends before {frontiers.upper} now")
        if reached > frontiers.upper:
            with (
                _history_needed(f"the copy {done.name!r}", "brought up to date", done.name),
                _Copy(source, reader, target, made, done.since, reached, on_rows) as copy,
            ):
                copy.compare(done.upper, reached)
            # It has moved on just now.
            frontiers = source.frontiers(wanted["collection"])
        # An interrupted run may have wanted a later upper.
        upper = max(frontiers.upper if upper is None else upper, reached)
        _check_reached(source, info, made.name, upper)
        if upper <= done.upper and is_known:
            return done
        _check_fed(made, _fed_at(source, info, upper))
        # A copy of a table that nobody had written begins with the times of now.
        since = done.since if done.upper else frontiers.since
        with (
            _history_needed(f"the copy {done.name!r}", "brought up to date", done.name),
            _Copy(source, reader, target, made, since, upper, on_rows) as copy,
        ):
            if not is_known:
                copy.compare_all(done.upper)
            copy.evolve(info)
            # Others may have written to it since it was finished, or an interrupted run has.
            copy.compare(done.upper, reached)
            copy.fill(reached)
            result = copy.checked_after(done) if done.upper else copy.checked()
        result[MARK] = new_mark(source, info.collection_id, done.id, upper)
    # It may have only a new mark.
    batch = max(upper, latest.result.get(BATCH, 0) + 1)
    target.record_batch(done.id, COPY, _UPDATES, batch, spec=wanted, result=result, effects=lambda: ())
    if upper <= done.upper:
        return done
    return CopiedTable(done.name, done.id, **_facts(result), brought_from=done.upper)


def _check_reached(source: StorageController, info: CollectionInfo, copy: str, upper: int) -> None:
    """Raise `BadInput` if a source has no longer all times before the upper with which a copy began."""
    reached = source.frontiers(info.collection_id).upper
    if upper > reached:
        raise BadInput(
            f"the copy {copy!r} was to have the times before {upper}, and the table has only those before"
            f" {reached}: its location was returned to an earlier state",
            hint="copy again when the table has later times; or give a new copy another name",
        )


def _other_history(made: CollectionInfo, upper: int, why: str) -> BadInput:
    return BadInput(
        f"the table has another history than the copy {made.name!r} before {upper}, so it can't be brought up"
        f" to date: {why}",
        hint="the location of the table was probably returned to an earlier state, and the copy may have rows"
        " that are lost there; give a new copy another name, or drop this one: holdfast drop"
        f" {made.name!r} --force",
    )


def _fed_at(source: StorageController, info: CollectionInfo, upper: int) -> RenditionInfo | None:
    """The rendition that has the last time before an upper, if a pipeline continues it. None for a table.

    Raises `BadInput` if it was restored, and has not read again what the renditions before it had.
    """
    time = max(upper - 1, 0)
    found = next((each for each in info.held if each.holds_at(time)), info.holding)
    # Only of a table that a source fed earlier, columns may be renamed or dropped.
    if found.pipeline is None or not info.names.is_plain:
        return None
    if any(each.recipe is Recipe.RESTORED for each in info.held if each.held_from <= found.held_from):
        _check_read_again(source.client, info, found, time)
    return found


def _check_read_again(
    client: PersistClient, info: CollectionInfo, rendition: RenditionInfo, time: int
) -> None:
    """Raise `BadInput` if renditions before a restored one had messages that this one has not at a time.

    Its pipeline makes sure that all of them come again, and compares them with what was bound. The pipeline
    of a copy could not: it has no renditions before its own.
    """
    assert rendition.pipeline is not None
    mine = _bound(client, rendition.pipeline.remap, time)
    for each in info.held:
        if each.pipeline is None or each.held_from >= rendition.held_from:
            continue
        # Nobody reads one that is dropped or compacted, so nobody knows what it had.
        with suppress(AsOfTooEarly, ShardFinalized):
            theirs = _bound(client, each.pipeline.remap, None)
            if lacking := next((key for key, row in theirs.items() if _lacks(mine, theirs, key, row)), None):
                raise BadInput(
                    f"collection {info.name} was restored from a snapshot, and its pipeline has not yet read"
                    f" again what rendition {each.id} had of partition {lacking[1]!r}",
                    hint="feed it until it has, with 'holdfast ingest --once', and then copy it; or copy it"
                    f" when rendition {each.id} is dropped, which 'holdfast collection describe' shows",
                )


_Bound = Mapping[tuple[str, str], Mapping[str, Any]]


def _bound(client: PersistClient, remap: str, time: int | None) -> _Bound:
    """The rows of a remap at a time, or at its latest: the bindings, and what is forgotten."""
    with client.reader(remap, purpose=_PURPOSE, lease_s=_LEASE_S) as reader:
        at = reader.upper() - 1 if time is None else time
        rows = reader.snapshot(at).to_table().to_pylist() if at >= 0 else []
    beside = BESIDE - {FORGOTTEN}
    return {(each["source"], each["partition"]): each for each in rows if each["source"] not in beside}


def _lacks(mine: _Bound, theirs: _Bound, key: tuple[str, str], row: Mapping[str, Any]) -> bool:
    """Whether messages of a row of theirs are not in mine, and a pipeline has to read them again.

    The rules are those of `holdfast.ingest.restored`.
    """
    if key[0].startswith(_NOT_REPLAYED):
        return False
    own = mine.get(key)
    if key[0] == FORGOTTEN:
        # Right after a restore, those that only mine has are those that the others have forgotten.
        files = sum(each[0] == key[1] for each in mine.keys() - theirs.keys())
        return bool(row["position"] > files + (0 if own is None else own["position"]))
    if own is None:
        return True
    continues = own["begin"] == row["begin"] and own["identity"] == row["identity"]
    return bool(continues and row["position"] > own["position"])


def _check_fed(made: CollectionInfo, fed: RenditionInfo | None) -> None:
    """Raise `BadInput` if the pipeline of a table could not continue the copy, or the copy has none."""
    mine = made.holding
    if fed is None and mine.pipeline is not None:
        why = f"no source feeds the table any more, and the copy {made.name!r} is for a source"
    elif fed is not None and mine.pipeline is None:
        why = f"a source feeds the table, and the copy {made.name!r} is an ordinary table"
    elif fed is not None and fed.made_from != mine.made_from:
        why = f"the table is made in another way from its messages than the copy {made.name!r}"
    else:
        return
    raise BadInput(
        f"{why}, so it can't be brought up to date",
        hint=f"give a new copy another name, or drop this one: holdfast drop {made.name!r} --force",
    )


def _diverged(
    target: StorageController, made: CollectionInfo, known: int, reached: int, upper: int, why: str = ""
) -> BadInput:
    """The error for a copy that others have moved from `known` on. Default: it is beyond the table."""
    beyond = f"it has times before {reached}, and the table before {upper}"
    another = f"give a new copy another name, or drop this one: holdfast drop {made.name!r}"
    who, hint = "was written by others", ""
    if made.holding.pipeline is not None:
        who = "was fed on from its source, or written by others"
        hint = "feed only one of the two from now on; to copy again, "
    if _is_handed_over(made, known):
        if not why:
            return BadInput(
                f"the copy {made.name!r} was handed over to rendition {made.holding.id}, so it can't be"
                f" brought up to date yet: {beyond}",
                hint=f"copy again when the table has times from {reached} on, in milliseconds; if the table"
                f" changes before that, {another}",
            )
        who = f"was handed over to rendition {made.holding.id}, or {who}"
    seal = ReadSeal.last(target.client.known_writers(made.holding.shards[0]))
    if sealed := sealed_past(known, seal):
        hint = "read a copy that follows its table with mode='read', which seals nothing; now "
    return BadInput(
        f"the copy {made.name!r} {who}, so it can't be brought up to date: {why or beyond}{sealed}",
        hint=f"{hint}{another}",
    )


def _is_handed_over(made: CollectionInfo, known: int) -> bool:
    """Whether a handover has moved a copy from `known` on. It seals times up to a few seconds ahead."""
    return made.holding.held_from >= max(known, 1)


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
    target: StorageController,
    info: CollectionInfo,
    fed: RenditionInfo | None,
    name: str,
    wanted: Json,
    times: dict[str, int],
) -> CollectionInfo | CopiedTable:
    """The unfinished copy, which is created if there is none; or the finished one of another run."""
    while True:
        if (done := _finished(target, name, wanted)) is not None:
            return done
        made = _unfinished(target, info, name, wanted)
        if made is not None and _job(target, made) is not None:
            return made
        if 0 < times["upper"] <= times["since"]:
            raise BadInput(
                f"the source has given up the history of {info.name!r} before {times['since']}, and the copy"
                f" was to end before {times['upper']}",
                hint="copy again: a new run takes the times of now",
            )
        if made is not None:
            return made
        # If another run creates it just now, this one finds it.
        with suppress(UniquenessViolation):
            made = target.create_collection(_spec(info, fed, name + _SUFFIX))
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
    return CopiedTable(name, info.collection_id, **_facts(_latest(target, info).result), was_there=True)


def _latest(target: StorageController, made: CollectionInfo) -> JobRecord:
    """The record of the last run that changed or checked a finished copy."""
    found = _job(target, made, _UPDATES) or _job(target, made)
    assert found is not None
    return found


def _facts(result: Json) -> dict[str, Any]:
    """What the result of a copy says of it, without what only the next run needs."""
    return {name: value for name, value in result.items() if name not in (BATCH, MARK)}


def _spec(info: CollectionInfo, fed: RenditionInfo | None, name: str) -> CollectionSpec:
    """A new collection with the columns and policies of a collection, and a pipeline like that of `fed`."""
    return CollectionSpec(
        str(uuid.uuid4()),
        name,
        info.schema,
        len(info.holding.shards),
        info.holding.hash_columns,
        comments=info.comments,
        source_fed=fed is not None,
        made_from="" if fed is None else fed.made_from,
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
    """One run of a copy. Use it in a `with` block."""

    def __init__(
        self,
        source: StorageController,
        reader: CollectionReader,
        target: StorageController,
        made: CollectionInfo,
        since: int,
        upper: int,
        on_rows: OnRows,
    ) -> None:
        self._source = source
        self._reader = reader
        self._target = target
        self._made = made
        self._since = since
        self._upper = upper
        self._on_rows = on_rows
        self._done = 0
        self._stack = ExitStack()
        self._kept = self._kept_of(self._stack, source, reader.info.collection_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kept_of(self, stack: ExitStack, controller: StorageController, id_: str) -> list[PipelineHistory]:
        """What the pipelines of a collection kept, if the copy has that too."""
        if self._made.holding.pipeline is None:
            return []
        describe = partial(controller.describe, id_)
        return [
            stack.enter_context(
                PipelineHistory(controller.client, describe, number, purpose=_PURPOSE, lease_s=_LEASE_S)
            )
            for number in range(len(KEPT))
        ]

    def evolve(self, info: CollectionInfo) -> None:
        """Give the copy the columns that the table has got since. Raises `BadInput` for other changes."""
        self._made = _evolved(self._target, self._made, info)

    def fill(self, known: int | None = None) -> None:
        """Copy what is missing. The copy is known to be right before `known`, if that is given.

        Raises `BadInput` if others write something else meanwhile.
        """
        id_ = self._made.collection_id
        writes = self._writes()
        reached = writes.upper() if known is None else known
        while reached < self._upper:
            for until, rows, kept in self._missing(reached):
                try:
                    writes.append(self._counted(rows), kept, reached, until + 1)
                except UpperMismatch:
                    # Another run of this copy was faster, unless it is somebody else.
                    before, reached = reached, writes.upper()
                    if known is not None:
                        self.compare(before, reached)
                    break
                reached = until + 1
        if self._upper and self._target.frontiers(id_).since < self._since:
            # Times before it would be shown as empty.
            self._target.set_retention_hold(id_, self._since)

    def _missing(
        self, reached: int
    ) -> Iterator[tuple[int, Iterable[pa.Table], Sequence[Iterable[pa.Table]]]]:
        """What comes next, in pieces: the contents at the since, or the changes after it.

        Each piece has its last time, its updates, and those of what is kept. Take it before the next one.
        """
        if not reached:
            first = _at(self._reader.snapshot(self._since), self._since)
            yield self._since, first, [each.at(self._since) for each in self._kept]
            reached = self._since + 1
        for until, rows in _changes(self._reader, reached - 1, self._upper - 1, self._kept):
            yield until, rows, [each.changes(reached - 1, until) for each in self._kept]
            reached = until + 1

    def _writes(self) -> "_TableWrites | _FedWrites":
        if self._made.holding.pipeline is None:
            return _TableWrites(self._target, self._made)
        return _FedWrites(self._target, self._made)

    def _counted(self, rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for piece in rows:
            yield piece
            self._done += piece.num_rows
            self._on_rows("copying", self._done)

    def compare_all(self, upper: int) -> None:
        """Raise `BadInput` unless all times of the copy before an upper are those of the source."""
        with self._both() as (begin, _, both):
            if self._reader.since() >= upper:
                raise AsOfTooEarly(upper - 1, self._reader.since())
            # The copy may have given up its times before the upper. Then `compare` begins later.
            for wanted, found in both if begin < upper else ():
                if self._sums(wanted, begin, upper) != self._sums(found, begin, upper):
                    raise _other_history(self._made, upper, f"it has other {wanted.what}")

    def compare(self, known: int, reached: int) -> None:
        """Raise `BadInput` unless the copy, known to be right before a time, is right before another one."""
        if reached == known:
            return
        upper = self._source.frontiers(self._reader.info.collection_id).upper
        diverged = partial(_diverged, self._target, self._made, known, reached, upper)
        if reached < known:
            raise diverged("it was handed over to another rendition")
        if reached > upper and not (upper > known and _is_handed_over(self._made, known)):
            raise diverged()
        until = min(reached, upper)
        with self._both(known) as (begin, is_whole, both):
            if is_whole and until <= begin:
                raise AsOfTooEarly(until - 1, begin) if until == reached else diverged()

            def sums(part: _Part) -> _Sums | _Sum:
                if is_whole:
                    return self._sums(part, begin, until)
                return self._change_sums(part, known, until)[0]

            for wanted, found in both:
                if sums(wanted) != sums(found):
                    raise diverged(f"its latest times have other {wanted.what} than the table")
        if reached > upper:
            raise diverged()

    def checked(self) -> dict[str, Any]:
        """The result of the copy. Raises `CorruptBlob` if it differs from the source."""
        if not self._upper:
            return {"since": 0, "upper": 0, "rows": 0, "changes": 0, "checksum": f"{0:016x}"}
        sums = []
        with self._both() as (since, _, both):
            for wanted, found in both:
                theirs, mine = (self._sums(each, since, self._upper) for each in (wanted, found))
                if mine != theirs:
                    raise self._differs(wanted.what, theirs.rows, theirs.checksum, mine.rows, mine.checksum)
                sums.append(theirs)
        return {
            "since": self._since,
            "upper": self._upper,
            "rows": sums[0].rows,
            "changes": sums[0].updates,
            "checksum": sums[0].checksum,
        }

    def checked_after(self, done: CopiedTable) -> dict[str, Any]:
        """The result of bringing a copy up to date, whose times below an upper were checked before.

        What was the same in both at a time is the same later if the changes are. So only these are read.
        Raises `CorruptBlob` if they differ.
        """
        sums = []
        with self._both(done.upper) as (_, is_whole, both):
            if is_whole:
                return self.checked()
            for wanted, found in both:
                theirs, updates = self._change_sums(wanted, done.upper, self._upper)
                mine, _ = self._change_sums(found, done.upper, self._upper)
                if mine != theirs:
                    raise self._differs(
                        wanted.what, theirs.rows, _hex(theirs.timed), mine.rows, _hex(mine.timed)
                    )
                sums.append((theirs, updates))
        total, updates = sums[0]
        return {
            "since": self._since,
            "upper": self._upper,
            "rows": done.rows + total.rows,
            "changes": done.changes + updates,
            "checksum": _hex(int(done.checksum, 16) + total.plain + total.timed),
        }

    @contextmanager
    def _both(self, known: int = 0) -> Iterator[tuple[int, bool, list[tuple["_Part", "_Part"]]]]:
        """What is compared: each part of the source, and that of the copy. The contents are first.

        Also the first time that both have. And whether to begin there, because nothing is known to be right
        before, or the copy has given up `known`. Its older times can't be read any more.
        """
        id_ = self._made.collection_id
        with ExitStack() as stack:
            copied = stack.enter_context(
                self._target.reader(id_, purpose=_PURPOSE, stored=True, lease_s=_LEASE_S)
            )
            theirs: list[_Part] = [_Contents(self._reader, self._made.stored_schema), *self._kept]
            mine: list[_Part] = [
                _Contents(copied, self._made.stored_schema),
                *self._kept_of(stack, self._target, id_),
            ]
            # A run that continues may find that the source has given up the first times.
            since = self._reader.since()
            begin = max(self._since, since, copied.since())
            is_whole = not known or copied.since() >= max(known, since)
            yield begin, is_whole, list(zip(theirs, mine, strict=True))

    def _differs(self, what: str, rows: int, checksum: str, found_rows: int, found_sum: str) -> CorruptBlob:
        return CorruptBlob(
            self._made.name,
            f"{rows} {what} with checksum {checksum}, as in the source",
            f"{found_rows} {what} with checksum {found_sum}",
            hint=f"drop it, and copy again: holdfast drop {self._made.name!r} --force",
        )

    def _change_sums(self, part: "_Part", known: int, upper: int) -> tuple[_Sum, int]:
        """The sums of the changes from a time on and before an upper, and the number of updates."""
        counted = _Counted(part.changes(known - 1, upper - 1))
        return self._sum(counted, part.schema), counted.rows

    def _sums(self, part: "_Part", since: int, upper: int) -> _Sums:
        """The sums from a time on and before an upper."""
        first = self._sum(part.at(since), part.schema)
        changes, updates = self._change_sums(part, since + 1, upper)
        last = self._sum(part.at(upper - 1), part.schema)
        return _Sums(last.rows, first.plain, changes.timed, last.plain, updates)

    def _sum(self, rows: Iterable[pa.Table], schema: Schema) -> _Sum:
        """The number of rows, and the sums of their hashes. All count a row as often as its diff says."""
        count = plain = timed = done = 0
        for piece in rows:
            for batch in _fitted(piece, schema).to_batches():
                diffs = batch.column(DIFF).to_numpy()
                signed = diffs.astype(np.int64).view(np.uint64)
                hashes = row_hash(batch, schema.names)
                count += int(diffs.sum())
                plain += int((hashes * signed).sum(dtype=np.uint64))
                at_times = _mixed(hashes, batch.column(TIME).to_numpy())
                timed += int((at_times * signed).sum(dtype=np.uint64))
                done += batch.num_rows
                self._on_rows("checking", done)
        return _Sum(count, plain % _MODULUS, timed % _MODULUS)


def _mixed(hashes: npt.NDArray[np.uint64], times: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The hashes of rows at times, from the hashes of the rows: SplitMix64."""
    mixed: npt.NDArray[np.uint64] = hashes + times * _STEP
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed ^ (mixed >> _LAST_SHIFT)


class _Counted:
    """Tables, and the number of their rows so far."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self.rows = 0

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.rows += table.num_rows
            yield table


class _Part(Protocol):
    """A part of a collection that is copied and compared."""

    what: str
    schema: Schema

    def at(self, time: int) -> Iterable[pa.Table]:
        """The rows at a time, as updates."""

    def changes(self, after: int, until: int) -> Iterable[pa.Table]:
        """The updates after a time and up to another."""


class _Contents:
    """The contents of a collection, with the columns of `schema`."""

    what = "rows"

    def __init__(self, reader: CollectionReader, schema: Schema) -> None:
        self.schema = schema
        self._reader = reader

    def at(self, time: int) -> Iterator[pa.Table]:
        return _at(self._reader.snapshot(time), time)

    def changes(self, after: int, until: int) -> Iterator[pa.Table]:
        return chain.from_iterable(rows for _, rows in _changes(self._reader, after, until))


class _TableWrites:
    """Appends to a copy that is an ordinary table."""

    def __init__(self, target: StorageController, made: CollectionInfo) -> None:
        self._target = target
        self._name = made.name
        self._writer = target.writer(made.collection_id, purpose=target.purpose_of("load"))

    def upper(self) -> int:
        return self._writer.upper()

    def append(self, rows: Iterable[pa.Table], kept: Sequence[object], expected: int, new_upper: int) -> None:
        """Append rows. Raises `UpperMismatch`, and changes nothing then."""
        assert not kept, "a table has nothing else"
        writer = self._writer
        names = writer.info.names.with_hidden()
        with writer.bulk(far_ahead=True, hidden=True) as bulk:
            for piece in rows:
                stored = _fitted(piece, writer.info.stored_schema)
                bulk.add(logical_rows(names.shown_rows(stored), writer.full_schema))
            position = writer.position()
            if position.upper != expected:
                raise UpperMismatch(expected, position.upper, shard_id=f"collection {self._name}")
            self._target.client.multi_write(bulk.prepare(position, new_upper).steps)


class _FedWrites:
    """Appends to a copy with a pipeline: rows and what is kept, in one commit."""

    def __init__(self, target: StorageController, made: CollectionInfo) -> None:
        self._client = target.client
        self._schema = made.stored_schema
        id_, rendition = made.collection_id, made.holding.id
        self._writer = target.rendition_writer(id_, rendition, purpose=target.purpose_of("load"))

    def upper(self) -> int:
        return self._writer.upper()

    def append(
        self, rows: Iterable[pa.Table], kept: Sequence[Iterable[pa.Table]], expected: int, new_upper: int
    ) -> None:
        """Append rows, and what is kept. Raises like `RenditionWriter.append`."""
        writer, alive = self._writer, self._writer.keep_alive
        uploads: list[Sequence[Upload]] = []
        few: list[pa.Table | None] = []
        many: list[Sequence[Upload]] = []
        batches = self._batches(rows, self._schema)
        try:
            # Many steps of a pipeline have no rows.
            if (first := next(batches, None)) is not None:
                tickets, rest = writer.upload_tickets(), chain([first], batches)
                uploads.append(upload_rows(self._client, rest, writer.rendition, tickets, meanwhile=alive))
            for number, tables in enumerate(kept):
                taken, others = _taken(tables, _KEPT_BYTES)
                few.append(None if others or not taken else pa.concat_tables(taken))
                many.append([])
                if others:
                    all_ = self._batches(chain(taken, others), PIPELINE_SCHEMAS[number])
                    ticket = writer.kept_ticket(number)
                    upload = upload_updates(
                        self._client, all_, ticket, memory_bytes=_KEPT_BYTES, meanwhile=alive
                    )
                    many[-1] = [upload]
        except BaseException:
            self._client.discard(chain.from_iterable([*uploads, *many]))
            raise
        writer.append(None, expected, new_upper, kept=few, uploads=uploads, kept_uploads=many)

    def _batches(self, rows: Iterable[pa.Table], schema: Schema) -> Iterator[pa.RecordBatch]:
        for piece in rows:
            self._writer.keep_alive()
            for batch in _fitted(piece, schema).to_batches():
                if batch.num_rows:
                    yield batch


def _taken(tables: Iterable[pa.Table], most_bytes: int) -> tuple[list[pa.Table], Iterator[pa.Table] | None]:
    """The first tables, and the others: None if all together have at most so many bytes."""
    rest, taken, size = iter(tables), [], 0
    for each in rest:
        taken.append(each)
        size += each.nbytes
        if size > most_bytes:
            return taken, rest
    return taken, None


def _changes(
    reader: CollectionReader, after: int, until: int, kept: Sequence[PipelineHistory] = ()
) -> Iterator[tuple[int, Iterable[pa.Table]]]:
    """The changes after `after` and up to `until`, in pieces: the last time of each, and its updates.

    No piece has too many updates of what is `kept`. Take the updates of a piece before the next one.
    """
    while after < until:
        last = reader.changed_within(after, until, _CHUNK_ROWS)
        for each in kept:
            last = each.changed_within(after, last, _CHUNK_ROWS)
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
    is called with the id of a collection that was dropped before it was copied.

    Raises `BadInput` if the target is the location itself. A collection that `copy_collection` refuses does
    not keep the others from being copied. At the end, raises `CopiesRefused` if there were any.
    """
    if source.client.location_id == target.client.location_id:
        raise BadInput("the target is the location itself", hint="give another location")
    names = {each.collection_id: each.name for each in source.list_collections() if not each.dropped}
    location = str(source.client.location_id)
    job = _run_of_all(source, target, location, names)
    copies: list[CopiedTable] = []
    refused: dict[str, str] = {}
    for id_, upper in sorted(job.spec["uppers"].items(), key=lambda each: names.get(each[0], "")):
        name = names.get(id_, id_)
        try:
            info = source.describe(id_)
            if info.dropped:
                raise CollectionNotFound(info.end)
            name = info.name
            copy = partial(
                copy_collection,
                source,
                target,
                id_,
                name,
                upper=upper,
                on_rows=partial(_with_name, on_rows, name),
            )
            copied = copy()
            if copied.upper < upper:
                # An unfinished copy had begun with an earlier upper.
                copied = copy()
        except CollectionNotFound:
            on_gone(id_)
            continue
        except (BadInput, UniquenessViolation, CorruptBlob) as error:
            refused[name] = f"{error}; {error.hint}" if error.hint else str(error)
            continue
        copies.append(copied)
        on_table(copied)
    if job.state is JobState.RUNNING:
        # Tables that were refused get new uppers with the next run.
        _finish(target, job, {"tables": len(copies), "refused": len(refused)})
    if refused:
        raise CopiesRefused(refused, len(copies))
    return copies


def _run_of_all(
    source: StorageController, target: StorageController, location: str, names: Mapping[str, str]
) -> JobRecord:
    """The run that copies a location, whose collections have these names: one that continues, or a new one.

    One whose uppers can't be reached any more is ended.
    """
    runs = [each for each in target.jobs(location) if each.kind == COPY]
    job = next((each for each in runs if each.state is JobState.RUNNING), None)
    if job is not None and _is_too_late(source, target, job, names):
        _finish(target, job, {})
        job = None
    if job is not None:
        return job
    number = max((int(each.slot) for each in runs), default=0) + 1
    job = target.start_job(location, COPY, str(number), spec={"uppers": source.uppers(list(names))})
    # Only the number of the last one is needed.
    over = (each for each in runs if each.state is not JobState.RUNNING)
    target.forget_jobs([each.job_id for each in over if int(each.slot) < number - 1])
    return job


def _finish(target: StorageController, job: JobRecord, result: Json) -> None:
    # Another run may have finished it.
    with suppress(Fenced):
        target.finish_job(job.job_id, job.attempt, result)


def _is_too_late(
    source: StorageController, target: StorageController, job: JobRecord, names: Mapping[str, str]
) -> bool:
    """Whether a table that has no copy yet has given up all times before the upper of a run."""
    copies = {each.name: each for each in target.list_collections()}
    for id_, upper in job.spec["uppers"].items():
        # One that is dropped is left out.
        if (name := names.get(id_)) is None or name in copies:
            continue
        begun = copies.get(name + _SUFFIX)
        if (begun is None or _job(target, begun) is None) and 0 < upper <= source.frontiers(id_).since:
            return True
    return False


def _with_name(on_rows: OnRows, name: str, what: str, rows: int) -> None:
    on_rows(f"{what} {name}", rows)
