"""What a log that is nothing but objects asks of an object store: conditional puts, and that is all.

Invariants that an implementation keeps:

- Each request is linearizable per object. A failed one is `Determinate` or `Indeterminate`, as in `traits`.
- `create` and `replace` are sent once, and again only after a refusal: whether an earlier attempt took effect
  is for the caller to settle.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

NO_TAG: Final = '"none"'
"""A tag that no version of any object has."""


class Found(NamedTuple):
    """An object, and the tag of this version of it."""

    data: bytes
    tag: str


class Objects(Protocol):
    """Objects by name below one place. Safe to call from any thread."""

    @property
    def description(self) -> str:
        """Which place this is, for messages; without secrets."""

    def get(self, name: str) -> Found | None:
        """An object, None where there is none."""

    def get_each(self, names: Sequence[str]) -> Sequence[Found | None]:
        """Several objects, side by side."""

    def create(self, name: str, data: bytes) -> bool:
        """Put an object where there is none; False where there is one."""

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        """Put an object over the version with this tag; False where there is another."""

    def first_names(self, prefix: str) -> list[str]:
        """The first names that begin with `prefix`, ascending: all of them, or many."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove objects, at most as many as `first_names` gives; what isn't there is no error."""

    def close(self) -> None:
        """Release what is held open."""
