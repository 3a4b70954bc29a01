"""The catalogs that this process has open: at most one handle per Catalog.

Invariants
- Only one call at a time opens a Catalog, because two calls would fence each other (see `long_calls`).
- If another process has taken a catalog over, each call raises `Fenced` and writes nothing more. The caller
  decides what to do.
- If a handle finds that the stored token is lower than its own, it is closed. The epoch of its token is
  remembered until the catalog is open again. The same holds for the token of another process that had the
  catalog open, if the stored token is now lower.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from holdfast.catalog import FenceToken
from holdfast.errors import FenceRegressed, HoldfastError, NoLocation, NotWritable, StoreUnreachable
from holdfast_operator.catalogs.facts import CatalogFacts, Durable, EpochWentBack, Opening, Start
from holdfast_operator.catalogs.observed_catalog import ObservedCatalog
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.opening import (
    HasCatalog,
    Observer,
    durable_state,
    is_linked,
    no_others,
    nothing_durable,
    preflight,
    try_upgrade,
)
from holdfast_operator.catalogs.takeovers import Found
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.places.credentials import NO_CREDENTIALS, Credentials
from holdfast_operator.places.long_calls import LongCall, LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import Storage

T = TypeVar("T")


_CLOSING: Final = 5.0
"""Seconds to wait for a close. Leases expire, so a deletion needn't wait for a store that hangs."""

log = logging.getLogger(__name__)


