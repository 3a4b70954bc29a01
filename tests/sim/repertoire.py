"""The actions of a simulated process on a shard, and their frequencies. Each is a function of both."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.persist import WriteMode
from sim.actions.append import append, append_to_all, seal
from sim.actions.follow import follow, start_following
from sim.actions.hold import allow_compaction, close_reader, heartbeat, move_hold, take_over_hold
from sim.actions.read import observe, peek, snapshot
from sim.actions.transact import read_newest, transact
from sim.actions.upkeep import evolve, maintain, time_passes
from sim.actions.write import give_up_lock, seal_over, write, write_and_seal, write_to_all

if TYPE_CHECKING:
    from sim.process import Incarnation

Action = Callable[["Incarnation", str], None]

APPENDS: tuple[tuple[int, Action], ...] = (
    (10, append),
    (4, append_to_all),
    (2, seal),
    (4, transact),
    (2, read_newest),
)
WRITES: tuple[tuple[int, Action], ...] = (
    (20, write),
    (4, write_to_all),
    (3, write_and_seal),
    (6, seal_over),
    (2, give_up_lock),
)
OTHERS: tuple[tuple[int, Action], ...] = (
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


def repertoire(mode: WriteMode, *, evolves: bool, shares: bool = False) -> tuple[tuple[int, Action], ...]:
    """What is done in a world of this mode; with `evolves` its shards get another schema.

    With `shares` its processes share writers, and mostly append.
    """
    writing = APPENDS if mode is WriteMode.APPEND else WRITES
    if shares and mode is WriteMode.APPEND:
        writing = (*writing, (60, append))
    return (*writing, *OTHERS, *([(3, evolve)] if evolves else []))
