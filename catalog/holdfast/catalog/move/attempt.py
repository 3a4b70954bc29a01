"""One attempt at the steps of a migration or a rollback, from the first to the last, each done once.

The steps come from the tables in `truth`. An attempt keeps its progress only in memory. After any error it is
over, and the next attempt begins at the first step. The steps put the attempt's token into both stores, read
the source, replace the contents of the target, and at last move the source of truth, which is one commit: the
tombstone of the last step.

These things can happen during an attempt:

1. A process has the catalog open for writing. The first step fences it. A commit of it either lands before
   that, and is read with the source, or fails, because it expects its own token in the store.
2. The attempt dies before the last step. The source of truth has not moved, so the contents of the target
   don't matter. Others can't write until the deadline in the record of the migration. Any process can resume
   it with the same id, or give it up.
3. Somebody takes over. Each step first checks that the attempt's token is in both stores, and each commit
   expects it. So the next step or commit raises `Fenced`, and nothing has moved.
4. The source is restored to an older state after it was read. It may have the same upper, token and config.
   So just before the last commit, with every kind of verification, the source is read again and its digests
   are compared with the earlier ones.
5. The target is restored to an older state after it was filled. Then it lacks the number of this move, which
   is written with the contents and checked before the last commit.
6. The attempt dies after the last commit, or never learns its outcome. The tombstones show whether the source
   of truth moved. The next attempt, or the next open for writing, writes the remaining records.

One risk remains: a restore between the checks of 4 and 5 and the last commit. Without verification, if the
replaced store is also the one with the last tombstone, one commit does both.

Invariant: times never go back. The target's upper is moved beyond the source's before the contents are
written, and the target's earlier contents are not part of the catalog's history.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import assert_never

from holdfast.catalog import config, takeover
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.interfaces import Catalog
from holdfast.catalog.move import source
from holdfast.catalog.move.hashed import contents_of
from holdfast.catalog.move.held_stores import HeldStores
from holdfast.catalog.move.notes import (
    Move,
    arrived,
    arriving,
    completing,
    looked,
    next_move,
)
from holdfast.catalog.move.records import Record, ended
from holdfast.catalog.move.replace import changes
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.shadowing import ShadowOfMigration, open_shadow
from holdfast.catalog.move.source import Read
from holdfast.catalog.move.truth import (
    STEPS,
    Action,
    Backend,
    MoveStep,
    Strategy,
    source_of_truth,
    tombstone,
)
from holdfast.catalog.move.two_stores import read_both
from holdfast.catalog.move.verify import RowsDigest, compare, digests_of, sizes_of
from holdfast.catalog.upgrade.plan import released
from holdfast.catalog.upgrade.runner import upgrade
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import CatalogOutOfSync, Fenced, MigrationInProgress

_log = logging.getLogger(__name__)

PAST = 2
"""How far the target's upper is moved beyond the source's. The source's moves once more when it retires."""


class Verify(Enum):
    """How the target is checked before it becomes the source of truth."""

    NONE = "None"
    """Not at all. If possible, the contents and the source of truth move in one commit."""
    COMPARE = "Compare"
    """The target is read again and compared with the source, by a digest of every object type."""
    SHADOW = "Shadow"
    """Like COMPARE, after a period in which every write went to both stores."""


@dataclass(frozen=True)
class Orders:
    """What a migration does. `record` is the state in which it runs: forward, or rolling back."""

    migration_id: str
    destination: Backend
    verify: Verify
    record: Record


@dataclass(frozen=True)
class MoveProgress:
    """A step that is done, the source of truth after it, and how much was read, written or compared.

    `sizes` and `digests` are by object type name, and None if the step has none. `seconds` is its duration.
    """

    step: MoveStep
    truth: Backend
    token: FenceToken
    seconds: float
    sizes: Mapping[str, Size] | None = None
    digests: Mapping[str, RowsDigest] | None = None


