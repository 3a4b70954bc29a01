"""Store threads, logs and the probes, each for itself."""

import asyncio
import io
import json
import logging
import threading
from typing import Any

import pytest
from kubernetes.client import ApiClient

from holdfast.errors import StoreUnreachable
from holdfast_operator.api.names import Kind
from holdfast_operator.app import Operator, Options
from holdfast_operator.engine import logging as logs
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.kube import Kube, NotLeading, ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.long_calls import LongCall, LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.slow_servers import SlowServers


class HandClock(SystemClock):
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("holdfast", logging.INFO, __file__, 1, message, args, None)


def test_a_call_that_hangs_is_given_up_and_has_its_share_until_it_ends() -> None:
    go_on = threading.Event()

    async def story() -> None:
        pool = StorePool(Metrics(), deadline=0.05)
        with pytest.raises(StoreUnreachable, match="did not respond"):
            await pool.call("look", "here", lambda: go_on.wait(30))
        assert pool.busy == 1
        go_on.set()
        async with asyncio.timeout(60):
            while pool.busy:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(story())


def test_a_location_that_hangs_does_not_take_the_threads_of_others() -> None:
    go_on = threading.Event()

    async def story() -> None:
        pool = StorePool(Metrics(), deadline=0.02)
        calls = (pool.call("look", "hung", lambda: go_on.wait(30)) for _ in range(12))
        said = [str(each) for each in await asyncio.gather(*calls, return_exceptions=True)]
        assert ["have no response yet" in each for each in said] == [False] * 8 + [True] * 4
        assert await pool.call("look", "other", lambda: "fine") == "fine"
        go_on.set()
        pool.close()

    asyncio.run(story())


def test_a_location_that_hangs_again_and_again_is_left_alone_until_it_answers() -> None:
    go_on = threading.Event()
    asked: list[None] = []

    def hang() -> str:
        asked.append(None)
        go_on.wait(60)
        return "fine"

    async def story() -> None:
        clock = HandClock()
        pool = StorePool(Metrics(), deadline=0.02, clock=clock)

        async def look() -> str:
            try:
                return await pool.call("look", "here", hang)
            except StoreUnreachable as error:
                return str(error)

        told = [await look() for _ in range(10)]
        assert len(asked) == 3
        assert set(told) == {"here did not respond within 0 s"}
        assert pool.left_alone == 1
        clock.now += 5.0
        # One tries, and finds it as it was: now the pause is longer.
        assert len({*await asyncio.gather(look(), look(), look())}) == 1
        assert len(asked) == 4
        clock.now += 5.0
        await look()
        assert len(asked) == 4
        go_on.set()
        clock.now += 15.0
        pool._deadline = 60.0
        assert [await look() for _ in range(2)] == ["fine", "fine"]
        assert pool.left_alone == 0
        pool.close()

    asyncio.run(story())


@pytest.mark.parametrize(("seconds", "left_alone"), [(0.1, 0), (3.0, 1)])
def test_a_store_that_refuses_at_once_is_asked_as_often_as_somebody_wants_to_know(
    seconds: float, left_alone: int
) -> None:
    async def story() -> None:
        clock = HandClock()
        pool = StorePool(Metrics(), clock=clock)

        def refuse() -> None:
            clock.now += seconds
            raise StoreUnreachable("connection refused")

        for _ in range(5):
            with pytest.raises(StoreUnreachable, match="connection refused"):
                await pool.call("look", "here", refuse)
        assert pool.left_alone == left_alone
        pool.close()

    asyncio.run(story())


def test_who_does_not_lead_asks_no_store() -> None:
    asked: list[str] = []

    async def story() -> None:
        pool = StorePool(Metrics(), may_act=lambda: False)
        long = LongCalls(Metrics(), lambda _: None, may_act=lambda: False)
        with pytest.raises(NotLeading):
            await pool.call("look", "here", lambda: asked.append("look"))
        with pytest.raises(NotLeading):
            await long.run(
                LongCall(ObjectKey(Kind.CATALOG, "ns", "demo"), "open", "here", 1),
                lambda: asked.append("open"),
            )
        pool.close()
        long.close()

    asyncio.run(story())
    assert asked == []


def test_every_line_names_its_object_also_from_a_thread() -> None:
    lines: list[str] = []

    def work() -> None:
        lines.append(logs.JsonFormatter().format(record("read %s", "it")))

    async def story() -> None:
        pool = StorePool(Metrics())
        with logs.about("Catalog ns/demo"):
            await pool.call("look", "here", work)
        pool.close()

    asyncio.run(story())
    line = json.loads(lines[0])
    assert (line["object"], line["message"], line["level"]) == ("Catalog ns/demo", "read it", "info")
    assert "object" not in json.loads(logs.JsonFormatter().format(record("alone")))


