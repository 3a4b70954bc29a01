"""What a simulated process can do, and how often. Each action is a function of who acts, and a shard."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.actions.append import append, append_to_all, seal
from sim.actions.follow import follow, start_following
from sim.actions.hold import allow_compaction, close_reader, heartbeat, move_hold, take_over_hold
from sim.actions.read import observe, peek, snapshot
from sim.actions.transact import read_newest, transact
from sim.actions.upkeep import evolve, maintain, time_passes

if TYPE_CHECKING:
    from sim.process import Incarnation

Action = Callable[["Incarnation", str], None]

ACTIONS: tuple[tuple[int, Action], ...] = (
    (10, append),
    (4, append_to_all),
    (2, seal),
    (4, transact),
    (2, read_newest),
    (5, snapshot),
    (5, observe),
    (3, peek),
    (6, follow),
    (3, start_following),
    (3, allow_compaction),
    (3, move_hold),
    (1, take_over_hold),
    (2, heartbeat),
    (1, close_reader),
    (3, maintain),
    (1, time_passes),
)
EVOLVING: tuple[tuple[int, Action], ...] = (*ACTIONS, (3, evolve))
"""In the worlds whose shards get another schema."""
