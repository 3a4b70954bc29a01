"""A location whose store stops responding: what the pages of the others and the process do."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.console import places as module
from holdfast.console.context import Console
from holdfast.console.places import PlaceLook, ShownPlace, ShownPlaces
from holdfast.console.work import Limits
from holdfast.errors import StoreUnreachable
from unit.console.browsing import access, served


class Hanging(ShownPlace):
    """A location whose looks don't end until `free` is set."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name, url)
        self.free = threading.Event()

    def _look(self, last: PlaceLook | None) -> PlaceLook:
        assert self.free.wait(60)
        return super()._look(last)


@pytest.fixture
def bad(shop: Path) -> Iterator[Hanging]:
    place = Hanging("bad", shop.as_uri())
    yield place
    place.free.set()
    place.close()


def test_it_does_not_keep_the_others_from_being_shown(place: ShownPlace, bad: Hanging) -> None:
    shown = ShownPlaces({"good": ShownPlace("good", place._url), "bad": bad})
    limits = Limits(query_s=20.0, place_s=0.3)
    with served(Console(shown, access(), limits=limits)) as browser, ThreadPoolExecutor() as pool:
        asked = [pool.submit(browser.get, "/locations/bad/shards") for _ in range(12)]
        began_s = time.monotonic()
        assert browser.get("/locations/good/shards").status == 200
        overview = browser.get("/").text
        activity = browser.get("/activity").text
        assert time.monotonic() - began_s < 10
        assert "/locations/good/collections/orders" in overview
        assert "has not responded for 0 s" in overview
        assert "has not responded yet" in activity
        bad.free.set()
        assert {each.result(30).status for each in asked} == {200}


def test_a_look_does_not_wait_for_another_for_long(bad: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.1)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(bad.look)
        while not bad._looking.locked():
            time.sleep(0.01)
        with pytest.raises(StoreUnreachable, match="has not responded"):
            bad.look()
        bad.free.set()
        assert first.result(30).collections
