"""The due keys of `schedule`: first come, first served, except for keys whose lane is full.

Invariants
- Each owner has a queue. Owners take turns, except for owners that already have all their workers.
- A key is in a queue at most once, and stays there while its lane is full.
- A key that found its lane full keeps its place: as soon as the lane has room, it goes before all later keys.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

IsFull = Callable[[Hashable], bool]


class ReadyQueue(Generic[K]):
    """The keys that wait for a worker, by owner."""

    def __init__(
        self,
        owner: Callable[[K], Hashable],
        is_full: IsFull,
        new_queue: "Callable[[], OwnerQueue[K]]",
    ) -> None:
        """Creates an empty queue. A key's `owner` never changes. `is_full` is called when a key may go."""
        self._owner = owner
        self._is_full = is_full
        self._new_queue = new_queue
        self._queues: OrderedDict[Hashable, OwnerQueue[K]] = OrderedDict()
        """By owner. The owner whose turn was last is at the end. None of the queues is empty."""

    def append(self, key: K) -> None:
        """Adds a key that isn't waiting yet."""
        self._queues.setdefault(self._owner(key), self._new_queue()).append(key)

    def pop(self) -> tuple[K, Hashable] | None:
        """Removes and returns the next key whose lane has room, with its lane, or None."""
        for owner in self._with_room():
            if (found := self._queues[owner].pop()) is not None:
                self._queues.move_to_end(owner)
                self._drop_empty(owner)
                return found
        return None

    def discard(self, key: K) -> None:
        """Removes a key, if it waits."""
        owner = self._owner(key)
        if owner in self._queues:
            self._queues[owner].discard(key)
            self._drop_empty(owner)

    @property
    def firsts(self) -> Iterator[K]:
        """For each queue, the key that has waited longest, without keys whose lane is full."""
        firsts = (self._queues[owner].first for owner in self._with_room())
        return (key for key in firsts if key is not None)

    @property
    def may_go(self) -> bool:
        """Whether `pop` may return a key. If this is False, it returns None."""
        return any(self._queues[owner].may_go for owner in self._with_room())

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _with_room(self) -> list[Hashable]:
        return [owner for owner in self._queues if not self._is_full(owner)]

    def _drop_empty(self, owner: Hashable) -> None:
        if not self._queues[owner]:
            del self._queues[owner]


class OwnerQueue(Generic[K]):
    """The keys of one owner."""

    def __init__(self, lane: Callable[[K], Hashable], is_full: IsFull) -> None:
        """Creates an empty queue. `lane` is called at a key's turn, and `is_full` whenever a key may go."""
        self._lane = lane
        self._is_full = is_full
        self._ready: OrderedDict[K, int] = OrderedDict()
        """By key: its place in the order of arrival."""
        self._parked: dict[Hashable, OrderedDict[K, int]] = {}
        """By lane: the keys that found it full, with their places. None of them is empty."""
        self._places = itertools.count()

    def append(self, key: K) -> None:
        """Adds a key that isn't waiting yet."""
        self._ready[key] = next(self._places)

    def pop(self) -> tuple[K, Hashable] | None:
        """Removes and returns the first key whose lane has room, with its lane, or None."""
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
        """Removes a key, if it waits."""
        self._ready.pop(key, None)
        for lane in list(self._parked):
            self._unpark(key, lane)

    @property
    def first(self) -> K | None:
        """The key that has waited longest, without keys whose lane is full. None if there is none."""
        return next(iter(self._ready), None)

    @property
    def may_go(self) -> bool:
        """Whether `pop` may return a key. If this is False, it returns None."""
        return bool(self._ready) or not all(map(self._is_full, self._parked))

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._parked.values()))

    def _first_of(self, lane: Hashable) -> tuple[int, K, Hashable]:
        """Returns the longest parked key of a lane, after its place. No two places are equal."""
        key, place = next(iter(self._parked[lane].items()))
        return place, key, lane

    def _unpark(self, key: K, lane: Hashable) -> None:
        parked = self._parked[lane]
        parked.pop(key, None)
        if not parked:
            del self._parked[lane]
