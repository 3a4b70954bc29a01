"""Writing a collection: an append takes all shards of the rendition that holds to one new upper, in one step.

- A write below the promise that this writer knows needs nothing of the metadata shard: no other rendition
  takes over there. A write that reaches beyond moves the promise along, expecting it where it was, so that a
  handover in between makes it fail; then it goes to the rendition that holds now.
- The promise is read before the record that tells which rendition holds; a newer promise says nothing of an
  older record.
- A rendition that has taken over gets what was written before that first. Who finds it missing brings it.
- An append that lost changes nothing anywhere; it tells the collection's own upper.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from holdfast.collections.appending import (
    Position,
    PreparedAppend,
    Route,
    ShardedAppend,
    checked_updates,
    promise_moved,
)
from holdfast.collections.bringing import bring_tail
from holdfast.collections.bulk import BulkAppend
from holdfast.collections.metadata import METADATA_SCHEMA
from holdfast.collections.record.spec import CollectionInfo, Recipe
from holdfast.collections.uploaded import UploadedAppend
from holdfast.collections.uppers import View, look
from holdfast.errors import CLOSED, BadInput, CollectionNotFound, ShardFinalized, UpperMismatch
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient, Prepared, Schema, Upload, UploadTicket
from holdfast.persist.handles.builder import MEMORY_BYTES


class CollectionWriter:
    """Appends to one collection. Thread-safe; made by `StorageController.writer`."""

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
        self.info = info
        self._route: Route | None = None
        with self._lock:
            self._find()

    @property
    def schema(self) -> Schema:
        """The collection's schema when this was opened; later ones follow it, and it may go on."""
        return self.info.schema

    def upper(self) -> int:
        """The collection's upper, linearized: where the next append begins.

        Raises `TornRendition` where somebody wrote to a shard past the collection, `CollectionNotFound`
        where the collection was dropped meanwhile.
        """
        return self._look().upper

    def append(self, updates: object, expected_upper: int, new_upper: int) -> None:
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` is a table, a data frame, dicts or None, with the columns of the schema, `_time` (ms since
        the epoch where collections should align; default `expected_upper`) in
        `[expected_upper, new_upper)` and `_diff` (default +1).

        Raises `UpperMismatch` with the collection's upper where it is another, `BadInput` where the updates
        don't fit or a source feeds the collection, `CollectionNotFound` where the collection was dropped:
        nothing happened. `Indeterminate` where it could not be found out whether it happened: open a new
        writer and look at the upper.
        """
        self._owner.check("this writer of a collection")
        batch = checked_updates(self.schema, updates, expected_upper, new_upper)
        with self._lock, ShardedAppend(self._client, self.schema, batch, expected_upper, new_upper) as append:
            route = self._route or self._find()[0]
            while not self._appended(route, append):
                # The promise moved, or a handover came between: go on where the collection is unmoved.
                route, upper = self._find()
                if upper != expected_upper:
                    raise UpperMismatch(expected_upper, upper, shard_id=f"collection {self.info.name}")

    def position(self) -> Position:
        """Where the next append begins, linearized. Raises as `append`."""
        self._owner.check("this writer of a collection")
        with self._lock:
            route, upper = self._find()
            return Position(upper, route)

    def prepare(self, updates: object, position: Position, new_upper: int) -> PreparedAppend:
        """The append of `updates` from this position to `new_upper`, for `PersistClient.multi_write`.

        What its multi-write raises when it lost is about shards, and says nothing of the collection: find
        the position anew. What was uploaded for it goes when its steps are abandoned. Raises `BadInput` as
        `append`.
        """
        self._owner.check("this writer of a collection")
        batch = checked_updates(self.schema, updates, position.upper, new_upper)
        append = ShardedAppend(self._client, self.schema, batch, position.upper, new_upper)
        return self._with_promise(append.prepare(position.route), position.route, new_upper)

    def bulk(self, *, memory_bytes: int = MEMORY_BYTES) -> BulkAppend:
        """One append of any amount of updates that takes about so much memory; the rest is in files.

        They are in the folder that TMPDIR names, and have no names. Raises as `append`.
        """
        return BulkAppend(self.schema, self.position().route, self._with_promise, memory_bytes=memory_bytes)

    def hand_out(self, position: Position, *, lease_s: float) -> tuple[UploadTicket, ...]:
        """A ticket for each shard of where an append goes from this position, in their order.

        They are for other processes, of which one appends (`uploaded`), and none is silent for as long as
        the lease. Raises `ShardFinalized` where the rendition has gone since.
        """
        shards = position.route.shards
        handed = (self._client.writer(each.shard_id, each.schema, purpose=self._purpose) for each in shards)
        return tuple(writer.hand_on(lease_s=lease_s) for writer in handed)

    def uploaded(
        self, rendition_id: str, tickets: Sequence[UploadTicket], uploads: Iterable[Sequence[Upload]]
    ) -> UploadedAppend:
        """The append of what was uploaded with tickets that were handed out for this rendition.

        `uploads` are those of each task, one for each ticket.
        """
        return UploadedAppend(
            self._client, rendition_id, tickets, uploads, self._with_promise, purpose=self._purpose
        )

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper` with no updates; nothing to do where it is there already."""
        while (upper := self.upper()) < new_upper:
            try:
                self.append(None, upper, new_upper)
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def _with_promise(self, appends: Sequence[Prepared], route: Route, new_upper: int) -> PreparedAppend:
        """The appends to all shards of a route, with the move of the promise where they need it."""
        moved, after = promise_moved(self._metadata, route, new_upper)
        return PreparedAppend((*appends, *moved), Position(new_upper, after))

    def _appended(self, route: Route, append: ShardedAppend) -> bool:
        """Whether the append took place on this route."""
        if append.expected_upper < route.rendition.held_from:
            return False
        moved, after = promise_moved(self._metadata, route, append.new_upper)
        if not append.tried(route, moved):
            return False
        self._route = after
        return True

    def _find(self) -> tuple[Route, int]:
        """Where rows go now, complete up to where it took over, and the collection's upper."""
        view = self._written_by_all()
        while True:
            try:
                return self._found(view)
            except ShardFinalized:
                # What held then has retired and gone since, or all of the collection has.
                before, view = view, self._written_by_all()
                if view.info.holding.id == before.info.holding.id:
                    raise

    def _found(self, view: View) -> tuple[Route, int]:
        """As `_find`, from a look. Raises `ShardFinalized` where what holds then is gone."""
        while view.uppers[view.info.holding.id] < view.info.holding.held_from:
            bring_tail(self._client, view, self._describe)
            view = self._written_by_all()
        rendition = view.info.holding
        if self._route is not None and self._route.rendition.id == rendition.id:
            schema, shards = self._route.schema, self._route.shards
        else:
            # What was made after the collection evolved knows nothing of the writer's own.
            schema = view.info.schema
            shards = tuple(
                self._client.writer(shard, schema, purpose=self._purpose) for shard in rendition.shards
            )
        self._route = Route(rendition, schema, shards, view.promised)
        return self._route, view.upper

    def _written_by_all(self) -> View:
        """The collection now, unless only a pipeline writes it: another handover may come at any time."""
        view = self._look()
        if view.info.holding.recipe is Recipe.SOURCE:
            # Nobody but its pipeline knows what belongs in there, also below the handover.
            raise BadInput(
                f"collection {view.info.name} is fed by a source: its rendition {view.info.holding.id} is"
                " written by that one's pipeline only",
                hint="write it with a writer of the rendition, or hand the collection over to a copy",
            )
        return view

    def _look(self) -> View:
        view = look(self._describe, self._metadata.upper, self._client.recent_uppers)
        if view.info.dropped or (
            view.upper == CLOSED and self._client.inspect(self.info.metadata_shard).finalized
        ):
            self._refuse_dropped()
        return view

    def _refuse_dropped(self) -> NoReturn:
        raise CollectionNotFound(f"collection {self.info.name} ({self.info.collection_id}) was dropped")
