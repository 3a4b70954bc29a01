"""Reading a collection: one hold, on the metadata shard, and the data shards behind it.

- The metadata records which rendition is current at a time. Nothing is read beyond its upper.
- The since of a collection is the since of its metadata shard. Data shards follow it and never pass it, and a
  rendition is dropped only once the metadata's since has passed its times. So a hold on the metadata holds
  the data.
- For a dropped collection, the reader only reports that it was dropped: the last frontiers of its shards mean
  nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Self

import pyarrow as pa

from holdfast.collections.collection_snapshot import CollectionPart, CollectionSnapshot, group_parts
from holdfast.collections.frontiers import check_as_of, check_forward, latest, look, retained_since
from holdfast.collections.listen import CollectionListen
from holdfast.collections.metadata import holder
from holdfast.collections.record.column_names import PLAIN_NAMES, ColumnNames
from holdfast.collections.record.spec import CollectionInfo, RenditionInfo
from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    CollectionNotFound,
    HandleExpired,
    ShardFinalized,
    VersionTooNew,
)
from holdfast.forks import OwnerProcess
from holdfast.persist import Listen, PersistClient, ReadHandle, Schema
from holdfast.persist.checks import check_time
from holdfast.persist.handles.read import close_readers
from holdfast.persist.looks import look_again, one_look
from holdfast.persist.parts.difference import Difference
from holdfast.persist.parts.times import TimeCounts, TimeSums
from holdfast.persist.rows.schema import DIFF, TIME


class CollectionReader:
    """Reads one collection and holds its since with a lease. Thread-safe. See `StorageController.reader`.

    Columns have their current names, whatever they were called at the time that is read. A snapshot at a time
    before a column was dropped has it, changes don't. With `stored` all columns are read, with their stored
    names.

    With a client of mode "read" nothing is held, so compaction may remove what you want to read. After
    `close` every method raises `BadInput`.
    """

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        *,
        purpose: str,
        stored: bool = False,
        lease_s: float | None = None,
    ) -> None:
        self.info = info
        self._stored = stored
        self._client = client
        self._describe = describe
        self._purpose = purpose
        self._lease_s = lease_s
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._closed = False
        # From here on no data shard can be compacted past this reader's since.
        self._metadata, self._shards = self._first_handles()

    def _first_handles(self) -> tuple[ReadHandle, dict[str, ReadHandle]]:
        """Open the metadata shard, and the data shards that are most likely read, with one commit."""
        data = self.info.holding.shards
        try:
            metadata, *handles = self._readers([self.info.metadata_shard, *data])
        except ShardFinalized:
            # Another rendition has taken over since the record was read, or the collection was dropped.
            return self._readers([self.info.metadata_shard])[0], {}
        return metadata, dict(zip(data, handles, strict=True))

    def _readers(self, shards: Sequence[str]) -> list[ReadHandle]:
        return self._client.readers(shards, purpose=self._purpose, lease_s=self._lease_s)

    @property
    def schema(self) -> Schema:
        """The collection's schema."""
        return self.info.stored_schema if self._stored else self.info.schema

    def since(self) -> int:
        """The earliest readable time (linearized).

        Like all methods, raises `CollectionNotFound` after a drop.
        """
        self._check_open()
        with self._there():
            return self._known(self._metadata.since())

    def upper(self) -> int:
        """The upper (linearized). The latest readable time is the one before it."""
        self._check_open()
        with self._there():
            view = look(self._client, self.info, self._describe)
            self.info = view.info
            return self._known(view.upper)

    @one_look()
    def readable(self, as_of: int | None = None) -> int:
        """Return `as_of`, or the latest complete time if it is None. Raises like `snapshot`."""
        upper = self.upper()
        if as_of is None:
            as_of = latest(upper)
        check_as_of(as_of, self.since(), upper)
        return as_of

    @one_look()
    def snapshot(self, as_of: int | None = None, *, names: ColumnNames | None = None) -> CollectionSnapshot:
        """The contents at `as_of`. Default: the latest complete time. `names` are the names of its columns.

        Raises `AsOfTooEarly` if `as_of < since`, and `AsOfNotYetAvailable` if `as_of >= upper`.
        """
        return self._snapshot(self.readable(as_of), names)

    def complete_snapshot(self, as_of: int, names: ColumnNames) -> CollectionSnapshot:
        """Like `snapshot`, at a time that the caller knows to be complete, which spares several reads.

        The record of the collection may be an earlier one, so the contents may have an earlier schema.
        """
        self._check_open()
        return self._snapshot(as_of, names)

    def _snapshot(self, as_of: int, names: ColumnNames | None) -> CollectionSnapshot:
        with self._there(as_of):
            shards = [shard.snapshot(as_of) for shard in self._handles(self._holding(as_of))]
            return CollectionSnapshot(
                as_of,
                shards,
                partial(self._there, as_of),
                names or self._names_of([name for shard in shards for name in shard.schema.names]).at(as_of),
                self.info.stored_schema,
                threads=self._client.config.builder_threads,
            )

    @one_look()
    def snapshot_parts(
        self, as_of: int | None = None, max_parts: int | None = None, *, names: ColumnNames | None = None
    ) -> list[CollectionPart]:
        """At most `max_parts` picklable pieces of a snapshot, for `read_collection_part`. `names` and errors
        are as for `snapshot`.

        A hold, of the reader or another one, must stay until they are read.
        """
        as_of = self.readable(as_of)
        with self._there(as_of):
            shards = self._handles(self._holding(as_of))
            # As many pieces of each shard as fit into the total.
            most = None if max_parts is None else max(1, max_parts // len(shards))
            parts = [part for shard in shards for part in shard.snapshot_parts(as_of, most)]
        names = names or self._names_of(()).at(as_of)
        return group_parts(self.info.collection_id, as_of, parts, max_parts, names)

    def listen(self, as_of: int, until: int | None = None) -> CollectionListen:
        """Follow all changes at times after `as_of`, and up to `until` if it is given.

        Raises `AsOfTooEarly` if `as_of < since`.
        """
        with self._there(as_of):
            since = self.since()
            if as_of < since:
                raise AsOfTooEarly(as_of, since)
            return self._listen(as_of, as_of + 1, partial(ReadHandle.listen, until=until), until)

    @one_look()
    def changes(
        self, after: int, until: int, *, names: ColumnNames | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The difference between the contents at `until` and those at `after`. `_diff` may be negative.

        Memory is bounded for any number of rows. A row that moved to another shard occurs
        more than once. If you read the collection's record afterwards, its schema is that of the rows or
        later. `names` are the names of the columns.

        Raises `AsOfTooEarly` if `after < since`, `AsOfNotYetAvailable` if `until >= upper`, and `BadInput` if
        `until < after`.
        """
        after, until = check_time(after, "after"), check_time(until, "until")
        check_forward(after, until)
        upper, since = self.upper(), self.since()
        for time in (until, after):
            check_as_of(time, since, upper)
        with self._there(after):
            pieces = [self._changes_of(each, after, until) for each in self._described().held]
        return self._within(after, chain.from_iterable(pieces), names)

    def _changes_of(self, rendition: RenditionInfo, after: int, until: int) -> Iterable[pa.RecordBatch]:
        """The changes while a rendition was current, including the difference when it took over."""
        if not (after + 1 < rendition.held_to and rendition.held_from <= until):
            return ()
        found: list[Iterable[pa.RecordBatch]] = []
        if after < rendition.held_from:
            before = self.info.held_before(rendition)
            if before is None:
                # The rendition before is dropped, so nobody holds its times.
                raise self._too_early(after)
            pieces = () if rendition.copies(before) else self.handed_over(before, rendition)
            differing = chain.from_iterable(table.drop_columns([TIME]).to_batches() for table in pieces)
            # The schema of the difference is known once its first batch is read.
            found += [[*islice(differing, 1)], differing]
        after = max(after, rendition.held_from - 1)
        until = min(until, rendition.held_to - 1)
        if after < until:
            found += [shard.changes(after, until) for shard in self._handles(rendition)]
        return chain.from_iterable(found)

    def _within(
        self, as_of: int, rows: Iterator[pa.RecordBatch], names: ColumnNames | None
    ) -> Iterator[pa.RecordBatch]:
        with self._there(as_of):
            for batch in rows:
                yield (names or self._names_of(batch.schema.names)).shown_rows(batch)
                self._check_process()

    def _check_process(self) -> None:
        self._owner.check("this reader of a collection")

    def change_counts(self, as_of: int) -> list[tuple[int, int]]:
        """About how many updates came after `as_of`: a list of times in order, with a number for each.

        Updates that are stored together count at their latest time. The difference at a handover isn't
        counted.
        """
        self._check_open()
        with self._there(as_of):
            counts: Counter[int] = Counter()
            for shard, begin, end in self._pieces(as_of, CLOSED):
                for _, time, rows in shard.change_counts(begin):
                    counts[min(time, end)] += rows
            return sorted(counts.items())

    def changed_within(self, after: int, until: int, rows: int) -> int:
        """The last time, up to `until`, such that at most `rows` updates come after `after` and up to it.

        It is at least the first time that has updates. The difference at a handover isn't counted. If more
        updates are stored together than are left of `rows`, this reads their times.

        `after` must not be before the since, and `until` not after the latest complete time.
        """
        self._check_open()
        with self._there(after):
            reached, held = after, 0
            for first, last, number in self._stored_together(after, until):
                if held + number > rows:
                    counts = self._count_changes(first - 1, last, rows - held)
                    number = counts.total
                    if held + number > rows:
                        if held and not counts.within:
                            return reached
                        return int(counts.times[max(0, counts.within - 1)])
                reached, held = last, held + number
            return until

    def changes_at(self, time: int, most: int) -> int:
        """The number of updates at a time, or some number above `most` if there are more.

        The difference at a handover isn't counted. `time` must be after the since, and complete.
        """
        self._check_open()
        with self._there(time - 1):
            return self._count_changes(time - 1, time, most).total

    def sum_changes(self, after: int, until: int, most: int) -> TimeSums:
        """Add up the rows added and removed at each of the last `most` times after `after` and up to `until`.

        The difference at a handover isn't counted. `after` must not be before the since, and `until` not
        after the latest complete time.
        """
        self._check_open()
        with self._there(after):
            sums = TimeSums(after + 1, until, most)
            for shard, begin, end in self._pieces(after, until):
                if end >= sums.first:
                    sums.merge(shard.sum_changes(max(begin, sums.first - 1), end, most))
            return sums

    def shards_between(self, after: int, until: int) -> list[str]:
        """The shards with the changes after `after` and up to `until`."""
        self._check_open()
        with self._there(after):
            return [shard.shard_id for shard, _, _ in self._pieces(after, until)]

    def _pieces(self, after: int, until: int) -> Iterator[tuple[ReadHandle, int, int]]:
        """The shards that were current in `(after, until]`, each with the part of these times when it was."""
        for rendition in self._described().held:
            begin, end = max(after, rendition.held_from - 1), min(until, rendition.held_to - 1)
            if begin < end:
                yield from ((shard, begin, end) for shard in self._handles(rendition))

    def _stored_together(self, after: int, until: int) -> list[tuple[int, int, int]]:
        """Intervals that only reading can divide, in order: first time, last time, most updates in it."""
        stored = [
            (max(first, begin + 1), min(last, end), rows)
            for shard, begin, end in self._pieces(after, until)
            for first, last, rows in shard.change_counts(begin)
            if first <= end
        ]
        found: list[tuple[int, int, int]] = []
        for first, last, rows in sorted(stored):
            if found and first <= found[-1][1]:
                begin, end, number = found.pop()
                found.append((begin, max(end, last), number + rows))
            else:
                found.append((first, last, rows))
        return found

    def _count_changes(self, after: int, until: int, most: int) -> TimeCounts:
        counts = TimeCounts(after + 1, until, most)
        for shard, begin, end in self._pieces(after, until):
            if begin < counts.last:
                counts.merge(shard.count_changes(begin, min(end, counts.last), most))
        return counts

    def subscribe(self, as_of: int | None = None) -> CollectionListen:
        """The contents at `as_of` as updates at that time, then all later changes. Raises like `snapshot`."""
        as_of = self.readable(as_of)
        with self._there(as_of):
            return self._listen(as_of, as_of, ReadHandle.subscribe)

    def allow_compaction(self, since: int) -> None:
        """Allow compaction to merge times before `since`, as far as this reader is concerned.

        A `since` beyond the latest complete time is reduced to it.
        """
        with self._there():
            since = min(since, max(self.upper() - 1, 0))
            self._metadata.allow_compaction(since)
            kept = self._metadata.since()
            with self._lock:
                shards = dict(self._shards)
            for rendition in self.info.live:
                for shard in rendition.shards:
                    if shard in shards and rendition.held_to > since:
                        shards.pop(shard).allow_compaction(retained_since(since, kept, rendition.start))
                if rendition.difference_shard and rendition.held_from > since:
                    shards.pop(rendition.difference_shard, None)
            # The remaining shards are of times that this reader has given up.
            with self._lock:
                for shard in shards:
                    self._shards.pop(shard, None)
            close_readers(shards.values())

    def close(self) -> None:
        """Release the hold. Does nothing in a forked child: the hold is the parent's."""
        if not self._owner.is_here:
            return
        with self._lock:
            self._closed = True
            shards = [*self._shards.values()]
            self._shards.clear()
        close_readers([*shards, self._metadata])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _there(self, as_of: int = 0) -> Iterator[None]:
        """Raise `CollectionNotFound` for errors that occur because the collection was dropped meanwhile.

        If only the rendition that was current at `as_of` was dropped, raise `AsOfTooEarly`.
        """
        try:
            yield
        except ShardFinalized:
            self._refuse_dropped()
            raise self._too_early(as_of) from None
        except (AsOfTooEarly, HandleExpired):
            self._refuse_dropped()
            raise

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise BadInput(f"this reader of collection {self.info.name} is closed", hint="open another one")

    def _too_early(self, as_of: int) -> AsOfTooEarly:
        return self._metadata.too_early(as_of, self._metadata.since())

    def _known(self, frontier: int) -> int:
        """A frontier of the collection. If it is CLOSED, the collection may have been dropped: check that."""
        if frontier == CLOSED:
            self._refuse_dropped()
        return frontier

    def _refuse_dropped(self) -> None:
        if self.is_dropped():
            raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")

    def _holding(self, as_of: int) -> RenditionInfo:
        """The rendition that is current at `as_of`."""
        found = holder(self.info, self._metadata.snapshot(as_of).to_table())
        for is_fresh in (False, True):
            for rendition in (self._described() if is_fresh else self.info).live:
                if rendition.id == found and rendition.holds_at(as_of):
                    return rendition
        if any(rendition.id == found and rendition.dropped for rendition in self.info.renditions):
            raise self._too_early(as_of)
        raise VersionTooNew(
            f"collection {self.info.name}: its record has no rendition {found} that holds at {as_of}"
        )

    def _expected(self, as_of: int) -> RenditionInfo:
        """The rendition that is current at `as_of` as far as is known.

        Another one may take over before then.
        """
        for rendition in self._described().held:
            if rendition.holds_at(as_of):
                return rendition
        raise self._too_early(as_of)

    def _listen(
        self,
        as_of: int,
        frontier: int,
        follow: Callable[[ReadHandle, int], Listen],
        until: int | None = None,
    ) -> CollectionListen:
        promised = self._metadata.upper()
        # A handover beyond the promise may still come before the first time that this listen returns.
        metadata = self._metadata.listen(min(as_of, promised - 1))
        rendition = self._holding(as_of) if as_of < promised else self._expected(as_of)
        shards = [follow(shard, as_of) for shard in self._handles(rendition)]
        return CollectionListen(self, rendition, shards, metadata, frontier, until)

    def described(self, rendition_id: str) -> RenditionInfo:
        """Read the record of a rendition as of now."""
        self._check_process()
        return self._described().rendition(rendition_id)

    def follower(self, rendition: RenditionInfo) -> RenditionInfo:
        """The rendition that took over from a retired one."""
        follower = self._described().held_after(rendition)
        if follower is None:
            # The follower is dropped too, so nobody holds its times.
            raise self._too_early(rendition.held_to)
        return follower

    def listens(self, rendition: RenditionInfo, as_of: int, until: int | None) -> list[Listen]:
        """The changes of a rendition's shards after `as_of`, up to `until`."""
        return [shard.listen(as_of, until) for shard in self._handles(rendition)]

    def handed_over(self, old: RenditionInfo, new: RenditionInfo) -> Difference:
        """The updates, at the time of the handover, that turn the old contents into the new ones.

        Reads them from the difference shard if there is one. Otherwise compares the two renditions.
        """
        at = new.held_from
        if shard := self.described(new.id).difference_shard:
            return Difference([each.snapshot(at) for each in self._opened([shard])], [], at)
        now, before = ([shard.snapshot(at - 1) for shard in self._handles(each)] for each in (new, old))
        return Difference(now, before, at)

    def shown(self, updates: pa.Table) -> pa.Table:
        """Rows of shards with the current names of their columns."""
        return updates if self._stored else self._described().names.shown_rows(updates)

    def is_dropped(self) -> bool:
        """Whether the collection was dropped."""
        return self._client.inspect(self.info.metadata_shard).finalized

    def _described(self) -> CollectionInfo:
        look_again()
        self.info = self._describe()
        return self.info

    def _names_of(self, stored: Iterable[str]) -> ColumnNames:
        """The names of columns, among them these. Reads the record again if it lacks one of them."""
        if self._stored:
            return PLAIN_NAMES
        known = self.info.stored_schema.names
        if not {*known, TIME, DIFF}.issuperset(stored):
            self._described()
        return self.info.names

    def _handles(self, rendition: RenditionInfo) -> Sequence[ReadHandle]:
        """Handles of a rendition's shards, opened when they are first needed."""
        return self._opened(rendition.shards)

    def _opened(self, shards: Sequence[str]) -> list[ReadHandle]:
        self._check_process()
        with self._lock:
            # A handle that is opened after the close would keep its hold forever.
            self._check_open()
            if new := [shard for shard in shards if shard not in self._shards]:
                self._shards.update(zip(new, self._readers(new), strict=True))
            return [self._shards[shard] for shard in shards]
