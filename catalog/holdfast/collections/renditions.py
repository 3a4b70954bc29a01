"""The renditions of collections: made, filled, handed over to, given up and dropped.

- A handover at `t_h` is one step: the old shards are sealed to `t_h`, the metadata shard tells it and is
  sealed beyond it, and the record of the collection says the same. `t_h` is not below the promise.
- Where sources feed both renditions, nothing is sealed: a pipeline writes the old one up to `t_h`.
- What the new one still lacks of the times before `t_h` is brought by whoever comes first; no other handover
  begins before.
- A retired rendition is dropped when nobody can read its times any more: since is past them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from holdfast.collections.bringing import Progress, bring, bring_tail, rendition_hold
from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.differences import difference_shards, make_difference
from holdfast.collections.metadata import METADATA_SCHEMA, handover
from holdfast.collections.record import rendition_transitions as transitions
from holdfast.collections.record.spec import (
    CollectionInfo,
    CollectionSpec,
    Recipe,
    RenditionInfo,
    RenditionState,
)
from holdfast.collections.record.state import ControllerState
from holdfast.collections.record.transitions import Origin
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.collections.uppers import View, common_upper, look
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
"""How far a rendition may be behind what it takes over from, in collection time (ms)."""
NEARLY_MS: Final = 1_000
"""A round of catching up that brought no more than this, in collection time (ms), was the last: those who
write wait at the handover for as much."""
FARTHEST_MS: Final = 60_000
"""How far ahead of now a handover may be: the collection is sealed up to there for everyone. Now is the time
of this host, bounded by the store's clock (`PersistClient.now_ms`)."""

RESTORED_UPPER: Final = 1
"""The upper of a rendition that is filled from a snapshot, until it takes over."""

_CREATION_PURPOSE: Final = "rendition creation"
_HANDOVER_PURPOSE: Final = "handover"


