"""Runs two processes in all interleavings of their store calls with up to two preemptions.

Each process is a thread, and only one runs at a time. In a schedule, the first process makes `i` calls, then
the second makes `j`, then the first runs to its end, and then the second. The reverse is also run. A process
that sleeps lets the other one run.

Neighbouring calls commute if they use different stores, or if neither changes anything. Schedules that differ
only in the order of such calls are equivalent. One of each class is run, and all are counted.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from moves.watched import Call, Calls

T = TypeVar("T")

MOST_CALLS = 2_000
"""Nothing here needs a tenth of that; who does goes round in circles."""


class Endless(AssertionError):
    """The processes work and work, and never come to an end."""


class Aborted(BaseException):
    """The other process has failed; this one must end."""


@dataclass(frozen=True)
class Made:
    """A call that was made: by whom, and whether it changed what is stored."""

    who: int
    call: Call
    changed: bool

    def conflicts(self, other: "Made") -> bool:
        """Whether the order of the two may matter."""
        return self.call.store == other.call.store and (self.changed or other.changed)


SLEPT = Call("clock", "sleep")


@dataclass
class Race:
    """One run of two processes. `state` tells whether a call changed anything: by identity."""

    plan: Sequence[tuple[int, int | None]]
    """Who runs, and for how many calls; None: to the end."""
    state: Callable[[], object]
    trace: list[Made] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running = False
        self._lock = threading.Condition()
        self._turn: int | None = None
        self._left: int | None = None
        self._phase = -1
        self._done: set[int] = set()
        self._failure: BaseException | None = None

    def calls(self, who: int) -> Calls:
        """What the calls of one process go through."""

        def made(call: Call, effect: Callable[[], T]) -> T:
            if not self.running:
                return effect()
            self._pause(who)
            before = self.state()
            try:
                return effect()
            finally:
                self.trace.append(Made(who, call, self.state() != before))

        return made

    def sleep(self, who: int) -> None:
        """Let the other one run, if it may."""
        if not self.running:
            return
        self.trace.append(Made(who, SLEPT, changed=True))
        if len(self.trace) > MOST_CALLS:
            raise Endless(f"no end after {MOST_CALLS} calls")
        with self._lock:
            other = 1 - who
            if other not in self._done:
                self._turn, self._left = other, None
                # From here on the plan is void: whoever sleeps or ends hands over.
                self._phase = len(self.plan)
                self._lock.notify_all()
                self._wait(who)

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run both to their ends; the first failure is raised here."""
        threads = [
            threading.Thread(target=self._main, args=(who, work), daemon=True)
            for who, work in enumerate(works)
        ]
        self.running = True
        for thread in threads:
            thread.start()
        with self._lock:
            self._next_phase()
            self._lock.notify_all()
        for thread in threads:
            thread.join()
        self.running = False
        if self._failure is not None:
            raise self._failure

    def _main(self, who: int, work: Callable[[], None]) -> None:
        try:
            with self._lock:
                self._wait(who)
            work()
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            if self._failure is None:
                self._failure = error
        with self._lock:
            self._done.add(who)
            if self._turn == who:
                self._next_phase()
            self._lock.notify_all()

    def _pause(self, who: int) -> None:
        if len(self.trace) > MOST_CALLS:
            raise Endless(f"no end after {MOST_CALLS} calls")
        with self._lock:
            if self._left == 0:
                self._next_phase()
                self._lock.notify_all()
                self._wait(who)
            if self._left is not None:
                self._left -= 1

    def _wait(self, who: int) -> None:
        while self._turn != who and self._failure is None:
            self._lock.wait()
        if self._failure is not None:
            raise Aborted

    def _next_phase(self) -> None:
        """Give the turn to the next in the plan that still runs."""
        while True:
            self._phase += 1
            if self._phase >= len(self.plan):
                rest = [who for who in (0, 1) if who not in self._done]
                self._turn, self._left = (rest[0] if rest else None), None
                return
            who, calls = self.plan[self._phase]
            if who not in self._done and calls != 0:
                self._turn, self._left = who, calls
                return


@dataclass
class Explored:
    """How many schedules there are, how many classes of them were run, and in how many of these both
    preemptions took place.
    """

    schedules: int = 0
    runs: int = 0
    twice: int = 0

    def __add__(self, other: "Explored") -> "Explored":
        return Explored(self.schedules + other.schedules, self.runs + other.runs, self.twice + other.twice)

    def falls_short_of(self, least: "Explored") -> bool:
        """Whether there is less of anything."""
        return self.schedules < least.schedules or self.runs < least.runs or self.twice < least.twice


def explore(run: Callable[[Sequence[tuple[int, int | None]]], Race]) -> Explored:
    """Run all schedules with up to two preemptions; `run` raises when one goes wrong."""
    return _explore(run, 0) + _explore(run, 1)


def _explore(run: Callable[[Sequence[tuple[int, int | None]]], Race], first: int) -> Explored:
    second = 1 - first
    seen: set[tuple[int, int]] = set()
    found = Explored()
    i = 0
    while True:
        j, longest, ended = 0, None, False
        while longest is None or j <= longest:
            if (i, j) in seen:
                j += 1
                continue
            race = run([(first, i), (second, j), (first, None), (second, None)])
            found.runs += 1
            found.twice += preemptions(race.trace) > 1
            mine = [made for made in race.trace if made.who == first]
            if len(mine) < i:
                # The first one ends before that: nothing more to see.
                ended = True
                break
            seen |= _same(race.trace, first, i, j)
            calls = len([made for made in race.trace if made.who == second])
            longest = calls if longest is None else max(longest, min(calls, longest + 1))
            j += 1
        if ended:
            break
        found.schedules += j
        i += 1
    return found


def preemptions(trace: Sequence[Made]) -> int:
    """How often a process had to let the other one run that neither slept nor was at its end."""
    last = {made.who: number for number, made in enumerate(trace)}
    return sum(
        made.who != following.who and made.call is not SLEPT and last[made.who] > number
        for number, (made, following) in enumerate(pairwise(trace))
    )


def _same(trace: Sequence[Made], first: int, i: int, j: int) -> set[tuple[int, int]]:
    """The schedules that are the same as the one that gave this trace."""
    mine = [made for made in trace if made.who == first]
    others = [made for made in trace if made.who != first]
    same = {(i, j)}
    segment = others[:j]
    if trace != [*mine[:i], *segment, *mine[i:], *others[j:]]:
        # Somebody slept in between, or ended early.
        return same
    for k in range(i, len(mine) + 1):
        if k > i and (mine[k - 1].call is SLEPT or any(mine[k - 1].conflicts(each) for each in segment)):
            break
        same.add((k, j))
        for m in range(j, len(others)):
            if others[m].call is SLEPT or any(others[m].conflicts(each) for each in mine[k:]):
                break
            same.add((k, m + 1))
    return same
