"""One attempt at the steps of a migration: from the first to the last, each done once.

The steps come from the tables of `truth`, as data. An attempt knows in memory alone how far it is: after any
error it is over, and the next one begins at the first step.

Invariants
- Each step begins by finding the token of the attempt in both stores.
- What the target holds does not matter until the truth moves, which is one commit: the tombstone of the last
  step. Just before it, with any verification, the source is read once more: it has the upper, the token, the
  config and the digests of before. The target has the number of this move. What remains is that one of them
  is restored between that and the commit. Without verification the replace itself sets the tombstone, where
  both are of one store.
- Times never go back: the target's upper is beyond the source's before the contents come in, and what was
  before them is no past of theirs.
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
from holdfast.catalog.move.held import HeldStores
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
"""How far beyond the source's upper the target's is moved: the source's moves once more, when it retires."""


class Verify(Enum):
    """What is done to be sure of the target before the truth moves."""

    NONE = "None"
    """Nothing: where it can be, the contents and the truth move in one commit."""
    COMPARE = "Compare"
    """What the target holds is read again and compared, by a digest of every object type."""
    SHADOW = "Shadow"
    """As COMPARE, after a time in which every write went to both."""


@dataclass(frozen=True)
class Orders:
    """What a migration is to do. `record` is what it runs under: forward or, rolling back, the other way."""

    migration_id: str
    destination: Backend
    verify: Verify
    record: Record


@dataclass(frozen=True)
class MoveProgress:
    """A step that is done: where the source of truth is then, and how much was read, written or compared.

    `sizes` and `digests` are by the name of the object type, None where the step has none; `seconds` is what
    it took.
    """

    step: MoveStep
    truth: Backend
    token: FenceToken
    seconds: float
    sizes: Mapping[str, Size] | None = None
    digests: Mapping[str, RowsDigest] | None = None


class Attempt:
    """The steps under a token that is in both stores; `read` is what is known of the source from before."""

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
        """The step that comes next; None when all are done."""
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
        """Open the source before the last step, with every write made in the target too."""
        step = self.next_step
        assert step is self.steps[-1]
        self._end_shadow(step)
        seen = self.held.look()
        self._read_again(seen)
        self._shadow = open_shadow(self.held, seen, self.orders.destination.other, now_ms)
        # From here on the source is compared with the target only: both are written.
        self._shadowed = True
        return self._shadow

    def close(self) -> None:
        """Give up what it holds of the stores."""
        if self._shadow is not None:
            self._shadow.end(self._going_on())
        self.held.stores.close()

    def truth(self, seen: Seen) -> Backend:
        """Which store counts."""
        return source_of_truth(self.strategy, seen.stash.config, seen.persist.config)

    def finish(self, truth: Backend, record: Record | None) -> None:
        """Write into both stores what remains to be written of an end with the truth there.

        Raises `Fenced` when somebody took over before the record was there: he goes on from what he finds.
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
            # With the record there nobody is shut out any more: whoever came notes the truth that he found.
            _log.info("%s", error)

    def _end_shadow(self, step: MoveStep) -> None:
        """Let nothing be written to both any more before the last step; raises where the target differs."""
        shadow, self._shadow = self._shadow, None
        if shadow is not None:
            assert step is self.steps[-1]
            shadow.end(self._going_on())
            shadow.check()

    def _going_on(self) -> MigrationInProgress:
        """What whoever writes to a shadow that has ended is told: open the catalog again, wherever it is."""
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
        """Read the source again, and compare what both hold, if that is ordered; raises `ContentsDiffer`."""
        wanted = self._read_again(seen)
        if self.orders.verify is Verify.NONE:
            return None
        to = self.orders.destination
        target, origin = (self.held.stores.of(backend) for backend in (to, to.other))
        found = digests_of(contents_of(target, seen.of(to).upper))
        compare(wanted, found, places=(origin.place, target.place))
        return found

    def _read_again(self, seen: Seen) -> Mapping[str, RowsDigest]:
        """The digests of the source, read anew. Raises `CatalogOutOfSync` where nobody may have changed them.

        A source that was restored, and has gone on, may have the same upper, token and config.
        """
        backend = self.orders.destination.other
        store = self.held.stores.of(backend)
        found = digests_of(contents_of(store, seen.of(backend).upper))
        read = self._read
        if not self._shadowed and read is not None and found != read.wanted.digests:
            raise CatalogOutOfSync(
                f"{store.place} does not hold what was read from it, though its upper is the same: it was"
                " restored from an older state, or changed by hand",
                hint="find the newest state of the store, then begin the migration again",
            )
        return found

    def _seal(self, seen: Seen) -> Seen:
        """Say that what both stores were written meanwhile is no past of the target either."""
        target = self.orders.destination
        seen = self._beyond_source(target, seen)
        self.held.configure(seen, target, {**looked(seen, target), **self._arriving(seen, target)})
        return self.held.look()

    def _arriving(self, seen: Seen, target: Backend) -> dict[str, int | None]:
        """What the target's config becomes with the contents."""
        upper = seen.of(target).upper
        self._move = next_move(seen, upper)
        return {config.TRUTH_SINCE: upper, **arriving(target, self._move)}

    def _beyond_source(self, target: Backend, seen: Seen) -> Seen:
        """Move the target's upper beyond any time that a reader of the source may have kept."""
        least = seen.of(target.other).upper + PAST
        if seen.of(target).upper >= least:
            return seen
        self.held.advance(seen, target, least)
        return self.held.look()

    def _read_at(self, seen: Seen) -> Read:
        """What was read, which nobody has changed since, and which no older state took the place of."""
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
        """Raise `CatalogOutOfSync` unless the target has the number that came with the contents."""
        target = self.orders.destination
        if self._move is None or arrived(seen, target) != self._move:
            raise CatalogOutOfSync(
                f"{self.held.stores.of(target).place} does not hold what was written to it: it was restored"
                " from an older state",
                hint="begin the migration again",
            )

    def _end(self) -> None:
        self.finish(self.orders.destination, self.orders.record.ended)
        self._next = len(self.steps)

    def _flipping(self, last: MoveStep) -> dict[str, int | None]:
        """What the config becomes in the store of the last step, in the commit that moves the truth."""
        ending = self._ending(last.store, self.orders.destination, self.orders.record.ended)
        return {
            config.TOMBSTONE: int(bool(last.tombstone)),
            **ending,
            **completing(last.store, self._move),
        }

    def _ending(self, backend: Backend, truth: Backend, record: Record | None) -> dict[str, int | None]:
        """What is in a store's config after the end with the truth there."""
        note = 1 if backend is truth else None
        records = ended(self.orders.migration_id, record) if backend is Backend.STASH else {}
        return {config.TRUTH: note, **records}
