"""How many Spark jobs run at once: the cluster is counted, and there is never one too many."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from holdfast_operator.__main__ import _parser
from holdfast_operator.api.names import Kind
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.sparkapps.adapter import AppState, Launch, SparkAdapter, Unfinished
from holdfast_operator.sparkapps.slots import Caps, Slots


def collection(name: str, namespace: str = "ns") -> ObjectKey:
    return ObjectKey(Kind.STORAGE_COLLECTION, namespace, name)


def app(owner: ObjectKey, number: int = 1) -> Unfinished:
    return Unfinished(owner, f"uid-{owner.name}", f"{owner.name}-{number}")


A, B, C = (collection(each) for each in "abc")
ELSEWHERE = collection("a", "elsewhere")


class Clock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Cluster(SparkAdapter):
    """Tells what runs; an answer is given when `answer` is set."""

    def __init__(self) -> None:
        self.there: set[Unfinished] = set()
        self.asked = 0
        self.question = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()

    async def unfinished(self, namespaces: Sequence[str]) -> Collection[Unfinished]:
        self.asked += 1
        self.question.set()
        found = set(self.there)
        await self.answer.wait()
        return found

    async def launch(self, launch: Launch) -> None:
        raise NotImplementedError

    async def observe(self, owner: ObjectKey, owner_uid: str) -> tuple[AppState, ...]:
        raise NotImplementedError

    async def cancel(self, owner: ObjectKey, app: AppState) -> None:
        raise NotImplementedError


class World:
    def __init__(self, **caps: int) -> None:
        self.clock = Clock()
        self.cluster = Cluster()
        self.shown: set[Unfinished] = set()
        self.slots = Slots(Caps(**caps), self.cluster, self.clock, self.shown_by)

    async def shown_by(self, owner: ObjectKey) -> frozenset[Unfinished]:
        return frozenset(each for each in self.shown if each.owner == owner)

    async def full(self, key: ObjectKey) -> str | None:
        return await self.slots.full(key)

    def launch(self, key: ObjectKey) -> bool:
        with self.slots.taken(key) as there:
            if there:
                self.cluster.there.add(app(key))
                self.slots.launched(app(key))
            return there


def run(story: Any) -> None:
    asyncio.run(story)


def test_without_caps_nothing_is_asked_of_the_cluster() -> None:
    async def story() -> None:
        world = World()
        assert await world.full(A) is None
        assert all(world.launch(each) for each in (A, B, C))
        assert world.cluster.asked == 0

    run(story())


def test_the_last_slot_is_for_one_of_those_that_saw_it_free() -> None:
    async def story() -> None:
        world = World(in_all=2)
        world.cluster.there = world.shown = {app(C)}
        assert [await world.full(each) for each in (A, B)] == [None, None]
        assert [world.launch(each) for each in (A, B)] == [True, False]
        told = await world.full(B)
        assert told == "2 Spark jobs run, as many as --spark-max-jobs allows; waiting for one to end"

    run(story())


def test_a_slot_is_free_again_when_a_job_has_ended() -> None:
    async def story() -> None:
        world = World(in_all=1)
        await world.full(A)
        assert world.launch(A)
        world.clock.now = 3.0
        assert await world.full(B) is not None
        world.cluster.there.clear()
        assert await world.full(B) is not None, "the answer is fresh"
        world.clock.now = 6.0
        assert await world.full(B) is None

    run(story())


def test_each_namespace_has_its_own_cap() -> None:
    async def story() -> None:
        world = World(in_a_namespace=1)
        await world.full(A)
        assert world.launch(A)
        assert "1 Spark job runs in namespace ns, as many as" in str(await world.full(B))
        assert await world.full(ELSEWHERE) is None
        assert world.launch(ELSEWHERE)

    run(story())


def test_a_launch_during_a_question_counts_though_the_answer_does_not_know_it() -> None:
    async def story() -> None:
        world = World(in_all=1)
        world.cluster.answer.clear()
        asking = asyncio.create_task(world.full(B))
        await world.cluster.question.wait()
        assert world.launch(A)
        world.cluster.answer.set()
        assert await asking is not None
        world.clock.now = 3.0
        assert await world.full(B) is not None
        assert len(world.cluster.there) == 1

    run(story())


def test_a_launch_that_fails_counts_until_the_cluster_is_asked_again() -> None:
    """Nobody knows whether it was made."""

    async def story() -> None:
        world = World(in_all=1)
        await world.full(A)
        with world.slots.taken(A):
            world.slots.launched(app(A))
        assert await world.full(B) is not None
        world.clock.now = 3.0
        assert await world.full(B) is None

    run(story())


def test_what_this_process_launched_counts_before_any_status_shows_it() -> None:
    async def story() -> None:
        world = World(in_all=1)
        await world.full(A)
        assert world.launch(A)
        for now in (3.0, 6.0):
            world.clock.now = now
            assert await world.full(B) is not None
        assert world.shown == set()

    run(story())


@pytest.mark.parametrize(
    "forged",
    [
        {app(C, number) for number in range(9)},
        {app(B, number) for number in range(2, 9)},
        {Unfinished(B, "of-an-earlier-b", "b-1"), Unfinished(B, "", "b-1"), Unfinished(C, "uid-b", "b-1")},
    ],
    ids=["of an object that launched nothing", "beside one that runs", "of another uid"],
)
def test_a_job_that_somebody_else_made_takes_no_slot(forged: set[Unfinished]) -> None:
    """It has the labels and the owner of a job of the operator."""

    async def story() -> None:
        world = World(in_all=2)
        world.shown = {app(B)}
        world.cluster.there = {app(B), *forged}
        assert await world.full(A) is None
        assert world.launch(A)
        assert await world.full(ELSEWHERE) is not None

    run(story())


@pytest.mark.parametrize("wrong", ["0", "-1", "many"])
def test_a_cap_is_a_number_from_one_on(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", f"--spark-max-jobs={wrong}"])
    assert "is not a positive integer" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["a b", "*", "team=x"])
def test_an_allowed_label_is_a_name_or_the_beginning_of_names(
    wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", f"--spark-allow-metadata={wrong}"])
    assert f"'{wrong}' is not a name like example.com/name, or example.com/*" in capsys.readouterr().err
    right = ["", "team", "example.com/x_1.y", "example.com/*"]
    flags = [f"--spark-allow-metadata={each}" for each in right]
    assert _parser().parse_args(["run", *flags]).spark_allow_metadata == right
