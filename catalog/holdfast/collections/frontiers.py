"""The rules by which a collection's frontiers follow from those of its shards.

- The metadata shard's upper is a promise: no other rendition takes over below it. Readers go no further.
- A collection's upper is the least time up to that promise which is not written yet, by the rendition that
  holds there.
- A collection's since is the metadata shard's; no data shard is compacted past it.
- All shards of a rendition move from one common upper to the next in one step.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from holdfast.errors import CLOSED, AsOfNotYetAvailable, AsOfTooEarly, BadInput

PROMISE_MS: Final = 10_000
"""How far beyond a write the metadata shard is sealed with it, in collection time (ms)."""


class Held(NamedTuple):
    """That a rendition is the collection in `[held_from, held_to)`, and how far it is written."""

    held_from: int
    held_to: int
    upper: int


def collection_upper(held: Iterable[Held], metadata_upper: int) -> int:
    """The least time up to `metadata_upper` that the rendition holding there has not written.

    `held` are the renditions that are not dropped, in the order of their times: what a dropped one held is
    written.
    """
    for each in held:
        if each.upper < min(each.held_to, metadata_upper):
            return max(each.upper, each.held_from)
    return metadata_upper


def promise_for(new_upper: int, metadata_upper: int) -> int | None:
    """The metadata upper that a write up to `new_upper` has to bring along; None where it needs none."""
    if new_upper <= metadata_upper:
        return None
    return min(new_upper + PROMISE_MS, CLOSED)


def retained_since(wanted: int, metadata_since: int, rendition_start: int) -> int:
    """How far a data shard's since may follow a retention that asks for `wanted`."""
    return min(wanted, max(metadata_since, rendition_start))


def latest(upper: int) -> int:
    """The latest complete time of something whose upper is `upper`.

    Raises `AsOfNotYetAvailable` where nothing is complete yet.
    """
    if upper == 0:
        raise AsOfNotYetAvailable(0, 0)
    return upper - 1


def check_forward(after: int, until: int) -> None:
    """Raise `BadInput` where a difference would go back in time; between equal times there is none."""
    if until < after:
        raise BadInput(f"a difference goes forward in time, not from {after} to {until}")


def check_as_of(as_of: int, since: int, upper: int) -> None:
    """Raise `AsOfTooEarly` or `AsOfNotYetAvailable` unless `since <= as_of < upper`."""
    if as_of < since:
        raise AsOfTooEarly(as_of, since)
    if as_of >= upper:
        raise AsOfNotYetAvailable(as_of, upper)
