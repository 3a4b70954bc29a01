"""The pages of the console, warm, against the goals of its design: local files with SQLite, one process.

The console serves HTTP on loopback, and this process asks it like a browser. A number is the median time from
the request to the end of the page, except where the name says otherwise.

- *The overview*: 1,000 collections. It takes at most 300 ms, and one round trip to the consensus store.
- *An idle page*: it costs the stores at most one question per location and tick. Several pages cost no more.
- *A data page*: a table of 1,000,000 rows as of a time, after 200 upserts. It takes at most 500 ms to show
  the rows that a condition on the key chooses, the first rows, those after a key in the middle, and the
  difference of two times. Each request asks for another key or another time.

`BENCH_CONSOLE_COLLECTIONS` and `BENCH_CONSOLE_ROWS` change the sizes. The peers are the goals.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

import aiohttp
import numpy as np
import pyarrow as pa
from aiohttp import web
from common import Goal, Row, log, main, median, percentile, scratch

import holdfast
from holdfast.collections import CollectionSpec, StorageController
from holdfast.console.places import ShownPlace, ShownPlaces
from holdfast.console.server import Console, LocalAccess, application
from holdfast.persist import PersistClient, Schema
from holdfast.persist.stores import StoreMetrics

COLLECTIONS = int(os.environ.get("BENCH_CONSOLE_COLLECTIONS", "1000"))
ROWS = int(os.environ.get("BENCH_CONSOLE_ROWS", "1000000"))
ROUNDS = 15
UPSERTS, UPSERT_ROWS = 200, 100
PAGES, TICKS = 3, 10
OVERVIEW_MS, DATA_MS = 300.0, 500.0
WITHIN = Goal("<=", 1)
SCHEMA = Schema.of({"id": "int64"}, {"name": "string", "value": "float64", "count": "int32"})
Get = Callable[[str], Awaitable[str]]


class CountedPlace(ShownPlace):
    """A location whose calls of the stores are counted."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, url)
        self.metrics = StoreMetrics()
        self._opened_url = url

    @cached_property
    def client(self) -> PersistClient:  # type: ignore[override]
        """The client."""
        return PersistClient.open(self._opened_url, mode="read", metrics=self.metrics)

    def calls(self) -> int:
        """Return the number of calls so far."""
        return sum(each.calls for each in self.metrics.snapshot().values())

    def close(self) -> None:
        """Close the client."""
        self.client.close()


