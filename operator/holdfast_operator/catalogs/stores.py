"""All catalogs that this process has open: at most one handle per Catalog.

Invariants
- A Catalog is opened by one call at a time: two would fence each other (see `longcalls`).
- Whoever finds that a catalog was taken over by another process hears `Fenced`; what then happens is decided
  above, and nothing is written here after that.
- A handle that found a lower token than its own is closed, and its epoch remembered until the catalog is
  open again; so is the epoch of a catalog that another process had open before, and whose token is lower now.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from holdfast.catalog import FenceToken
from holdfast.errors import FenceRegressed, HoldfastError, NoLocation, NotWritable, StoreUnreachable
from holdfast_operator.catalogs.facts import CatalogFacts, Durable, EpochWentBack, Opening, Start
from holdfast_operator.catalogs.observedcatalog import ObservedCatalog
from holdfast_operator.catalogs.opencatalog import OpenCatalog
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
from holdfast_operator.places.longcalls import LongCall, LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import Storage

T = TypeVar("T")

Credentials = Mapping[str, str]
_NO_CREDENTIALS: Credentials = MappingProxyType({})

_CLOSING: Final = 5.0
"""Seconds; leases that can't be given back run out, so a deletion needn't wait for a store that hangs."""

log = logging.getLogger(__name__)


class Stores:
    """Opens, keeps and closes catalogs."""

    def __init__(self, pool: StorePool, long: LongCalls, has_catalog: HasCatalog = no_others) -> None:
        """`has_catalog` is called in threads."""
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
        """How the catalog was opened; None where it isn't."""
        handle = self._open.get(catalog)
        return handle.opening if handle else None

    def started(self, catalog: ObjectKey) -> Start | None:
        """What happened when the catalog was opened; None where it isn't."""
        handle = self._open.get(catalog)
        return handle.start if isinstance(handle, OpenCatalog) else None

    def is_void(self, catalog: ObjectKey) -> bool:
        """Whether its store was found to hold nothing of it any more or yet, or another's, or to be none."""
        return catalog in self._void

    def note_void(self, catalog: ObjectKey, *, void: bool) -> None:
        """Remember what was found about that."""
        (self._void.add if void else self._void.discard)(catalog)

    async def open(
        self,
        catalog: ObjectKey,
        opening: Opening,
        credentials: Credentials = _NO_CREDENTIALS,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Take a catalog over, so that the epoch grows; or, if it is to be observed, only look.

        Here and elsewhere `credentials` are those of its stash: they aren't kept. What one of `observers`
        looks at isn't taken over. Raises `UnderWay`: ask for the same again.
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
        # An upgrade-check of it is of no interest any more.
        self._long.give_up(catalog)
        self._open[catalog] = handle
        self._void.discard(catalog)
        self._regressed.pop(catalog, None)

    def least_epoch(self, catalog: ObjectKey, opening: Opening) -> int | None:
        """The epoch that the store must have again to be opened; None where its token never went back."""
        place, epoch = self._regressed.get(catalog, (None, 0))
        return epoch if place == (opening.storage, opening.organization_id) else None

    async def set_aside(self, catalog: ObjectKey, error: FenceRegressed) -> None:
        """Close a catalog whose token went back: what it and its client know is of a history that is over."""
        opening = self.opened(catalog)
        if opening is None:
            return
        self._note_regressed(catalog, opening, error)
        try:
            await self.close(catalog)
        except HoldfastError as failed:
            log.info("what is left of the handle in %s can't be given back: %s", opening.storage, failed)

    def _note_regressed(self, catalog: ObjectKey, opening: Opening, error: FenceRegressed) -> None:
        if isinstance(error.mine, FenceToken):
            self._regressed[catalog] = (opening.storage, opening.organization_id), error.mine.epoch

    def under_way(self, catalog: ObjectKey) -> bool:
        """Whether something that takes long goes on, or its outcome waits to be taken."""
        return self._long.under_way(catalog)

    def asked(self, key: ObjectKey, what: str) -> object:
        """What exactly `use_long` was asked for, of this name, and is at; None where it is at nothing."""
        return self._long.asked(key, what)

    def give_up(self, catalog: ObjectKey) -> None:
        """Nobody asks any more for what is under way: a handle that it brings is closed."""
        self._long.give_up(catalog)

    def adopt(self, catalog: ObjectKey, handle: OpenCatalog) -> None:
        """Keep a handle that somebody else opened, until the catalog is closed."""
        assert catalog not in self._open
        self._open[catalog] = handle

    async def preflight(
        self, catalog: ObjectKey, opening: Opening, credentials: Credentials = _NO_CREDENTIALS
    ) -> None:
        """Try whether a catalog could be opened like this; it changes nothing.

        Raises what opening would; `UnderWay`.
        """
        asked = LongCall(catalog, "preflight", opening.location, opening)
        await self._long.run(asked, lambda: preflight(opening, credentials))

    async def durable_state(self, opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> Durable:
        """What is known of a catalog that can't be opened."""
        location = opening.location
        return await self._pool.call("describe", location, lambda: durable_state(opening, credentials))

    async def is_linked(self, opening: Opening) -> bool:
        """Whether what is on persist says that it is one of two stores."""
        return await self._pool.call("describe", opening.location, lambda: is_linked(opening))

    async def answer(self, opening: Opening, credentials: Credentials = _NO_CREDENTIALS) -> Found:
        """The same, for messages: nothing is raised."""
        try:
            return await self.durable_state(opening, credentials)
        except NoLocation:
            return nothing_durable(opening)
        except StoreUnreachable as error:
            return error
        except HoldfastError:
            return None

    async def try_upgrade(
        self, catalog: ObjectKey, opening: Opening, credentials: Credentials = _NO_CREDENTIALS
    ) -> str:
        """What an upgrade-check of a catalog that isn't open says, for people. Raises `UnderWay`."""
        asked = LongCall(catalog, "try_upgrade", opening.location, opening)
        return await self._long.run(asked, lambda: try_upgrade(opening, credentials))

    async def confirm(self, catalog: ObjectKey) -> CatalogFacts | None:
        """What an open catalog holds, after asking whether it is still ours; None where it isn't open."""
        handle = self._open.get(catalog)
        if handle is None:
            return None
        return await self._pool.call("confirm", handle.opening.location, handle.confirm)

    async def read(
        self, catalog: ObjectKey, what: str, work: Callable[[OpenCatalog | ObservedCatalog], T]
    ) -> T:
        """Run `work` on an open or observed catalog, in a thread. `KeyError` where it is neither."""
        handle = self._open[catalog]
        return await self._pool.call(what, handle.opening.location, lambda: work(handle))

    def is_slow(self, catalog: ObjectKey) -> bool:
        """Whether the store of an open catalog lets callers wait now."""
        opening = self.opened(catalog)
        return opening is not None and self._pool.is_slow(opening.location)

    async def use(self, catalog: ObjectKey, what: str, work: Callable[[OpenCatalog], T]) -> T:
        """Run `work` on an open catalog, in a thread.

        Raises `KeyError` where it isn't open, `NotWritable` where it is only observed.
        """
        handle = self._open[catalog]
        if isinstance(handle, ObservedCatalog):
            raise NotWritable(f"the catalog in {handle.opening.storage} is only observed")
        return await self._pool.call(what, handle.opening.location, lambda: work(handle))

    async def use_long(
        self, catalog: ObjectKey, asked: tuple[ObjectKey, str, object], work: Callable[[OpenCatalog], T]
    ) -> T:
        """The same for work that may take minutes; `asked` is for whom, what it is called, and what exactly.

        One at a time for whom and what. Raises `UnderWay` too: ask for the same again.
        """
        handle = self._open[catalog]
        if isinstance(handle, ObservedCatalog):
            raise NotWritable(f"the catalog in {handle.opening.storage} is only observed")
        key, what, how = asked
        call = LongCall(key, what, handle.opening.location, how)
        return await self._long.run(call, lambda: work(handle), late=_nothing)

    async def close(self, catalog: ObjectKey) -> None:
        """Close a catalog, or give up what is under way for it; nothing happens where neither is."""
        self._long.give_up(catalog)
        handle = self._open.pop(catalog, None)
        if handle is not None:
            work, location = handle.close, handle.opening.location
            await self._pool.call("close", location, work, patience=_CLOSING)

    async def destroy(self, catalog: ObjectKey) -> None:
        """End an open catalog for ever, and close it."""
        await self.use(catalog, "destroy", OpenCatalog.destroy)
        # There is nothing to open any more, which could take a Secret that is gone by now.
        self.note_void(catalog, void=True)
        await self.close(catalog)

    async def close_all(self) -> None:
        """Close everything, as far as the stores let us, and wait for what is under way."""
        for catalog in list(self._open):
            with contextlib.suppress(HoldfastError):
                await self.close(catalog)
        await self._long.give_up_all()

    def storage(self, catalog: ObjectKey) -> Storage | None:
        """Where an open catalog is."""
        opening = self.opened(catalog)
        return opening.storage if opening else None


def _close(handle: OpenCatalog | ObservedCatalog) -> None:
    handle.close()


def _nothing(_: object) -> None:
    """What was done is in the store; there is nothing to close."""
