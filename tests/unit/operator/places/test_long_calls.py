"""A long call outlives its reconcile: it begins once, is used once, and is undone if nobody needs it."""

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import CATALOG_VERSION, OpenMode, catalog_shard_id, persist_catalog
from holdfast.errors import BadInput, HoldfastError, StoreUnreachable
from holdfast.persist import PersistClient, PersistConfig
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.catalogs.conditions import opening_since
from holdfast_operator.catalogs.facts import Durable, Opening, RestoreFailed
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.long_calls import LongCall, LongCalls, UnderWay
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.slow_servers import SlowServers
from holdfast_operator.places.storage import DumpSource, StashLocation, Storage

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
ASKED = LongCall(KEY, "open", "here", "this way")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SOON = 0.02
EVENTUALLY = 60.0


class Store:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self._answers = itertools.count(1)
        self.begun = 0
        self.fails: HoldfastError | None = None

    def answer(self) -> str:
        mine = self.begun = next(self._answers)
        assert self.go_on.wait(EVENTUALLY)
        if self.fails is not None:
            raise self.fails
        return f"handle {mine}"


class HandClock:
    """Goes where it is put."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> datetime:
        return NOON

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        raise AssertionError


class Bench:
    """Long calls, and who heard that one ended."""

    def __init__(self, patience: float) -> None:
        self.clock = HandClock()
        self.metrics = Metrics()
        self.told: list[ObjectKey] = []
        self._ended = asyncio.Event()
        self.calls = LongCalls(self.metrics, self._on_end, patience=patience, clock=self.clock)
        self.undone: list[str] = []

    def _on_end(self, key: ObjectKey) -> None:
        self.told.append(key)
        self._ended.set()

    def run(self, store: Store, asked: LongCall = ASKED) -> Awaitable[str]:
        return self.calls.run(asked, store.answer, late=self.undone.append)

    async def take(self, store: Store, asked: LongCall = ASKED) -> str:
        """Ask until it is over."""
        while True:
            try:
                return await self.run(store, asked)
            except UnderWay:
                await self.until_told()

    async def until_told(self) -> None:
        await asyncio.wait_for(self._ended.wait(), EVENTUALLY)
        self._ended.clear()

    def counted(self, call: str, outcome: str) -> float | None:
        labels = {"call": call, "outcome": outcome}
        return self.metrics.registry.get_sample_value("holdfast_store_calls_total", labels)


def play(story: Callable[[Bench], Coroutine[Any, Any, None]], *, patience: float = SOON) -> None:
    async def whole() -> None:
        bench = Bench(patience)
        try:
            await story(bench)
        finally:
            bench.calls.close()

    asyncio.run(whole())


def test_what_is_quick_is_taken_at_once_and_nobody_is_told() -> None:
    async def story(bench: Bench) -> None:
        store = Store()
        store.go_on.set()
        assert [await bench.run(store), await bench.run(store)] == ["handle 1", "handle 2"]
        for error in (StoreUnreachable("no"), BadInput("not so"), RestoreFailed("no dump")):
            store.fails = error
            with pytest.raises(type(error)):
                await bench.run(store)
        # What failed at once is not remembered: it is tried as often as it is asked for.
        assert (store.begun, bench.told, bench.undone) == (5, [], [])
        assert not bench.calls.under_way(KEY)
        outcomes = ("ok", "unreachable", "error")
        assert [bench.counted("open", outcome) for outcome in outcomes] == [2, 1, 2]

    play(story, patience=EVENTUALLY)


def test_what_is_slow_is_begun_once_and_taken_by_who_asks_after_its_end() -> None:
    async def story(bench: Bench) -> None:
        store = Store()
        for _ in range(3):
            with pytest.raises(UnderWay) as under_way:
                await bench.run(store)
            assert under_way.value.since == NOON
        assert bench.calls.under_way(KEY)
        assert bench.told == []
        store.go_on.set()
        await bench.until_told()
        assert bench.calls.under_way(KEY)
        assert await bench.run(store) == "handle 1"
        assert not bench.calls.under_way(KEY)
        assert (store.begun, bench.told, bench.undone) == (1, [KEY], [])

    play(story)


@pytest.mark.parametrize(
    ("failure", "pause"), [(RestoreFailed("it is cut off"), 100.0), (StoreUnreachable("gone"), 15.0)]
)
def test_a_slow_failure_is_the_answer_until_the_pause_is_over(failure: HoldfastError, pause: float) -> None:
    async def story(bench: Bench) -> None:
        store = Store()
        store.fails = failure
        with pytest.raises(UnderWay):
            await bench.run(store)
        bench.clock.seconds = 100.0
        store.go_on.set()
        await bench.until_told()
        for now in (100.0, 99.0 + pause):
            bench.clock.seconds = now
            with pytest.raises(type(failure), match=str(failure)):
                await bench.run(store)
        assert store.begun == 1
        other = replace(ASKED, how="another way")
        store.fails = None
        store.go_on.clear()
        with pytest.raises(UnderWay):
            await bench.run(store, other)
        store.go_on.set()
        await bench.until_told()
        assert await bench.run(store, other) == "handle 2"
        # The failure of what was asked before is forgotten with it; a handle is never given twice.
        assert await bench.take(store, other) == "handle 3"

    play(story)


@pytest.mark.parametrize(
    ("failure", "pause"), [(RestoreFailed("it is cut off"), 30.0), (StoreUnreachable("gone"), 15.0)]
)
def test_the_pause_ends(failure: HoldfastError, pause: float) -> None:
    async def story(bench: Bench) -> None:
        store = Store()
        store.fails = failure
        with pytest.raises(UnderWay):
            await bench.run(store)
        store.go_on.set()
        await bench.until_told()
        for now in (0.0, pause - 1.0):
            bench.clock.seconds = now
            with pytest.raises(type(failure)):
                await bench.run(store)
        bench.clock.seconds = pause
        store.go_on.clear()
        with pytest.raises(UnderWay):
            await bench.run(store)
        store.go_on.set()
        await bench.until_told()
        assert store.begun == 2

    play(story)


def test_what_brings_no_handle_is_remembered_for_the_pause() -> None:
    async def story(bench: Bench) -> None:
        store = Store()

        def check() -> Awaitable[str]:
            return bench.calls.run(ASKED, store.answer)

        with pytest.raises(UnderWay):
            await check()
        store.go_on.set()
        await bench.until_told()
        assert [await check() for _ in range(3)] == ["handle 1"] * 3
        bench.calls.give_up(KEY)
        store.go_on.clear()
        with pytest.raises(UnderWay):
            await check()
        store.go_on.set()
        await bench.until_told()

    play(story)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("otherwise", [False, True])
def test_what_nobody_asks_for_any_more_is_undone_before_the_next_begins(ended: bool, otherwise: bool) -> None:
    async def story(bench: Bench) -> None:
        store = Store()
        with pytest.raises(UnderWay):
            await bench.run(store)
        if ended:
            store.go_on.set()
            await bench.until_told()
        asked = ASKED
        if otherwise:
            asked = replace(ASKED, how="another way")
        else:
            bench.calls.give_up(KEY)
        with pytest.raises(UnderWay):
            await bench.run(store, asked)
        assert not bench.calls.under_way(KEY)
        store.go_on.set()
        await bench.until_told()
        assert (store.begun, bench.undone) == (1, ["handle 1"])
        store.go_on.clear()
        with pytest.raises(UnderWay):
            await bench.run(store, asked)
        store.go_on.set()
        await bench.until_told()
        assert await bench.run(store, asked) == "handle 2"
        assert bench.undone == ["handle 1"]

    play(story)


def test_a_stop_undoes_what_ended_and_what_still_runs() -> None:
    async def story(bench: Bench) -> None:
        first, second = Store(), Store()
        first.fails = StoreUnreachable("no")
        with pytest.raises(UnderWay):
            await bench.run(second)
        with pytest.raises(UnderWay):
            await bench.run(first, replace(ASKED, what="preflight"))
        first.go_on.set()
        await bench.until_told()
        stop = asyncio.create_task(bench.calls.give_up_all())
        await asyncio.sleep(0)
        assert bench.calls.busy == 1
        second.go_on.set()
        await asyncio.wait_for(stop, EVENTUALLY)
        assert bench.undone == ["handle 1"]
        assert bench.calls.busy == 0

    play(story)


def test_slow_ones_do_not_take_all_threads() -> None:
    async def story(bench: Bench) -> None:
        hung, fine = Store(), Store()
        fine.go_on.set()

        def asked(number: int, location: str) -> LongCall:
            return LongCall(ObjectKey(Kind.CATALOG, "ns", f"{location}{number}"), "open", location, "")

        async def since(store: Store, one: LongCall) -> datetime | None:
            with pytest.raises(UnderWay) as under_way:
                await bench.run(store, one)
            return under_way.value.since

        assert [await since(hung, asked(n, "a")) for n in range(6)] == [NOON] * 4 + [None] * 2
        assert [await since(hung, asked(n, "b")) for n in range(4)] == [NOON] * 4
        # Together they have eight; but of who is new nobody knows yet that it hangs.
        for location in "cdefghijklmnopqrst":
            assert [await since(hung, asked(n, location)) for n in range(3)] == [NOON, None, None]
        assert await bench.run(fine, asked(0, "z")) == "handle 1"
        hung.go_on.set()
        await asyncio.wait_for(bench.calls.give_up_all(), EVENTUALLY)
        assert len(bench.undone) == 26

    play(story)


def test_a_namespace_leaves_threads_to_the_others() -> None:
    async def story(bench: Bench) -> None:
        hung, fine = Store(), Store()
        fine.go_on.set()

        async def begins(store: Store, namespace: str, location: str) -> bool:
            asked = LongCall(ObjectKey(Kind.CATALOG, namespace, location), "open", location, "")
            with pytest.raises(UnderWay) as under_way:
                await bench.run(store, asked)
            return under_way.value.since is not None

        begun = [await begins(hung, "theirs", f"unknown {number}") for number in range(60)]
        assert begun == [True] * 56 + [False] * 4, "on a server each, which nobody knows"
        assert await begins(hung, "ours", "unknown too")
        assert (
            await bench.run(fine, LongCall(ObjectKey(Kind.CATALOG, "ours", "a"), "open", "good", ""))
            == "handle 1"
        )
        hung.go_on.set()
        await asyncio.wait_for(bench.calls.give_up_all(), EVENTUALLY)

    play(story)


def test_a_slow_stash_makes_nobody_slow_who_shares_the_other_store() -> None:
    slow_servers = SlowServers()
    slow_servers.waits(Storage(url="s3://bucket/one").beside(StashLocation("postgresql://far/db")))
    assert slow_servers.is_slow(
        Storage(url="s3://bucket/two").beside(StashLocation("postgresql://far/other"))
    )
    assert not slow_servers.is_slow(str(Storage(url="s3://bucket/two")))


def test_a_restore_that_takes_long_is_taken_later_or_leaves_no_handle(tmp_path: Path) -> None:
    """The dump is a pipe: the restore goes on when somebody writes into it."""
    with PersistClient.open("memory://long", config=PersistConfig(maintenance="off")) as client:
        closed = persist_catalog(client, ORGANIZATION)
        closed.open(OpenMode.WRITABLE, holder="test", purpose="test").close()
        dump = closed.dump()

    def opening(name: str) -> Opening:
        os.mkfifo(tmp_path / f"{name}.json")
        source = DumpSource((tmp_path / f"{name}.json").as_uri())
        storage = Storage(url=(tmp_path / name).as_uri())
        return Opening(storage, ORGANIZATION, 0, "default", (), "me", "test", restore=source)

    def feed(name: str) -> None:
        (tmp_path / f"{name}.json").write_text(dump)

    def leases(opening: Opening) -> list[str]:
        with PersistClient.open(opening.storage.url, mode="read") as client:
            found = client.inspect(catalog_shard_id(ORGANIZATION)).holds
        return [hold.id for hold in found if hold.kind == "leased"]

    async def story(bench: Bench) -> None:
        pool = StorePool(bench.metrics)
        stores = Stores(pool, bench.calls)
        taken, left = opening("taken"), opening("left")
        for _ in range(2):
            with pytest.raises(UnderWay):
                await stores.open(KEY, taken)
        assert stores.opened(KEY) is None
        await asyncio.to_thread(feed, "taken")
        await bench.until_told()
        await stores.open(KEY, taken)
        start = stores.started(KEY)
        assert start is not None
        assert "taken.json" in start.restored
        assert leases(taken)
        await stores.close(KEY)
        with pytest.raises(UnderWay):
            await stores.open(KEY, left)
        await stores.close(KEY)
        assert not stores.under_way(KEY)
        await asyncio.to_thread(feed, "left")
        await asyncio.wait_for(stores.close_all(), EVENTUALLY)
        assert (stores.opened(KEY), bench.calls.busy) == (None, 0)
        assert (leases(taken), leases(left)) == ([], [])
        pool.close()

    play(story)


def test_a_close_does_not_wait_the_whole_deadline_for_a_store_that_hangs(tmp_path: Path) -> None:
    answers, closed = threading.Event(), threading.Event()

    class Hanging(OpenCatalog):
        def close(self) -> None:
            answers.wait()
            super().close()
            closed.set()

    async def story(bench: Bench) -> None:
        pool = StorePool(bench.metrics)
        stores = Stores(pool, bench.calls)
        storage = Storage(url=tmp_path.as_uri())
        handle = Hanging.open(Opening(storage, ORGANIZATION, 0, "default", (), "me", "test"))
        stores.adopt(KEY, handle)
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable, match="within 5 s"):
            await stores.close(KEY)
        assert time.monotonic() - begun < 15
        assert stores.opened(KEY) is None
        answers.set()
        assert await asyncio.to_thread(closed.wait, EVENTUALLY)
        pool.close()

    try:
        play(story)
    finally:
        answers.set()


RESTORE = Opening(
    *(Storage(url="file:///a"), ORGANIZATION, 0, "default", (), "me", "test"),
    restore=DumpSource("file:///d.json"),
)
OLD = Durable(ORGANIZATION, "s1", CATALOG_VERSION - 1, 1, 0)


@pytest.mark.parametrize(
    ("opening", "found", "reason", "says"),
    [
        (RESTORE, None, Reason.RESTORING, "file:///d.json since 2026-01-01T12:00:00Z"),
        (RESTORE, replace(OLD, catalog_version=None), Reason.RESTORING, "file:///d.json"),
        (RESTORE, OLD, Reason.UPGRADING, f"{CATALOG_VERSION - 1} to {CATALOG_VERSION} since 2026-"),
        (RESTORE, replace(OLD, catalog_version=CATALOG_VERSION), Reason.OPENING, "since 2026-"),
        (replace(RESTORE, restore=None), None, Reason.OPENING, "since 2026-01-01T12:00:00Z"),
        (replace(RESTORE, observed=True), OLD, Reason.OPENING, "since 2026-"),
    ],
)
def test_what_takes_long_is_named(opening: Opening, found: Durable | None, reason: Reason, says: str) -> None:
    health = opening_since(opening, NOON, found)
    assert (health.phase, health.reason) == (Phase.RECONCILING, reason)
    assert says in health.message
    assert "waiting for other catalogs" in opening_since(opening, None, found).message
