"""Active replication: several writers write the same rows, and each checks the rows that the others wrote.

- An append that lost a race is compared, as a sum of rows at exact times, with the rows at its times. If they
  are equal, it counts as written. If only some of its times are written, these are compared and the rest is
  appended.
- If rows differ, nobody knows which writer is wrong. The rendition becomes suspect and the writer stops.
- The comparison uses the rows that writers wrote to the rendition current at these times, never what a reader
  sees at a handover. A handover that seals a rendition takes times that nobody has written. Rows at these
  times are missing but not wrong, and every one of the writers gets the same error.
- While it compares, a writer holds the collection's since before its next write. If the times are compacted
  all the same, it raises an error instead of guessing.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.collections.complete_times import ReadSeal
from holdfast.collections.record.spec import CollectionInfo, Recipe, RenditionInfo
from holdfast.collections.rendition_writer import Begin, RenditionWriter
from holdfast.collections.sharded_append import checked_updates
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    ConflictingWrite,
    HandleExpired,
    HoldfastError,
    NotComparable,
    Overtaken,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.forks import OwnerProcess
from holdfast.persist import Listen, PersistClient, Progress, ReadHandle, Updates, Upload
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.casts import shown
from holdfast.persist.rows.consolidate import consolidate_updates, negated
from holdfast.persist.rows.evolution import seen_through
from holdfast.persist.rows.schema import DIFF, TIME, Schema

R = TypeVar("R", pa.Table, pa.RecordBatch)

SHOWN_ROWS: Final = 5
"""How many of the differing rows an error shows."""
_LET_GO_EVERY: Final = 64
_MAX_WHY: Final = 500

Suspect = Callable[[str, str], object]
"""Marks the rendition with this id as suspect, with a reason."""


class Compared:
    """Compares the rows of appends that lost a race with the existing ones. Thread-safe: one append at a
    time.

    `pick` returns the rendition to which a time is written, from the collection's record.
    """

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        suspect: Suspect,
        pick: Callable[[CollectionInfo, int], RenditionInfo | None],
        *,
        purpose: str,
    ) -> None:
        self._client = client
        self._describe = describe
        self._suspect = suspect
        self._pick = pick
        self._purpose = purpose
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._appended = 0
        self._there: _There | None = None
        self._names = info.names
        # Data shards are never compacted past this hold.
        self._hold = client.reader(info.metadata_shard, purpose=purpose)

    def append(
        self,
        append: Callable[[pa.RecordBatch, int, int], None],
        batch: pa.RecordBatch,
        expected_upper: int,
        new_upper: int,
    ) -> None:
        """Append the rows that don't exist yet, with `append`, and compare the others. Raises the errors of
        `append`, `ConflictingWrite`, `Overtaken` and `NotComparable`.
        """
        self._owner.check("this replicated writer")
        with self._lock:
            lower = expected_upper
            while True:
                try:
                    append(batch, lower, new_upper)
                except UpperMismatch as lost:
                    if lost.actual <= lower:
                        raise
                    reached = self._compare(batch, lower, min(lost.actual, new_upper))
                else:
                    reached = new_upper
                    if self._there is not None:
                        self._there.forget()
                if reached == new_upper:
                    break
                batch, lower = _between(batch, reached, new_upper), reached
            self._let_go(new_upper - 1)

    def close(self) -> None:
        """Release the holds. Does nothing in a forked child: the holds are the parent's."""
        if not self._owner.is_here:
            return
        with self._lock:
            if self._there is not None:
                self._there.close()
            self._hold.close()

    def _compare(self, batch: pa.RecordBatch, lower: int, upper: int) -> int:
        """Compare the rows at times from `lower` on. Returns the time up to which they are equal."""
        info = self._describe()
        rendition = self._pick(info, lower)
        if rendition is None:
            raise NotComparable(f"collection {info.name} no longer has its rendition of time {lower}")
        upper = min(upper, rendition.held_to)
        sealed = _sealed(info, rendition)
        try:
            newest, there = self._reading(rendition).rows(lower, rendition.held_to if sealed else upper)
        except (AsOfTooEarly, HandleExpired, ShardFinalized) as error:
            raise NotComparable(
                f"can't read what others wrote to collection {info.name} from {lower} on: {error}"
            ) from error
        mine = seen_through(self._names.stored_rows(_between(batch, lower, upper)), newest)
        differing = _differing(newest, mine, _between(there, lower, upper))
        if not differing.num_rows:
            return upper
        if sealed:
            last = pc.max(there[TIME]).as_py() if there.num_rows else None
            written = lower if last is None else last + 1
            if pc.min(differing[TIME]).as_py() >= written:
                raise Overtaken(info.name, written, rendition.held_to)
        self._refuse_sealed(info.name, rendition, lower, there, differing)
        taken = rendition.held_from
        if rendition.recipe is Recipe.RESTORED and pc.min(differing[TIME]).as_py() == taken:
            # The tail of a restored rendition reaches past the handover and completes that time.
            raise Overtaken(info.name, taken, taken + 1)
        conflict = ConflictingWrite(
            f"collection {info.name}, rendition {rendition.id},",
            lower,
            upper,
            [_shown(newest, row) for row in differing.slice(0, SHOWN_ROWS).to_pylist()],
            differing=differing.num_rows,
        )
        # An error while recording it must not hide the conflict.
        with suppress(HoldfastError):
            self._suspect(rendition.id, str(conflict)[:_MAX_WHY])
        raise conflict

    def _refuse_sealed(
        self, name: str, rendition: RenditionInfo, lower: int, there: pa.Table, differing: pa.Table
    ) -> None:
        """Raise `Overtaken` if a read sealed the times of the differing rows before anybody wrote them."""
        seal = ReadSeal.last(self._client.known_writers(rendition.shards[0]))
        if seal is None:
            return
        last = pc.max(_between(there, lower, seal.upper)[TIME]).as_py() if seal.upper > lower else None
        written = lower if last is None else last + 1
        if written <= pc.min(differing[TIME]).as_py() < seal.upper:
            raise Overtaken(name, written, seal.upper, why=str(seal))

    def _reading(self, rendition: RenditionInfo) -> "_There":
        if self._there is None or self._there.rendition.id != rendition.id:
            if self._there is not None:
                self._there.close()
            self._there = _There(self._client, rendition, self._describe, purpose=self._purpose)
        return self._there

    def _let_go(self, since: int) -> None:
        """Move the holds once in a while. Each move is a write."""
        self._appended += 1
        if self._appended % _LET_GO_EVERY:
            return
        # A rendition that is being filled may be ahead of the promise.
        promised = self._client.recent_upper(self._hold.shard_id)
        self._hold.allow_compaction(min(since, max(promised - 1, 0)))
        if self._there is not None:
            self._there.allow_compaction(since)


