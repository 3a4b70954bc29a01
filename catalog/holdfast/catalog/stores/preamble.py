"""The preamble of a catalog, readable at every version of its format: its fence token and its config.

Every open reads it first, to decide whether it may and can read the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.catalog import config
from holdfast.catalog.damage import corrupt
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.objects.codec import Row, RowUpdate, decode, encode
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, Kind
from holdfast.catalog.stores.store import CatalogStore, FenceRow
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import (
    AsOfTooEarly,
    HandleExpired,
    LinkedElsewhere,
    OtherHistory,
    Uninitialized,
    UpperMismatch,
)

T = TypeVar("T")

READS = 5
"""How many states are read, each newer than the last, before an error is raised."""

KINDS = (Kind.FENCE_TOKEN, Kind.CONFIG)
_TAGS = tuple(kind.tag for kind in KINDS)


@dataclass(frozen=True)
class Preamble:
    """Fence token and config at `upper - 1`."""

    upper: int
    config: dict[str, int]
    fence_row: Row | None = None
    config_rows: Mapping[str, Row] = field(default_factory=dict)

    @property
    def version_row(self) -> Row | None:
        """The row with the version."""
        return self.config_rows.get(config.USER_VERSION)

    @property
    def token(self) -> FenceToken | None:
        """The durable token. None before the first open."""
        return (
            None
            if self.fence_row is None
            else FenceToken.from_proto(decode(FENCE_TOKENS, self.fence_row).value)
        )

    def tells_as(self, other: "Preamble") -> bool:
        """Whether another state has the same token and config: nobody took over or changed the config."""
        return (self.fence_row, self.config_rows) == (other.fence_row, other.config_rows)

    @property
    def is_initialized(self) -> bool:
        """Whether the initial objects exist."""
        return config.USER_VERSION in self.config

    @property
    def is_linked(self) -> bool:
        """Whether the store is one of two linked stores."""
        return config.LINK in self.config

    @property
    def is_certain(self) -> bool:
        """Whether this state alone shows that the catalog is here. See `config.TRUTH`."""
        if config.SETTLING in self.config:
            return False
        return not self.is_linked or self.config.get(config.TRUTH) == 1

    @property
    def truth_since(self) -> int:
        """The earliest time at which the contents are the catalog's. Earlier contents are not its history."""
        return self.config.get(config.TRUTH_SINCE, 0)

    def check_alone(self, place: str) -> None:
        """Raise `LinkedElsewhere` if only the other store could show whether the catalog is here."""
        if not self.is_certain:
            raise LinkedElsewhere(
                f"the catalog in {place} is linked with another store, and may be there:"
                " it can't be read alone"
            )

    def check_not_linked(self, place: str) -> None:
        """Raise `LinkedElsewhere` if writing needs both stores."""
        if self.is_linked:
            raise LinkedElsewhere(
                f"the catalog in {place} is linked with another store: it can't be written alone"
            )

    def check_initialized(self, place: str) -> None:
        """Raise `Uninitialized` if there is nothing to read yet."""
        if not self.is_initialized:
            raise Uninitialized(f"the catalog in {place} is not initialized")

    def check_history(self, fence_row: Row | None, place: str) -> None:
        """Raise `OtherHistory` if contents were read with a different fence row."""
        if fence_row != self.fence_row:
            raise OtherHistory(place)

    def check_readable(self) -> None:
        """Raise `VersionTooNew`, `Deprecated` or `CorruptBlob` if this Holdfast can't read the rest."""
        for key, value in self.config.items():
            config.check_stored(key, value)

    def check_current(self) -> None:
        """Like `check_readable`. Also raises `UpgradeNeeded` for a version below the current one."""
        self.check_readable()
        if self.is_initialized:
            config.check_current(self.config[config.USER_VERSION])

    @property
    def is_older(self) -> bool:
        """Whether the catalog is initialized at a version below the current one."""
        return self.config.get(config.USER_VERSION, CATALOG_VERSION) < CATALOG_VERSION

    def next_token(self, mine: FenceToken) -> FenceToken:
        """`mine` with the epoch after the durable one. Raises `Fenced` for a greater durable generation."""
        token = mine.after(self.token)
        token.check_generation(self.token)
        return token

    def fence(self, token: FenceToken) -> tuple[RowUpdate, ...]:
        """The updates that replace the durable token by `token`. Empty if it is the durable one."""
        added = _fence_row(token)
        if self.fence_row == added:
            return ()
        return (*(() if self.fence_row is None else (RowUpdate(self.fence_row, -1),)), RowUpdate(added, 1))

    def fenced(self, token: FenceToken) -> "Preamble":
        """The preamble after the commit of `fence(token)`."""
        return replace(self, upper=self.upper + 1, fence_row=_fence_row(token))

    def configured(self, wanted: Mapping[str, int | None]) -> tuple[RowUpdate, ...]:
        """The updates that set these keys of the config. None removes a key."""
        return tuple(
            update
            for key, value in wanted.items()
            if value != self.config.get(key)
            for update in self._configured(key, value)
        )

    def _configured(self, key: str, value: int | None) -> Iterable[RowUpdate]:
        if key in self.config_rows:
            yield RowUpdate(self.config_rows[key], -1)
        if value is not None:
            yield RowUpdate(config_row(key, value), 1)

    def after(self, updates: Iterable[RowUpdate]) -> "Preamble":
        """The preamble after a commit of these updates on this state."""
        rows = {row.key: row for row in self.config_rows.values()}
        if self.fence_row is not None:
            rows[self.fence_row.key] = self.fence_row
        ours = [update for update in updates if update.row.key[:2] in _TAGS]
        for update in sorted(ours, key=lambda update: update.diff):
            if update.diff == 1:
                rows[update.row.key] = update.row
            else:
                rows.pop(update.row.key, None)
        return preamble_of(self.upper + 1, rows.values())

    def raise_version(self, version: int) -> tuple[RowUpdate, ...]:
        """The updates that replace the stored version by `version`."""
        assert self.version_row is not None
        return RowUpdate(self.version_row, -1), RowUpdate(version_row(version), 1)

    def upgraded(self, version: int) -> "Preamble":
        """The preamble after a commit of `raise_version(version)`."""
        return self.after(self.raise_version(version))


