"""The renditions of collections: they are created, filled, handed over to, aborted and dropped.

A handover makes another rendition current from a time `t_h` on, while readers and writers continue. It is one
multi-write that does four things, all or none of them:

- it appends the handover to the metadata shard, expecting the promise `P` (that shard's upper), and moves the
  promise to `t_h + 1`. `t_h` is at least `P`;
- it seals the shards of the old rendition from their upper to `t_h`;
- it records the handover in the collection's record;
- it keeps the guard's condition, if the controller has one.

A writer that appends below the promise touches only the data shards. A writer that goes beyond it also moves
the promise, expecting it where it was read. So these interleavings of a write with a handover are possible:

1. The write commits first. If it moved the uppers of the old shards or the promise, the handover's
   multi-write fails on them, because it expects the old values. `hand_over` reads the collection again and
   chooses a later `t_h`. The rows are in the old rendition, below `t_h`.
2. The handover commits first, and the write stays below the promise that its writer knows. The old shards are
   sealed to `t_h`, which is not below that promise. So the write fails, and the writer learns from the record
   that the upper of the collection is now `t_h`. Its next append goes to the new rendition.
3. The handover commits first, and the write goes beyond the promise. It fails on the old shards or on the
   metadata shard, whose upper has moved. It continues as in 2.
4. Two processes hand over at once. Both append to the metadata shard and to the controller shard at the same
   uppers, so one of them fails. It reads again, and finds that its rendition is current already, or hands
   over from the new one.
5. The process dies after the commit. The handover is decided, but the new rendition may lack the tail: the
   updates below `t_h` that it has not copied. While it lacks the tail, its upper is below `t_h`. So no append
   at `t_h` or later can succeed, and no reader sees an incomplete time. Reads below `t_h` still use the old
   rendition. The next writer, handover or `advance` finds the tail missing and copies it. All of them copy
   the same rows, and one append of them succeeds. No other handover begins before that.
6. The outcome of the commit is unknown. `hand_over` raises `Indeterminate`. Repeat the command with the same
   id. It finds the outcome in the record.

If pipelines (recipe SOURCE) write both renditions, nothing is sealed and no tail is copied. The pipeline of
the old one writes up to `t_h`, and then gets `HandedOver`. The new one's writes from `t_h` on, and readers
wait until both have arrived. If only the new rendition has a pipeline, that pipeline writes its rows below
`t_h` too.

A restored rendition has the contents of its snapshot from `t_h` on. What the old one had is given up, and the
difference is visible at `t_h`. If it has a pipeline, the handover seals the old one all the same, so that
nobody waits for a pipeline. The tail reaches past `t_h`, and its pipeline writes it from `t_h + 1` on.

A retired rendition is dropped once nobody can read its times: the since is past them.
"""

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.differences import difference_shards, make_difference
from holdfast.collections.frontiers import CollectionView, common_upper, look
from holdfast.collections.metadata import METADATA_SCHEMA, handover
from holdfast.collections.pipeline import prepare_pipeline, written_shards
from holdfast.collections.record import rendition_transitions as transitions
from holdfast.collections.record.spec import (
    CollectionInfo,
    CollectionSpec,
    PipelineShards,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.record.state import ControllerState
from holdfast.collections.record.transitions import Origin
from holdfast.collections.rendition_copy import (
    OnProgress,
    check_continues,
    copy_tail,
    copy_until,
    rendition_hold,
)
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    HandleExpired,
    NotCaughtUp,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist import PersistClient, Prepared

MAX_LAG_MS: Final = 60_000
"""How far a rendition may be behind the one that it takes over from, in milliseconds of collection time."""
NEARLY_MS: Final = 1_000
"""Catching up ends with a round that copied no more than this, in milliseconds of collection time. Writers
wait at the handover for about as much."""
FARTHEST_MS: Final = 60_000
"""How far ahead of now a handover may be: it seals the collection up to then for everyone. Now is the time of
this host, bounded by the store's clock (`PersistClient.now_ms`)."""

RESTORED_UPPER: Final = 1
"""The upper of a rendition that is filled from a snapshot, until its handover."""

_CREATION_PURPOSE: Final = "rendition creation"
_HANDOVER_PURPOSE: Final = "handover"


class Renditions:
    """The commands on renditions: `StorageController.renditions`. Thread-safe."""

    def __init__(
        self,
        client: PersistClient,
        log: ControllerLog,
        origin: Callable[[str | None], Origin],
        describe: Callable[[str], CollectionInfo],
    ) -> None:
        self._client = client
        self._log = log
        self._origin = origin
        self._describe = describe

    def create(
        self,
        collection: str,
        *,
        shards: int,
        hash_columns: tuple[str, ...] = (),
        recipe: Recipe = Recipe.COPY,
        pipeline: bool | None = None,
        made_from: str = "",
        rendition_id: str = "",
        command_id: str | None = None,
    ) -> RenditionInfo:
        """Create an empty rendition of a collection, or find the one with this id that was created alike.

        `hash_columns` are as in `CollectionSpec`. Without an id it gets the next of "r2", "r3", ... Until it
        is current or aborted, it holds the times that it is filled from. A rendition of recipe SOURCE holds
        nothing. With `pipeline` it also gets the shards that a pipeline of `holdfast.ingest` needs, which
        makes its rows as `made_from` says. Default: a copy of a rendition with a pipeline has one too, which
        continues that one with the same `made_from`. A copy with `pipeline` false becomes a table.

        Raises `BadInput` if the id was used for a different rendition, and `CollectionNotFound`.
        """
        info = self._describe(collection)
        # Checks the numbers and names, and chooses the hash columns if none are given.
        spec = CollectionSpec(info.collection_id, info.name, info.schema, shards, hash_columns)
        data = tuple(self._client.new_shard_id() for _ in range(shards))
        if recipe is Recipe.COPY and pipeline is not False:
            pipeline, made_from = info.holding.pipeline is not None, info.holding.made_from
        kept = PipelineShards(*(self._client.new_shard_id() for _ in range(2))) if pipeline else None
        made = RenditionInfo(
            rendition_id,
            data,
            0,
            info.names.stored_columns(spec.hash_columns),
            recipe=recipe,
            pipeline=kept,
            made_from=made_from,
        )
        origin = self._origin(command_id)

        return self._log.commit(
            lambda state: transitions.create_rendition(state, info.collection_id, made, origin),
            # The collection may have evolved or got other renditions since `info` was read.
            lambda state: self.prepare(state.collections[info.collection_id], made),
        )

    def begin(
        self, collection: str, rendition_id: str, start: int, effects: Callable[[], Sequence[Prepared]]
    ) -> bool:
        """Record that a rendition of recipe SOURCE begins at `start`, together with its first append.

        Returns whether it begins now. Returns False, with nothing changed, if it began before, at this time
        or another, or if it is not (or no longer) being filled. Raises `BadInput` if there is no such
        rendition.
        """
        return self._log.commit(
            partial(
                transitions.begin_rendition, collection_id=collection, rendition_id=rendition_id, start=start
            ),
            lambda _: effects(),
        )

    def suspect(self, collection: str, rendition_id: str, why: str, *, command_id: str | None = None) -> None:
        """Mark a rendition as suspect: its contents are not to be trusted. Readers continue to use it. The
        first reason stays.

        Raises `BadInput` if the collection has no such rendition.
        """
        info = self._describe(collection)
        self._log.commit(
            partial(
                transitions.suspect_rendition,
                collection_id=info.collection_id,
                rendition_id=rendition_id,
                why=why,
                origin=self._origin(command_id),
            )
        )

    def prepare(self, info: CollectionInfo, made: RenditionInfo) -> list[Prepared]:
        """The steps that create a rendition: its shards, with the newest schema, and the holds."""
        client, purpose = self._client, _CREATION_PURPOSE
        id_ = made.id or transitions.next_rendition_id(info)
        # A rendition of recipe SOURCE is not filled from the collection.
        held = [] if made.recipe is Recipe.SOURCE else [rendition_hold(id_)]
        return [
            *(client.prepare_critical(info.metadata_shard, purpose=each) for each in held),
            *(client.prepare_create(shard, info.stored_schema, purpose=purpose) for shard in made.shards),
            *prepare_pipeline(client, made.pipeline, purpose=purpose),
            *(client.prepare_critical(shard, purpose=RETENTION_PURPOSE) for shard in made.written_shards),
        ]

    def catch_up(self, collection: str, rendition_id: str, *, progress: OnProgress | None = None) -> int:
        """Copy all rows of the collection to a rendition that is being filled. Returns its upper afterwards.

        Repeats this for rows that were written during the copy. It stops when a round copies only a little,
        or no less than the round before, because then the writers are as fast as the copy. `progress` is as
        for `StorageController.hydrate`.

        Raises `BadInput` for a rendition that only its source fills, or that is not being filled.
        """
        before = CLOSED
        while True:
            lower, upper = self._catch_up(collection, rendition_id, progress)
            if upper - lower <= NEARLY_MS or upper - lower >= before:
                return upper
            before = upper - lower

    def _catch_up(self, collection: str, rendition_id: str, progress: OnProgress | None) -> tuple[int, int]:
        """Copy what there is now. Returns the uppers of the rendition before and after."""
        view = self.look(collection)
        rendition = self._hydrating(view.info, rendition_id)
        if rendition.recipe is not Recipe.COPY:
            raise BadInput(
                f"rendition {rendition_id} of collection {view.info.name} is not filled from the collection",
                hint="write it with a writer of the rendition",
            )
        id_ = view.info.collection_id
        try:
            return copy_until(
                self._client, view.info, rendition, view.upper, partial(self._describe, id_), progress
            )
        except (AsOfTooEarly, HandleExpired, ShardFinalized, UpperMismatch):
            # The rendition may have been aborted meanwhile.
            self._hydrating(self._describe(id_), rendition_id)
            raise

    def hand_over(
        self,
        collection: str,
        rendition_id: str,
        *,
        at: int | None = None,
        max_lag_ms: int = MAX_LAG_MS,
        command_id: str | None = None,
    ) -> RenditionInfo:
        """Make this rendition current, from the first time that is possible and at least `at`.

        Returns the rendition, with the time in `held_from`, once it has all that was written before. If it is
        already current, it is returned unchanged, and so is one that this command made current and that has
        retired since. Readers and writers continue. Raises `NotCaughtUp` if it lacks more than `max_lag_ms`;
        `BadInput` if it is suspect, retired or aborted, or if `at` is too far ahead; `HandoverInProgress` if
        an earlier handover, or this one, waits for its source.

        If pipelines write both renditions, this only fixes the time. The pipeline of the old one writes up to
        it, the pipeline of the new one from it on, and readers wait until both have arrived.
        """
        origin = self._origin(command_id)
        while True:
            view = self.look(collection)
            info = view.info
            taken = info.holding.id == rendition_id
            if taken and info.holding.recipe is Recipe.SOURCE:
                return info.holding
            if view.upper < info.holding.held_from or view.uppers[info.holding.id] < info.holding.held_from:
                copy_tail(self._client, view, partial(self._describe, info.collection_id))
            elif taken:
                # Copying a tail ends the hold. A late filler may have moved the hold meanwhile.
                self.release_hold(info, rendition_id)
                return info.holding
            else:
                earliest = (*self._own_times(view, rendition_id), self._earliest(info, rendition_id))
                time = max(view.promised, at or 0, *earliest)
                self._check_time(info, time, view)
                self._check_lag(view, rendition_id, max_lag_ms)
                with suppress(UpperMismatch):  # Somebody wrote meanwhile.
                    changed = self._log.commit(
                        partial(
                            transitions.hand_over,
                            collection_id=info.collection_id,
                            rendition_id=rendition_id,
                            at=time,
                            origin=origin,
                        ),
                        partial(self._turn, view, rendition_id, time),
                    )
                    done = changed.rendition(rendition_id)
                    if done.state is not RenditionState.HOLDING:
                        # Made current by this command, which was given before. Another one has taken over
                        # since.
                        return done

    def abort(self, collection: str, rendition_id: str, *, command_id: str | None = None) -> None:
        """Give up a rendition that is being filled, and delete its data. Raises `BadInput` for any other."""
        info = self._describe(collection)
        origin = self._origin(command_id)
        self._log.commit(
            lambda state: transitions.abort_rendition(state, info.collection_id, rendition_id, origin),
            lambda state: [
                self._client.prepare_release_critical(
                    info.metadata_shard, purpose=rendition_hold(rendition_id)
                ),
                # The rendition may have been created since `info` was read.
                *self._end(state.collections[info.collection_id].rendition(rendition_id)),
            ],
        )

    def drop_retired(self, collection: str) -> tuple[str, ...]:
        """Drop the retired renditions whose times nobody can read any more. Returns their ids."""
        view = self.look(collection)
        for each in view.info.held:
            if view.uppers[each.id] >= each.held_from:
                self.release_hold(view.info, each.id)
        since = self._client.inspect(view.info.metadata_shard).since
        gone = [
            each
            for each in view.info.held
            if each.state is RenditionState.RETIRED and view.uppers[each.id] >= each.held_to <= since
        ]
        for each in gone:
            self._log.commit(
                partial(
                    transitions.drop_rendition,
                    collection_id=view.info.collection_id,
                    rendition_id=each.id,
                    origin=self._origin(None),
                ),
                partial(self._end_of_retired, view.info.collection_id, each.id),
            )
        return tuple(each.id for each in gone)

    def copy_tail(self, collection: str) -> None:
        """Copy the tail to the current rendition, if it lacks one.

        Raises `HandoverInProgress` if only the source of the rendition can write that.
        """
        view = self.look(collection)
        if view.uppers[view.info.holding.id] < view.info.holding.held_from:
            copy_tail(self._client, view, partial(self._describe, view.info.collection_id))

    def release_hold(self, info: CollectionInfo, rendition_id: str) -> None:
        """Release the hold of a rendition on the times that it was filled from."""
        purpose = rendition_hold(rendition_id)
        if any(hold.purpose == purpose for hold in self._client.inspect(info.metadata_shard).holds):
            self._log.write([self._client.prepare_release_critical(info.metadata_shard, purpose=purpose)])

    def make_difference(self, collection: str, *, command_id: str | None = None) -> str | None:
        """Store the difference at the latest handover in a shard, for all who listen through it.

        Returns that shard, whether it is new or not. Returns None if there was no handover, if the handover
        was to a copy, which has no difference, if the times before are gone, or if one of the two renditions
        is not written up to the handover yet. Every process that makes it gets the same rows.
        """
        view = self.look(collection)
        describe = partial(self._describe, view.info.collection_id)
        return make_difference(self._client, self._log, view, describe, self._origin(command_id))

    def _end(self, rendition: RenditionInfo) -> list[Prepared]:
        """The steps that finalize the shards of a rendition."""
        return [self._client.prepare_finalize(shard) for shard in rendition.all_shards]

    def _end_of_retired(
        self, collection_id: str, rendition_id: str, state: ControllerState
    ) -> list[Prepared]:
        info = state.find(collection_id)
        retired = info.rendition(rendition_id)
        follower = info.held_after(retired)
        differences = [] if follower is None else difference_shards(self._client, info, [follower])
        return [*self._end(retired), *map(self._client.prepare_finalize, differences)]

    def _turn(self, view: CollectionView, rendition_id: str, at: int, _: ControllerState) -> list[Prepared]:
        """The steps of a handover at `at` on the shards. The module's docstring explains them."""
        info, client = view.info, self._client
        old, new = info.holding, info.rendition(rendition_id)
        metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=_HANDOVER_PURPOSE)
        steps = [metadata.prepare_append(handover(old.id, new.id, at), view.promised, at + 1)]
        if new.recipe is Recipe.SOURCE:
            # Only its pipeline writes it, so it no longer needs the hold.
            purpose = rendition_hold(new.id)
            steps.append(client.prepare_release_critical(info.metadata_shard, purpose=purpose))
        if not old.sealed_by(new):
            return steps
        upper = view.uppers[old.id]
        if upper == at:
            return [*steps, *(client.prepare_expect_upper(shard, at) for shard in old.written_shards)]
        writers = [
            client.writer(shard, schema, purpose=_HANDOVER_PURPOSE)
            for shard, schema in written_shards(old, info.stored_schema)
        ]
        return [*steps, *(writer.prepare_seal(upper, at) for writer in writers)]

    def _own_times(self, view: CollectionView, rendition_id: str) -> list[int]:
        """The least times of a handover that the uppers of the two renditions allow."""
        old = view.info.holding
        new = view.info.find(rendition_id)
        # A pipeline may have written the old rendition beyond the promise before it became current.
        return [view.uppers[old.id], *([] if new is None else [new.start + 1])]

    def _check_lag(self, view: CollectionView, rendition_id: str, max_lag_ms: int) -> None:
        known = view.info.find(rendition_id)
        if known is None or known.state is not RenditionState.HYDRATING:
            return  # The transition refuses a rendition that can't take over.
        if known.recipe is Recipe.SOURCE and known.pipeline is None:
            return  # Its source decides when it may take over.
        check_continues(view.info, known, view.info.holding)
        upper = common_upper(view.info, known, self._client.recent_uppers)
        if known.recipe is Recipe.RESTORED:
            # Its contents replace the collection's, so only the snapshot must be complete in it.
            if upper == 0:
                raise NotCaughtUp(
                    f"rendition {rendition_id} of collection {view.info.name} is not filled yet",
                    hint="run the restore again to continue it",
                )
            return
        lag, name = view.upper - upper, view.info.name
        if lag <= max_lag_ms and (upper > 0 or view.upper == 0):
            return
        what, more = "is not filled yet", ""
        if upper > 0:
            what = (
                f"lags by {lag} ms: it is filled up to {upper}, and the collection is complete up to"
                f" {view.upper}; a handover allows {max_lag_ms} ms"
            )
            more = ", or pass a greater max_lag_ms to hand_over"
        raise NotCaughtUp(
            f"rendition {rendition_id} of collection {name} {what}",
            hint="let its pipeline run until it has caught up: 'holdfast ingest' with --rendition"
            f" {shlex.quote(rendition_id)}"
            if known.recipe is Recipe.SOURCE
            else f"in Python, call renditions.catch_up({name!r}, {rendition_id!r}) and try again{more}; or"
            f" run: holdfast collection handover {shlex.quote(name)} --rendition {shlex.quote(rendition_id)}",
        )

    def _earliest(self, info: CollectionInfo, rendition_id: str) -> int:
        """A time past the upper that a restored rendition is filled to, so that it always gets a tail."""
        known = info.find(rendition_id)
        return RESTORED_UPPER + 1 if known is not None and known.recipe is Recipe.RESTORED else 0

    def _check_time(self, info: CollectionInfo, time: int, view: CollectionView) -> None:
        if time > max(view.promised, self._client.now_ms() + FARTHEST_MS):
            raise BadInput(
                f"a handover of collection {info.name} at {time} is too far ahead: until then, nobody could"
                " write to the collection",
                hint=f"try again when the time is less than {FARTHEST_MS // 1000} s ahead",
            )

    def _hydrating(self, info: CollectionInfo, rendition_id: str) -> RenditionInfo:
        known = info.find(rendition_id)
        if known is not None and known.state is RenditionState.HYDRATING:
            return known
        what = f"rendition {rendition_id} of collection {info.name}"
        is_ = "doesn't exist" if known is None else f"is {known.state.name}, so it can't be filled"
        raise BadInput(
            f"{what} {is_}",
            hint=f"'holdfast collection describe {info.name}' shows its renditions",
        )

    def look(self, collection: str) -> CollectionView:
        """A collection as it is now (linearized)."""
        return self.view(self._describe(collection))

    def view(self, info: CollectionInfo) -> CollectionView:
        """Like `look`, for a collection that was just described."""
        return look(self._client, info, partial(self._describe, info.collection_id))
