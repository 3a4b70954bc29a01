"""Candidates for a Lease in a world of its own: clocks that disagree, requests that are lost, processes that
freeze. The API server is a stand-in at its wire: versions, conflicts, merge patches.
"""

import asyncio
import heapq
import itertools
import json
import logging
import math
import random
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast_operator.engine import lease_rules
from holdfast_operator.engine.elector import Elector, LeaseStanding
from holdfast_operator.engine.kube import Conflict, Gone, Kube, KubeError
from holdfast_operator.engine.lease_rules import NOBODY, LeaseRecord, Timing
from holdfast_operator.engine.metrics import Metrics

Json = dict[str, Any]
TIMING = Timing()
NO_CLIENT = ApiClient()
START = datetime(2026, 1, 1, tzinfo=UTC)
SLOWEST, FASTEST = 0.95, 1.05
ANSWER = 4.0
"""A request is given up after so many seconds."""


class World:
    """Time that goes on when nobody has anything to do, and one Lease."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.lease: Json | None = None
        self.version = 0
        self.writes = 0
        self.faults = 0.0
        """How likely a request goes wrong."""
        self.answer_after = 0.0
        """Seconds that every answer takes."""
        self._timers: list[tuple[float, int, Machine, asyncio.Future[None]]] = []
        self._tickets = itertools.count()

    async def sleep(self, machine: "Machine", seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (self.now + seconds, next(self._tickets), machine, future))
        await future

    async def run(self, until: float, check: Callable[[], None]) -> None:
        """Let time go on to `until`; `check` is called whenever somebody did something."""
        while True:
            for _ in range(8):
                await asyncio.sleep(0)
            check()
            if not self._timers or self._timers[0][0] > until:
                self.now = until
                check()
                return
            due, ticket, machine, future = heapq.heappop(self._timers)
            if due < machine.frozen_until:
                heapq.heappush(self._timers, (machine.frozen_until, ticket, machine, future))
                continue
            self.now = max(self.now, due)
            check()
            if not future.done() and not machine.dead:
                future.set_result(None)

    def serve(self, method: str, body: Json | None) -> Json:
        """What the API server does."""
        if method == "GET":
            if self.lease is None:
                raise Gone("no such Lease")
            return json.loads(json.dumps(self.lease))  # type: ignore[no-any-return]
        assert body is not None
        if method == "POST":
            if self.lease is not None:
                raise Conflict("it is there")
            self.lease = {"metadata": {}, "spec": {}}
        elif self.lease is None:
            raise Gone("no such Lease")
        elif body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("it changed")
        self.version += 1
        self.writes += 1
        self.lease["spec"].update(body["spec"])
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return json.loads(json.dumps(self.lease))  # type: ignore[no-any-return]


class Machine:
    """Where one candidate runs: a clock with a pace of its own, which goes on while the process is frozen."""

    def __init__(self, world: World, pace: float = 1.0) -> None:
        self.world = world
        self.pace = pace
        self.frozen_until = -math.inf
        self.dead = False

    def monotonic(self) -> float:
        return self.world.now * self.pace + 1000 / self.pace

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.world.now * self.pace)

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        assert seconds is not None
        if not event.is_set():
            await self.world.sleep(self, seconds / self.pace)

    @property
    def awake(self) -> bool:
        return not self.dead and self.world.now >= self.frozen_until


class Wire(Kube):
    """The way to the API server: an answer may come late or never, whether it was carried out or not."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(NO_CLIENT)
        self._machine = machine

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> Json:
        world, machine = self._machine.world, self._machine
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/ns/leases")
        if world.rng.random() >= world.faults:
            served = world.serve(method, body)
            if world.answer_after:
                await world.sleep(machine, world.answer_after)
            return served
        there, back = world.rng.random() * ANSWER, world.rng.random() * ANSWER
        what = world.rng.choice(["slow", "slow", "lost on the way", "answer lost", "5xx"])
        if what == "5xx":
            raise KubeError("500")
        await world.sleep(machine, there)
        if what == "lost on the way":
            raise KubeError("no answer")
        answer: Json | None = None
        refused: KubeError | None = None
        try:
            answer = world.serve(method, body)
        except KubeError as error:
            refused = error
        await world.sleep(machine, min(back, ANSWER - there))
        if what == "answer lost" or there + back >= ANSWER:
            raise KubeError("no answer")
        if refused is not None:
            raise refused
        assert answer is not None
        return answer


