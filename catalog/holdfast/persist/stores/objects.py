"""What a consensus log made of objects needs from an object store: conditional puts.

Invariants of each implementation:

- Each request is linearizable per object. A failed one raises `Determinate` or `Indeterminate`, as in
  `traits`.
- `create` and `replace` are sent once, and repeated only after a certain refusal. If the outcome of an
  attempt is unknown, the caller must find out.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

NO_TAG: Final = '"none"'
"""A tag that no version of an object has."""


MANY: Final = 200
"""A listing with fewer names than this is complete."""


class Found(NamedTuple):
    """An object, and the tag of its version."""

    data: bytes
    tag: str


class Objects(Protocol):
    """Objects by name in one place. Safe to call from any thread."""

    @property
    def description(self) -> str:
        """The name of the place for messages, without secrets."""

    def get(self, name: str, tag: str = NO_TAG) -> Found | None:
        """Return an object; None if there is none. If its tag is `tag`, its data may be left out."""

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        """Call the functions, maybe in parallel, and return their results."""

    def create(self, name: str, data: bytes) -> str:
        """Put an object if there is none. Return the tag of its version, or "" if one exists already."""

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        """Replace the version with this tag. Return False if the object has another version."""

    def first_names(self, prefix: str, after: str = "") -> list[str]:
        """Return the first names with `prefix` that follow `after`, ascending: all, or at least `MANY`."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, at most as many as `first_names` returns. A missing object is not an error."""

    def close(self) -> None:
        """Close open connections and files."""
