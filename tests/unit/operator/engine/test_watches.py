"""Whether a watch works is seen from its requests."""

import pytest

from holdfast_operator.engine.informer import _settings
from holdfast_operator.engine.watches import SILENCE_SECONDS, Watches

PATH = "/apis/holdfast.dev/v1alpha1/catalogs"


class World:
    """The watch of one path, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now, self.size = 100.0, 0
        self.watches = Watches([PATH], lambda: self.now)

    def request(self, status: int = 200) -> None:
        """Begins a watch."""
        self.watches.ask(PATH)
        self.size = 0
        self.watches.answer(PATH, status, lambda: self.size)

    def list(self, *, complete: bool = True) -> None:
        self.watches.ask(PATH)
        self.watches.answer(PATH, 200)
        assert not complete or self.watches.complete(PATH)

    def works(self, after: float = 0.0) -> bool:
        """Whether it works after some seconds without a line."""
        for _ in range(int(after)):
            self.now += 1.0
            self.watches.listen()
        return self.watches.down() == []

    def line(self) -> None:
        self.size += 20
        self.watches.listen()

    def delivers(self, minutes: int) -> bool:
        """Whether it works during some minutes, with a line in each."""
        for _ in range(minutes):
            if not self.works(after=60.0):
                return False
            self.line()
        return True


@pytest.fixture
def world() -> World:
    return World()


def test_a_watch_may_take_a_while_to_begin_but_not_for_ever(world: World) -> None:
    assert world.works(after=9.0)
    assert not world.works(after=2.0)
    # A long list has many pages.
    for _ in range(10):
        world.list()
        assert world.works(after=9.0)
    world.request()
    assert world.delivers(minutes=15)


def test_a_watch_that_ends_after_a_while_begins_again_and_works(world: World) -> None:
    for _ in range(3):
        world.request()
        assert world.delivers(minutes=5)
    world.watches.ask(PATH)
    assert world.works(after=9.0)
    assert not world.works(after=2.0), "it has no response"


@pytest.mark.parametrize("status", [429, 500, 403])
def test_a_watch_that_failed_works_again_when_it_has_been_open_for_a_while(world: World, status: int) -> None:
    world.request()
    assert world.delivers(minutes=5)
    world.request(status)
    assert not world.works()
    world.list()
    assert not world.works(), "a list shows nothing about watches"
    world.request()
    assert not world.works(after=4.0)
    assert world.works(after=2.0)


def test_a_watch_without_a_response_does_not_work(world: World) -> None:
    world.request()
    assert world.delivers(minutes=5)
    world.watches.ask(PATH)
    world.watches.fail(PATH)
    assert not world.works()


def test_watches_that_are_accepted_and_cut_at_once_do_not_work(world: World) -> None:
    world.request()
    assert world.delivers(minutes=5)
    for _ in range(5):
        world.request()
        world.now += 1.0
    assert not world.works()
    assert world.works(after=10.0), "the last one stayed open"


def test_a_watch_without_a_line_does_not_work_until_one_comes(world: World) -> None:
    """As behind a proxy that buffers. kopf ends such a watch later, and begins another one."""
    assert (_settings(scan=False).watching.inactivity_timeout or 0.0) > SILENCE_SECONDS + 1.0
    world.request()
    assert world.delivers(minutes=2)
    assert world.works(after=89.0)
    assert not world.works(after=1.0)
    for _ in range(3):
        assert not world.works(after=10.0)
        world.request()
        assert not world.works(after=80.0)
    world.line()
    assert world.works(after=60.0)


def test_one_line_is_no_proof_that_others_will_come(world: World) -> None:
    """As behind a proxy that passes its buffer on when the next watch begins."""
    for _ in range(3):
        world.request()
        world.works(after=10.0)
        world.line()
        assert world.works(after=89.0)
        assert not world.works(after=11.0)


def test_a_watch_that_is_cut_waits_a_minute_for_its_next_line(world: World) -> None:
    world.request()
    assert world.works(after=59.0)
    world.request()
    assert world.works(after=59.0)


def test_a_list_that_is_never_complete_shows_that_the_watch_does_not_work(world: World) -> None:
    world.request()
    assert world.delivers(minutes=5)
    for times in range(3):
        # kopf gives each one up after its time limit.
        world.list(complete=False)
        assert world.works(after=9.0) is (times == 0)
        assert not world.works(after=51.0)
    world.list()
    assert not world.works(), "a list shows nothing about watches"
    world.request()
    assert world.works(after=6.0)


def test_a_kind_without_a_definition_has_no_watch(world: World) -> None:
    world.request(500)
    assert not world.works()
    world.request(404)
    assert world.works(after=200.0)


def test_other_requests_change_nothing(world: World) -> None:
    world.request()
    world.watches.ask("/other")
    world.watches.answer("/other", 500)
    world.watches.fail("/other")
    assert not world.watches.complete("/other")
    assert world.works(after=60.0)
