"""Runs the steps of one migration of a catalog, with its own clients. Blocking.

Invariants
- The state of a migration is in the stores. This object only remembers what to show. After an error, the
  migration starts again at its first step.
- Every step is logged before it starts and after it is done.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from holdfast.catalog.move.attempt import MoveProgress
from holdfast.catalog.move.attempt import Verify as HowVerified
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.migration_status import StoreStatus, migration_status
from holdfast.catalog.move.truth import Action, Backend
from holdfast.errors import NoLocation
from holdfast.persist import PersistClient
from holdfast_operator.api.migration import Verify
from holdfast_operator.catalogs.facts import Start
from holdfast_operator.catalogs.linking import connect, in_two, linked
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.opening import HasCatalog, Observer, check_owner, no_others
from holdfast_operator.migrations.facts import (
    Course,
    DryRunResult,
    MoveState,
    RequestedMove,
    plan_message,
    total,
)
from holdfast_operator.places.credentials import Credentials
from holdfast_operator.places.storage import of_s3

log = logging.getLogger(__name__)


class Conductor:
    """One migration of one catalog, starting at its first step."""

    def __init__(
        self,
        move: RequestedMove,
        client: PersistClient,
        catalog: LinkedCatalog,
        migration: BackendMigration,
        credentials: Credentials,
    ) -> None:
        self.move = move
        self._credentials = credentials
        self._client = client
        self._catalog = catalog
        self._migration = migration
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        move: RequestedMove,
        credentials: Credentials,
        *,
        timeout: float,
        has_catalog: HasCatalog = no_others,
        observers: Sequence[Observer] = (),
    ) -> "Conductor":
        """Connects to both stores.

        The migration may run for `timeout` seconds from its first step, and fences others for that time.
        Raises the errors of `check_owner`.
        """
        client = connect(move.opening.storage, credentials)
        try:
            catalog = linked(client, move.opening, credentials)
            check_owner(client, catalog, move.opening, has_catalog, observers)
            return cls(move, client, catalog, _migration(move, catalog, timeout), credentials)
        except BaseException:
            client.close()
            raise

    def advance(self, course: Course) -> Course | None:
        """Runs the next numbered step. Returns the new progress, or None if no step is left.

        Raises the errors of `BackendMigration.advance`.
        """
        with self._lock:
            log.info("%s: begins step %s", self.move.migration_id, course.next or "none: all are done")
            progress = self._migration.advance()
            if progress is None:
                log.info("%s: all steps are done", self.move.migration_id)
                return None
            log.info("%s: did step %s", self.move.migration_id, progress.step)
            return after(course, progress)

    def open_shadow(self) -> OpenCatalog:
        """Opens the catalog so that every change is made in both stores."""
        with self._lock:
            log.info("%s: opens the catalog in both stores", self.move.migration_id)
            client = connect(self.move.opening.storage, self._credentials)
            try:
                catalog = self._migration.open_shadow()
                # The migration itself compares the stores, and never rebuilds one from the other here.
                opening = replace(self.move.opening, shadow=False, secrets=self._credentials.version)
                s3 = of_s3(self._credentials.storage)
                return OpenCatalog(opening, client, catalog, Start(), in_two(self._catalog), s3)
            except BaseException:
                client.close()
                raise

    def abandon(self) -> Backend:
        """Finishes or undoes the migration, and returns the source of truth."""
        with self._lock:
            truth = self._migration.abandon()
            log.info("%s: abandoned; the source of truth is %s", self.move.migration_id, truth.value)
            return truth

    def close(self) -> None:
        """Closes both stores."""
        with self._lock:
            try:
                self._migration.close()
            finally:
                self._client.close()


def look(move: RequestedMove, credentials: Credentials) -> MoveState:
    """Reads the state of a migration in both stores. Writes nothing."""
    try:
        client = connect(move.opening.storage, credentials, mode="read")
    except NoLocation:
        # No catalog was ever opened with this storage. So nothing is linked or recorded.
        return MoveState()
    with client:
        found = migration_status(linked(client, move.opening, credentials, read_only=True))
        running = found.running
        other = running is not None and running.migration_id != move.migration_id
        return MoveState(
            strategy=found.strategy,
            truth=found.truth,
            stash_epoch=_epoch(found.stash),
            persist_epoch=_epoch(found.persist),
            record=found.records.get(move.migration_id),
            target=found.targets.get(move.migration_id),
            version=None if found.truth is None else found.of(found.truth).version,
            other=running.migration_id if running is not None and other else "",
        )


def dry_run(move: RequestedMove, credentials: Credentials) -> DryRunResult:
    """Returns what the migration would do. Writes nothing."""
    with connect(move.opening.storage, credentials, mode="read") as client:
        migration = _migration(move, linked(client, move.opening, credentials), 1.0)
        try:
            return plan_message(migration.plan())
        finally:
            migration.close()


def after(course: Course, progress: MoveProgress) -> Course:
    """What is known after a step."""
    compared = course.compared
    is_compared = progress.step.action is Action.SET_TOMBSTONE and progress.digests
    if is_compared and progress.sizes is not None:
        size = total(progress.sizes)
        compared = f"both stores held the same {size.rows} rows of {size.bytes} bytes"
    return replace(
        course,
        calls=course.calls + 1,
        done=progress.step,
        truth=progress.truth,
        epoch=progress.token.epoch,
        sizes=progress.sizes or course.sizes,
        compared=compared,
    )


def _epoch(store: StoreStatus) -> int | None:
    return store.token.epoch if store.token else None


def _migration(move: RequestedMove, catalog: LinkedCatalog, timeout: float) -> BackendMigration:
    opening = move.opening
    generation = opening.deploy_generation
    if opening.observed:
        # The database process chooses the deploy generation, so the stored one is kept.
        generation = max(generation, catalog.deploy_generation() or 0)
    verify = HowVerified(move.verify)
    if move.rollback and move.verify == Verify.SHADOW:
        verify = HowVerified.COMPARE
    return BackendMigration(
        catalog,
        migration_id=move.migration_id,
        target=move.target,
        verify=verify,
        rollback=move.rollback,
        timeout_s=timeout,
        deploy_generation=generation,
        holder=opening.holder,
        purpose=move.purpose,
    )
