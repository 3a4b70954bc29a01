"""A migration of a catalog from one of its two stores to the other, or back.

`attempt` does the steps. This module creates attempts: it decides who may begin one, checks everything before
anything is written, and ends a migration that is given up.

Invariants
- A refused migration changes nothing. The records, the link, the generation, and whether the source of truth
  can be read and upgraded, are checked before the first commit.
- Progress is only in memory. After any error, and in any other process, a migration begins at the first step.
- After its end a migration holds nothing. The next open takes over as usual.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from holdfast.catalog import config
from holdfast.catalog.fence import FenceToken, check_who
from holdfast.catalog.interfaces import Catalog
from holdfast.catalog.move.attempt import Attempt, MoveProgress, Orders, Verify
from holdfast.catalog.move.held_stores import HeldStores
from holdfast.catalog.move.plan import MigrationPlan, plan_of
from holdfast.catalog.move.records import (
    Record,
    begun,
    destination,
    ended_with,
    key_of,
    records_of,
    running_of,
    to_begin,
)
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.source import Read, checked
from holdfast.catalog.move.truth import Backend, MoveStep
from holdfast.catalog.move.two_stores import TwoStores, take_over_both
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.opening import wall_clock_ms
from holdfast.catalog.stores.preamble import Preamble
from holdfast.errors import BadInput, HoldfastError, MigrationTimedOut

_log = logging.getLogger(__name__)

LONGEST_S = 10**9
"""The longest time for which a migration may shut others out, in seconds: about thirty years."""


@dataclass(frozen=True)
class Outcome:
    """The result of a migration: its record, the source of truth, and whether this migration moved it."""

    migration_id: str
    record: Record
    truth: Backend
    moved: bool


class TwoStored(Protocol):
    """A catalog on two stores, such as a `LinkedCatalog`."""

    @property
    def stores(self) -> TwoStores:
        """The two stores, and the user's options of their link."""


class _NotRunningError(Exception):
    """The migration isn't running. `truth` is the source of truth."""

    def __init__(self, truth: Backend) -> None:
        super().__init__(truth)
        self.truth = truth


class _NothingToDoError(Exception):
    """The migration had already ended, with this record and source of truth."""

    def __init__(self, record: Record, truth: Backend) -> None:
        super().__init__(record)
        self.record, self.truth = record, truth


