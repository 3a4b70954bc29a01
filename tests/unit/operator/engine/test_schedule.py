"""The keyed queue: its schedule by example and by property, and its workers with a simulated clock."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.queue import KeyedQueue, Result
from holdfast_operator.engine.schedule import Backoff, Schedule

STILL = Backoff(first=1.0, limit=8.0, jitter=0.0)


def schedule() -> Schedule[str]:
    return Schedule(backoff=STILL)


def test_a_key_that_waits_is_not_added_twice() -> None:
    s = schedule()
    s.add("a", 0.0)
    s.add("a", 0.0)
    assert s.pop(0.0) == "a"
    assert s.pop(0.0) is None


def test_a_key_added_while_worked_on_comes_back_once_and_only_afterwards() -> None:
    s = schedule()
    s.add("a", 0.0)
    assert s.pop(0.0) == "a"
    s.add("a", 1.0)
    s.add("a", 2.0)
    assert s.pop(3.0) is None
    s.done("a", 4.0)
    assert s.pop(4.0) == "a"
    s.done("a", 5.0)
    assert s.pop(100.0) is None
    assert "a" not in s


def test_an_earlier_time_wins_over_a_later_one_and_never_the_reverse() -> None:
    s = schedule()
    s.add("a", 0.0, after=60.0)
    s.add("a", 0.0, after=5.0)
    s.add("a", 0.0, after=30.0)
    assert s.next_due(0.0) == 5.0
    assert s.pop(4.9) is None
    assert s.pop(5.0) == "a"
    s.done("a", 5.0)
    assert s.pop(1000.0) is None


def test_failures_double_the_delay_up_to_the_limit_and_a_success_forgets_them() -> None:
    s = schedule()
    s.add("a", 0.0)
    delays = []
    now = 0.0
    for _ in range(6):
        due = s.next_due(now)
        assert due is not None
        delays.append(due - now)
        now = due
        assert s.pop(now) == "a"
        s.done("a", now, failed=True)
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert s.failures("a") == 6
    s.add("a", now)
    assert s.pop(now) == "a"
    s.done("a", now)
    assert s.failures("a") == 0


def test_a_change_cuts_the_delay_short_but_the_next_failure_still_counts_up() -> None:
    s = schedule()
    for now, _ in enumerate(range(3)):
        s.add("a", float(now))
        assert s.pop(float(now)) == "a"
        s.done("a", float(now), failed=True)
    assert s.next_due(2.0) == 6.0


def test_a_hot_key_goes_behind_all_others() -> None:
    s = schedule()
    for key in ("hot", "b", "c"):
        s.add(key, 0.0)
    assert s.pop(0.0) == "hot"
    s.add("hot", 0.0)
    s.done("hot", 0.0)
    assert [s.pop(0.0), s.pop(0.0), s.pop(0.0)] == ["b", "c", "hot"]


def test_waiting_and_working_times_tell_whether_the_queue_makes_progress() -> None:
    s = schedule()
    s.add("a", 0.0)
    s.add("b", 0.0, after=10.0)
    assert (s.depth(5.0), s.oldest_wait(5.0)) == (1, 5.0)
    s.pop(6.0)
    assert (s.depth(9.0), s.oldest_wait(9.0), s.oldest_work(9.0), s.working()) == (0, 0.0, 3.0, 1)
    assert (s.depth(15.0), s.oldest_wait(15.0)) == (1, 5.0)


def test_jitter_only_shortens_a_delay() -> None:
    rng = random.Random(7)
    delays = [Backoff(first=1.0, limit=60.0, jitter=0.2).delay(4, rng) for _ in range(200)]
    assert 6.4 <= min(delays) < max(delays) <= 8.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "look", "pop", "done", "fail", "again", "tick"]),
            st.sampled_from("abc"),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_no_key_is_lost_or_worked_on_twice(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens, a key that was added after its last pop is handed out again in the end."""
    s, now = schedule(), 0.0
    working: set[str] = set()
    owed: set[str] = set()
    for step, key, amount in steps:
        if step in {"add", "look"}:
            s.add(key, now, after=float(amount), routine=step == "look")
            owed.add(key)
        elif step == "pop":
            got = s.pop(now)
            if got is not None:
                assert got not in working
                working.add(got)
                owed.discard(got)
        elif step in {"done", "fail", "again"} and key in working:
            working.discard(key)
            s.done(key, now, failed=step == "fail", requeue_after=0.0 if step == "again" else None)
            if step in {"fail", "again"}:
                owed.add(key)
        else:
            now += amount
    for key in working:
        s.done(key, now)
    handed = Counter[str]()
    while (due := s.next_due(now)) is not None:
        now = max(now, due)
        got = s.pop(now)
        assert got is not None
        handed[got] += 1
        s.done(got, now)
    assert owed <= set(handed)
    assert set(handed.values()) <= {1}