class Renditions:
    """The commands on renditions. Thread-safe; it is `StorageController.renditions`."""

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
        rendition_id: str = "",
        command_id: str | None = None,
    ) -> RenditionInfo:
        """Make an empty rendition of a collection, or find the one of this id that was made alike.

        `hash_columns` as in `CollectionSpec`; without an id the next of "r2", "r3", ... is taken. Until it
        takes over or is aborted it holds back what it is filled from; one that a source fills, nothing.
        Raises `BadInput` where the id was used for another, `CollectionNotFound`.
        """
        info = self._describe(collection)
        # Checks the numbers and names, and chooses the columns where none are given.
        spec = CollectionSpec(info.collection_id, info.name, info.schema, shards, hash_columns)
        data = tuple(self._client.new_shard_id() for _ in range(shards))
        made = RenditionInfo(rendition_id, data, 0, spec.hash_columns, recipe=recipe)
        origin = self._origin(command_id)

        return self._log.commit(
            lambda state: transitions.create_rendition(state, info.collection_id, made, origin),
            # It may have evolved since `info` was read, and have other renditions.
            lambda state: self.prepare(state.collections[info.collection_id], made),
        )

    def begin(
        self, collection: str, rendition_id: str, start: int, effects: Callable[[], Sequence[Prepared]]
    ) -> bool:
        """Record that a rendition that its source fills begins at `start`, with its first append.

        Answers whether it begins now; False where it began before, there or elsewhere, or is not being filled
        (any more): then nothing happened. Raises `BadInput` where there is no such rendition.
        """
        return self._log.commit(
            partial(
                transitions.begin_rendition, collection_id=collection, rendition_id=rendition_id, start=start
            ),
            lambda _: effects(),
        )

    def suspect(self, collection: str, rendition_id: str, why: str, *, command_id: str | None = None) -> None:
        """Mark a rendition as one not to be trusted. Readers go on; the first reason stays.

        Raises `BadInput` where the collection has no such rendition.
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
        """What comes into being with a rendition: its shards, of the newest schema, and the holds."""
        client, purpose = self._client, _CREATION_PURPOSE
        id_ = made.id or transitions.next_rendition_id(info)
        # A pipeline needs nothing of the collection.
        held = [] if made.recipe is Recipe.SOURCE else [rendition_hold(id_)]
        return [
            *(client.prepare_critical(info.metadata_shard, purpose=each) for each in held),
            *(client.prepare_create(shard, info.schema, purpose=purpose) for shard in made.shards),
            *(client.prepare_critical(shard, purpose=RETENTION_PURPOSE) for shard in made.shards),
        ]

    def catch_up(self, collection: str, rendition_id: str, *, progress: Progress | None = None) -> int:
        """Bring a rendition that is being filled all that the collection has; answers its upper then.

        What is written meanwhile is brought too, until that is little, or no less than the time before:
        then who writes is as fast. `progress` is told as by `StorageController.hydrate`.

        Raises `BadInput` for one that only its source fills, or that is not being filled.
        """
        before = CLOSED
        while True:
            lower, upper = self._catch_up(collection, rendition_id, progress)
            if upper - lower <= NEARLY_MS or upper - lower >= before:
                return upper
            before = upper - lower

    def _catch_up(self, collection: str, rendition_id: str, progress: Progress | None) -> tuple[int, int]:
        """Bring a rendition what there is now; from where to where it came."""
        view = self.look(collection)
        rendition = self._hydrating(view.info, rendition_id)
        if rendition.recipe is not Recipe.COPY:
            raise BadInput(
                f"rendition {rendition_id} of collection {view.info.name} is not filled from the collection",
                hint="write it with a writer of the rendition",
            )
        id_ = view.info.collection_id
        try:
            return bring(
                self._client, view.info, rendition, view.upper, partial(self._describe, id_), progress
            )
        except (AsOfTooEarly, HandleExpired, ShardFinalized, UpperMismatch):
            # Perhaps somebody aborted it meanwhile.
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
        """Make this rendition the collection, from the first time that is possible and not below `at`.

        Answers it with the time, `held_from`, when it has all that was written before; one that took over
        already as it is, also one that has retired since if it was by this command. Writers and readers go
        on. Raises `NotCaughtUp` where it lacks more than `max_lag_ms`, `BadInput` where it is suspect, has
        retired, was aborted, or `at` is too far ahead, `HandoverInProgress` where an earlier handover waits
        for its source, or this one does.

        Where pipelines write both renditions, only the time is fixed: the one goes on up to it and the other
        from it on, and readers wait until both are there.
        """
        origin = self._origin(command_id)
        while True:
            view = self.look(collection)
            info = view.info
            taken = info.holding.id == rendition_id
            if taken and info.holding.recipe is Recipe.SOURCE:
                return info.holding
            if view.upper < info.holding.held_from or view.uppers[info.holding.id] < info.holding.held_from:
                bring_tail(self._client, view, partial(self._describe, info.collection_id))
            elif taken:
                # The tail ends it, where there was one; a filler that was late may have moved it meanwhile.
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
                        # By this command, given before; another one has taken over since.
                        return done

    def abort(self, collection: str, rendition_id: str, *, command_id: str | None = None) -> None:
        """Give up a rendition that is being filled; its data goes. Raises `BadInput` for any other."""
        info = self._describe(collection)
        origin = self._origin(command_id)
        self._log.commit(
            lambda state: transitions.abort_rendition(state, info.collection_id, rendition_id, origin),
            lambda state: [
                self._client.prepare_release_critical(
                    info.metadata_shard, purpose=rendition_hold(rendition_id)
                ),
                # It may have been made since `info` was read.
                *self._end(state.collections[info.collection_id].rendition(rendition_id)),
            ],
        )

    def drop_retired(self, collection: str) -> tuple[str, ...]:
        """Drop the retired renditions whose times nobody can read any more; answers their ids."""
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

    def bring_tail(self, collection: str) -> None:
        """Bring the rendition that took over what was written before, where it lacks it.

        Raises `HandoverInProgress` where only its source can.
        """
        view = self.look(collection)
        if view.uppers[view.info.holding.id] < view.info.holding.held_from:
            bring_tail(self._client, view, partial(self._describe, view.info.collection_id))

    def release_hold(self, info: CollectionInfo, rendition_id: str) -> None:
        """Let go of what a rendition held to be filled from, which has all that it needs."""
        purpose = rendition_hold(rendition_id)
        if any(hold.purpose == purpose for hold in self._client.inspect(info.metadata_shard).holds):
            self._log.write([self._client.prepare_release_critical(info.metadata_shard, purpose=purpose)])

    def make_difference(self, collection: str, *, command_id: str | None = None) -> str | None:
        """Put what differs at the latest handover into a shard, for all who listen through it.

        Answers that shard, made before or now. None where there was no handover, or nothing differs as it was
        one to a copy, or what was there before is gone, or one of the two is not written up to the handover
        yet. Whoever makes it gets the same rows.
        """
        view = self.look(collection)
        describe = partial(self._describe, view.info.collection_id)
        return make_difference(self._client, self._log, view, describe, self._origin(command_id))

    def _end(self, rendition: RenditionInfo) -> list[Prepared]:
        """What the end of a rendition does to its shards."""
        return [self._client.prepare_finalize(shard) for shard in rendition.all_shards]

    def _end_of_retired(
        self, collection_id: str, rendition_id: str, state: ControllerState
    ) -> list[Prepared]:
        info = state.find(collection_id)
        retired = info.rendition(rendition_id)
        follower = info.held_after(retired)
        differences = [] if follower is None else difference_shards(self._client, info, [follower])
        return [*self._end(retired), *map(self._client.prepare_finalize, differences)]

    def _turn(self, view: View, rendition_id: str, at: int, _: ControllerState) -> list[Prepared]:
        """What a handover at `at` does to the shards."""
        info, client = view.info, self._client
        old, new = info.holding, info.rendition(rendition_id)
        metadata = client.writer(info.metadata_shard, METADATA_SCHEMA, purpose=_HANDOVER_PURPOSE)
        steps = [metadata.prepare_append(handover(old.id, new.id, at), view.promised, at + 1)]
        if new.recipe is Recipe.SOURCE:
            # Nobody but its pipeline brings it anything.
            purpose = rendition_hold(new.id)
            steps.append(client.prepare_release_critical(info.metadata_shard, purpose=purpose))
        if not old.sealed_by(new):
            return steps
        upper = view.uppers[old.id]
        if upper == at:
            return [*steps, *(client.prepare_expect_upper(shard, at) for shard in old.shards)]
        writers = [client.writer(shard, info.schema, purpose=_HANDOVER_PURPOSE) for shard in old.shards]
        return [*steps, *(writer.prepare_seal(upper, at) for writer in writers)]

    def _own_times(self, view: View, rendition_id: str) -> list[int]:
        """Before which times the two renditions can't be exchanged, where pipelines write them."""
        old = view.info.holding
        new = view.info.find(rendition_id)
        # A pipeline may have written it beyond the promise before it took over.
        return [view.uppers[old.id], *([] if new is None else [new.start + 1])]

    def _check_lag(self, view: View, rendition_id: str, max_lag_ms: int) -> None:
        known = view.info.find(rendition_id)
        if known is None or known.state is not RenditionState.HYDRATING or known.recipe is Recipe.SOURCE:
            return  # The command refuses what can't be.
        upper = common_upper(view.info, known, self._client.recent_uppers)
        if known.recipe is Recipe.RESTORED:
            # What the collection has meanwhile is given up; all that counts is that the snapshot is in.
            if upper == 0:
                raise NotCaughtUp(
                    f"rendition {rendition_id} of collection {view.info.name} has not what it restores",
                    hint="give the restore again: it goes on",
                )
            return
        lag = view.upper - upper
        if lag > max_lag_ms or (upper == 0 < view.upper):
            raise NotCaughtUp(
                f"rendition {rendition_id} of collection {view.info.name} has what was written up to {upper},"
                f" {lag} ms less than the collection; it may lack {max_lag_ms} ms",
                hint="catch up first",
            )

    def _earliest(self, info: CollectionInfo, rendition_id: str) -> int:
        """Past what a restored rendition is filled to, so that it always gets a tail."""
        known = info.find(rendition_id)
        return RESTORED_UPPER + 1 if known is not None and known.recipe is Recipe.RESTORED else 0

    def _check_time(self, info: CollectionInfo, time: int, view: View) -> None:
        if time > max(view.promised, self._client.now_ms() + FARTHEST_MS):
            raise BadInput(
                f"a handover of collection {info.name} at {time} would seal it up to then",
                hint=f"ask again when that is less than {FARTHEST_MS // 1000} s ahead",
            )

    def _hydrating(self, info: CollectionInfo, rendition_id: str) -> RenditionInfo:
        known = info.find(rendition_id)
        if known is not None and known.state is RenditionState.HYDRATING:
            return known
        raise BadInput(f"collection {info.name} has no rendition {rendition_id} that is being filled")

    def look(self, collection: str) -> View:
        """A collection as it is now, linearized."""
        return self.view(self._describe(collection))

    def view(self, info: CollectionInfo) -> View:
        """As `look`, of a collection that was just described."""
        return look(
            lambda: self._describe(info.collection_id),
            lambda: self._client.recent_upper(info.metadata_shard),
            self._client.recent_uppers,
        )
