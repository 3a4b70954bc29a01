"""Changes arrive, and cost the store at most one look per location and tick."""

import asyncio
import json
import threading
from pathlib import Path

import aiohttp
import pytest

import holdfast
from holdfast.console.access import Viewer
from holdfast.console.context import Console
from holdfast.console.places import PlaceLook, ShownPlace, ShownPlaces
from holdfast.console.ticks import TickChange, Ticks
from holdfast.console.work import Limits, PlaceWork, TooBusy, Work
from unit.console.browsing import TOKEN, access, served

FAST = Limits(tick_s=0.05)


class Counted(ShownPlace):
    """A location that counts its looks."""

    looks = 0
    changed = threading.Condition()

    def look(self, max_age_s: float = 0.0) -> PlaceLook:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
        return super().look(max_age_s)

    def until(self, looks: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.looks >= looks, 30)


@pytest.mark.parametrize("before", [True, False])
def test_a_page_hears_of_a_change_since_it_was_made(tmp_path: Path, before: bool) -> None:
    with holdfast.table(tmp_path, "orders", columns={"id": "int64"}, key=["id"]) as orders:
        place = ShownPlace("shop", tmp_path.as_uri())
        # For the page, before it follows changes.
        place.look()
        with served(Console(ShownPlaces({"shop": place}), access(), limits=FAST)) as browser:

            async def follow() -> dict[str, object]:
                headers = {"Authorization": f"Bearer {TOKEN}"}
                async with (
                    asyncio.timeout(30),
                    aiohttp.ClientSession(headers=headers) as session,
                    session.get(f"http://{browser.host}/events") as stream,
                ):
                    assert stream.headers["Content-Type"].startswith("text/event-stream")
                    if not before:
                        await asyncio.to_thread(orders.upsert, [{"id": 1}])
                    async for line in stream.content:
                        if line.startswith(b"data: "):
                            return dict(json.loads(line[6:]))
                raise AssertionError("the stream ended")

            if before:
                orders.upsert([{"id": 1}])
            assert browser.run(follow()) == {"location": "shop", "names": ["", "orders"], "reachable": True}


def test_a_page_that_was_made_by_another_process_hears_of_everything(shop: Path) -> None:
    place = ShownPlace("shop", shop.as_uri())

    async def body() -> list[TickChange]:
        work = PlaceWork(FAST)
        with Ticks(work).follow("a", [place]) as follower:
            told = await follower.next(30.0)
        work.close()
        return told

    (told,) = asyncio.run(body())
    assert set(told.names) == {"", *(each.name for each in place.look().collections)}
    assert len(told.names) > 1
    place.close()


def test_looks_do_not_grow_with_pages_and_end_with_them(shop: Path) -> None:
    place = Counted("shop", shop.as_uri())

    async def body() -> None:
        work = PlaceWork(FAST)
        ticks = Ticks(work)
        await asyncio.sleep(3 * FAST.tick_s)
        assert place.looks == 0
        with ticks.follow("a", [place]), ticks.follow("a", [place]), ticks.follow("b", [place]):
            began = asyncio.get_running_loop().time()
            await asyncio.to_thread(place.until, 4)
            passed = asyncio.get_running_loop().time() - began
            assert place.looks <= passed / FAST.tick_s + 1
        await asyncio.sleep(0)
        ended = place.looks
        await asyncio.sleep(4 * FAST.tick_s)
        assert place.looks <= ended + 1
        work.close()

    asyncio.run(body())
    place.close()


def test_a_page_that_reads_slowly_gets_one_change() -> None:
    async def body() -> list[TickChange]:
        ticks = Ticks(PlaceWork(FAST))
        with ticks.follow("a", []) as follower:
            for name in ("x", "y", "x"):
                follower.tell(TickChange("shop", ("", name)))
            return await follower.next(1.0)

    assert asyncio.run(body()) == [TickChange("shop", ("", "x", "y"))]


def test_a_viewer_has_a_bounded_number_of_streams() -> None:
    async def body() -> None:
        ticks = Ticks(PlaceWork(Limits(streams=1)))
        with ticks.follow("a", []), ticks.follow("b", []), pytest.raises(TooBusy), ticks.follow("a", []):
            pass
        with ticks.follow("a", []):
            pass

    asyncio.run(body())


def test_queries_of_a_viewer_are_bounded_in_number_and_time() -> None:
    release = threading.Event()

    async def body() -> None:
        work = Work(Limits(threads=4, queries=1, waiting=1, query_s=0.2))
        viewer = Viewer("a")
        first = asyncio.create_task(work.run(viewer, release.wait, 20.0))
        second = asyncio.create_task(work.run(viewer, str, 2))
        await asyncio.sleep(0.05)
        with pytest.raises(TooBusy, match="2 queries"):
            await work.run(viewer, str, 3)
        # Others are not slowed down.
        assert await work.run(Viewer("b"), str, 4) == "4"
        for each in (first, second):
            with pytest.raises(TooBusy, match="took longer"):
                await each
        # The thread of the first one still runs, and counts.
        with pytest.raises(TooBusy, match="took longer"):
            await work.run(viewer, str, 5)
        release.set()
        await asyncio.sleep(0.05)
        assert await work.run(viewer, str, 6) == "6"
        work.close()

    asyncio.run(body())
