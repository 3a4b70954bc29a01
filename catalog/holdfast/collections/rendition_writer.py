"""Writing a rendition that a pipeline feeds, before, while and after it is current.

- While it is being filled, each append expects the promise where it was read, so that a handover in between
  is noticed.
- While it is current, the rules for all writers of a collection hold, also below the time at which it took
  over: nobody else copies missing rows into it.
- After it retired, it is written up to the time at which the next one took over, and never past it.
- It may begin at any time. Its source need not know anything about earlier times.
- One that was copied, or restored from a snapshot, is written only from the end of its tail on.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from holdfast.collections.frontiers import common_upper
from holdfast.collections.metadata import METADATA_SCHEMA
from holdfast.collections.pipeline import PIPELINE_SCHEMAS
from holdfast.collections.record.spec import CollectionInfo, Recipe, RenditionInfo, RenditionState
from holdfast.collections.rendition_copy import copy_until, tail_end
from holdfast.collections.sharded_append import Route, ShardedAppend, checked_updates, promise_moved
from holdfast.errors import (
    CLOSED,
    BadInput,
    CollectionNotFound,
    HandedOver,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.forks import OwnerProcess
from holdfast.persist import PersistClient, Prepared, Upload, UploadTicket, WriteHandle


class Begin(Protocol):
    """The command that begins a rendition at a time, with its effects. Returns whether it begins now."""

    def __call__(
        self, collection: str, rendition_id: str, start: int, effects: Callable[[], Sequence[Prepared]]
    ) -> bool:
        """Commit the effects and the record in one multi-write. Raises like `ControllerLog.commit`."""


class RenditionWriter:
    """Appends to a rendition that a pipeline feeds. Thread-safe. See `StorageController.rendition_writer`.

    `schema` is the collection's schema at the time when the writer was opened.
    """

    def __init__(
        self,
        client: PersistClient,
        info: CollectionInfo,
        describe: Callable[[], CollectionInfo],
        begin: Begin,
        *,
        rendition_id: str,
        purpose: str,
    ) -> None:
        self._client = client
        self._describe = describe
        self._begin = begin
        self._rendition_id = rendition_id
        self._purpose = purpose
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=purpose)
        self._route: Route | None = None
        self._empty = True
        self._uploading: set[int] = set()
        self.info = info
        self.schema = info.schema
        with self._lock:
            self._find()

    @property
    def rendition(self) -> RenditionInfo:
        """The record of the rendition, as it was last read."""
        return self.info.rendition(self._rendition_id)

    def upper(self) -> int:
        """The rendition's upper (linearized), at which its next append begins. 0 if it has no contents yet.

        Raises like `append`.
        """
        self._owner.check("this writer of a rendition")
        with self._lock:
            return self._find()[1]

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
        """Append `updates` and move the upper from `expected_upper` to `new_upper`, durably, or do nothing.

        `updates` are as for a `CollectionWriter`. The first append may begin at any `expected_upper`. The
        rendition has contents from that time on, and can take over after it.

        `kept` has the updates of the shards of the pipeline, in the order of `PIPELINE_SCHEMAS`. They are
        committed together with `updates`. Without them these shards move to the same upper.

        `uploads` are of other processes, with the tickets of this writer: from each process one for each
        shard. With them, `updates` must be empty. `kept_uploads` has, for each shard of the pipeline, those
        with its `kept_ticket`. Where it has some, `kept` must be empty. If nothing is changed, all are
        deleted.

        Raises `UpperMismatch`, with the rendition's upper, if it is not `expected_upper`; `HandedOver` if the
        rendition has retired and `new_upper` is past its times; `BadInput` if the updates don't fit or the
        rendition was aborted or dropped; `CollectionNotFound` if the collection was dropped. Nothing is
        changed in these cases. Raises `Indeterminate` if it is unknown whether the append happened: open a
        new writer and read its upper.
        """
        self._owner.check("this writer of a rendition")
        batch = checked_updates(self.info.name, self.schema, updates, expected_upper, new_upper)
        extra = tuple(
            checked_updates(self.info.name, schema, each, expected_upper, new_upper)
            for schema, each in zip(PIPELINE_SCHEMAS, kept, strict=bool(kept))
        )
        with (
            self._lock,
            ShardedAppend(
                self._client,
                self.schema,
                batch,
                expected_upper,
                new_upper,
                extra,
                uploads,
                kept_uploads=kept_uploads,
            ) as append,
        ):
            route = self._route or self._find()[0]
            if (kept or kept_uploads) and not route.kept:
                raise BadInput(
                    f"rendition {self._rendition_id} of collection {self.info.name} keeps nothing for a"
                    " pipeline",
                    hint="create a rendition with a pipeline",
                )
            while not self._appended(route, append):
                route, upper = self._find()
                if upper != expected_upper and not self._begins(route, append):
                    what = f"rendition {self._rendition_id} of collection {self.info.name}"
                    raise UpperMismatch(expected_upper, upper, shard_id=what)

    def upload_tickets(self) -> tuple[UploadTicket, ...]:
        """Let other processes upload for the next append, with one ticket for each shard of the rendition.

        Call `keep_alive` from time to time until the append.
        """
        self._owner.check("this writer of a rendition")
        with self._lock:
            route = self._route or self._find()[0]
            return tuple(shard.upload_ticket() for shard in route.shards)

    def kept_ticket(self, number: int) -> UploadTicket:
        """Like `upload_tickets`, for a shard of the pipeline. `number` is its place in `PIPELINE_SCHEMAS`."""
        self._owner.check("this writer of a rendition")
        with self._lock:
            route = self._route or self._find()[0]
            self._uploading.add(number)
            return route.kept[number].upload_ticket()

    def keep_alive(self) -> None:
        """Renew the leases under which others upload, if that is due. Raises `HandleExpired`."""
        with self._lock:
            if (route := self._route) is not None:
                for shard in (*route.shards, *(route.kept[each] for each in sorted(self._uploading))):
                    shard.keep_alive()

    def seal(self, new_upper: int) -> None:
        """Advance the upper to `new_upper` without updates. Does nothing if it is already there."""
        while (upper := self.upper()) < new_upper:
            try:
                self.append(None, upper, new_upper)
            except UpperMismatch as mismatch:
                if mismatch.actual >= new_upper:
                    return

    def _appended(self, route: Route, append: ShardedAppend) -> bool:
        """Try the append on this route. Returns whether it happened."""
        rendition = route.rendition
        match rendition.state:
            case RenditionState.HYDRATING:
                there = self._client.prepare_expect_upper(self._metadata.shard_id, route.promised)
                appended = (
                    self._began(route, append, there)
                    if self._begins(route, append)
                    else append.tried(route, [there])
                )
            case RenditionState.HOLDING:
                moved, after = promise_moved(self._metadata, route, append.new_upper)
                appended = append.tried(route, moved)
                if appended:
                    self._route = after
            case RenditionState.RETIRED:
                if append.new_upper > rendition.held_to:
                    follower = self.info.held_after(rendition)
                    id_ = "" if follower is None else follower.id
                    raise HandedOver(self.info.name, rendition.id, rendition.held_to, id_)
                appended = append.tried(route, [])
            case RenditionState.DROPPED | RenditionState.ABORTED:
                return False
            case _:
                assert_never(rendition.state)
        self._empty = self._empty and not appended
        return appended

    def _begins(self, route: Route, append: ShardedAppend) -> bool:
        """Whether this append is the first one of the rendition, and begins it."""
        filling = route.rendition.state is RenditionState.HYDRATING
        return filling and self._empty and append.expected_upper > 0

    def _began(self, route: Route, append: ShardedAppend, there: Prepared) -> bool:
        try:
            # Upload before the commit: no other command of this process runs during it.
            append.prepare(route, shard_upper=0)
            return self._begin(
                self.info.collection_id,
                self._rendition_id,
                append.expected_upper,
                lambda: [*append.prepare(route, shard_upper=0), there],
            )
        except (UpperMismatch, ShardFinalized):
            return False

    def _find(self) -> tuple[Route, int]:
        """How the rendition is written now, and its upper."""
        # Read the promise before the record: the record then has every handover below the promise.
        promised = self._metadata.upper()
        info, rendition = self._described()
        upper = common_upper(info, rendition, self._client.recent_uppers)
        if upper == CLOSED:
            # The shards may have been finalized since the record was read.
            info, rendition = self._described()
        if rendition.recipe is not Recipe.SOURCE and upper < rendition.held_from:
            # The process that handed over to it has ended before it had its tail.
            copy_until(self._client, info, rendition, tail_end(rendition), self._describe)
            return self._find()
        self._empty = upper == 0
        if self._route is None:
            try:
                shards = tuple(
                    self._client.writer(shard, info.stored_schema, purpose=self._purpose)
                    for shard in rendition.shards
                )
            except ShardFinalized:
                # It was aborted or dropped since the record was read. This raises the exact error.
                self._described()
                raise
            self._route = Route(rendition, info.stored_schema, shards, promised, self._kept(rendition))
        else:
            self._route = replace(self._route, rendition=rendition, promised=promised)
        return self._route, upper

    def _kept(self, rendition: RenditionInfo) -> tuple[WriteHandle, ...]:
        shards = rendition.pipeline.all if rendition.pipeline else ()
        return tuple(
            self._client.writer(shard, schema, purpose=self._purpose)
            for shard, schema in zip(shards, PIPELINE_SCHEMAS, strict=bool(shards))
        )

    def _described(self) -> tuple[CollectionInfo, RenditionInfo]:
        """The collection and the rendition, if a pipeline may write it now."""
        self.info = info = self._describe()
        if info.dropped:
            raise CollectionNotFound(info.end)
        return info, _fed(info, self._rendition_id)


def _fed(info: CollectionInfo, rendition_id: str) -> RenditionInfo:
    """The rendition. Raises `BadInput` if a pipeline can't write it."""
    known = info.known(rendition_id)
    if not known.is_fed:
        raise BadInput(
            f"rendition {rendition_id} of collection {info.name} is not written by a pipeline: its recipe is"
            f" {known.recipe.name}",
            hint="write to the collection, or create a rendition of recipe SOURCE",
        )
    if known.recipe is not Recipe.SOURCE and known.state is RenditionState.HYDRATING:
        copied = known.recipe is Recipe.COPY
        what = "filled from the collection" if copied else "restored from a snapshot"
        raise BadInput(
            f"rendition {rendition_id} of collection {info.name} is being {what}: no pipeline can write it"
            " yet",
            hint="hand over to it, or abort it" if copied else "restore again to continue that, or abort it",
        )
    if known.dropped:
        raise BadInput(
            f"rendition {rendition_id} of collection {info.name} can't be written: it is {known.state.name}",
            hint="write to a rendition that is filled or current, or create one of recipe SOURCE",
        )
    return known