class Candidate:
    """A process that stands by, leads until it doesn't any more, and ends."""

    def __init__(self, world: World, name: str, pace: float = 1.0) -> None:
        self.machine = Machine(world, pace)
        self.metrics = Metrics()
        self.elector = Elector(
            Wire(self.machine),
            self.metrics,
            namespace="ns",
            name="op",
            identity=name,
            timing=TIMING,
            clock=self.machine,
            rng=world.rng,
        )
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        if await self.elector.acquire(self.stop):
            await self.elector.keep()

    @property
    def acts(self) -> bool:
        return self.machine.awake and self.elector.leads()

    def close(self) -> None:
        self.task.cancel()


def play(story: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    asyncio.run(story(World(seed)))


def nothing() -> None:
    """Nothing to check."""


@pytest.mark.parametrize("seed", range(16))
def test_never_two_act_and_always_one_comes(seed: int) -> None:
    async def story(world: World) -> None:
        names = itertools.count()

        def born() -> Candidate:
            return Candidate(world, f"pod-{next(names)}", world.rng.uniform(SLOWEST, FASTEST))

        candidates = [born() for _ in range(3)]
        leaders: set[str] = set()

        def check() -> None:
            acting = [each.elector.identity for each in candidates if each.acts]
            assert len(acting) <= 1, f"{acting} act at {world.now}"
            leaders.update(acting)

        world.faults = 0.3
        for _ in range(30):
            await world.run(world.now + world.rng.uniform(0, 20), check)
            victim = world.rng.choice(candidates)
            match world.rng.choice(["freeze", "kill", "nothing"]):
                case "freeze":
                    victim.machine.frozen_until = world.now + world.rng.uniform(0, 40)
                case "kill":
                    victim.machine.dead = True
            for number, each in enumerate(candidates):
                if each.machine.dead or each.task.done():
                    each.close()
                    candidates[number] = born()
        world.faults = 0.0
        for each in candidates:
            each.machine.frozen_until = -math.inf
        await world.run(world.now + 2 * TIMING.duration, check)
        assert [each.acts for each in candidates].count(True) == 1
        assert len(leaders) > 2
        for each in candidates:
            each.close()

    play(story, seed)


def test_who_stands_by_acts_soon_after_the_leader_died() -> None:
    async def story(world: World) -> None:
        first, second = Candidate(world, "first"), Candidate(world, "second")
        await world.run(60.0, nothing)
        assert (first.acts, second.acts) == (True, False)
        assert second.elector.stale() == ""
        assert [each.metrics.registry.get_sample_value("holdfast_leader") for each in (first, second)] == [
            1,
            0,
        ]
        first.machine.dead = True
        died = world.now
        took: list[float] = []

        def check() -> None:
            if second.acts and not took:
                took.append(world.now - died)

        await world.run(died + 60, check)
        assert took[0] <= TIMING.duration + TIMING.retry_period
        assert took[0] > TIMING.renew_deadline
        assert world.lease is not None
        assert world.lease["spec"]["leaseTransitions"] == 1
        first.close()
        second.close()

    play(story)


def test_a_lease_that_people_delete_is_made_again_by_who_has_it() -> None:
    async def story(world: World) -> None:
        first = Candidate(world, "first")
        await world.run(20.0, nothing)
        world.lease = None
        await world.run(20.0 + 2 * TIMING.retry_period, nothing)
        assert first.acts
        assert world.lease is not None
        assert world.lease["spec"]["holderIdentity"] == "first"
        first.close()

    play(story)


def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    async def story(world: World) -> None:
        first, second = Candidate(world, "first"), Candidate(world, "second")
        await world.run(20.0, nothing)
        assert world.lease is not None
        renewed, after = world.lease["spec"]["renewTime"], 3.9
        world.answer_after = after
        while world.lease["spec"]["renewTime"] == renewed:
            await world.run(world.now + 0.1, nothing)
        asked = world.now
        await world.run(asked + after, nothing)
        world.faults, world.rng.choice = 1.0, lambda _: "5xx"  # type: ignore[assignment,method-assign,misc]
        await world.run(asked + TIMING.renew_deadline + 0.1, nothing)
        assert not first.acts
        first.close()
        second.close()

    play(story)


def test_at_rest_there_is_one_write_a_period_and_no_other() -> None:
    async def story(world: World) -> None:
        candidates = [Candidate(world, f"pod-{number}") for number in range(3)]
        await world.run(10.0, nothing)
        before = world.writes
        await world.run(110.0, nothing)
        least = 100 / TIMING.retry_period
        assert least - 1 <= world.writes - before <= least / 0.8 + 1
        for each in candidates:
            each.close()

    play(story)


def test_a_lease_that_is_given_back_needs_no_wait() -> None:
    async def story(world: World) -> None:
        first, second = Candidate(world, "first"), Candidate(world, "second")
        await world.run(20.0, nothing)
        first.task.cancel()
        await first.elector.release()
        assert not first.elector.leads()
        assert world.lease is not None
        assert world.lease["spec"]["holderIdentity"] == NOBODY
        await world.run(20.0 + TIMING.retry_period, nothing)
        assert second.acts
        first.close()
        second.close()

    play(story)


def test_whose_lease_was_lost_finds_out_when_asked() -> None:
    async def story(world: World) -> None:
        first = Candidate(world, "first")
        await world.run(1.0, nothing)
        assert await first.elector.confirm() is LeaseStanding.HELD
        assert world.lease is not None
        world.lease["spec"]["holderIdentity"] = "somebody"
        assert await first.elector.confirm() is LeaseStanding.LOST
        assert not first.elector.leads()
        await world.run(1.0 + TIMING.retry_period, nothing)
        assert first.task.done()
        first.close()

    play(story)


def test_a_server_that_does_not_answer_says_nothing_of_the_lease() -> None:
    async def story(world: World) -> None:
        first = Candidate(world, "first")
        await world.run(1.0, nothing)
        world.faults, choice = 1.0, world.rng.choice
        world.rng.choice = lambda _: "5xx"  # type: ignore[assignment,method-assign,misc]
        assert await first.elector.confirm() is LeaseStanding.UNKNOWN
        assert first.elector.leads()
        await world.run(1.0 + TIMING.renew_deadline, nothing)
        assert not first.elector.leads()
        world.rng.choice = choice  # type: ignore[method-assign]
        first.close()

    play(story)


def test_one_that_can_not_read_the_lease_is_not_ready_and_says_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        world.faults = 1.0
        world.rng.choice = lambda _: "5xx"  # type: ignore[assignment,method-assign,misc]
        first = Candidate(world, "first")
        await world.run(60.0, nothing)
        assert first.elector.stale() == "Lease ns/op can't be requested: 500"
        assert not first.acts
        (said,) = (record for record in caplog.records if "can't be requested" in record.getMessage())
        assert said.levelno == logging.WARNING
        first.close()

    play(story)


@pytest.mark.parametrize(("duration", "deadline", "retry"), [(8, 8, 2), (12, 2, 2), (12, 8, 0), (1, 2, 3)])
def test_a_timing_that_could_give_the_lease_to_two_is_refused(
    duration: float, deadline: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="must be longer than"):
        Timing(duration=duration, renew_deadline=deadline, retry_period=retry)


def test_a_longer_lease_of_another_is_respected() -> None:
    record = LeaseRecord(version="1", holder="other", renewed="x", duration=30.0)
    assert lease_rules.free_at(lease_rules.sighted(None, record, 100.0), "me", TIMING) == 130.0


def test_a_lease_that_somebody_wrote_by_hand_is_one_that_nobody_has() -> None:
    record = LeaseRecord.of({"metadata": {"resourceVersion": "4"}, "spec": {"holderIdentity": None}})
    assert lease_rules.free_at(lease_rules.sighted(None, record, 5.0), "me", TIMING) == -math.inf
    assert lease_rules.taken(record, "me", TIMING, START)["leaseTransitions"] == 1


def test_renewals_that_go_wrong_are_told_once_with_their_cause_and_when_they_go_well_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def silence(_method: str, _body: Json | None) -> Json:
        raise TimeoutError

    async def story(world: World) -> None:
        first = Candidate(world, "first")
        await world.run(10.0, nothing)
        world.faults = 1.0
        world.rng.choice = lambda _: "5xx"  # type: ignore[assignment,method-assign,misc]
        await world.run(world.now + 2.5 * TIMING.retry_period, nothing)
        world.faults = 0.0
        await world.run(world.now + TIMING.retry_period, nothing)
        assert first.acts
        world.serve = silence  # type: ignore[method-assign]
        await world.run(world.now + 2 * TIMING.renew_deadline, nothing)
        assert not first.acts
        first.close()

    play(story)
    said = [record.getMessage() for record in caplog.records if "renewed" in record.getMessage()]
    assert said == [
        "Lease ns/op could not be renewed: 500",
        "Lease ns/op is renewed again",
        "Lease ns/op could not be renewed: no response in time",
        f"Lease ns/op was not renewed for {TIMING.renew_deadline:g} s",
    ]
