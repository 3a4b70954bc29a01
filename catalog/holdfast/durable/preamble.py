"""What is known of a catalog at every version of its format: its fence token and its config.

Whoever opens a catalog reads these first, to decide whether it may and can read the rest.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.durable import config
from holdfast.durable.codec import Row, Update, decode, encode
from holdfast.durable.fence import FenceToken
from holdfast.durable.registry import CONFIGS, FENCE_TOKENS, Kind
from holdfast.durable.store import CatalogStore
from holdfast.durable.version import CATALOG_VERSION
from holdfast.errors import AsOfTooEarly, CorruptBlob, Fenced, OtherHistory, Uninitialized, UpperMismatch

T = TypeVar("T")

READS = 5
"""How many states are tried to be read, each newer, before it is told that one can't be."""

KINDS = (Kind.FENCE_TOKEN, Kind.CONFIG)


@dataclass(frozen=True)
class Preamble:
    """Fence token and config at `upper - 1`."""

    upper: int
    config: dict[str, int]
    fence_row: Row | None = None
    version_row: Row | None = None

    @property
    def token(self) -> FenceToken | None:
        """The durable token; None before the first open."""
        return (
            None
            if self.fence_row is None
            else FenceToken.from_proto(decode(FENCE_TOKENS, self.fence_row).value)
        )

    @property
    def is_initialized(self) -> bool:
        """Whether the initial objects are there."""
        return config.USER_VERSION in self.config

    def check_initialized(self, place: str) -> None:
        """Raise `Uninitialized` when there is nothing to read yet."""
        if not self.is_initialized:
            raise Uninitialized(f"the catalog in {place} is not initialized")

    def check_history(self, fence_row: Row | None, place: str) -> None:
        """Raise `OtherHistory` where what was read beside this has another fence row."""
        if fence_row != self.fence_row:
            raise OtherHistory(place)

    def check_readable(self) -> None:
        """Raise `VersionTooNew`, `Deprecated` or `CorruptBlob` when this Holdfast can't read the rest."""
        for key, value in self.config.items():
            config.check_stored(key, value)

    def check_current(self) -> None:
        """As `check_readable`, and `UpgradeNeeded` for a version below the current one."""
        self.check_readable()
        if self.is_initialized:
            config.check_current(self.config[config.USER_VERSION])

    @property
    def is_older(self) -> bool:
        """Whether there is something, at a version below the current one."""
        return self.config.get(config.USER_VERSION, CATALOG_VERSION) < CATALOG_VERSION

    def take_over(self, mine: FenceToken) -> FenceToken:
        """The token to take over with; `Fenced` where the durable generation is greater than that of mine."""
        durable = self.token
        token = mine.after(durable)
        if durable is not None and token.deploy_generation < durable.deploy_generation:
            raise Fenced(token, durable)
        return token

    def fence(self, token: FenceToken) -> tuple[Update, ...]:
        """The updates that put `token` in the place of the durable one."""
        added = Update(_fence_row(token), 1)
        return (added,) if self.fence_row is None else (Update(self.fence_row, -1), added)

    def fenced(self, token: FenceToken) -> "Preamble":
        """The preamble after the commit of `fence(token)`."""
        return replace(self, upper=self.upper + 1, fence_row=_fence_row(token))

    def raise_version(self, version: int) -> tuple[Update, ...]:
        """The updates that put `version` in the place of the stored one."""
        assert self.version_row is not None
        return Update(self.version_row, -1), Update(version_row(version), 1)

    def upgraded(self, version: int) -> "Preamble":
        """The preamble after a commit of `raise_version(version)`."""
        found = {**self.config, config.USER_VERSION: version}
        return replace(self, upper=self.upper + 1, config=found, version_row=version_row(version))


def version_row(version: int) -> Row:
    """The row that tells the version."""
    return encode(CONFIGS, CONFIGS.key(key=config.USER_VERSION), CONFIGS.value(value=version))


def _fence_row(token: FenceToken) -> Row:
    return encode(FENCE_TOKENS, FENCE_TOKENS.key(), token.to_proto())


def read_preamble(store: CatalogStore, upper: int) -> Preamble:
    """The preamble at `upper - 1`; an empty one where `upper` is 0."""
    return preamble_of(upper, store.rows(upper - 1, KINDS) if upper else ())


def committed(store: CatalogStore, seen: Preamble, updates: Iterable[Update]) -> bool:
    """Commit what was made for the state of `seen`, with the hold; False when that is not the latest."""
    try:
        store.append(updates, seen.upper, fence=seen.fence_row, take_hold=True)
    except (OtherHistory, UpperMismatch):
        return False
    return True


def at_latest(store: CatalogStore, read: Callable[[Preamble], T]) -> T:
    """What `read` makes of the latest state, of which it gets the preamble.

    Nothing holds that state while it is read: where it was let go of meanwhile, or the store was restored, a
    newer one is read, but not for ever: `AsOfTooEarly` or `OtherHistory`.
    """
    for left in reversed(range(READS)):
        try:
            return read(read_preamble(store, store.upper()))
        except (AsOfTooEarly, OtherHistory):
            if not left:
                raise
    raise AssertionError


def preamble_of(upper: int, rows: Iterable[Row]) -> Preamble:
    """The preamble among `rows`; `CorruptBlob` when there are two fence tokens."""
    found: dict[str, int] = {}
    fence_row = stored_version = None
    for row in rows:
        match row.key[:2]:
            case Kind.FENCE_TOKEN.tag:
                if fence_row is not None:
                    raise CorruptBlob("the catalog", "one fence token", "two")
                fence_row = row
            case Kind.CONFIG.tag:
                object_ = decode(CONFIGS, row)
                found[object_.key.key] = object_.value.value
                if object_.key.key == config.USER_VERSION:
                    stored_version = row
    return Preamble(upper, found, fence_row, stored_version)
