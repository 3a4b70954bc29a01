"""A stash that holds the catalog is restored from a backup. It is refused until a user accepts the loss."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.catalog import OpenMode, stash_catalog
from holdfast.catalog.move.decision import decide, decision
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.truth import Backend
from holdfast.errors import LinkConflict
from testbed.linkedstores import WHO, LinkedPlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def copied(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as stash, closing(sqlite3.connect(target)) as copy:
        stash.backup(copy)


def write(catalog: LinkedCatalog, name: str) -> None:
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", name)


@pytest.mark.parametrize("said", [None, *Backend])
def test_it_is_used_again_once_somebody_has_decided(
    place: LinkedPlace, tmp_path: Path, said: Backend | None
) -> None:
    write(linked_catalog(place.stash(), place.persist(), backend=Backend.STASH), "kept")
    copied(tmp_path / "stash.sqlite", tmp_path / "restored.sqlite")
    write(linked_catalog(place.stash(), place.persist()), "lost")
    stash = stash_catalog(f"sqlite://{tmp_path}/restored.sqlite")
    both = linked_catalog(stash, place.persist(), truth=said)
    uppers = stash.epoch(), place.uppers()
    for refused in (both.source_of_truth, lambda: write(both, "x"), lambda: both.open(OpenMode.READ_ONLY)):
        with pytest.raises(LinkConflict, match="restored from an older state") as caught:
            refused()
        assert "--accept-loss" in caught.value.hint
    assert (stash.epoch(), place.uppers()) == uppers
    epoch = place.persist().epoch()
    assert epoch is not None
    # A token that is high enough brings nothing back.
    emergency_catalog(stash).raise_fence(epoch + 1, **WHO)
    with pytest.raises(LinkConflict, match="restored from an older state"):
        write(both, "x")
    decide(both, decision(both, Backend.STASH), **WHO)
    write(both, "new")
    with both.open(OpenMode.READ_ONLY) as reader:
        assert {item.value.name for item in reader.get_items()} == {"kept", "new"}


def test_emergencies_do_not_carry_it_past_what_persist_knows(place: LinkedPlace, tmp_path: Path) -> None:
    both = linked_catalog(place.stash(), place.persist(), backend=Backend.STASH)
    write(both, "kept")
    copied(tmp_path / "stash.sqlite", tmp_path / "restored.sqlite")
    write(both, "lost")
    emergency = emergency_catalog(stash_catalog(f"sqlite://{tmp_path}/restored.sqlite"))
    for name in ("one", "two", "three"):
        with emergency.open(OpenMode.WRITABLE, **WHO) as opened:
            opened.ensure_item("holdfast", "public", name)
    # Its token and its upper are above those that persist knows.
    seen = place.seen().persist
    restored = linked_catalog(stash_catalog(f"sqlite://{tmp_path}/restored.sqlite"), place.persist())
    epoch = emergency.epoch()
    assert seen.token is not None
    assert epoch is not None
    assert epoch > seen.token.epoch
    for mode in (OpenMode.READ_ONLY, OpenMode.WRITABLE):
        with pytest.raises(LinkConflict, match="older than"):
            restored.open(mode, **WHO)
    # The stash that was not restored may go through emergencies as before.
    for name in ("four", "five"):
        with emergency_catalog(place.stash()).open(OpenMode.WRITABLE, **WHO) as opened:
            opened.ensure_item("holdfast", "public", name)
    with both.open(OpenMode.WRITABLE, **WHO) as opened:
        assert [item.value.name for item in opened.get_items()] == ["kept", "lost", "four", "five"]