class BackendMigration:
    """One migration of `catalog` to `target`, or with `rollback` its rollback. Not thread-safe.

    `migration_id` is its permanent name: a migration that has ended does nothing when it is run again. Others
    can't write for `timeout_s` from its first step on. After that time it stops before the next step, unless
    the truth has moved. Any process can resume it, as after any error, with the same id and target. `holder`
    and `purpose` show people who runs it.

    Raises `BadInput` for an invalid id or timeout.
    """

    def __init__(
        self,
        catalog: TwoStored,
        *,
        migration_id: str,
        target: Backend,
        verify: Verify = Verify.COMPARE,
        rollback: bool = False,
        timeout_s: float = 600.0,
        deploy_generation: int = 0,
        holder: str,
        purpose: str = "migration",
        now_ms: Callable[[], int] = wall_clock_ms,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        key_of(migration_id)
        if not 0 < timeout_s <= LONGEST_S:
            raise BadInput(
                f"the timeout of a migration must be more than 0 and at most {LONGEST_S:,} seconds, not"
                f" {timeout_s:g}"
            )
        check_who(holder, purpose)
        self.migration_id = migration_id
        self.target = target
        self.rollback = rollback
        self.verify = verify
        self._catalog = catalog
        self._timeout_ms = int(timeout_s * 1000)
        self._claim = FenceToken(deploy_generation, 0, holder, purpose)
        self._now_ms = now_ms
        self._sleep = sleep
        self._attempt: Attempt | None = None
        self._outcome: Outcome | None = None
        self._deadline_ms = 0
        # The source of truth that was found to be readable, its state then, and what was read.
        self._readable: tuple[Backend, Preamble, Read | None] | None = None

    @property
    def destination(self) -> Backend:
        """The source of truth at the end."""
        return destination(self.target, rollback=self.rollback)

    @property
    def outcome(self) -> Outcome | None:
        """The result. None before the end."""
        return self._outcome

    @property
    def next_step(self) -> MoveStep | None:
        """The step that the next `advance` does. None before the first one and at the end."""
        return None if self._attempt is None else self._attempt.next_step

    def plan(self) -> MigrationPlan:
        """Return what the migration would do. Changes nothing and fences nobody.

        Raises the errors that would refuse the migration. If only the source of truth can't be read, the plan
        shows that instead.
        """
        return plan_of(self._catalog.stores, self.migration_id, self.target, rollback=self.rollback)

    def advance(self) -> MoveProgress | None:
        """Do one numbered step. Returns None if nothing is left to do.

        After an error, the next call begins at the first step again.

        Raises:
            MigrationConflict: another migration has not ended, or this one was begun with another target
                (even if it has ended).
            LinkConflict, StrategyMismatch: the stores don't belong to one catalog, or have another link.
            Fenced: somebody took over. Nothing has moved, or the record shows that the migration has ended.
            Uninitialized, VersionTooNew, Deprecated, CorruptBlob: the source of truth can't be read.
            MigrationTimedOut: the timeout is over, and the truth has not moved.
            ContentsDiffer, ShadowDiverged: the target does not hold what was written to it.
            StorageError: a store failed. `Indeterminate`: it is unknown whether the step happened. Call this
                again, or begin again.
        """
        if self._outcome is not None:
            return None
        with self._over_on_error():
            try:
                attempt = self._attempt = self._attempt or self._begin()
            except _NothingToDoError as ended:
                self._outcome = Outcome(self.migration_id, ended.record, ended.truth, moved=False)
                return None
            if not attempt.moved and self._now_ms() >= self._deadline_ms:
                raise MigrationTimedOut(self.migration_id, str(attempt.next_step))
            progress = attempt.advance()
            _log.info("migration %s: %s", self.migration_id, progress.step)
            if attempt.next_step is None:
                record = attempt.orders.record.ended
                self._outcome = Outcome(self.migration_id, record, self.destination, attempt.moved)
                self._give_up()
            return progress

    def run(self, on_progress: Callable[[MoveProgress], None] = lambda _: None) -> Outcome:
        """Do all steps. Raises like `advance`."""
        while (progress := self.advance()) is not None:
            on_progress(progress)
        assert self._outcome is not None
        return self._outcome

    def open_shadow(self) -> Catalog:
        """Do all steps but the last. Returns the catalog open for writing, with every write made in both
        stores.

        The next `advance` closes it, compares both stores and moves the truth. Until the timeout is over,
        nobody else may open the catalog for writing. Raises like `advance`, and `BadInput` if nothing is left
        to move.
        """
        if self.verify is not Verify.SHADOW:
            raise BadInput(
                f"migration {self.migration_id} has no shadow, because its verification is"
                f" {self.verify.value}",
                hint="run it with advance, or begin a migration with Verify.SHADOW",
            )
        while (attempt := self._attempt) is None or attempt.next_step is not attempt.steps[-1]:
            if self.advance() is None or self._outcome is not None:
                raise BadInput(
                    f"migration {self.migration_id} has ended, so no shadow can be opened",
                    hint="open the catalog as usual",
                )
        with self._over_on_error():
            return attempt.open_shadow(self._now_ms)

    def abandon(self) -> Backend:
        """End the migration where it is, so that others can write. Returns the source of truth.

        If the truth has moved, the migration is done. Otherwise its record is removed, or, if it was rolling
        back, set to done again. A migration that isn't running stays as it is. Raises like `advance`.
        """
        self.close()
        with self._catalog.stores.opened(self._claim.purpose) as stores:
            try:
                taken = take_over_both(stores, self._claim, check=self._check_running, sleep=self._sleep)
            except _NotRunningError as found:
                return found.truth
            running = running_of(taken.seen.stash.config)
            assert running is not None
            orders = Orders(self.migration_id, running.destination, Verify.NONE, running.record)
            attempt = Attempt(HeldStores(stores, taken.token), taken.link.strategy, orders)
            truth = taken.link.truth
            attempt.finish(truth, ended_with(running, truth))
            return truth

    def close(self) -> None:
        """Release what it holds. A running migration can be resumed."""
        self._give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> Attempt:
        """Take over both stores, with the record that shows others that the migration is running."""
        stores = self._catalog.stores.another(self._claim.purpose)
        try:
            taken = take_over_both(
                stores,
                self._claim,
                also=self._also,
                check=lambda seen: self._check(stores, seen),
                sleep=self._sleep,
            )
        except BaseException:
            stores.close()
            raise
        record = self._record(taken.seen)
        orders = Orders(self.migration_id, self.destination, self.verify, record)
        known, self._readable = self._readable, None
        read = known[2] if known is not None and known[0] is self.destination.other else None
        return Attempt(HeldStores(stores, taken.token), taken.link.strategy, orders, read)

    def _also(self, seen: Seen, backend: Backend) -> Iterable[RowUpdate]:
        """The updates written together with the fence. They remove the note of the truth."""
        wanted: dict[str, int | None] = {config.TRUTH: None}
        if backend is Backend.STASH:
            self._deadline_ms = self._now_ms() + self._timeout_ms
            wanted |= begun(self.migration_id, self._record(seen), self.target, self._deadline_ms)
        return seen.of(backend).configured(wanted)

    def _record(self, seen: Seen) -> Record:
        """The record that it runs under. Raises `_NothingToDoError`, and what refuses it."""
        stash = seen.stash.config
        record = to_begin(stash, self.migration_id, self.target, rollback=self.rollback)
        if record is None:
            truth = self._catalog.stores.linkage(seen).truth
            raise _NothingToDoError(records_of(stash)[self.migration_id], truth)
        return record

    def _check(self, stores: TwoStores, seen: Seen) -> None:
        """Raise what refuses the migration, before anything is written."""
        self._record(seen)
        source = stores.linkage(seen).truth
        preamble = seen.of(source)
        preamble.check_initialized(stores.of(source).place)
        if source is self.destination:
            return
        # Commits of a writer under the same token and version don't make the source unreadable. If everything
        # were read again for each of them, a busy writer could keep the migration out forever.
        known = self._readable
        if known is None or known[0] is not source or not known[1].tells_as(preamble):
            self._readable = source, preamble, checked(stores.of(source), preamble, stores.of(source.other))

    def _check_running(self, seen: Seen) -> None:
        running = running_of(seen.stash.config)
        if running is None or running.migration_id != self.migration_id:
            truth = self._catalog.stores.linkage(seen).truth
            raise _NotRunningError(truth)

    @contextmanager
    def _over_on_error(self) -> Iterator[None]:
        """Begin at the first step after an error."""
        try:
            yield
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        try:
            attempt.close()
        except HoldfastError as error:
            _log.warning("can't close the stores of migration %s: %s", self.migration_id, error)
