"""Nobody waits for what another's object is at: a hot one, a place that hangs, all at once after a start.

Time is played: workers take keys and are busy for as long as the story says.
"""

import heapq
import random
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from holdfast_operator.api.names import Kind
from holdfast_operator.app import Operator, Options
from holdfast_operator.engine.kube import Kube, ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.schedule import Backoff, Schedule

Key = tuple[str, int]


class Play:
    """Workers on a schedule; notes how long each key waited from being due to being worked on."""

    def __init__(
        self, workers: int, takes: Callable[[Key], float], *, lanes: bool = True, owners: bool = False
    ) -> None:
        self.now = 0.0
        self.waits: dict[Key, float] = {}
        """Of those that something happened to."""
        self.worked: Counter[Key] = Counter()
        self.schedule: Schedule[Key] = Schedule(
            backoff=Backoff(),
            rng=random.Random(1),
            owner=(lambda key: key[0]) if owners else (lambda _: None),
            most_of_owner=workers - workers // 4 if owners else workers,
            lane=(lambda key: key[0]) if lanes else (lambda _: None),
            most_of_lane=max(1, workers // 2),
        )
        self._workers = workers
        self._takes = takes
        self._due: dict[Key, float] = {}
        self._busy: list[tuple[float, Key]] = []
        self._events: list[tuple[float, Key, bool]] = []

    def at(self, when: float, key: Key, *, routine: bool = False) -> None:
        """Something happens to `key` then, or it is only to be looked at."""
        heapq.heappush(self._events, (when, key, routine))

    def run(self, until: float) -> None:
        while self.now < until:
            while self._events and self._events[0][0] <= self.now:
                _, key, routine = heapq.heappop(self._events)
                self.schedule.add(key, self.now, routine=routine)
                if not routine:
                    self._due.setdefault(key, self.now)
            while self._busy and self._busy[0][0] <= self.now:
                _, key = heapq.heappop(self._busy)
                self.schedule.done(key, self.now)
            while len(self._busy) < self._workers and (key := self.schedule.pop(self.now)) is not None:
                if (due := self._due.pop(key, None)) is not None:
                    self.waits[key] = max(self.waits.get(key, 0.0), self.now - due)
                self.worked[key] += 1
                heapq.heappush(self._busy, (self.now + self._takes(key), key))
            nexts = [each[0][0] for each in (self._events, self._busy) if each]
            self.now = min([*nexts, until])


def longest(play: Play, *, but: str) -> float:
    return max(wait for (place, _), wait in play.waits.items() if place != but)


@pytest.mark.parametrize(("workers", "takes"), [(16, 0.05), (1, 0.005)])
def test_one_hot_object_delays_nobody_by_more_than_a_second(workers: int, takes: float) -> None:
    rng = random.Random(7)
    play = Play(workers, lambda key: 0.3 if key == ("here", 0) else takes)
    for tick in range(6000):
        play.at(tick * 0.01, ("here", 0))
    for number in range(1, 1000):
        play.at(rng.uniform(0, 60), ("here", number))
    play.run(70)
    others = [wait for key, wait in play.waits.items() if key != ("here", 0)]
    assert len(others) == 999
    assert max(others) <= 1.0
    assert play.worked["here", 0] >= 60 / 0.3 * 0.8, "nor is it neglected itself"


@pytest.mark.parametrize("routine", [True, False])
def test_a_thousand_looks_due_at_once_delay_no_change_by_more_than_a_second(routine: bool) -> None:
    """As when a tick finds that a store's upkeep has touched all of it, while one object is hot."""
    rng = random.Random(11)
    play = Play(16, lambda _: 0.2)
    for number in range(1, 1000):
        play.at(1.0, ("here", number), routine=routine)
    for tick in range(600):
        play.at(tick * 0.05, ("here", 0))
    changed = [("here", number) for number in rng.sample(range(1, 1000), 50)]
    for key in changed:
        play.at(rng.uniform(1.1, 25), key)
    play.run(40)
    delays = [play.waits[key] for key in changed]
    if routine:
        assert max(delays) <= 1.0
        assert len(play.worked) == 1000, "and all the others are looked at too"
        assert play.schedule.depth(play.now) == 0
    else:
        assert max(delays) > 10.0, "the story must be one that needs the difference"


def test_changes_without_end_leave_every_fourth_turn_to_the_routine() -> None:
    schedule: Schedule[Key] = Schedule()
    for number in range(3):
        schedule.add(("rest", number), 0.0, routine=True)
    for number in range(10):
        schedule.add(("changed", number), 0.0)
    handed = [schedule.pop(0.0) for _ in range(13)]
    places = "".join(key[0][0] for key in handed if key is not None)
    assert places == "cccr" * 3 + "c"
    assert [key for key in handed if key and key[0] == "changed"] == [("changed", n) for n in range(10)]


def test_what_waits_for_a_look_goes_with_the_changes_once_something_happened_to_it() -> None:
    schedule: Schedule[str] = Schedule()
    for key in ("a", "b", "c"):
        schedule.add(key, 0.0, routine=True)
    schedule.add("c", 1.0)
    schedule.add("c", 2.0, routine=True)
    assert schedule.depth(2.0) == 3
    assert schedule.pop(2.0) == "c"
    schedule.add("c", 3.0, routine=True)
    schedule.add("c", 4.0)
    schedule.add("c", 5.0, routine=True)
    schedule.done("c", 6.0)
    assert schedule.pop(6.0) == "c", "also where it happened while it was worked on"
    schedule.done("c", 7.0, requeue_after=0.0)
    assert schedule.pop(7.0) == "c", "it goes on with what it was begun for"
    schedule.done("c", 8.0, requeue_after=1.0)
    assert [schedule.pop(9.0), schedule.pop(9.0), schedule.pop(9.0)] == ["a", "b", "c"]


def test_the_operator_knows_what_is_only_looked_at() -> None:
    operator = Operator(Options(data_dir=Path("/nowhere")), Kube(ApiClient(Configuration())), Metrics())
    operator._acts = True
    catalog = ObjectKey(Kind.CATALOG, "ns", "demo")
    keys = [ObjectKey(Kind.STORAGE_COLLECTION, "ns", f"c{number}") for number in range(4)]
    columns = [{"name": "id", "type": "int64"}]
    spec = {"catalogRef": {"name": catalog.name}, "columns": columns, "key": ["id"]}
    for key in keys:
        operator._cache.put(key, body_of(key, 1, spec))
    operator._on_event(catalog, "ADDED", body_of(catalog, 2, {"organizationId": str(uuid.uuid4())}))
    operator._on_event(keys[3], "MODIFIED", body_of(keys[3], 3, spec))
    now = operator._clock.monotonic() + 1
    handed = [operator._queue._schedule.pop(now) for _ in range(5)]
    assert handed == [catalog, keys[3], keys[0], keys[1], keys[2]]


def body_of(key: ObjectKey, version: int, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": key.name, "namespace": key.namespace, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize("lanes", [True, False])
def test_a_location_that_hangs_takes_half_of_the_workers_at_most(lanes: bool) -> None:
    rng = random.Random(3)
    play = Play(16, lambda key: 30.0 if key[0] == "hung" else 0.05, lanes=lanes)
    for number in range(20):
        play.at(0.0, ("hung", number))
    for number in range(500):
        play.at(rng.uniform(0, 60), (f"place-{number % 7}", number))
    play.run(90)
    if lanes:
        assert longest(play, but="hung") <= 1.0
    else:
        assert longest(play, but="hung") > 20.0, "the story must be one that lanes are needed for"


@pytest.mark.parametrize("workers", [1, 16])
@pytest.mark.parametrize("takes", [3.0, 0.3])
@pytest.mark.parametrize("owners", [True, False])
def test_who_has_many_objects_that_take_long_delays_nobody_else(
    workers: int, takes: float, owners: bool
) -> None:
    """As many places as objects: no lane is ever full."""
    rng = random.Random(5)
    play = Play(workers, lambda key: takes if key[0] == "many" else 0.05, lanes=False, owners=owners)
    for number in range(4000 * workers // 16 // round(takes * 10)):
        play.at(0.0, ("many", number))
    for number in range(6):
        play.at(rng.uniform(1, 10), (f"few-{number % 2}", number))
    play.run(40)
    if not owners:
        assert longest(play, but="many") > 5 * takes, "the story must be one that needs turns"
    elif workers == 1:
        assert longest(play, but="many") <= 4 * takes, "every third turn is theirs"
    else:
        assert longest(play, but="many") <= 0.2, "a quarter of the workers is never theirs"
    assert play.worked.total() >= (40 - 10) / takes * workers * 0.7, "and no worker rests that may work"


def test_an_owner_who_has_all_its_workers_is_not_what_the_queue_hangs_on() -> None:
    schedule: Schedule[Key] = Schedule(owner=lambda key: key[0], most_of_owner=2)
    for number in range(4):
        schedule.add(("many", number), 0.0)
    assert [schedule.pop(0.0) for _ in range(3)] == [("many", 0), ("many", 1), None]
    assert (schedule.next_due(50.0), schedule.oldest_wait(50.0), schedule.depth(50.0)) == (None, 0.0, 2)
    schedule.forget(("many", 2))
    schedule.done(("many", 0), 50.0)
    assert schedule.next_due(50.0) == 50.0
    assert schedule.pop(50.0) == ("many", 3)
    schedule.add(("few", 0), 50.0)
    assert schedule.pop(50.0) == ("few", 0)
    assert schedule.pop(50.0) is None


def test_owners_take_turns_where_none_has_more_workers_than_another() -> None:
    schedule: Schedule[Key] = Schedule(owner=lambda key: key[0])
    for owner in "abc":
        for number in range(3):
            schedule.add((owner, number), 0.0)
    handed = []
    while (key := schedule.pop(0.0)) is not None:
        handed.append(key)
        schedule.done(key, 0.0)
    assert handed == [(owner, number) for number in range(3) for owner in "abc"]


def test_a_thousand_at_once_are_all_served_and_each_once() -> None:
    play = Play(16, lambda _: 0.1)
    for number in range(1000):
        play.at(number * 1e-6, (f"place-{number % 3}", number))
    play.run(20)
    assert set(play.worked.values()) == {1}
    assert len(play.worked) == 1000
    assert max(play.waits.values()) <= 1000 * 0.1 / 16 + 1.0, "places take turns, and no worker rests"
    assert play.schedule.depth(play.now) == 0


def test_what_waits_for_its_lane_is_not_what_waits_for_a_worker() -> None:
    schedule: Schedule[Key] = Schedule(lane=lambda key: key[0], most_of_lane=2)
    keys = [("hung", number) for number in range(5)]
    for key in keys:
        schedule.add(key, 0.0)
    assert [schedule.pop(1.0), schedule.pop(1.0), schedule.pop(1.0)] == [keys[0], keys[1], None]
    assert schedule.depth(100.0) == 3
    assert schedule.oldest_wait(100.0) == 0.0, "the queue is not stuck"
    assert schedule.next_due(100.0) is None
    schedule.forget(keys[2])
    schedule.done(keys[0], 100.0)
    assert schedule.next_due(100.0) == 100.0
    assert schedule.pop(100.0) == keys[3]
    assert schedule.pop(100.0) is None
    schedule.done(keys[1], 101.0)
    assert schedule.pop(101.0) == keys[4]


def test_a_key_that_changes_its_lane_is_counted_where_it_began() -> None:
    place = {"moving": "old"}
    schedule: Schedule[str] = Schedule(lane=place.get, most_of_lane=1)
    schedule.add("moving", 0.0)
    assert schedule.pop(0.0) == "moving"
    place["moving"] = "new"
    schedule.done("moving", 1.0)
    place["other"] = "old"
    schedule.add("other", 1.0)
    assert schedule.pop(1.0) == "other"
