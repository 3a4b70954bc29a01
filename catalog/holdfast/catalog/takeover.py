"""Commits without an open handle: a fence token alone, or one with new contents.

Invariants
- Each is one append at the upper that was read, with a greater token. It fences the process that was open for
  writing.
- None lowers a token, and none decodes a row that another version may have written.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from holdfast.catalog import config
from holdfast.catalog.cache import Cache
from holdfast.catalog.fence import FenceToken, check_room
from holdfast.catalog.interfaces import Loaded
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import OBJECT_TYPES
from holdfast.catalog.replacement import contents_of, exact, merged
from holdfast.catalog.stores.preamble import Preamble, committed, preamble_of, read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, CatalogOutOfSync, CorruptBlob, Fenced

Claim = Callable[[Preamble], FenceToken]
"""Returns the token to write with in this state. If that token is already durable, returns it.

Raises `Fenced` and `LinkedElsewhere`.
"""


def under(token: FenceToken) -> Claim:
    """The claim of the process that has taken over with `token`."""

    def claim(seen: Preamble) -> FenceToken:
        if seen.token != token:
            raise Fenced(token, seen.token)
        return token

    return claim


def check_epoch(at_least: int) -> None:
    """Raise `BadInput` for an epoch that a fence can't be raised to."""
    if at_least < 1:
        raise BadInput(f"epoch {at_least} is out of range: the first one is 1")
    check_room(at_least)


def raise_fence(store: CatalogStore, at_least: int, claim: Claim) -> FenceToken:
    """See `OpenableCatalog.raise_fence`. `at_least` is already checked."""
    while True:
        seen = read_preamble(store, store.upper())
        token = claim(seen)
        seen.check_initialized(store.place)
        durable = seen.token
        if durable is not None:
            if durable.epoch >= at_least and durable.deploy_generation == token.deploy_generation:
                return durable
            token = replace(token, epoch=max(at_least, durable.epoch))
        if committed(store, seen, seen.fence(token)):
            return token


def load(
    store: CatalogStore,
    rows: Iterable[Row],
    claim: Claim,
    *,
    exactly: bool,
    only_new: bool = False,
    rehearse: bool = False,
) -> Loaded:
    """See `OpenableCatalog.load`."""
    wanted = contents_of(rows)
    loaded = preamble_of(0, (row for row in wanted.values()))
    if not loaded.is_initialized:
        raise BadInput(f"the contents to load are not a complete catalog: no config {config.USER_VERSION}")
    version = loaded.config[config.USER_VERSION]
    while True:
        seen = read_preamble(store, store.upper())
        if only_new and seen.is_initialized:
            raise CatalogOutOfSync(
                f"the catalog in {store.place} is already initialized: nothing was loaded",
                hint="load into a store without a catalog; or replace this catalog, which fences its writer",
            )
        token = claim(seen)
        stored = store.rows(seen.upper - 1) if seen.upper else iter(())
        if exactly or not seen.is_initialized:
            changes = list(exact(stored, wanted))
            if not exactly:
                _check_fits(version, wanted)
        else:
            _check_same_version(seen, version, store.place)
            # Which values must not go back is known only for objects of the current version.
            config.check_current(version)
            kept = {row.key: row for row in stored}
            changes = list(merged(kept.values(), wanted))
            _check_fits(version, _after(kept, changes))
        updates = (*seen.fence(token), *changes)
        if rehearse or not updates or committed(store, seen, updates):
            added = sum(update.diff == 1 for update in changes)
            return Loaded(added, len(changes) - added, token)


def _check_same_version(seen: Preamble, version: int, place: str) -> None:
    durable = seen.config[config.USER_VERSION]
    if version != durable:
        raise BadInput(
            f"the catalog in {place} is at version {durable}, the contents to load at version {version}",
            hint="load it into a new catalog, whose next open upgrades it",
        )


def _after(stored: Mapping[bytes, Row], changes: Iterable[RowUpdate]) -> dict[bytes, Row]:
    rows = dict(stored)
    for row, diff in changes:
        if diff == 1:
            rows[row.key] = row
        elif rows.get(row.key) == row:
            del rows[row.key]
    return rows


def _check_fits(version: int, rows: Mapping[bytes, Row]) -> None:
    """Raise `BadInput` for contents that could not be opened. An upgrade checks those of an older version."""
    if version != CATALOG_VERSION:
        config.check_version(version)
        return
    cached = (row for row in rows.values() if OBJECT_TYPES[row.kind].cached)
    try:
        Cache(cached)
    except (CorruptBlob, CatalogOutOfSync) as error:
        raise BadInput(f"the contents to load contradict each other: {error}") from None
