"""Which keys are due, which are being worked on and which come back: the queue without its clock.

Invariants
- A key waits at most once, and is worked on by at most one worker.
- A key that is added while it is worked on comes back afterwards: no change is missed.
- Due keys are handed out in the order in which they became due, so a hot key goes behind all others.
- Of the keys of one lane (those that wait for the same thing) only so many are worked on at once: where all
  of them hang, workers are left for the others. Keys of no lane have no such limit.
- A failure doubles the key's delay up to a limit, with jitter; a success forgets its failures. An `add`
  (something changed) cuts a delay short, but doesn't forget the failures.
"""

import heapq
import itertools
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MAX_EXPONENT: Final = 32


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long a key waits after its n-th failure in a row: `first * 2 ** (n - 1)`, at most `limit` seconds.

    `jitter` is the share of it that is random, so that keys that failed together don't come back together.
    """

    first: float = 0.5
    limit: float = 60.0
    jitter: float = 0.2

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after the `failures`-th failure (from 1)."""
        full = min(self.limit, self.first * 2.0 ** min(failures - 1, _MAX_EXPONENT))
        return full * (1 - self.jitter * rng.random())


@dataclass
class _Entry:
    due: float | None = None  # None: not waiting
    ready_since: float | None = None
    started: float | None = None  # None: not being worked on
    again: float | None = None  # added while being worked on: due then
    failures: int = 0
    lane: Hashable = None  # that of the work under way
    order: int = 0  # the place in the order of those that are due
    ticket: int = field(default=0)  # tells a live heap item from one that was superseded


class Schedule(Generic[K]):
    """The state of a keyed queue; every method takes the time, none waits."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        lane: Callable[[K], Hashable] = lambda _: None,
        most_of_lane: int = 8,
    ) -> None:
        """`lane` is asked when a key is due; it may answer otherwise the next time."""
        self._lane = lane
        self._most_of_lane = most_of_lane
        self._working: Counter[Hashable] = Counter()
        self._parked: dict[Hashable, OrderedDict[K, None]] = {}
        """Due keys that found their lane full, none of them empty."""
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._entries: dict[K, _Entry] = {}
        self._later: list[tuple[float, int, K]] = []
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._tickets = itertools.count(1)
        self._order = itertools.count(1)

    def add(self, key: K, now: float, *, after: float = 0.0) -> None:
        """Have `key` worked on `after` seconds from now, or earlier where it waits for an earlier time."""
        entry = self._entries.setdefault(key, _Entry())
        due = now + after
        if entry.started is not None:
            entry.again = due if entry.again is None else min(entry.again, due)
        elif entry.due is None or due < entry.due:
            self._wait(key, entry, due, now)

    def pop(self, now: float) -> K | None:
        """Hand out the key that is due the longest and whose lane has room, or None; `done` must follow."""
        self._promote(now)
        parked = min((self._first_of(lane) for lane in self._parked if not self._is_full(lane)), default=None)
        while self._ready:
            key = next(iter(self._ready))
            if parked is not None and parked[0] < self._entries[key].order:
                break
            del self._ready[key]
            lane = self._lane(key)
            if not self._is_full(lane):
                return self._begin(key, lane, now)
            self._parked.setdefault(lane, OrderedDict())[key] = None
        if parked is None:
            return None
        _, _, key, lane = parked
        self._unpark(key, lane)
        return self._begin(key, lane, now)

    def done(self, key: K, now: float, *, requeue_after: float | None = None, failed: bool = False) -> None:
        """The work on `key` is over; it comes back by itself after `requeue_after`, or after its backoff."""
        entry = self._entries[key]
        entry.started = None
        self._leave(entry.lane)
        entry.failures = entry.failures + 1 if failed else 0
        dues = [entry.again] if entry.again is not None else []
        if failed:
            dues.append(now + self._backoff.delay(entry.failures, self._rng))
        if requeue_after is not None:
            dues.append(now + requeue_after)
        entry.again = None
        if dues:
            self._wait(key, entry, min(dues), now)
        elif not entry.failures:
            del self._entries[key]

    def forget(self, key: K) -> None:
        """Drop what is known of `key`, unless it is being worked on."""
        entry = self._entries.get(key)
        if entry is not None and entry.started is None:
            self._ready.pop(key, None)
            for lane in list(self._parked):
                self._unpark(key, lane)
            del self._entries[key]

    def next_due(self, now: float) -> float | None:
        """When the next key may be handed out (`now` where one may); None where none waits for its time."""
        self._promote(now)
        if self._ready or not all(map(self._is_full, self._parked)):
            return now
        return self._later[0][0] if self._later else None

    def depth(self, now: float) -> int:
        """How many keys are due."""
        self._promote(now)
        return len(self._ready) + sum(map(len, self._parked.values()))

    def oldest_wait(self, now: float) -> float:
        """For how long the longest due key has been waiting for a worker; not those whose lane is full."""
        self._promote(now)
        if not self._ready:
            return 0.0
        since = self._entries[next(iter(self._ready))].ready_since
        return now - since if since is not None else 0.0

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

    def _is_full(self, lane: Hashable) -> bool:
        return lane is not None and self._working[lane] >= self._most_of_lane

    def _first_of(self, lane: Hashable) -> tuple[int, int, K, Hashable]:
        """The key of a lane that has been parked the longest, with what orders it (no two are equal)."""
        key = next(iter(self._parked[lane]))
        entry = self._entries[key]
        return entry.order, entry.ticket, key, lane

    def _unpark(self, key: K, lane: Hashable) -> None:
        parked = self._parked[lane]
        parked.pop(key, None)
        if not parked:
            del self._parked[lane]

    def _begin(self, key: K, lane: Hashable, now: float) -> K:
        entry = self._entries[key]
        entry.due = entry.ready_since = None
        entry.started = now
        entry.lane = lane
        if lane is not None:
            self._working[lane] += 1
        return key

    def _leave(self, lane: Hashable) -> None:
        if lane is None:
            return
        self._working[lane] -= 1
        if not self._working[lane]:
            del self._working[lane]

    def _wait(self, key: K, entry: _Entry, due: float, now: float) -> None:
        entry.due = due
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
            if live and entry is not None and key not in self._ready:
                entry.ready_since = due
                self._line_up(key, entry)

    def _line_up(self, key: K, entry: _Entry) -> None:
        entry.order = next(self._order)
        self._ready[key] = None