@asynccontextmanager
async def served(place: ShownPlace) -> AsyncIterator[tuple[Get, aiohttp.ClientSession, str]]:
    """Serve a console of one location. Returns what gets a page, and a session for more."""
    access = LocalAccess()
    runner = web.AppRunner(application(Console(ShownPlaces({place.name: place}), access)), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    headers = {"Authorization": f"Bearer {access.token}"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:

            async def get(path: str) -> str:
                async with session.get(address + path) as answer:
                    text = await answer.text()
                    assert answer.status == 200, (answer.status, text[-2000:])
                    return text

            yield get, session, address
    finally:
        await runner.cleanup()


async def timed(get: Get, path: Callable[[], str], rounds: int = ROUNDS) -> tuple[list[float], int]:
    """Return the milliseconds of each request after two others, and the bytes of the last page."""
    took, size = [], 0
    for number in range(-2, rounds):
        began = time.perf_counter()
        size = len(await get(path()))
        if number >= 0:
            took.append((time.perf_counter() - began) * 1e3)
    return took, size


def row_of(name: str, took: list[float], goal_ms: float, note: str = "") -> Row:
    """Return a row whose peer is the goal."""
    log(f"{name}: {median(took):.0f} ms")
    return Row(
        name,
        median(took),
        goal_ms,
        "ms",
        WITHIN,
        f"the peer is the goal; p90 {percentile(took, 90):.0f} ms{note}",
    )


def make_collections(url: str) -> None:
    """Make many collections, each with a row."""
    with PersistClient.open(url) as client, StorageController(client) as controller:
        for number in range(COLLECTIONS):
            name = f"c{number:04}"
            controller.create_collection(CollectionSpec(name, f"orders {name}", SCHEMA, shards=1))
            row = {"id": number, "name": "a", "value": 0.5, "count": 1}
            now = client.now_ms()
            controller.writer(name, purpose="bench").append([row], 0, now)


async def overview(folder: Path) -> list[Row]:
    """Return the rows about the overview."""
    url = f"file://{folder}/many"
    began = time.monotonic()
    make_collections(url)
    log(f"{COLLECTIONS} collections after {time.monotonic() - began:.0f} s")
    place = CountedPlace("many", url)
    async with served(place) as (get, session, address):
        took, size = await timed(get, lambda: "/")
        before = place.calls()
        await get("/")
        trips = place.calls() - before
        found = [
            row_of(
                f"overview of {COLLECTIONS:,} collections",
                took,
                OVERVIEW_MS,
                f"; {size / 1024:.0f} KiB of HTML",
            ),
            Row("overview: calls of the stores", trips, 1, "calls", WITHIN, "the peer is the goal"),
        ]
        streams = [await session.get(f"{address}/events") for _ in range(PAGES)]
        await asyncio.sleep(1)
        tick_s = Console(ShownPlaces(), LocalAccess()).limits.tick_s
        before = place.calls()
        await asyncio.sleep(tick_s * TICKS)
        each = (place.calls() - before) / TICKS
        for stream in streams:
            stream.close()
        found.append(
            Row(
                f"{PAGES} idle pages: calls of the stores per tick",
                each,
                1.1,
                "calls",
                WITHIN,
                f"the peer is the goal of one, and a tenth for the edges; a tick is {tick_s:g} s",
            )
        )
    return found


def make_table(url: str) -> list[int]:
    """Make the table. Returns the times of its writes."""
    rng = np.random.default_rng(1)
    ids = np.arange(ROWS)
    rows = pa.table(
        {
            "id": ids,
            "name": [f"name {number % 5000}" for number in ids.tolist()],
            "value": rng.random(ROWS),
            "count": rng.integers(0, 100, ROWS).astype("int32"),
        }
    )
    columns = {column.name: column.type for column in SCHEMA.columns}
    with holdfast.table(url, "orders", columns=columns, key=["id"]) as table:
        times = [table.append(rows)]
        for _ in range(UPSERTS):
            chosen = rng.choice(ROWS, min(UPSERT_ROWS, ROWS), replace=False)
            times.append(
                table.upsert(rows.take(pa.array(chosen)).set_column(2, "value", [rng.random(len(chosen))]))
            )
    return times


async def data(folder: Path) -> list[Row]:
    """Return the rows about the data page."""
    url = f"file://{folder}/large"
    began = time.monotonic()
    times = make_table(url)
    log(f"{ROWS:,} rows after {time.monotonic() - began:.0f} s")
    chance = random.Random(1)
    path = "/locations/large/collections/orders/rows"

    def at() -> str:
        return f"{path}?as_of={chance.choice(times)}"

    def key() -> int:
        return chance.randrange(ROWS)

    def two() -> str:
        first = chance.randrange(len(times) - 10)
        return f"{path}?as_of={times[first]}&to={times[first + 10]}"

    found = []
    async with served(CountedPlace("large", url)) as (get, _, _):
        for name, asked in (
            ("filtered by key", lambda: f"{at()}&where=id+%3D+{key()}"),
            (
                "filtered by a range of keys",
                lambda: f"{at()}&where=id+between+{(least := key())}+and+{least + 500}",
            ),
            ("the first rows", at),
            ("the rows after a key", lambda: f"{at()}&after=%5B{key()}%5D"),
            ("the difference of two times", two),
        ):
            took, size = await timed(get, asked)
            found.append(
                row_of(
                    f"data page of {ROWS:,} rows: {name}", took, DATA_MS, f"; {size / 1024:.0f} KiB of HTML"
                )
            )
    return found


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder:
        yield from asyncio.run(data(folder))
        yield from asyncio.run(overview(folder))


if __name__ == "__main__":
    main(rows)