class _There:
    """Reads the rows written to one rendition, continuing where it stopped before. Not thread-safe."""

    def __init__(
        self,
        client: PersistClient,
        rendition: RenditionInfo,
        describe: Callable[[], CollectionInfo],
        *,
        purpose: str,
    ) -> None:
        self.rendition = rendition
        self._client = client
        self._describe = describe
        self._handles = [client.reader(shard, purpose=purpose) for shard in rendition.shards]
        self._lower = 0
        self._listens: list[_Reached] = []
        self._tables: list[pa.Table] = []

    def rows(self, lower: int, upper: int) -> tuple[Schema, pa.Table]:
        """The updates at times in `[lower, upper)`, which all shards have, in the newest schema."""
        if not self._listens or lower < self._lower:
            self._tables = []
            self._listens = [_Reached(each.shard_id, _from(each, lower), lower) for each in self._handles]
        for each in self._listens:
            while each.frontier < upper:
                for event in each.listen.next():
                    match event:
                        case Updates(table):
                            self._tables.append(table)
                        case Progress(frontier):
                            each.frontier = frontier
                if each.frontier == CLOSED and self._client.inspect(each.shard_id).finalized:
                    raise ShardFinalized(f"can't read shard {each.shard_id} any more: it was finalized")
        self._lower = lower
        self._tables = [_between(table, lower, CLOSED) for table in self._tables]
        # Read the record after the rows: its schema is theirs or a later one.
        schema = self._describe().stored_schema
        found = [seen_through(_between(table, lower, upper), schema) for table in self._tables]
        return schema, pa.concat_tables([schema.arrow_updates.empty_table(), *found])

    def forget(self) -> None:
        """Start from the beginning next time: what follows now are this writer's own rows."""
        self._listens, self._tables = [], []

    def allow_compaction(self, since: int) -> None:
        """Allow compaction to merge times before `since`."""
        for handle in self._handles:
            handle.allow_compaction(since)

    def close(self) -> None:
        """Release the holds."""
        for handle in self._handles:
            handle.close()


@dataclass(slots=True)
class _Reached:
    """The listen of a shard, and its frontier."""

    shard_id: str
    listen: Listen
    frontier: int


