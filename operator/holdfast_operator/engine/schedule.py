"""The state of the queue, without a clock: which keys are due, are being worked on, and come back.

Invariants
- A key waits at most once, and at most one worker works on it.
- A key that is added while a worker works on it comes back afterwards. So no change is missed.
- Due keys of one owner are handed out in the order in which they became due. So a hot key goes behind all
  others. Owners take turns, and each has a limited number of workers. So an owner with a thousand due keys
  delays other owners by at most one of them.
- Changed keys go before routine keys. A key is routine if it hasn't changed: a regular check, a retry, or one
  of many keys that are checked together. But at least one of `_TURNS` keys is a routine key if any is due. So
  neither group waits for ever.
- A limited number of keys of one lane (keys that wait for the same thing) is worked on at once. So if all of
  them hang, workers are left for other keys. Keys without a lane have no such limit.
- A failure doubles the key's delay up to a limit, with jitter. A success resets its failures. An `add`
  (something changed) ends a delay early, but doesn't reset the failures.
"""

import functools
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from holdfast_operator.engine.ready import OwnerQueue, ReadyQueue

K = TypeVar("K", bound=Hashable)

_MAX_EXPONENT: Final = 32
_TURNS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """The delay of a key after its n-th failure in a row: `first * 2 ** (n - 1)`, at most `limit` seconds.

    `jitter` is the random share of the delay, so that keys that failed together don't come back together.
    """

    first: float = 0.5
    limit: float = 60.0
    jitter: float = 0.2

    def delay(self, failures: int, rng: random.Random) -> float:
        """Returns the seconds to wait after the `failures`-th failure (from 1)."""
        full = min(self.limit, self.first * 2.0 ** min(failures - 1, _MAX_EXPONENT))
        return full * (1 - self.jitter * rng.random())


@dataclass(slots=True)
class _Entry:
    due: float | None = None  # None: not waiting
    routine: bool = True  # why it waits, or was begun
    ready_since: float | None = None  # None: in no line
    started: float | None = None  # None: not being worked on
    again: tuple[float, bool] | None = None  # added while being worked on: due then, and whether by routine
    failures: int = 0
    lane: Hashable = None  # the lane of the running work
    ticket: int = field(default=0)  # distinguishes a live heap item from a superseded one


