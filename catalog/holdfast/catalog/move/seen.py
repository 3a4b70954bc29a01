"""What two stores that are, or are to be, one catalog say of themselves. Pure."""

from dataclasses import dataclass, replace

from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.preamble import Preamble


@dataclass(frozen=True)
class Seen:
    """What was read of both stores, at a time at which both were so."""

    stash: Preamble
    persist: Preamble
    other_past: Backend | None = None
    """The store that had another fence token, at a time that the other store noted."""

    def of(self, backend: Backend) -> Preamble:
        """That of one store."""
        return self.stash if backend is Backend.STASH else self.persist

    def where(self, backend: Backend, preamble: Preamble) -> "Seen":
        """The same with another one in the place of one."""
        if backend is Backend.STASH:
            return replace(self, stash=preamble)
        return replace(self, persist=preamble)

    @property
    def token(self) -> FenceToken | None:
        """The greater of the durable tokens, by order; None before the first open."""
        tokens = [token for token in (self.stash.token, self.persist.token) if token is not None]
        return max(tokens, key=lambda token: token.rank, default=None)
