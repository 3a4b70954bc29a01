"""Bounds on what viewers ask of the stores.

Stores block, so each query runs in a thread. Each location has threads of its own, so one whose store doesn't
respond doesn't keep the others from being shown. Their number is bounded, and so is the number of queries of
one viewer. A query that takes too long loses its page, but keeps its thread and its place among the viewer's
queries until it ends: a viewer who asks again and again gets no more threads that way.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from holdfast.console.access import Viewer
from holdfast.console.places import ShownPlace
from holdfast.errors import HoldfastError

T = TypeVar("T")
P = ParamSpec("P")

_MOST_VIEWERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the work of the console. Times are seconds, sizes are bytes."""

    threads: int = 8
    """How many queries of one location run at a time."""
    queries: int = 4
    """How many queries of one viewer run at a time, for each location. More of them wait."""
    waiting: int = 16
    """How many queries of one viewer wait at most, for each location. More of them are refused."""
    query_s: float = 30.0
    place_s: float = 5.0
    """How long a page about several locations waits for one of them."""
    streams: int = 16
    """How many pages of one viewer follow changes at a time."""
    tick_s: float = 2.0
    """The time between two looks at a location while a page is open."""
    page_bytes: int = 8 << 20


class TooBusy(HoldfastError):
    """A viewer has too many queries, or a query took too long."""


class Work:
    """Runs queries of viewers about one location in threads, within bounds. Used by one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="console")
        self._running: dict[str, asyncio.Semaphore] = {}
        self._queries: dict[str, int] = {}

    async def run(self, viewer: Viewer, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query of a viewer in a thread, and return its result.

        Raises `TooBusy` if the viewer has too many queries already, or if this one takes too long.
        """
        limits, name = self.limits, viewer.name
        asked = self._queries.get(name, 0)
        is_new = not asked and len(self._queries) >= _MOST_VIEWERS
        if is_new or asked >= limits.queries + limits.waiting:
            raise TooBusy(
                f"{asked} queries are running or waiting already", hint="wait a moment, then load it again"
            )
        slots = self._running.setdefault(name, asyncio.Semaphore(limits.queries))
        self._queries[name] = asked + 1
        running: asyncio.Future[T] | None = None
        try:
            async with asyncio.timeout(limits.query_s):
                await slots.acquire()
                running = asyncio.get_running_loop().run_in_executor(
                    self._pool, lambda: query(*args, **kwargs)
                )
                return await asyncio.shield(running)
        except TimeoutError:
            raise TooBusy(
                f"the query took longer than {limits.query_s:.0f} s and was given up",
                hint="ask for less: an earlier bound, fewer columns or a filter",
            ) from None
        finally:
            if running is None:
                self._done(name)
            else:
                running.add_done_callback(lambda done: self._ended(name, done))

    async def background(self, query: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query of the console itself in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: query(*args, **kwargs))

    def close(self) -> None:
        """Take no more queries. Those that run may end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, name: str, done: "asyncio.Future[T]") -> None:
        if not done.cancelled():
            # Its page may be gone, so that nobody else asks for the error.
            done.exception()
        self._running[name].release()
        self._done(name)

    def _done(self, name: str) -> None:
        self._queries[name] -= 1
        if not self._queries[name]:
            del self._queries[name]
            del self._running[name]


class PlaceWork:
    """The work of each location. Used by one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._works: WeakKeyDictionary[ShownPlace, Work] = WeakKeyDictionary()

    def of(self, place: ShownPlace) -> Work:
        """The work of a location."""
        if (found := self._works.get(place)) is None:
            found = self._works[place] = Work(self.limits)
        return found

    def close(self) -> None:
        """Take no more queries. Those that run may end."""
        for each in self._works.values():
            each.close()