class Schedule(Generic[K]):
    """The state of a keyed queue. Methods take the current time as an argument. None of them waits."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        owner: Callable[[K], Hashable] = lambda _: None,
        most_of_owner: int = 64,
        lane: Callable[[K], Hashable] = lambda _: None,
        most_of_lane: int = 8,
    ) -> None:
        """Creates an empty queue. A key's `owner` never changes. `lane` is called when a key is due."""
        self._owner = owner
        self._most_of_owner = most_of_owner
        self._workers: Counter[Hashable] = Counter()
        """By owner."""
        self._most_of_lane = most_of_lane
        self._working: Counter[Hashable] = Counter()
        """By lane."""
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._entries: dict[K, _Entry] = {}
        self._later: list[tuple[float, int, K]] = []
        lines = functools.partial(
            ReadyQueue[K], owner, self._has_all, functools.partial(OwnerQueue[K], lane, self._is_full)
        )
        self._changed, self._routine = lines(), lines()
        self._changes_in_a_row = 0
        self._tickets = itertools.count(1)

    def add(self, key: K, now: float, *, after: float = 0.0, routine: bool = False) -> None:
        """Schedules `key` in `after` seconds, or earlier if it is already scheduled earlier.

        A `routine` key hasn't changed. It lets changed keys go first.
        """
        entry = self._entries.setdefault(key, _Entry())
        due = now + after
        if entry.started is not None:
            then, by_routine = entry.again or (due, routine)
            entry.again = min(then, due), by_routine and routine
        elif entry.ready_since is not None:
            if entry.routine and not routine:
                self._routine.discard(key)
                entry.routine = False
                self._changed.append(key)
        elif entry.due is None or due < entry.due:
            self._wait(key, entry, due, now, routine=routine and entry.routine)
        else:
            entry.routine = entry.routine and routine

    def pop(self, now: float) -> K | None:
        """Returns the next due key whose lane has room, or None. A call of `done` must follow."""
        self._promote(now)
        lines = (self._changed, self._routine)
        for line in lines if self._changes_in_a_row < _TURNS - 1 else lines[::-1]:
            if (found := line.pop()) is not None:
                self._changes_in_a_row = self._changes_in_a_row + 1 if line is self._changed else 0
                return self._begin(*found, now)
        return None

    def done(self, key: K, now: float, *, requeue_after: float | None = None, failed: bool = False) -> None:
        """Records the end of the work on `key`. It comes back after `requeue_after`, or after its backoff.

        A key that comes back at once keeps its priority. Otherwise it is routine.
        """
        entry = self._entries[key]
        entry.started = None
        routine, entry.routine = entry.routine, True
        _count_down(self._workers, self._owner(key))
        _count_down(self._working, entry.lane)
        entry.failures = entry.failures + 1 if failed else 0
        dues = [entry.again] if entry.again is not None else []
        if failed:
            dues.append((now + self._backoff.delay(entry.failures, self._rng), True))
        if requeue_after is not None:
            dues.append((now + requeue_after, routine or requeue_after > 0))
        entry.again = None
        if dues:
            due, _ = min(dues)
            routine = all(by_routine for when, by_routine in dues if when <= max(due, now))
            self._wait(key, entry, due, now, routine=routine)
        elif not entry.failures:
            del self._entries[key]

    def forget(self, key: K) -> None:
        """Forgets `key`, unless a worker works on it."""
        entry = self._entries.get(key)
        if entry is not None and entry.started is None:
            self._changed.discard(key)
            self._routine.discard(key)
            del self._entries[key]

    def next_due(self, now: float) -> float | None:
        """Returns when the next key may be handed out (`now` if one can be now), or None if no key waits."""
        self._promote(now)
        if self._changed.may_go or self._routine.may_go:
            return now
        return self._later[0][0] if self._later else None

    def depth(self, now: float) -> int:
        """Returns the number of due keys."""
        self._promote(now)
        return len(self._changed) + len(self._routine)

    def oldest_wait(self, now: float) -> float:
        """Returns how long the longest due key has been waiting for a worker.

        Keys whose lane is full, or whose owner has all its workers, don't count.
        """
        self._promote(now)
        firsts = (*self._changed.firsts, *self._routine.firsts)
        sinces = (self._entries[key].ready_since for key in firsts)
        return max((now - since for since in sinces if since is not None), default=0.0)

    def oldest_work(self, now: float) -> float:
        """For how long the longest running work has been going on."""
        return max((now - e.started for e in self._entries.values() if e.started is not None), default=0.0)

    def working(self) -> int:
        """How many keys are being worked on."""
        return sum(entry.started is not None for entry in self._entries.values())

    def failures(self, key: K) -> int:
        """How often in a row the work on `key` has failed."""
        entry = self._entries.get(key)
        return entry.failures if entry else 0

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def _has_all(self, owner: Hashable) -> bool:
        return self._workers[owner] >= self._most_of_owner

    def _is_full(self, lane: Hashable) -> bool:
        return lane is not None and self._working[lane] >= self._most_of_lane

    def _begin(self, key: K, lane: Hashable, now: float) -> K:
        entry = self._entries[key]
        entry.due = entry.ready_since = None
        entry.started = now
        entry.lane = lane
        self._workers[self._owner(key)] += 1
        self._working[lane] += 1
        return key

    def _wait(self, key: K, entry: _Entry, due: float, now: float, *, routine: bool) -> None:
        entry.due = due
        entry.routine = routine
        entry.ticket = next(self._tickets)
        if due <= now:
            entry.ready_since = now
            self._line_up(key, entry)
        else:
            heapq.heappush(self._later, (due, entry.ticket, key))

    def _promote(self, now: float) -> None:
        while self._later:
            due, ticket, key = self._later[0]
            entry = self._entries.get(key)
            live = entry is not None and entry.ticket == ticket and entry.due == due
            if live and due > now:
                return
            heapq.heappop(self._later)
            if live and entry is not None:
                entry.ready_since = due
                self._line_up(key, entry)

    def _line_up(self, key: K, entry: _Entry) -> None:
        (self._routine if entry.routine else self._changed).append(key)


def _count_down(counted: Counter[Hashable], what: Hashable) -> None:
    counted[what] -= 1
    if not counted[what]:
        del counted[what]