class Stores:
    """Opens, keeps and closes catalogs."""

    def __init__(self, pool: StorePool, long: LongCalls, has_catalog: HasCatalog = no_others) -> None:
        """Creates an empty set of handles. `has_catalog` is called in threads."""
        self._pool = pool
        self._long = long
        self.has_catalog = has_catalog
        self._open: dict[ObjectKey, OpenCatalog | ObservedCatalog] = {}
        self._void: set[ObjectKey] = set()
        self._regressed: dict[ObjectKey, tuple[tuple[Storage, str], int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._open))

    def opened(self, catalog: ObjectKey) -> Opening | None:
        """Returns how the catalog was opened, or None if it isn't open."""
        handle = self._open.get(catalog)
        return handle.opening if handle else None

    def started(self, catalog: ObjectKey) -> Start | None:
        """Returns what else happened when the catalog was opened, or None if it isn't open for writing."""
        handle = self._open.get(catalog)
        return handle.start if isinstance(handle, OpenCatalog) else None

    def is_void(self, catalog: ObjectKey) -> bool:
        """Returns whether an open found nothing of this Catalog in the store, or no store at all."""
        return catalog in self._void

    def note_void(self, catalog: ObjectKey, *, void: bool) -> None:
        """Records the result for `is_void`."""
        (self._void.add if void else self._void.discard)(catalog)

    async def open(
        self,
        catalog: ObjectKey,
        opening: Opening,
        credentials: Credentials = NO_CREDENTIALS,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Takes a catalog over, so that its epoch grows. An observed catalog is opened only for reading.

        In all methods, `credentials` aren't kept beyond the handle that they open. A catalog that one of
        `observers` reads isn't taken over. Raises `UnderWay` while the open is running: call again with the
        same arguments.
        """
        if catalog in self._open:
            return

        def work() -> OpenCatalog | ObservedCatalog:
            if opening.observed:
                return ObservedCatalog.open(opening, credentials)
            return OpenCatalog.open(opening, credentials, self.has_catalog, observers)

        asked = LongCall(catalog, "open", opening.location, opening)
        try:
            handle = await self._long.run(asked, work, late=_close)
        except FenceRegressed as error:
            self._note_regressed(catalog, opening, error)
            raise
        except EpochWentBack as error:
            self._regressed[catalog] = (opening.storage, opening.organization_id), error.least
            raise
        # The result of an upgrade check is no longer needed.
        self._long.give_up(catalog)
        self._open[catalog] = handle
        self._void.discard(catalog)
        self._regressed.pop(catalog, None)

    def least_epoch(self, catalog: ObjectKey, opening: Opening) -> int | None:
        """Returns the epoch that the store must reach again before an open, or None if it never decreased."""
        place, epoch = self._regressed.get(catalog, (None, 0))
        return epoch if place == (opening.storage, opening.organization_id) else None

    async def set_aside(self, catalog: ObjectKey, error: FenceRegressed) -> None:
        """Closes a catalog whose stored token decreased. The state of its handle is from a lost history."""
        opening = self.opened(catalog)
        if opening is None:
            return
        self._note_regressed(catalog, opening, error)
        try:
            await self.close(catalog)
        except HoldfastError as failed:
            log.info("can't release everything that the handle in %s holds: %s", opening.storage, failed)

    def _note_regressed(self, catalog: ObjectKey, opening: Opening, error: FenceRegressed) -> None:
        if isinstance(error.mine, FenceToken):
            self._regressed[catalog] = (opening.storage, opening.organization_id), error.mine.epoch

    def under_way(self, catalog: ObjectKey) -> bool:
        """Returns whether a long call is running for the catalog, or its result is not taken yet."""
        return self._long.under_way(catalog)

    def asked(self, key: ObjectKey, what: str) -> object:
        """Returns the exact request that `use_long` runs under this name, or None if it runs none."""
        return self._long.asked(key, what)

    def give_up(self, catalog: ObjectKey) -> None:
        """Gives up the call in progress. If it returns a handle, the handle is closed."""
        self._long.give_up(catalog)

    def adopt(self, catalog: ObjectKey, handle: OpenCatalog) -> None:
        """Keeps a handle that the caller opened, until the catalog is closed."""
        assert catalog not in self._open
        self._open[catalog] = handle

    async def preflight(
        self, catalog: ObjectKey, opening: Opening, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        """Checks whether a catalog could be opened like this. Changes nothing.

        Raises the errors of the open, and `UnderWay` while the check is running.
        """
        asked = LongCall(catalog, "preflight", opening.location, opening)
        await self._long.run(asked, lambda: preflight(opening, credentials))

    async def durable_state(self, opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> Durable:
        """Returns what can be read of a catalog without opening it."""
        location = opening.location
        return await self._pool.call("describe", location, lambda: durable_state(opening, credentials))

    async def is_linked(self, opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> bool:
        """Returns whether the persist store records that it is linked to a stash."""
        return await self._pool.call("describe", opening.location, lambda: is_linked(opening, credentials))

    async def answer(self, opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> Found:
        """Returns the result or the error of `durable_state`, for messages. Raises no `HoldfastError`."""
        try:
            return await self.durable_state(opening, credentials)
        except NoLocation:
            return nothing_durable(opening)
        except StoreUnreachable as error:
            return error
        except HoldfastError:
            return None

    async def try_upgrade(
        self, catalog: ObjectKey, opening: Opening, credentials: Credentials = NO_CREDENTIALS
    ) -> str:
        """Returns the result of an upgrade check of a closed catalog, as a sentence. Raises `UnderWay`."""
        asked = LongCall(catalog, "try_upgrade", opening.location, opening)
        return await self._long.run(asked, lambda: try_upgrade(opening, credentials))

    async def confirm(self, catalog: ObjectKey) -> CatalogFacts | None:
        """Confirms that an open catalog is still ours, and returns what it holds. None if it isn't open."""
        handle = self._open.get(catalog)
        if handle is None:
            return None
        return await self._pool.call("confirm", handle.opening.location, handle.confirm)

    async def read(
        self, catalog: ObjectKey, what: str, work: Callable[[OpenCatalog | ObservedCatalog], T]
    ) -> T:
        """Runs `work` on an open or observed catalog, in a thread. Raises `KeyError` if it is neither."""
        handle = self._open[catalog]
        return await self._pool.call(what, handle.opening.location, lambda: work(handle))

    def is_slow(self, catalog: ObjectKey) -> bool:
        """Returns whether the store of an open catalog currently makes callers wait."""
        opening = self.opened(catalog)
        return opening is not None and self._pool.is_slow(opening.location)

    async def use(self, catalog: ObjectKey, what: str, work: Callable[[OpenCatalog], T]) -> T:
        """Runs `work` on an open catalog, in a thread.

        Raises `KeyError` if it isn't open, and `NotWritable` if it is only observed.
        """
        handle = self._open[catalog]
        if isinstance(handle, ObservedCatalog):
            raise _observed(handle)
        return await self._pool.call(what, handle.opening.location, lambda: work(handle))

    async def use_long(
        self, catalog: ObjectKey, asked: tuple[ObjectKey, str, object], work: Callable[[OpenCatalog], T]
    ) -> T:
        """Runs work that may take minutes on an open catalog.

        `asked` has the object that requests the work, the name of the work, and the exact request. Only one
        call runs at a time for each object and name. Raises the errors of `use`, and `UnderWay` while the
        work is running: call again with the same arguments.
        """
        handle = self._open[catalog]
        if isinstance(handle, ObservedCatalog):
            raise _observed(handle)
        key, what, how = asked
        call = LongCall(key, what, handle.opening.location, how)
        return await self._long.run(call, lambda: work(handle), late=_nothing)

    async def close(self, catalog: ObjectKey) -> None:
        """Closes a catalog and gives up a call in progress for it. Does nothing if there is neither."""
        self._long.give_up(catalog)
        handle = self._open.pop(catalog, None)
        if handle is not None:
            work, location = handle.close, handle.opening.location
            await self._pool.call("close", location, work, patience=_CLOSING)

    async def destroy(self, catalog: ObjectKey) -> None:
        """Destroys an open catalog for ever, and closes it."""
        await self.use(catalog, "destroy", OpenCatalog.destroy)
        # Nothing is left to open, which would need a Secret that may be gone by now.
        self.note_void(catalog, void=True)
        await self.close(catalog)

    async def close_all(self) -> None:
        """Closes all catalogs, ignoring errors of their stores, and waits for calls in progress."""
        for catalog in list(self._open):
            with contextlib.suppress(HoldfastError):
                await self.close(catalog)
        await self._long.give_up_all()

    def storage(self, catalog: ObjectKey) -> Storage | None:
        """Returns the storage of an open catalog, or None."""
        opening = self.opened(catalog)
        return opening.storage if opening else None


def _close(handle: OpenCatalog | ObservedCatalog) -> None:
    handle.close()


def _nothing(_: object) -> None:
    """Does nothing: the result is in the store, and there is nothing to close."""


def _observed(handle: ObservedCatalog) -> NotWritable:
    return NotWritable(
        f"the operator doesn't write to the catalog in {handle.opening.storage}: its access is Observed",
        hint="let its database process make the change, or set spec.access of the Catalog to Managed",
    )