def _from(handle: ReadHandle, lower: int) -> Listen:
    """The updates at times from `lower` on, exactly as they were written."""
    return handle.listen(lower - 1) if lower else handle.subscribe(0)


def _sealed(info: CollectionInfo, rendition: RenditionInfo) -> bool:
    """Whether a handover sealed the remaining times of a rendition."""
    follower = info.held_after(rendition)
    return follower is not None and rendition.sealed_by(follower)


def _differing(schema: Schema, mine: pa.RecordBatch, there: pa.Table) -> pa.Table:
    """My rows minus the existing ones, consolidated at exact times, sorted by time and then by row."""
    differing = sort_updates(schema, consolidate_updates(schema, [mine, negated(there)], 0))
    return differing.take(pc.sort_indices(differing[TIME]))


def _shown(schema: Schema, row: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name}={shown(row[name])}" for name in schema.names)
    where = "only mine" if row[DIFF] > 0 else "only there"
    return f"at {row[TIME]} ({values}) {abs(row[DIFF])} x {where}"


def _between(rows: R, lower: int, upper: int) -> R:
    """The updates at times in `[lower, upper)`."""
    wanted = pc.greater_equal(rows.column(TIME), pa.scalar(lower, pa.uint64()))
    if upper < CLOSED:
        wanted = pc.and_(wanted, pc.less(rows.column(TIME), pa.scalar(upper, pa.uint64())))
    return rows.filter(wanted)


class ReplicatedWriter(CollectionWriter):
    """One of several identical writers of a collection. Thread-safe. See `StorageController.writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        suspect: Suspect,
        *,
        purpose: str,
    ) -> None:
        # Hold the times before reading the upper, so that they are not compacted meanwhile.
        self._compared = Compared(client, info, describe, suspect, _holding_at, purpose=purpose)
        super().__init__(client, info, describe, purpose=purpose)

    def append(
        self, updates: object, expected_upper: int, new_upper: int, *, far_ahead: bool = False
    ) -> None:
        """Append `updates`, or find that another writer has appended the same ones.

        Like `CollectionWriter.append`, but raises `UpperMismatch` only if the collection has not reached
        `expected_upper`. If some of its times were already written, by appends with any borders, only the
        rest is appended. Raises `ConflictingWrite` if the existing rows differ, which makes the rendition
        suspect; `Overtaken` if a handover sealed times before they were written; `NotComparable` if it can't
        compare.
        """
        batch = checked_updates(self.info.name, self.schema, updates, expected_upper, new_upper)
        append = partial(super().append, far_ahead=far_ahead)
        self._compared.append(append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Release the holds."""
        self._compared.close()


class ReplicatedRenditionWriter(RenditionWriter):
    """One of several identical pipelines of a rendition. Thread-safe.

    See `StorageController.rendition_writer`.
    """

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        begin: Begin,
        suspect: Suspect,
        *,
        rendition_id: str,
        purpose: str,
    ) -> None:
        pick = partial(_alive, rendition_id)
        self._compared = Compared(client, info, describe, suspect, pick, purpose=purpose)
        super().__init__(client, info, describe, begin, rendition_id=rendition_id, purpose=purpose)

    def append(
        self,
        updates: object,
        expected_upper: int,
        new_upper: int,
        *,
        kept: Sequence[object] = (),
        uploads: Sequence[Sequence[Upload]] = (),
        kept_uploads: Sequence[Sequence[Upload]] = (),
    ) -> None:
        """Append `updates`, or find that another pipeline has appended the same ones.

        It differs from `RenditionWriter.append` as `ReplicatedWriter.append` differs from
        `CollectionWriter.append`. It can't compare what a pipeline keeps or what others uploaded, and raises
        `BadInput` for that.
        """
        if kept or uploads or kept_uploads:
            raise BadInput(
                "a replicated writer can't write what a pipeline keeps, or what others uploaded",
                hint="open it without 'replicated'",
            )
        batch = checked_updates(self.info.name, self.schema, updates, expected_upper, new_upper)
        self._compared.append(super().append, batch, expected_upper, new_upper)

    def close(self) -> None:
        """Release the holds."""
        self._compared.close()


def _holding_at(info: CollectionInfo, time: int) -> RenditionInfo | None:
    return next((each for each in info.held if each.holds_at(time)), None)


def _alive(rendition_id: str, info: CollectionInfo, _: int) -> RenditionInfo | None:
    known = info.find(rendition_id)
    return None if known is None or known.dropped else known
