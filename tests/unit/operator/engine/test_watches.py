"""Whether a watch works is seen from its requests."""

import pytest

from holdfast_operator.engine.informer import _settings
from holdfast_operator.engine.watches import SILENCE_SECONDS, Watches

PATH = "/apis/holdfast.dev/v1alpha1/catalogs"


class World:
    """The watch of one path, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.watches = Watches([PATH], lambda: self.now)

    def request(self, status: int = 200, *, is_watch: bool = True) -> None:
        self.watches.ask(PATH)
        self.watches.answer(PATH, status, is_watch=is_watch)

    def works(self, after: float = 0.0) -> bool:
        self.now += after
        return self.watches.down() == []


@pytest.fixture
def world() -> World:
    return World()


def test_a_watch_may_take_a_while_to_begin_but_not_for_ever(world: World) -> None:
    assert world.works(after=9.0)
    assert not world.works(after=2.0)
    # A long list has many pages.
    for _ in range(10):
        world.request(is_watch=False)
        assert world.works(after=9.0)
    world.request()
    assert world.works(after=1000.0)


def test_a_watch_that_ends_after_a_while_begins_again_and_works(world: World) -> None:
    for _ in range(3):
        world.request()
        assert world.works(after=300.0)
    world.watches.ask(PATH)
    assert world.works(after=9.0)
    assert not world.works(after=2.0), "it has no response"


@pytest.mark.parametrize("status", [429, 500, 403])
def test_a_watch_that_failed_works_again_when_it_has_been_open_for_a_while(world: World, status: int) -> None:
    world.request()
    assert world.works(after=300.0)
    world.request(status)
    assert not world.works()
    world.request(is_watch=False)
    assert not world.works(), "a list shows nothing about watches"
    world.request()
    assert not world.works(after=4.0)
    assert world.works(after=2.0)


def test_a_watch_without_a_response_does_not_work(world: World) -> None:
    world.request()
    assert world.works(after=300.0)
    world.watches.ask(PATH)
    world.watches.fail(PATH)
    assert not world.works()


def test_watches_that_are_accepted_and_cut_at_once_do_not_work(world: World) -> None:
    world.request()
    assert world.works(after=300.0)
    for _ in range(5):
        world.request()
        world.now += 1.0
    assert not world.works()
    assert world.works(after=10.0), "the last one stayed open"


def test_watches_that_are_accepted_and_deliver_nothing_do_not_work(world: World) -> None:
    """As behind a proxy that buffers. kopf ends each of them."""
    assert _settings(scan=False).watching.inactivity_timeout == SILENCE_SECONDS
    world.request()
    world.now += 90.5
    for _ in range(3):
        world.request()
        assert not world.works(after=30.0)
        world.now += 60.5
    world.request()
    assert world.works(after=131.0), "it has delivered something"
    world.request()
    assert world.works()


def test_a_kind_without_a_definition_has_no_watch(world: World) -> None:
    world.request(500)
    assert not world.works()
    world.request(404)
    assert world.works(after=1000.0)


def test_other_requests_change_nothing(world: World) -> None:
    world.request()
    world.watches.ask("/other")
    world.watches.answer("/other", 500, is_watch=True)
    world.watches.fail("/other")
    assert world.works(after=1000.0)
