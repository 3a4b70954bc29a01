"""How the two stores of a catalog stand to one another, told from the stores alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.catalog import config
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.link import Linked
from holdfast.catalog.move.migration import TwoStored
from holdfast.catalog.move.records import (
    Record,
    Running,
    records_of,
    running_of,
    targets_of,
)
from holdfast.catalog.move.standing import holder_of
from holdfast.catalog.move.truth import Backend, Strategy, tombstone
from holdfast.catalog.move.two_stores import read_both
from holdfast.catalog.stores.preamble import Preamble
from holdfast.errors import LinkConflict


@dataclass(frozen=True)
class StoreStatus:
    """What one of the stores says of itself; `version` is None where no catalog ever was.

    `noted`: it says that it is the source of truth, for sure.
    """

    place: str
    version: int | None
    upper: int
    token: FenceToken | None
    tombstone: bool | None
    noted: bool
    link: int | None


@dataclass(frozen=True)
class MigrationStatus:
    """Both stores, and what follows from them.

    `truth` and `strategy` are those of the link, or, with `linked` false, those that a link would have; None
    where `conflict` tells why they can't be known. `holder` is who has the migration that is `running`;
    `records` and `targets` are by the id of each migration that there was.
    """

    stash: StoreStatus
    persist: StoreStatus
    linked: bool
    strategy: Strategy | None
    truth: Backend | None
    conflict: LinkConflict | None
    running: Running | None
    holder: str | None
    records: Mapping[str, Record]
    targets: Mapping[str, Backend]

    @property
    def is_empty(self) -> bool:
        """Whether neither store has, or is linked for, a catalog."""
        return not self.linked and self.stash.version is None and self.persist.version is None

    def of(self, backend: Backend) -> StoreStatus:
        """That of one store."""
        return self.stash if backend is Backend.STASH else self.persist


def migration_status(catalog: TwoStored) -> MigrationStatus:
    """How it stands. Changes nothing and fences nobody; `StoreUnreachable` where a store can't be read."""
    with catalog.stores.opened("status of a migration") as stores:
        seen = read_both(stores)
        conflict = None
        link = None
        try:
            link = stores.linkage(seen)
        except LinkConflict as error:
            conflict = error
        running = running_of(seen.stash.config)
        return MigrationStatus(
            store_status(stores.stash.location, seen.stash),
            store_status(stores.persist.location, seen.persist),
            isinstance(link, Linked),
            None if link is None else link.strategy,
            None if link is None else link.truth,
            conflict,
            running,
            None if running is None else holder_of(seen.stash),
            records_of(seen.stash.config),
            targets_of(seen.stash.config),
        )


def store_status(place: str, seen: Preamble) -> StoreStatus:
    """What a store's preamble tells."""
    return StoreStatus(
        place,
        seen.config.get(config.USER_VERSION),
        seen.upper,
        seen.token,
        tombstone(seen.config),
        seen.config.get(config.TRUTH) == 1,
        seen.config.get(config.LINK),
    )
