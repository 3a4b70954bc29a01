"""Writing a collection: an append moves all shards of the current rendition to one new upper, in one commit.

- A write below the promise that the writer knows doesn't touch the metadata shard: no handover happens there.
  A write that goes beyond it also moves the promise, expecting it where it was read. So a handover in between
  makes it fail, and it then goes to the rendition that is current now. `holdfast.collections.renditions`
  lists the interleavings.
- The promise is read before the record of the current rendition. A newer promise would say nothing about an
  older record.
- A rendition that has taken over first gets the updates written before the handover. A writer that finds them
  missing copies them.
- An append that lost a race changes nothing. Its error has the upper of the collection.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NoReturn

import pyarrow as pa

from holdfast.collections.bulk import BulkAppend
from holdfast.collections.complete_times import LEAST_MS, ReadSeal, check_write_ahead, sealed_past
from holdfast.collections.frontiers import CollectionView, look
from holdfast.collections.metadata import METADATA_SCHEMA
from holdfast.collections.record.column_names import ColumnNames, check_removals
from holdfast.collections.record.spec import CollectionInfo
from holdfast.collections.rendition_copy import copy_tail
from holdfast.collections.sharded_append import (
    Position,
    PreparedAppend,
    Route,
    ShardedAppend,
    checked_times,
    checked_updates,
    promise_moved,
)
from holdfast.collections.uploads import UploadedAppend
from holdfast.errors import CLOSED, BadInput, CodecMismatch, CollectionNotFound, ShardFinalized, UpperMismatch
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient, Prepared, Schema, Upload, UploadTicket
from holdfast.persist.handles.builder import MEMORY_BYTES
from holdfast.persist.looks import look_again


class ColumnsChanged(CodecMismatch):
    """Columns of the collection have other names than when this writer was opened."""


class CollectionWriter:
    """Appends to one collection. Thread-safe. See `StorageController.writer`."""

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        *,
        purpose: str,
    ) -> None:
        self._client = client
        self._describe = describe
        self._purpose = purpose
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=purpose)
        self.info = self._known = info
        self._route: Route | None = None
        with self._lock:
            self._find()

    @property
    def schema(self) -> Schema:
        """The collection's schema at the time when this was opened.

        It stays usable after the collection evolves. After a column was renamed, the next method that reads
        the collection's upper, or an append that lost a race, raises `CodecMismatch`: open another writer.
        """
        return self.info.schema

    @property
    def full_schema(self) -> Schema:
        """The schema with the hidden columns. Rows that are replaced may have values in them."""
        return self.info.names.with_hidden().shown_schema(self.info.stored_schema)

    def upper(self) -> int:
        """The collection's upper (linearized), at which the next append begins.

        Raises `TornRendition` if somebody wrote to a single shard, bypassing the collection, and
        `CollectionNotFound` if the collection was dropped meanwhile.
        """
        return self._look().upper

    def append(
        self, updates: object, expected_upper: int, new_upper: int, *, far_ahead: bool = False
    ) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is a table, a data frame, dicts or None. It has the columns of the schema, `_time` in
        `[expected_upper, new_upper)` (default: `expected_upper`; use milliseconds since 1970 if the times of
        several collections should align) and `_diff` (default: +1).

        With `far_ahead`, times may be more than an hour ahead of the store's clock. The time of a collection
        never goes back.

        Raises `UpperMismatch`, with the collection's upper, if it is not `expected_upper`; `BadInput` if the
        updates don't fit, the times are too far ahead or a source writes the collection; `CollectionNotFound`
        if the collection was dropped. Nothing is changed in these cases. Raises `Indeterminate` if it is
        unknown whether the append happened: open a new writer and read its upper.
        """
        self._owner.check("this writer of a collection")
        batch = self._checked(updates, expected_upper, new_upper)
        stored = self.info.stored_schema
        with self._lock, ShardedAppend(self._client, stored, batch, expected_upper, new_upper) as append:
            route = self._route or self._find()[0]
            if not far_ahead:
                # If the upper is not `expected_upper`, the append fails anyway.
                self._check_ahead(max(route.promised, expected_upper), new_upper)
            while not self._appended(route, append):
                # The promise moved, or a handover came between. Continue if the collection's upper is the
                # same.
                route, upper = self._find()
                if upper != expected_upper:
                    raise self._mismatch(expected_upper, upper, route)

    def position(self) -> Position:
        """The position of the next append (linearized). Raises like `append`."""
        self._owner.check("this writer of a collection")
        with self._lock:
            route, upper = self._find()
            return Position(upper, route)

    def known_position(self, position: Position) -> Position | None:
        """The position of the next append as this process knows it, at or after one that was read before.

        Reads nothing, so it is as of the last read of these shards. None if it is beyond the promise, where
        only a read shows where rows go.
        """
        self._owner.check("this writer of a collection")
        uppers = {shard.cached_upper for shard in position.shards}
        if len(uppers) > 1 or (upper := uppers.pop()) > position.route.promised:
            return None
        return Position(max(upper, position.upper), position.route)

    def prepare(
        self,
        updates: object,
        position: Position,
        new_upper: int,
        *,
        far_ahead: bool = False,
        prepared: bool = False,
        hidden: bool = False,
        purpose: str = "",
    ) -> PreparedAppend:
        """Prepare the append of `updates` from this position to `new_upper`, for `PersistClient.multi_write`.

        If the multi-write fails, its error is about shards and not about the collection: read the position
        again. Abandoning the steps deletes their uploads. `far_ahead` is as for `append`. `purpose` is
        recorded with this append instead of the writer's own. With `hidden` the updates have the full schema.
        With `prepared`, their values were checked before, by `prepare_updates`. Raises `BadInput` like
        `append`.
        """
        self._owner.check("this writer of a collection")
        if not far_ahead:
            self._check_ahead(position.route.promised, new_upper)
        batch = self._checked(updates, position.upper, new_upper, prepared=prepared, hidden=hidden)
        append = ShardedAppend(
            self._client, self.info.stored_schema, batch, position.upper, new_upper, purpose=purpose
        )
        return self._with_promise(append.prepare(position.route), position.route, new_upper, far_ahead=True)

    def bulk(
        self, *, memory_bytes: int = MEMORY_BYTES, far_ahead: bool = False, hidden: bool = False
    ) -> BulkAppend:
        """Begin one append of any number of updates. It uses about `memory_bytes` of memory, the rest is in
        files.

        The files are in the folder that TMPDIR names, and have no names. `far_ahead` is as for `append`, and
        `hidden` as for `prepare`. Raises like `append`.
        """
        complete = partial(self._with_promise, far_ahead=far_ahead)
        position, (schema, names) = self.position(), self._given(hidden=hidden)
        return BulkAppend(schema, names, position.route, complete, memory_bytes=memory_bytes)

    def hand_out(self, position: Position, *, lease_s: float) -> tuple[UploadTicket, ...]:
        """Issue a ticket for each shard to which an append from this position goes, in their order.

        The tickets are for other processes, whose uploads one process appends (`uploaded`). Each must be
        active at least once within the lease. Raises `ShardFinalized` if the rendition was dropped since.
        """
        shards = position.route.shards
        handed = (self._client.writer(each.shard_id, each.schema, purpose=self._purpose) for each in shards)
        return tuple(writer.hand_on(lease_s=lease_s) for writer in handed)

    def uploaded(
        self,
        rendition_id: str,
        tickets: Sequence[UploadTicket],
        uploads: Iterable[Sequence[Upload]],
        *,
        far_ahead: bool = False,
    ) -> UploadedAppend:
        """Prepare the append of uploads with tickets that were issued for this rendition.

        `uploads` has the uploads of each task, one for each ticket. `far_ahead` is as for `append`.
        """
        complete = partial(self._with_promise, far_ahead=far_ahead)
        return UploadedAppend(self._client, rendition_id, tickets, uploads, complete, purpose=self._purpose)

    def seal(self, new_upper: int, *, far_ahead: bool = False) -> None:
        """Advance the upper to `new_upper` without updates. Does nothing if it is already there.

        `far_ahead` is as for `append`.
        """
        while (upper := self.upper()) < new_upper:
            try:
                self.append(None, upper, new_upper, far_ahead=far_ahead)
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def _checked(
        self,
        updates: object,
        expected_upper: int,
        new_upper: int,
        *,
        prepared: bool = False,
        hidden: bool = False,
    ) -> pa.RecordBatch:
        """The updates as rows of shards. `prepared` and `hidden` are as for `prepare`."""
        schema, names = self._given(hidden=hidden)
        check = checked_times if prepared else checked_updates
        batch = check(self.info.name, schema, updates, expected_upper, new_upper)
        check_removals(batch, names)
        return names.stored_rows(batch)

    def _given(self, *, hidden: bool) -> tuple[Schema, ColumnNames]:
        """The schema of the updates that are given, and the names of its columns."""
        if hidden:
            return self.full_schema, self.info.names.with_hidden()
        return self.schema, self.info.names

    def _check_ahead(self, reached: int, new_upper: int) -> None:
        """Raise `BadInput` if an append would move the collection's time far ahead of the store's clock.

        Times up to `reached` are no move.
        """
        # Most appends stay below the promise, and need no look at the clock.
        if new_upper > max(reached + 1, LEAST_MS):
            what, now_ms = f"collection {self.info.name}", self._client.store_or_host_ms()
            check_write_ahead(what, new_upper - 1, reached, now_ms, "pass far_ahead=True")

    def _mismatch(self, expected: int, upper: int, route: Route) -> UpperMismatch:
        seal = ReadSeal.last(self._client.known_writers(route.shards[0].shard_id))
        sealed = sealed_past(expected, seal)
        shard_id = f"collection {self.info.name}"
        if not sealed:
            return UpperMismatch(expected, upper, shard_id=shard_id)
        message = f"upper of {shard_id} is {upper}, expected {expected}{sealed}"
        return UpperMismatch(expected, upper, shard_id=shard_id, message=message)

    def _with_promise(
        self, appends: Sequence[Prepared], route: Route, new_upper: int, *, far_ahead: bool
    ) -> PreparedAppend:
        """The appends to all shards of a route, and the move of the promise if they need it."""
        if not far_ahead:
            self._check_ahead(route.promised, new_upper)
        moved, after = promise_moved(self._metadata, route, new_upper)
        return PreparedAppend((*appends, *moved), Position(new_upper, after))

    def _appended(self, route: Route, append: ShardedAppend) -> bool:
        """Try the append on this route. Returns whether it happened."""
        if append.expected_upper < route.rendition.held_from:
            return False
        moved, after = promise_moved(self._metadata, route, append.new_upper)
        if not append.tried(route, moved):
            return False
        self._route = after
        return True

    def _find(self) -> tuple[Route, int]:
        """Where rows go now, and the collection's upper.

        Copies the tail of the current rendition if it lacks one.
        """
        view = self._written_by_all()
        while True:
            try:
                return self._found(view)
            except ShardFinalized:
                # The rendition that was current has been dropped since, or the whole collection.
                look_again()
                before, view = view, self._written_by_all()
                if view.info.holding.id == before.info.holding.id:
                    raise

    def _found(self, view: CollectionView) -> tuple[Route, int]:
        """Like `_find`, from a view. Raises `ShardFinalized` if its current rendition is gone."""
        while view.uppers[view.info.holding.id] < view.info.holding.held_from:
            copy_tail(self._client, view, self._describe)
            look_again()
            view = self._written_by_all()
        rendition = view.info.holding
        if self._route is not None and self._route.rendition.id == rendition.id:
            schema, shards = self._route.schema, self._route.shards
        else:
            # Shards that were created after the collection evolved don't know the writer's own schema.
            schema = view.info.stored_schema
            shards = tuple(
                self._client.writer(shard, schema, purpose=self._purpose) for shard in rendition.shards
            )
        self._route = Route(rendition, schema, shards, view.promised)
        return self._route, view.upper

    def _written_by_all(self) -> CollectionView:
        """The collection now.

        Raises `BadInput` if only a pipeline writes it; a handover may change that any time.
        """
        view = self._look()
        if view.info.holding.is_fed:
            # Only its pipeline knows its contents, also below the handover.
            raise BadInput(
                f"collection {view.info.name} is written by a source: only the pipeline of its rendition"
                f" {view.info.holding.id} can write it",
                hint="use a writer of the rendition, or hand over to a copy without a pipeline",
            )
        return view

    def _look(self) -> CollectionView:
        view = look(self._client, self._known, self._describe)
        self._known = view.info
        if view.info.dropped or (
            view.upper == CLOSED and self._client.inspect(self.info.metadata_shard).finalized
        ):
            self._refuse_dropped()
        _check_names(self.info, view.info)
        return view

    def _refuse_dropped(self) -> NoReturn:
        raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")


def _check_names(before: CollectionInfo, now: CollectionInfo) -> None:
    """Raise `ColumnsChanged` unless all columns that a writer knows still have their names."""
    if now.names == before.names:
        return
    for name in before.schema.names:
        stored = before.names.stored(name)
        if stored in now.names.unseen:
            raise ColumnsChanged(
                f"column {name!r} of collection {now.name} was dropped",
                hint="open the writer again, and give rows without it",
            )
        shown = now.names.shown(stored)
        if shown != name:
            raise ColumnsChanged(
                f"column {name!r} of collection {now.name} is called {shown!r} now",
                hint="open the writer again, and give rows with the new name",
            )
