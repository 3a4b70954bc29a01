"""The migrations that this process runs: at most one for each Catalog.

Invariants
- While a migration holds a Catalog, this process opens no other handle for it than the one that the migration
  opens in both stores.
- A migration makes one call at a time. The result of a call is taken before the next call starts.
- After an error, or in another process, a migration starts again at its first step.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.errors import HoldfastError, StoreUnreachable
from holdfast_operator.catalogs.opening import Observer
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.migrations import conductor as conducting
from holdfast_operator.migrations.conductor import Conductor
from holdfast_operator.migrations.facts import Course, DryRunResult, MoveState, RequestedMove
from holdfast_operator.places.credentials import Credentials
from holdfast_operator.places.long_calls import LongCall, LongCalls, UnderWay
from holdfast_operator.places.pool import StorePool

_LEAST_SECONDS: Final = 1.0


class Migrations:
    """Claims Catalogs, runs the steps of their migrations, and remembers the progress."""

    def __init__(self, pool: StorePool, long: LongCalls, stores: Stores) -> None:
        self._pool = pool
        self._long = long
        self._stores = stores
        self._claims: dict[ObjectKey, ObjectKey] = {}
        self._courses: dict[ObjectKey, Course] = {}
        self._conductors: dict[ObjectKey, Conductor] = {}
        self._states: dict[ObjectKey, MoveState] = {}
        self._plans: dict[ObjectKey, tuple[RequestedMove, DryRunResult]] = {}
        self._stepping: set[ObjectKey] = set()

    def conducts(self, catalog: ObjectKey) -> ObjectKey | None:
        """Returns the CatalogMigration that holds a Catalog, if any."""
        return self._claims.get(catalog)

    def is_shadowing(self, catalog: ObjectKey) -> bool:
        """Returns whether that migration has opened the Catalog in both stores."""
        course = self._courses.get(self._claims.get(catalog, catalog))
        return course is not None and course.shadow_until is not None and not course.shadowed

    def course(self, key: ObjectKey) -> Course | None:
        """Returns the progress of a CatalogMigration, or None if this process doesn't run it."""
        return self._courses.get(key)

    def is_stepping(self, key: ObjectKey) -> bool:
        """Returns whether one of its steps is running, or the step's result isn't taken yet."""
        return key in self._stepping

    def planned(self, key: ObjectKey, move: RequestedMove) -> DryRunResult | None:
        """Returns the result of a dry run for exactly this migration, or None."""
        found = self._plans.get(key)
        return found[1] if found is not None and found[0] == move else None

    async def state(self, key: ObjectKey, move: RequestedMove, credentials: Credentials) -> MoveState:
        """Returns the state in the stores. It is read unless the migration has ended or is running."""
        known = self._states.get(key)
        over = known is not None and known.record is not None and not known.record.is_running
        if known is not None and (key in self._courses or (over and not move.rollback)):
            return known
        return await self.look(key, move, credentials)

    async def look(self, key: ObjectKey, move: RequestedMove, credentials: Credentials) -> MoveState:
        """Reads the state in the stores now."""
        location = move.opening.location
        self._states[key] = await self._pool.call(
            "look_migration", location, lambda: conducting.look(move, credentials)
        )
        return self._states[key]

    def begin(self, key: ObjectKey, catalog: ObjectKey, move: RequestedMove) -> None:
        """Claims a Catalog that no other migration holds."""
        assert self._claims.get(catalog, key) == key
        self._claims[catalog] = key
        self._courses[key] = Course(
            move, strategy=self._states[key].strategy if key in self._states else None
        )

    async def advance(
        self,
        key: ObjectKey,
        move: RequestedMove,
        credentials: Credentials,
        observers: Sequence[Observer],
        *,
        seconds: float,
    ) -> Course | None:
        """Runs the next step, and returns the new progress, or None if no step is left.

        Raises `UnderWay` while the step is running: call again with the same arguments. A catalog that one of
        `observers` reads isn't moved. `seconds` is the timeout for all steps, counted from the first one.
        """
        course = self._courses[key]

        def work() -> Course | None:
            conductor = self._conductors.get(key)
            if conductor is None:
                conductor = Conductor.of(
                    move,
                    credentials,
                    timeout=max(_LEAST_SECONDS, seconds),
                    has_catalog=self._stores.has_catalog,
                    observers=observers,
                )
                self._conductors[key] = conductor
            return conductor.advance(course)

        self._stepping.add(key)
        asked = LongCall(key, "advance_migration", move.opening.location, (move, course.calls))
        try:
            after = await self._long.run(asked, work)
        except UnderWay:
            raise
        except BaseException:
            self._stepping.discard(key)
            await self._begin_anew(key)
            raise
        self._stepping.discard(key)
        if after is None:
            await self.look(key, move, credentials)
        else:
            self._courses[key] = after
        return after

    async def open_shadow(self, key: ObjectKey, catalog: ObjectKey, until: datetime) -> None:
        """Opens the Catalog in both stores, as this process's handle. Raises `UnderWay`."""
        course, conductor = self._courses[key], self._conductors[key]
        asked = LongCall(key, "open_shadow", course.move.opening.location, course.calls)
        try:
            handle = await self._long.run(asked, conductor.open_shadow, late=lambda handle: handle.close())
        except UnderWay:
            raise
        except BaseException:
            await self._begin_anew(key)
            raise
        self._stores.adopt(catalog, handle)
        self._courses[key] = replace(course, shadow_until=until)

    async def close_shadow(self, key: ObjectKey, catalog: ObjectKey) -> None:
        """Closes the handle that `open_shadow` opened."""
        self._courses[key] = replace(self._courses[key], shadowed=True)
        await self._stores.close(catalog)

    async def abandon(
        self, key: ObjectKey, move: RequestedMove, credentials: Credentials, observers: Sequence[Observer]
    ) -> None:
        """Finishes or undoes the migration that the stores record. Raises `UnderWay`."""
        await self._close(key)

        def work() -> None:
            conductor = Conductor.of(
                move,
                credentials,
                timeout=_LEAST_SECONDS,
                has_catalog=self._stores.has_catalog,
                observers=observers,
            )
            try:
                conductor.abandon()
            finally:
                conductor.close()

        asked = LongCall(key, "abandon_migration", move.opening.location, move)
        await self._long.run(asked, work)
        self._long.give_up(key)
        # The stores no longer record a running migration. A course with calls would mean that they may.
        self._courses[key] = Course(move, strategy=self._courses[key].strategy)
        await self.look(key, move, credentials)

    async def dry_run(self, key: ObjectKey, move: RequestedMove, credentials: Credentials) -> None:
        """Finds out what the migration would do. Raises `UnderWay`."""
        asked = LongCall(key, "plan_migration", move.opening.location, move)
        self._plans[key] = move, await self._long.run(asked, lambda: conducting.dry_run(move, credentials))

    async def stop(self, key: ObjectKey) -> None:
        """Stops the migration and releases the Catalog."""
        self._stepping.discard(key)
        self._long.give_up(key)
        with contextlib.suppress(StoreUnreachable):
            # This waits for a running step, but not for ever.
            await self._close(key)
        self._courses.pop(key, None)
        for catalog in [each for each, owner in self._claims.items() if owner == key]:
            del self._claims[catalog]

    def forget(self, key: ObjectKey) -> None:
        """Forgets a CatalogMigration that no longer exists."""
        self._states.pop(key, None)
        self._plans.pop(key, None)

    async def close_all(self) -> None:
        """Closes all migrations, ignoring errors of their stores."""
        for key in list(self._conductors):
            with contextlib.suppress(HoldfastError):
                await self._close(key)

    async def _begin_anew(self, key: ObjectKey) -> None:
        course = self._courses[key]
        self._courses[key] = Course(course.move, calls=course.calls + 1, strategy=course.strategy)
        await self._close(key)

    async def _close(self, key: ObjectKey) -> None:
        conductor = self._conductors.pop(key, None)
        if conductor is not None:
            await self._pool.call("close", conductor.move.opening.location, conductor.close)
