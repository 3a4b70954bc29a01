"""The status of the two stores of a catalog, determined only from the stores."""

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
    """What one store records about itself. `version` is None if it never had a catalog.

    `noted` is True if it records that it is certainly the source of truth.
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

    `truth` and `strategy` are those of the link. If `linked` is False, they are those that a link would have.
    They are None if they are unknown, for the reason in `conflict`. `holder` is who runs the migration that
    is `running`. `records` and `targets` are by migration id.
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
        """Whether the stores aren't linked and neither has a catalog."""
        return not self.linked and self.stash.version is None and self.persist.version is None

    def of(self, backend: Backend) -> StoreStatus:
        """The status of one store."""
        return self.stash if backend is Backend.STASH else self.persist


def migration_status(catalog: TwoStored) -> MigrationStatus:
    """Read the status.

    Changes nothing and fences nobody. Raises `StoreUnreachable` if a store can't be read.
    """
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
    """The status of a store, from its preamble."""
    return StoreStatus(
        place,
        seen.config.get(config.USER_VERSION),
        seen.upper,
        seen.token,
        tombstone(seen.config),
        seen.config.get(config.TRUTH) == 1,
        seen.config.get(config.LINK),
    )
