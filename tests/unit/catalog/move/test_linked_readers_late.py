"""A reader syncs late, and meets times that it does not know, because the catalog was in the other store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.catalog import Catalog, OpenMode, ReadOnlyCatalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.truth import Backend
from holdfast.errors import AsOfTooEarly, NotSourceOfTruth
from testbed.linkedstores import WHO, LinkedPlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def both(place: LinkedPlace) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), backend=Backend.STASH, sleep=lambda _: None)


def opened(place: LinkedPlace) -> Catalog:
    return both(place).open(OpenMode.WRITABLE, **WHO)


def late_reader(place: LinkedPlace) -> tuple[ReadOnlyCatalog, int]:
    """A reader on the stash that knows nothing of a move, and a time of the stash after that."""
    with opened(place) as writer:
        writer.ensure_item("holdfast", "public", "before")
    reader = both(place).open(OpenMode.READ_ONLY)
    place.moved(Backend.PERSIST)
    for name in ("one", "two"):
        with opened(place) as writer:
            writer.ensure_item("holdfast", "public", name)
    stale = place.uppers()[0] - 1
    assert stale > reader.upper
    return reader, stale


def test_it_gives_no_dump_of_a_time_at_which_the_catalog_was_elsewhere(place: LinkedPlace) -> None:
    reader, stale = late_reader(place)
    with reader, pytest.raises(NotSourceOfTruth, match="Persist"):
        reader.dump(stale)


def test_it_subscribes_to_no_time_at_which_the_catalog_was_elsewhere(place: LinkedPlace) -> None:
    reader, stale = late_reader(place)
    with reader, pytest.raises(NotSourceOfTruth, match="Persist"):
        reader.subscribe(since=stale)


def test_once_it_is_back_the_time_between_is_no_past_of_it(place: LinkedPlace) -> None:
    reader, stale = late_reader(place)
    place.moved(Backend.STASH)
    with reader:
        with pytest.raises(AsOfTooEarly):
            reader.dump(stale)
        latest = place.uppers()[0] - 1
        assert '"two"' in reader.dump(latest)


def test_it_gives_what_was_written_since_where_the_catalog_stayed(place: LinkedPlace) -> None:
    with opened(place) as writer:
        writer.ensure_item("holdfast", "public", "before")
        with both(place).open(OpenMode.READ_ONLY) as reader:
            writer.ensure_item("holdfast", "public", "after")
            assert '"after"' in reader.dump(writer.upper - 1)
            reader.subscribe(since=writer.upper).close()
