"""Keys that are due, first come, first served, but for those whose lane is full: a part of `schedule`.

Invariants
- Each owner has a queue. They take turns, but for those who have all the workers that one may have.
- A key is in a queue at most once, and waits as long as it is there, whichever lane is full.
- A key that found its lane full goes before all of the queue that came after it as soon as there is room.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

IsFull = Callable[[Hashable], bool]


class ReadyQueue(Generic[K]):
    """Those who wait for a worker, by whose they are."""

    def __init__(
        self,
        owner: Callable[[K], Hashable],
        is_full: IsFull,
        new_queue: "Callable[[], OwnerQueue[K]]",
    ) -> None:
        """`owner` of a key never changes; `is_full` is asked of owners whenever one may go."""
        self._owner = owner
        self._is_full = is_full
        self._new_queue = new_queue
        self._queues: OrderedDict[Hashable, OwnerQueue[K]] = OrderedDict()
        """By owner, whose turn was last at the end; none of them is empty."""

    def append(self, key: K) -> None:
        """Have a key wait that doesn't yet."""
        self._queues.setdefault(self._owner(key), self._new_queue()).append(key)

    def pop(self) -> tuple[K, Hashable] | None:
        """The key whose turn it is and whose lane has room, with its lane; None where there is none."""
        for owner in self._with_room():
            if (found := self._queues[owner].pop()) is not None:
                self._queues.move_to_end(owner)
                self._drop_empty(owner)
                return found
        return None

    def discard(self, key: K) -> None:
        """Have a key wait no longer, if it does."""
        owner = self._owner(key)
        if owner in self._queues:
            self._queues[owner].discard(key)
            self._drop_empty(owner)

    @property
    def firsts(self) -> Iterator[K]:
        """Of each queue that has one, the key that waits for nothing but a worker, and the longest."""
        firsts = (self._queues[owner].first for owner in self._with_room())
        return (key for key in firsts if key is not None)

    @property
    def may_go(self) -> bool:
        """Whether one may be there that `pop` gives; where not, there is none."""
        return any(self._queues[owner].may_go for owner in self._with_room())

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _with_room(self) -> list[Hashable]:
        return [owner for owner in self._queues if not self._is_full(owner)]

    def _drop_empty(self, owner: Hashable) -> None:
        if not self._queues[owner]:
            del self._queues[owner]


class OwnerQueue(Generic[K]):
    """Those of one owner."""

    def __init__(self, lane: Callable[[K], Hashable], is_full: IsFull) -> None:
        """`lane` is asked when it is a key's turn, and `is_full` whenever one may go."""
        self._lane = lane
        self._is_full = is_full
        self._ready: OrderedDict[K, int] = OrderedDict()
        """By key its place in the order of those that came."""
        self._parked: dict[Hashable, OrderedDict[K, int]] = {}
        """The same of those that found their lane full, by lane; none of them is empty."""
        self._places = itertools.count()

    def append(self, key: K) -> None:
        """Have a key wait that doesn't yet."""
        self._ready[key] = next(self._places)

    def pop(self) -> tuple[K, Hashable] | None:
        """The first key whose lane has room, with its lane; None where there is none."""
        parked = min((self._first_of(lane) for lane in self._parked if not self._is_full(lane)), default=None)
        while self._ready:
            key, place = next(iter(self._ready.items()))
            if parked is not None and parked[0] < place:
                break
            del self._ready[key]
            lane = self._lane(key)
            if not self._is_full(lane):
                return key, lane
            self._parked.setdefault(lane, OrderedDict())[key] = place
        if parked is None:
            return None
        _, key, lane = parked
        self._unpark(key, lane)
        return key, lane

    def discard(self, key: K) -> None:
        """Have a key wait no longer, if it does."""
        self._ready.pop(key, None)
        for lane in list(self._parked):
            self._unpark(key, lane)

    @property
    def first(self) -> K | None:
        """The key that waits for nothing but a worker, and the longest; None where there is none."""
        return next(iter(self._ready), None)

    @property
    def may_go(self) -> bool:
        """Whether one may be there that `pop` gives; where not, there is none."""
        return bool(self._ready) or not all(map(self._is_full, self._parked))

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._parked.values()))

    def _first_of(self, lane: Hashable) -> tuple[int, K, Hashable]:
        """The key of a lane that has been parked the longest, after its place (no two are equal)."""
        key, place = next(iter(self._parked[lane].items()))
        return place, key, lane

    def _unpark(self, key: K, lane: Hashable) -> None:
        parked = self._parked[lane]
        parked.pop(key, None)
        if not parked:
            del self._parked[lane]