class Attempt:
    """The steps under a token that is in both stores.

    `read` is what was read of the source before, if anything.
    """

    def __init__(
        self, held: HeldStores, strategy: Strategy, orders: Orders, read: Read | None = None
    ) -> None:
        self.held = held
        self.strategy = strategy
        self.orders = orders
        self.steps = STEPS[strategy, orders.destination]
        self.moved = False
        self._next = 0
        self._read = read
        self._shadow: ShadowOfMigration | None = None
        self._shadowed = False
        self._move: Move | None = None

    @property
    def next_step(self) -> MoveStep | None:
        """The next step. None if all are done."""
        return self.steps[self._next] if self._next < len(self.steps) else None

    def advance(self) -> MoveProgress:
        """Do the next step."""
        step = self.steps[self._next]
        start = time.monotonic()
        self._end_shadow(step)
        seen = self.held.look()
        self._next += 1
        found: Mapping[str, RowsDigest] | None = None
        match step.action:
            case Action.OPEN:
                pass
            case Action.CHECK:
                self._check(seen)
            case Action.READ:
                found = self._read_source(step, seen)
            case Action.REPLACE:
                found = self._replace(step, seen)
            case Action.SET_TOMBSTONE:
                found = self._set_tombstone(step, seen)
            case _:
                assert_never(step.action)
        return MoveProgress(
            step,
            self.orders.destination if self.moved else self.truth(seen),
            self.held.token,
            time.monotonic() - start,
            None if found is None else sizes_of(found),
            found,
        )

    def open_shadow(self, now_ms: Callable[[], int]) -> Catalog:
        """Open the source before the last step. Every write is also made in the target."""
        step = self.next_step
        assert step is self.steps[-1]
        self._end_shadow(step)
        seen = self.held.look()
        self._read_again(seen)
        self._shadow = open_shadow(self.held, seen, self.orders.destination.other, now_ms)
        # From here on the source is only compared with the target, because both are written.
        self._shadowed = True
        return self._shadow

    def close(self) -> None:
        """Release what the attempt holds of the stores."""
        if self._shadow is not None:
            self._shadow.end(self._going_on())
        self.held.stores.close()

    def truth(self, seen: Seen) -> Backend:
        """The current source of truth."""
        return source_of_truth(self.strategy, seen.stash.config, seen.persist.config)

    def finish(self, truth: Backend, record: Record | None) -> None:
        """Write into both stores what remains to be written at the end, with this source of truth.

        Raises `Fenced` if somebody took over before the record was written. That process continues from what
        it finds.
        """
        seen = read_both(self.held.stores)
        move = arrived(seen, truth)

        def configure(seen: Seen, backend: Backend) -> None:
            wanted = {**self._ending(backend, truth, record), **completing(backend, move)}
            if seen.of(backend).configured(wanted):
                self.held.configure(seen, backend, {**looked(seen, backend), **wanted})

        configure(seen, Backend.STASH)
        try:
            configure(seen, Backend.PERSIST)
        except Fenced as error:
            # The record is written, so nobody is shut out. The new owner notes the truth that it finds.
            _log.info("%s", error)

    def _end_shadow(self, step: MoveStep) -> None:
        """End writing to both stores before the last step. Raises if the target differs."""
        shadow, self._shadow = self._shadow, None
        if shadow is not None:
            assert step is self.steps[-1]
            shadow.end(self._going_on())
            shadow.check()

    def _going_on(self) -> MigrationInProgress:
        """The error for writers of a shadow that has ended: they can open the catalog again."""
        return MigrationInProgress(self.orders.migration_id, self.held.token.holder)

    def _check(self, seen: Seen) -> None:
        if self.truth(seen) is self.orders.destination:
            self._end()

    def _read_source(self, step: MoveStep, seen: Seen) -> Mapping[str, RowsDigest]:
        store = self.held.stores.of(step.store)
        if seen.of(step.store).is_older:
            upgrade(store, released(), takeover.under(self.held.token))
            seen = self.held.look()
        at = seen.of(step.store)
        self._read = source.read(store, at) if self._read is None else source.followed(store, self._read, at)
        return self._read.wanted.digests

    def _replace(self, step: MoveStep, seen: Seen) -> Mapping[str, RowsDigest]:
        read = self._read_at(seen)
        seen = self._beyond_source(step.store, seen)
        at = seen.of(step.store)
        wanted = {**looked(seen, step.store), **self._arriving(seen, step.store)}
        following = self.steps[self._next]
        flips = self.orders.verify is Verify.NONE and following.store is step.store
        if flips:
            self._read_again(seen)
            wanted |= self._flipping(following)
        origin, target = (self.held.stores.of(backend) for backend in (step.store.other, step.store))
        updates = changes(
            contents_of(target, at.upper),
            read.wanted,
            lambda but: contents_of(origin, read.seen.upper, but=but),
        )
        self.held.commit(seen, step.store, chain(at.configured(wanted), updates))
        self.moved = flips
        return read.wanted.digests

    def _set_tombstone(self, step: MoveStep, seen: Seen) -> Mapping[str, RowsDigest] | None:
        last = step is self.steps[-1]
        is_set = tombstone(seen.of(step.store).config) is step.tombstone
        found = None
        if last and self.truth(seen) is not self.orders.destination:
            self._check_target(seen)
            if self.orders.verify is not Verify.SHADOW:
                self._read_at(seen)
            found = self._verify(seen)
            if self.orders.verify is Verify.SHADOW:
                seen = self._seal(seen)
        if not is_set:
            wanted = self._flipping(step) if last else {config.TOMBSTONE: int(bool(step.tombstone))}
            self.held.configure(seen, step.store, {**looked(seen, step.store), **wanted})
        if last:
            self.moved = True
            self._end()
        return found

    def _verify(self, seen: Seen) -> Mapping[str, RowsDigest] | None:
        """Read the source again, and compare both stores if the verification asks for it.

        Raises `ContentsDiffer`.
        """
        wanted = self._read_again(seen)
        if self.orders.verify is Verify.NONE:
            return None
        to = self.orders.destination
        target, origin = (self.held.stores.of(backend) for backend in (to, to.other))
        found = digests_of(contents_of(target, seen.of(to).upper))
        compare(wanted, found, places=(origin.place, target.place))
        return found

    def _read_again(self, seen: Seen) -> Mapping[str, RowsDigest]:
        """Read the digests of the source again. Raises `CatalogOutOfSync` if they have changed.

        A source that was restored and then written may have the same upper, token and config.
        """
        backend = self.orders.destination.other
        store = self.held.stores.of(backend)
        found = digests_of(contents_of(store, seen.of(backend).upper))
        read = self._read
        if not self._shadowed and read is not None and found != read.wanted.digests:
            raise CatalogOutOfSync(
                f"{store.place} no longer holds what was read from it, though its upper is the same: it was"
                " restored from an older state, or changed by hand",
                hint="find the newest state of the store, then begin the migration again",
            )
        return found

    def _seal(self, seen: Seen) -> Seen:
        """Exclude the target's earlier contents from its history, and move its upper beyond the source's."""
        target = self.orders.destination
        seen = self._beyond_source(target, seen)
        self.held.configure(seen, target, {**looked(seen, target), **self._arriving(seen, target)})
        return self.held.look()

    def _arriving(self, seen: Seen, target: Backend) -> dict[str, int | None]:
        """The changes of the target's config that are written with the contents."""
        upper = seen.of(target).upper
        self._move = next_move(seen, upper)
        return {config.TRUTH_SINCE: upper, **arriving(target, self._move)}

    def _beyond_source(self, target: Backend, seen: Seen) -> Seen:
        """Move the target's upper beyond any time that a reader of the source may remember."""
        least = seen.of(target.other).upper + PAST
        if seen.of(target).upper >= least:
            return seen
        self.held.advance(seen, target, least)
        return self.held.look()

    def _read_at(self, seen: Seen) -> Read:
        """What was read. Raises `CatalogOutOfSync` if the source was changed or restored since."""
        read = self._read
        assert read is not None
        at = seen.of(self.orders.destination.other)
        if at.upper != read.seen.upper or not at.tells_as(read.seen):
            raise CatalogOutOfSync(
                f"the source of truth changed after it was read, from {read.seen.upper} to {at.upper}",
                hint="begin the migration again",
            )
        return read

    def _check_target(self, seen: Seen) -> None:
        """Raise `CatalogOutOfSync` unless the target has this move's number, written with the contents."""
        target = self.orders.destination
        if self._move is None or arrived(seen, target) != self._move:
            raise CatalogOutOfSync(
                f"{self.held.stores.of(target).place} no longer holds what was written to it: it was restored"
                " from an older state",
                hint="begin the migration again",
            )

    def _end(self) -> None:
        self.finish(self.orders.destination, self.orders.record.ended)
        self._next = len(self.steps)

    def _flipping(self, last: MoveStep) -> dict[str, int | None]:
        """The changes of the config in the store of the last step, in the commit that moves the truth."""
        ending = self._ending(last.store, self.orders.destination, self.orders.record.ended)
        return {
            config.TOMBSTONE: int(bool(last.tombstone)),
            **ending,
            **completing(last.store, self._move),
        }

    def _ending(self, backend: Backend, truth: Backend, record: Record | None) -> dict[str, int | None]:
        """The changes of a store's config at the end, with this source of truth."""
        note = 1 if backend is truth else None
        records = ended(self.orders.migration_id, record) if backend is Backend.STASH else {}
        return {config.TRUTH: note, **records}
