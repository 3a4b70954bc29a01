"""The preambles of two stores that are, or are to become, one catalog. Pure."""

from dataclasses import dataclass, replace

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.preamble import Preamble


@dataclass(frozen=True)
class Seen:
    """The preambles of both stores, as they were at one moment."""

    stash: Preamble
    persist: Preamble
    other_past: Backend | None = None
    """The store whose past has a different fence token than the other store has noted."""

    def of(self, backend: Backend) -> Preamble:
        """The preamble of one store."""
        return self.stash if backend is Backend.STASH else self.persist

    def where(self, backend: Backend, preamble: Preamble) -> "Seen":
        """A copy with another preamble for one store."""
        if backend is Backend.STASH:
            return replace(self, stash=preamble)
        return replace(self, persist=preamble)

    @property
    def token(self) -> FenceToken | None:
        """The greater of the durable tokens. None before the first open."""
        tokens = [token for token in (self.stash.token, self.persist.token) if token is not None]
        return max(tokens, key=lambda token: token.rank, default=None)
