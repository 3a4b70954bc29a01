"""How the frontiers of a collection follow from those of its shards.

- The upper of the metadata shard is a promise: no handover happens below it. Readers read no further.
- The upper of a collection is the first time, up to that promise, that the rendition current at that time has
  not written yet.
- The since of a collection is the since of its metadata shard. No data shard is compacted past it.
- All shards of a rendition move together from one upper to the next, in one commit.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.errors import CLOSED, AsOfNotYetAvailable, AsOfTooEarly, BadInput

PROMISE_MS: Final = 10_000
"""How far beyond a write the metadata shard is sealed with it, in milliseconds of collection time."""


class Held(NamedTuple):
    """A rendition is current in `[held_from, held_to)`, and is written up to `upper`."""

    held_from: int
    held_to: int
    upper: int


def collection_upper(held: Iterable[Held], metadata_upper: int) -> int:
    """The first time, up to `metadata_upper`, that the rendition current at that time has not written.

    `held` are the renditions that are not dropped, ordered by their times. A dropped rendition is complete,
    so it doesn't matter here.
    """
    for each in held:
        if each.upper < min(each.held_to, metadata_upper):
            return max(each.upper, each.held_from)
    return metadata_upper


def promise_for(new_upper: int, metadata_upper: int) -> int | None:
    """The metadata upper that a write up to `new_upper` must commit with it. None if it needs none."""
    if new_upper <= metadata_upper:
        return None
    return min(new_upper + PROMISE_MS, CLOSED)


def retained_since(wanted: int, metadata_since: int, rendition_start: int) -> int:
    """How far the since of a data shard may move if its retention asks for `wanted`."""
    return min(wanted, max(metadata_since, rendition_start))


def latest(upper: int) -> int:
    """The latest complete time below `upper`.

    Raises `AsOfNotYetAvailable` if no time is complete yet.
    """
    if upper == 0:
        raise AsOfNotYetAvailable(0, 0)
    return upper - 1


def check_forward(after: int, until: int) -> None:
    """Raise `BadInput` if `until` is before `after`. Equal times are allowed, and have no difference."""
    if until < after:
        raise BadInput(f"a difference must go forward in time, not from {after} to {until}")


def check_as_of(as_of: int, since: int, upper: int) -> None:
    """Raise `AsOfTooEarly` or `AsOfNotYetAvailable` unless `since <= as_of < upper`."""
    if as_of < since:
        raise AsOfTooEarly(as_of, since)
    if as_of >= upper:
        raise AsOfNotYetAvailable(as_of, upper)
