"""The actions of a simulated process on a collection, and their frequencies. Each is a function."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim import collectionactions as actions
from sim import collectionfeeding as feeding
from sim import collectionholds as holds

if TYPE_CHECKING:
    from sim.collectionprocess import Incarnation
    from sim.collectionworld import CollectionWorld

Action = Callable[["Incarnation"], None]

ALWAYS: tuple[tuple[int, Action], ...] = (
    (14, actions.write),
    (8, actions.read),
    (4, actions.let_go),
    (3, actions.close),
    (2, actions.stop_following),
    (4, actions.retain),
    (4, actions.make_rendition),
    (4, actions.catch_up),
    (8, actions.hand_over),
    (1, actions.abort),
    (3, actions.drop_retired),
    (3, actions.advance),
    (3, actions.make_difference),
    (1, actions.evolve),
    (2, actions.maintain),
)
FOLLOWS: tuple[tuple[int, Action], ...] = ((14, actions.follow),)
FEEDS: tuple[tuple[int, Action], ...] = ((5, feeding.make_source), (14, feeding.feed))
RESTORES: tuple[tuple[int, Action], ...] = ((3, feeding.restore),)
HOLDS: tuple[tuple[int, Action], ...] = (
    (4, holds.take_hold),
    (2, holds.find_hold),
    (3, holds.move_hold),
    (2, holds.release_hold),
    (4, holds.read_held),
    (1, holds.hold_to_write),
)


def repertoire(world: "CollectionWorld") -> tuple[tuple[int, Action], ...]:
    """What is done in this world."""
    return (
        *ALWAYS,
        *(FOLLOWS if world.follows else ()),
        *(FEEDS if world.feeds else ()),
        *(RESTORES if world.restores else ()),
        *(HOLDS if world.holds else ()),
    )
