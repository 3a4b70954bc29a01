"""Leases: finds handles whose process has stopped, on this process's own clock, and drops them.

No host's wall clock is trusted. A handle expires if this process has seen the same heartbeat count for its
whole lease.
"""

import threading
from collections.abc import Iterable
from typing import Final

from holdfast.persist.clock import Clock
from holdfast.persist.state.command import ExpireHandles
from holdfast.persist.state.machine import Machine, commit
from holdfast.persist.state.state import ShardState

MOST_WRITERS: Final = 128
"""The most writer entries of a shard."""

SEAL_FOR_A_READ: Final = "seal for a read"
"""The purpose of writers that sealed a shard for a read. Their entries show when and by whom."""


def left_behind(state: ShardState, writers: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return those of these writers that have an entry to drop when they close, each with its heartbeats.

    The entry of a seal for a read stays until it is silent or surplus: others must see that it happened.
    """
    there = (state.writers[id_] for id_ in writers if id_ in state.writers)
    return tuple((each.id, each.heartbeats) for each in there if each.purpose != SEAL_FOR_A_READ)


def surplus_writers(state: ShardState) -> list[str]:
    """Return the writers beyond `MOST_WRITERS` that have not written for longest.

    Leases alone are not a bound: processes that live shorter than a lease never see a handle silent for all
    of it. No clock is needed, because a writer entry that is dropped too early loses no update.
    """
    surplus = list(state.writers)[: max(len(state.writers) - MOST_WRITERS, 0)]
    at_work = {claim.writer_id for claim in state.claims.values()}
    return [writer for writer in surplus if writer not in at_work]


def drop_handles(machine: Machine, silent: ExpireHandles) -> None:
    """Drop in one commit all handles that are silent, surplus, or were closed in this process."""
    state = machine.state
    # Keep a closed writer while an append of it is in flight or in doubt.
    closed = machine.closed & machine.settled
    surplus = tuple((id_, state.writers[id_].heartbeats) for id_ in surplus_writers(state))
    writers = tuple(dict.fromkeys([*left_behind(state, closed), *surplus]))
    if silent.readers or silent.writers or writers:
        commit([(machine, ExpireHandles(silent.readers, (*silent.writers, *writers)))])
    machine.closed -= closed
    machine.settled -= closed


class LeaseWatch:
    """Finds handles without a heartbeat for their whole lease, measured on this process's own clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}

    def expired(self, state: ShardState) -> ExpireHandles:
        """Return the handles that expire now."""
        with self._lock:
            return self._expired(state)

    def _expired(self, state: ShardState) -> ExpireHandles:
        now = self._clock.monotonic()

        def silent(id_: str, heartbeats: int, lease_ms: int) -> bool:
            key = (state.shard_id, id_)
            count, since = self._seen.get(key, (-1, now))
            if count != heartbeats:
                self._seen[key] = (heartbeats, now)
                return False
            return now - since > lease_ms / 1000

        readers = tuple(
            (r.id, r.heartbeats)
            for r in state.leased_readers.values()
            if silent(r.id, r.heartbeats, r.lease_ms)
        )
        writers = tuple(
            (w.id, w.heartbeats) for w in state.writers.values() if silent(w.id, w.heartbeats, w.lease_ms)
        )
        live = {*state.leased_readers, *state.writers}
        for key in [key for key in self._seen if key[0] == state.shard_id and key[1] not in live]:
            del self._seen[key]
        return ExpireHandles(readers, writers)
