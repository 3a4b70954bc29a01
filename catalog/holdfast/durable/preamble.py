"""What is known of a catalog at every version of its format: its fence token and its config.

Whoever opens a catalog reads these first, to decide whether it may and can read the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.durable import config
from holdfast.durable.codec import Row, Update, decode, encode
from holdfast.durable.fence import FenceToken
from holdfast.durable.registry import CONFIGS, FENCE_TOKENS, Kind
from holdfast.durable.store import CatalogStore
from holdfast.errors import CorruptBlob, Uninitialized

KINDS = (Kind.FENCE_TOKEN, Kind.CONFIG)


@dataclass(frozen=True)
class Preamble:
    """Fence token and config at `upper - 1`."""

    upper: int
    config: dict[str, int]
    fence_row: Row | None = None

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

    def check_readable(self) -> None:
        """Raise `VersionTooNew`, `Deprecated` or `CorruptBlob` when this Holdfast can't read the rest."""
        for key, value in self.config.items():
            config.check_stored(key, value)

    def fence(self, token: FenceToken) -> tuple[Update, ...]:
        """The updates that put `token` in the place of the durable one."""
        added = Update(encode(FENCE_TOKENS, FENCE_TOKENS.key(), token.to_proto()), 1)
        return (added,) if self.fence_row is None else (Update(self.fence_row, -1), added)


def read_preamble(store: CatalogStore, upper: int) -> Preamble:
    """The preamble at `upper - 1`; an empty one where `upper` is 0."""
    return preamble_of(upper, store.rows(upper - 1, KINDS) if upper else ())


def preamble_of(upper: int, rows: Iterable[Row]) -> Preamble:
    """The preamble among `rows`; `CorruptBlob` when there are two fence tokens."""
    found: dict[str, int] = {}
    fence_row = None
    for row in rows:
        match row.key[:2]:
            case Kind.FENCE_TOKEN.tag:
                if fence_row is not None:
                    raise CorruptBlob("the catalog", "one fence token", "two")
                fence_row = row
            case Kind.CONFIG.tag:
                object_ = decode(CONFIGS, row)
                found[object_.key.key] = object_.value.value
    return Preamble(upper, found, fence_row)
