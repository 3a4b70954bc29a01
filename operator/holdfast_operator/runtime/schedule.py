"""Which keys are due, which are being worked on and which come back: the queue without its clock.

Invariants
- A key waits at most once, and is worked on by at most one worker.
- A key that is added while it is worked on comes back afterwards: no change is missed.
- Due keys are handed out in the order in which they became due, so a hot key goes behind all others.
- A failure doubles the key's delay up to a limit, with jitter; a success forgets its failures. An `add`
  (something changed) cuts a delay short, but doesn't forget the failures.
"""

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Hashable
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
    ticket: int = field(default=0)  # tells a live heap item from one that was superseded


class Schedule(Generic[K]):
    """The state of a keyed queue; every method takes the time, none waits."""

    def __init__(self, *, backoff: Backoff | None = None, rng: random.Random | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy
        self._entries: dict[K, _Entry] = {}
        self._later: list[tuple[float, int, K]] = []
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._tickets = itertools.count(1)

    def add(self, key: K, now: float, *, after: float = 0.0) -> None:
        """Have `key` worked on `after` seconds from now, or earlier where it waits for an earlier time."""
        entry = self._entries.setdefault(key, _Entry())
        due = now + after
        if entry.started is not None:
            entry.again = due if entry.again is None else min(entry.again, due)
        elif entry.due is None or due < entry.due:
            self._wait(key, entry, due, now)

    def pop(self, now: float) -> K | None:
        """Hand out the key that is due the longest, or None; `done` must follow."""
        self._promote(now)
        if not self._ready:
            return None
        key, _ = self._ready.popitem(last=False)
        entry = self._entries[key]
        entry.due = entry.ready_since = None
        entry.started = now
        return key

    def done(self, key: K, now: float, *, requeue_after: float | None = None, failed: bool = False) -> None:
        """The work on `key` is over; it comes back by itself after `requeue_after`, or after its backoff."""
        entry = self._entries[key]
        entry.started = None
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
            del self._entries[key]

    def next_due(self, now: float) -> float | None:
        """When the next key becomes due (`now` or earlier where one is); None where none waits."""
        self._promote(now)
        if self._ready:
            return now
        return self._later[0][0] if self._later else None

    def depth(self, now: float) -> int:
        """How many keys are due."""
        self._promote(now)
        return len(self._ready)

    def oldest_wait(self, now: float) -> float:
        """For how long the longest due key has been waiting for a worker."""
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

    def _wait(self, key: K, entry: _Entry, due: float, now: float) -> None:
        entry.due = due
        entry.ticket = next(self._tickets)
        if due <= now:
            entry.ready_since = now
            self._ready[key] = None
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
                self._ready[key] = None