def version_row(version: int) -> Row:
    """The row of config with the version."""
    return config_row(config.USER_VERSION, version)


def config_row(key: str, value: int) -> Row:
    """A row of the config."""
    return encode(CONFIGS, CONFIGS.key(key=key), CONFIGS.value(value=value))


def _fence_row(token: FenceToken) -> Row:
    return encode(FENCE_TOKENS, FENCE_TOKENS.key(), token.to_proto())


def read_preamble(store: CatalogStore, upper: int) -> Preamble:
    """The preamble at `upper - 1`. Empty if `upper` is 0."""
    return preamble_of(upper, store.rows(upper - 1, KINDS) if upper else ())


def committed(store: CatalogStore, seen: Preamble, updates: Iterable[RowUpdate]) -> bool:
    """Commit updates for the state of `seen`, with the hold.

    Returns False if that is not the latest state.
    """
    try:
        store.append(updates, seen.upper, fence=seen.fence_row, take_hold=True)
    except (OtherHistory, UpperMismatch):
        return False
    return True


def at_latest(store: CatalogStore, read: Callable[[Preamble], T]) -> T:
    """Call `read` with the preamble of the latest state. Returns its result.

    Nothing holds that state during the read. If the state becomes unreadable during the read, or the store is
    restored, this reads the then latest state, up to `READS` times in all. After that it raises
    `AsOfTooEarly` or `OtherHistory`.
    """
    for left in reversed(range(READS)):
        try:
            return read(read_preamble(store, store.upper()))
        except (AsOfTooEarly, OtherHistory):
            if not left:
                raise
    raise AssertionError


def caught_up(store: CatalogStore, seen: Preamble) -> Preamble:
    """The preamble of the latest state, computed from the commits since the state of `seen`.

    If the whole state were read again for each commit of a busy writer, that might never finish before the
    next commit.
    """
    upper = store.upper()
    if not 0 < seen.upper <= upper:
        return at_latest(store, lambda found: found)
    try:
        for time, updates in store.changes(seen.upper, upper, fence=seen.fence_row):
            seen = replace(seen, upper=time).after(updates)
    except (AsOfTooEarly, HandleExpired, OtherHistory):
        store.reopen()
        return at_latest(store, lambda found: found)
    return replace(seen, upper=upper, fence_row=FenceRow.of(seen.fence_row, store.past))


def preamble_of(upper: int, rows: Iterable[Row]) -> Preamble:
    """The preamble among `rows`. Raises `CorruptBlob` if there are two fence tokens."""
    found: dict[str, int] = {}
    config_rows: dict[str, Row] = {}
    fence_row = None
    for row in rows:
        match row.key[:2]:
            case Kind.FENCE_TOKEN.tag:
                if fence_row is not None:
                    raise corrupt("the catalog", "one fence token", "two")
                fence_row = row
            case Kind.CONFIG.tag:
                object_ = decode(CONFIGS, row)
                found[object_.key.key] = object_.value.value
                config_rows[object_.key.key] = row
    return Preamble(upper, found, fence_row, config_rows)
