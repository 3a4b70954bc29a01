"""What a log that is nothing but objects asks of an object store: conditional puts, and that is all.

Invariants that an implementation keeps:

- Each request is linearizable per object. A failed one is `Determinate` or `Indeterminate`, as in `traits`.
- `create` and `replace` are sent once, and again only after a refusal: whether an earlier attempt took effect
  is for the caller to settle.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

NO_TAG: Final = '"none"'
"""A tag that no version of any object has."""


MANY: Final = 50
"""A listing of fewer names is complete."""


class Found(NamedTuple):
    """An object, and the tag of this version of it."""

    data: bytes
    tag: str


class Objects(Protocol):
    """Objects by name below one place. Safe to call from any thread."""

    @property
    def description(self) -> str:
        """Which place this is, for messages; without secrets."""

    def get(self, name: str, tag: str = NO_TAG) -> Found | None:
        """An object, None where there is none. The version with this tag may come without its data."""

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        """What the functions return, which may run side by side."""

    def create(self, name: str, data: bytes) -> str:
        """Put an object where there is none; the tag of this version, "" where there is an object."""

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        """Put an object over the version with this tag; False where there is another."""

    def first_names(self, prefix: str, after: str = "") -> list[str]:
        """The first names that begin with `prefix` and follow `after`, ascending: all, or at least `MANY`."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, at most as many as `first_names` gives; what isn't there is no error."""

    def close(self) -> None:
        """Release what is held open."""
