"""One of two linked stores goes back in time. A reader and a subscriber both get an error."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.catalog import OpenMode, ReadOnlyCatalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.other_store import RECENT_S, RETRY_S
from holdfast.catalog.move.truth import Backend
from holdfast.errors import LinkConflict, OtherHistory, StoreUnreachable
from moves.actors import Book, add, names, opened
from moves.watched import Call
from moves.world import World
from testbed.linkedstores import WHO, LinkedPlace


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def both(place: LinkedPlace, clock: Clock) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), backend=Backend.STASH, clock=clock)


def write(catalog: LinkedCatalog, *items: str) -> None:
    with catalog.open(OpenMode.WRITABLE, **WHO) as writer:
        for name in items:
            writer.ensure_item("holdfast", "public", name)


def items(catalog: ReadOnlyCatalog) -> list[str]:
    return [each.value.name for each in catalog.get_items()]


def test_a_stash_that_returns_to_what_a_reader_knows_is_found(place: LinkedPlace) -> None:
    clock = Clock()
    catalog = both(place, clock)
    write(catalog, "a")
    place.back_up_stash()
    with (
        catalog.open(OpenMode.READ_ONLY) as reader,
        closing(reader.subscribe()) as subscription,
    ):
        write(catalog, "b")
        place.restore_stash()
        # Stash, token and upper are as they were.
        clock.seconds += RECENT_S + 1
        for _ in range(2):
            with pytest.raises(LinkConflict, match="restored from an older state"):
                reader.sync()
        with pytest.raises(LinkConflict):
            items(reader)
        for _ in range(2):
            with pytest.raises(LinkConflict):
                subscription.next(0)


def test_a_stash_that_returns_behind_what_a_reader_knows_is_found_at_once(place: LinkedPlace) -> None:
    catalog = both(place, Clock())
    write(catalog, "a")
    place.back_up_stash()
    write(catalog, "b")
    with catalog.open(OpenMode.READ_ONLY) as reader, closing(reader.subscribe()) as subscription:
        place.restore_stash()
        with pytest.raises(LinkConflict):
            reader.sync()
        with pytest.raises(LinkConflict):
            items(reader)
        with pytest.raises(OtherHistory):
            subscription.next(0)


class Broken:
    """Lets the calls of one store fail."""

    def __init__(self) -> None:
        self.store = ""
        self.asked = 0

    def __call__(self, call: Call, effect):  # type: ignore[no-untyped-def]
        if call.store == self.store:
            self.asked += 1
            raise StoreUnreachable("no answer")
        return effect()


@pytest.mark.parametrize("truth", Backend)
def test_readers_go_on_while_the_other_store_is_unreachable(truth: Backend) -> None:
    world, book, broken = World(), Book(), Broken()
    writer = opened(world.process().linked(backend=truth), book)
    assert writer is not None
    reader = world.process(broken).linked().open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    broken.store = truth.other.value.lower()
    for name, seconds in (("a", 1), ("b", RECENT_S + 1), ("c", RETRY_S + 1), ("d", 10_000)):
        world.now_ms += int(seconds * 1000)
        assert add(writer, book, name)
        reader.sync()
        assert names(reader) == book.acked
        assert [change.object.value.name for change in subscription.next(0)] == [name]
    # The reader and the subscriber each, after the first pause.
    assert 0 < broken.asked <= 6