class FakeClock:
    """Moves only when told; a wait ends when its time has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._moved = asyncio.Event()

    def monotonic(self) -> float:
        return self.now

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        deadline = None if seconds is None else self.now + seconds
        while not event.is_set() and (deadline is None or self.now < deadline):
            self._moved.clear()
            waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._moved.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    async def move(self, seconds: float) -> None:
        self.now += seconds
        self._moved.set()
        await settle()


async def settle() -> None:
    """Let every task run as far as it can without time."""
    for _ in range(50):
        await asyncio.sleep(0)


class Bench:
    """A queue whose work waits until the test lets it go on."""

    def __init__(self, *, concurrency: int = 2, real_clock: bool = False) -> None:
        self.clock = FakeClock()
        self.started: list[str] = []
        self.gates: dict[str, asyncio.Future[Result]] = {}
        self.queue: KeyedQueue[str] = KeyedQueue(
            self.work,
            concurrency=concurrency,
            backoff=STILL,
            clock=SystemClock() if real_clock else self.clock,  # type: ignore[arg-type]
        )

    async def work(self, key: str) -> Result:
        self.started.append(key)
        self.gates[key] = asyncio.get_running_loop().create_future()
        return await self.gates[key]


def test_workers_are_bounded_and_a_failure_comes_back_after_its_backoff() -> None:
    async def story() -> None:
        bench = Bench()
        runner = asyncio.create_task(bench.queue.run())
        for key in "abc":
            bench.queue.add(key)
        await settle()
        assert bench.started == ["a", "b"]
        bench.gates["a"].set_exception(RuntimeError("boom"))
        await settle()
        assert bench.started == ["a", "b", "c"]
        bench.gates["b"].set_result(Result())
        bench.gates["c"].set_result(Result(requeue_after=5.0))
        await settle()
        await bench.clock.move(0.9)
        assert bench.started == ["a", "b", "c"]
        await bench.clock.move(0.1)
        assert bench.started == ["a", "b", "c", "a"]
        bench.gates["a"].set_result(Result())
        await settle()
        await bench.clock.move(4.0)
        assert bench.started == ["a", "b", "c", "a", "c"]
        bench.gates["c"].set_result(Result())
        await settle()
        assert await bench.queue.stop(1.0)
        await asyncio.wait_for(runner, 5)

    asyncio.run(story())


def test_a_worker_that_gets_free_takes_what_waits_although_all_others_hang() -> None:
    """With the real clock: what wakes the queue must come after the worker is free."""

    async def story() -> None:
        bench = Bench(real_clock=True)
        runner = asyncio.create_task(bench.queue.run())
        for key in ("hangs", "ends", "waits"):
            bench.queue.add(key)
        await settle()
        assert bench.started == ["hangs", "ends"]
        bench.gates["ends"].set_result(Result())
        await settle()
        assert bench.started == ["hangs", "ends", "waits"]
        assert not await bench.queue.stop(0.01)
        await asyncio.wait_for(runner, 5)

    asyncio.run(story())


@pytest.mark.parametrize("finishes", [True, False])
def test_stop_lets_the_current_work_finish_and_starts_nothing_more(finishes: bool) -> None:
    async def story() -> None:
        bench = Bench(concurrency=1)
        runner = asyncio.create_task(bench.queue.run())
        bench.queue.add("a")
        bench.queue.add("b")
        await settle()
        stopping = asyncio.create_task(bench.queue.stop(30.0 if finishes else 0.01))
        await settle()
        if finishes:
            bench.gates["a"].set_result(Result())
        assert await stopping is finishes
        await asyncio.wait_for(runner, 5)
        assert bench.started == ["a"]

    asyncio.run(story())