@pytest.mark.parametrize(
    "text",
    [
        "postgres://u:geheim/x@host/db does not answer",
        "postgres://u:a@geheim@host/db, and more",
        "'postgres://u:x?geheim#y@host/db' does not answer",
        "postgres://host/db?user=u&password=geheim&sslmode=require",
        "postgres://host/db?sslmode=verify-full&sslpassword=geheim",
        "https://b.s3.example/k?X-Amz-Credential=geheim/s3&X-Amz-Signature=geheim&X-Amz-Expires=60",
        "https://b.example/k?X-Amz-Security-Token=geheim",
        "https://a.blob.example/c?sv=1&sig=geheim",
        "host=db password=geheim user=u",
        "azure://c?AccountKey=geheim;x=1",
        "postgresql://h/d?options=-c%20x.password%3Dgeheim",
    ],
)
def test_no_secret_of_a_url_is_told(text: str) -> None:
    assert "geheim" not in logs.redact(text)
    assert "***" in logs.redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "file:///volume/ns/1 holds nothing; set spec.x=1",
        "user@example.org can't list pods",
        "s3://bucket/prefix?region=eu-1&design=2",
    ],
)
def test_what_is_no_secret_is_told(text: str) -> None:
    assert logs.redact(text) == text


@pytest.mark.parametrize("cut", range(16_355, 16_395))
def test_of_a_text_of_any_length_the_beginning_is_told_without_secrets(cut: int) -> None:
    """Wherever it is cut; and it takes no time that grows with the square of its length."""
    text = "x" * (cut - 20) + " pg://me:geheim-geheim@host?password=geheim " + "://password" * 100_000
    told = logs.redact(text)
    assert "geheim" not in told
    assert len(told) <= 16 * 1024 + 1
    assert told.startswith("x" * 16_000)
    assert told.endswith("…")


@pytest.mark.parametrize("formatter", [logs.JsonFormatter(), logs.ConsoleFormatter()])
def test_no_secret_gets_into_a_log(formatter: logging.Formatter) -> None:
    logs.hide("ns", "it", "keys@1", ("hunter22", "abc"))
    try:
        raise ValueError("the password hunter22 is wrong")
    except ValueError:
        failed = logging.LogRecord(
            "holdfast", logging.ERROR, __file__, 1, "can't log in to %s", ("pg://me:pw123@host/db",), None
        )
        import sys

        failed.exc_info = sys.exc_info()
    line = formatter.format(failed)
    assert "hunter22" not in line
    assert "pw123" not in line
    assert "***" in line
    assert "abc" in logs.redact("abc is too short to be masked")
    logs.forget("ns", "it")


def test_a_slow_server_is_one_for_all_locations_on_it_until_it_answers() -> None:
    slow_servers = SlowServers()
    lake = "s3://lake/a?endpoint=http://store:9000"
    slow_servers.waits(f"{lake} with postgresql://u@db/one")
    same = ("s3://lake/b?endpoint=http://store:9000 with postgresql://w@db:5432/two?schema=x",)
    others = (f"{lake} with postgresql://other/one", lake, "file:///db", "postgresql://db:5433/one")
    assert [slow_servers.is_slow(each) for each in (*same, *others)] == [True, False, False, False, False]
    slow_servers.answered(same[0])
    assert not slow_servers.is_slow(f"{lake} with postgresql://u@db/one")
    # Files are the servers' own matter, unless there is nothing else.
    slow_servers.waits("file:///x with postgresql://db/one")
    assert slow_servers.is_slow("file:///y with postgresql://db/two")
    slow_servers.waits("file:///x")
    assert slow_servers.is_slow("file:///x")
    assert not slow_servers.is_slow("file:///y")


def test_calls_to_slow_servers_have_a_share_and_their_end_ends_it() -> None:
    go_on = threading.Event()

    async def story() -> None:
        slow_servers = SlowServers()
        pool = StorePool(Metrics(), deadline=0.05, slow_servers=slow_servers)
        places = [f"postgresql://db/{number}" for number in range(3)]
        slow_servers.waits(places[0])
        calls = (pool.call("look", place, lambda: go_on.wait(30)) for place in places for _ in range(7))
        said = [str(each) for each in await asyncio.gather(*calls, return_exceptions=True)]
        assert ["it responds slowly" in each for each in said] == [False] * 16 + [True] * 5
        assert await pool.call("look", "postgresql://other/0", lambda: "fine") == "fine"
        assert slow_servers.is_slow(places[0])
        go_on.set()
        async with asyncio.timeout(60):
            while slow_servers.is_slow(places[0]):  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        pool.close()

    asyncio.run(story())


class Hanging(Kube):
    """A stand-in for an API server that never answers."""

    def __init__(self) -> None:
        super().__init__(ApiClient())
        self.asked = asyncio.Event()

    async def request(self, method: str, path: str, *, query: Any = None, body: Any = None) -> dict[str, Any]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError(path)


def test_a_step_that_is_cut_off_names_its_object() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.ConsoleFormatter())
    logging.getLogger("holdfast_operator").addHandler(handler)

    async def story() -> None:
        kube = Hanging()
        operator = Operator(Options(), kube, Metrics())
        key = ObjectKey(Kind.CATALOG, "ns", "demo")
        operator._queue.add(key)
        workers = asyncio.create_task(operator._queue.run())
        await kube.asked.wait()
        assert not await operator._queue.stop(0.0)
        await workers
        kube.close()

    try:
        asyncio.run(story())
    finally:
        logging.getLogger("holdfast_operator").removeHandler(handler)
    (line,) = written.getvalue().splitlines()
    assert "warning [Catalog ns/demo] the step was interrupted" in line
