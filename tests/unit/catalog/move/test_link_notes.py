"""The notes of two linked stores about each other, and how a writer checks the other store."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.catalog import OpenMode, config, linked_catalog, persist_catalog, stash_catalog
from holdfast.catalog.move import notes
from holdfast.catalog.move.decision import decide, decision
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.other_store import GRACE_S, RECENT_S, RETRY_S
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.preamble import config_row, preamble_of
from holdfast.errors import Fenced, LinkConflict, StorageError, StoreUnreachable
from holdfast.persist import PersistClient
from moves.actors import Book, add, opened
from moves.watched import Call
from moves.world import World
from testbed.linkedstores import ORG, WHO

STASH, PERSIST = Backend


def seen(stash: Mapping[str, int], persist: Mapping[str, int], *, since: tuple[int, int] = (0, 0)) -> Seen:
    """Two stores of link 7 with these notes, given by their names."""
    made = []
    for backend, noted, at in zip(Backend, (stash, persist), since, strict=True):
        stored = {config.LINK: 7, config.TRUTH_SINCE: at, notes.key(backend, "link"): 7}
        stored |= {notes.key(backend, name): value for name, value in noted.items()}
        made.append(preamble_of(10, (config_row(*each) for each in stored.items())))
    return Seen(*made)


def completed(number: int, since: int) -> dict[str, int]:
    return {"moved": number, "moved_since": since}


def came(number: int, since: int) -> dict[str, int]:
    return {"arrived": number, "arrived_since": since}


def test_the_truth_holds_what_the_last_completed_move_brought() -> None:
    here = seen(completed(2, 5), came(2, 5), since=(0, 5))
    assert not notes.holds_other_contents(here, PERSIST)
    # A store from before the move, with the number of an earlier one or with none.
    assert notes.holds_other_contents(seen(completed(2, 5), came(1, 3), since=(0, 3)), PERSIST)
    assert notes.holds_other_contents(seen(completed(2, 5), {}), PERSIST)
    # Another move of the same count.
    assert notes.holds_other_contents(seen(completed(2, 5), came(9, 5), since=(0, 5)), PERSIST)
    # A target that the truth has not moved to yet says nothing of the truth.
    pending = seen({**completed(1, 3), **came(1, 3)}, {**came(2, 5), **completed(1, 3)}, since=(3, 5))
    assert not notes.holds_other_contents(pending, STASH)
    assert notes.holds_other_contents(pending, PERSIST)
    assert not notes.holds_other_contents(seen({}, {}), STASH)


def test_contents_without_a_valid_number_count_where_they_came_later() -> None:
    # A Holdfast without numbers moved them: the number of before is still there, with another time.
    assert not notes.holds_other_contents(seen(completed(2, 5), came(2, 5), since=(0, 8)), PERSIST)
    assert notes.holds_other_contents(seen(completed(2, 5), came(1, 3), since=(0, 4)), PERSIST)


def test_a_store_below_what_the_other_one_saw_has_returned() -> None:
    assert notes.returned(seen({"saw_upper": 10, "saw_nonce": 0}, {})) is None
    assert notes.returned(seen({"saw_upper": 11, "saw_nonce": 0}, {})) is PERSIST
    assert notes.returned(seen({}, {"saw_upper": 11, "saw_nonce": 0})) is STASH
    # As far, but under another token.
    assert notes.returned(seen({"saw_upper": 10, "saw_nonce": 3}, {})) is PERSIST
    assert notes.returned(seen({"saw_upper": 9, "saw_nonce": 3}, {})) is None
    # Notes of another link are void.
    assert notes.returned(seen({"saw_upper": 11, "link": 6}, {})) is None


def test_whatever_shows_that_there_was_a_catalog() -> None:
    assert not notes.held_a_catalog(seen({}, {}), PERSIST)
    assert notes.held_a_catalog(seen({"initialized": 1}, {}), PERSIST)
    assert notes.held_a_catalog(seen(completed(1, 0), {}), PERSIST)
    assert notes.held_a_catalog(seen({}, completed(1, 0)), PERSIST)
    for key in (config.USER_VERSION, f"{config.MIGRATION_RECORD}m"):
        stash = preamble_of(1, [config_row(key, 2)])
        assert notes.held_a_catalog(Seen(stash, preamble_of(0, [])), PERSIST)
    # The first open of a new catalog sets a tombstone before anything is initialized.
    tombstone = preamble_of(1, [config_row(config.TOMBSTONE, 1)])
    assert not notes.held_a_catalog(Seen(tombstone, preamble_of(0, [])), PERSIST)


def test_a_persist_that_returned_is_not_initialized_anew(tmp_path: Path) -> None:
    stash_url, kept = f"sqlite://{tmp_path}/stash.sqlite", tmp_path / "kept"
    folder = tmp_path / "persist"

    def catalog(client: PersistClient) -> LinkedCatalog:
        return linked_catalog(stash_catalog(stash_url), persist_catalog(client, ORG), backend=STASH)

    with (
        PersistClient.open(f"file://{folder}") as client,
        catalog(client).open(OpenMode.WRITABLE, **WHO) as first,
    ):
        first.ensure_item("holdfast", "public", "a")
    shutil.copytree(folder, kept)
    with PersistClient.open(f"file://{folder}") as client:
        moving = BackendMigration(
            catalog(client), migration_id="m", target=PERSIST, verify=Verify.COMPARE, holder="me"
        )
        moving.run()
        with catalog(client).open(OpenMode.WRITABLE, **WHO) as second:
            second.ensure_item("holdfast", "public", "b")
    shutil.rmtree(folder)
    shutil.move(kept, folder)
    with PersistClient.open(f"file://{folder}") as client:
        restored = catalog(client)
        for mode in (OpenMode.WRITABLE, OpenMode.READ_ONLY):
            with pytest.raises(LinkConflict, match="restored from an older state"):
                restored.open(mode, **WHO)
        assert not restored.of(PERSIST).is_initialized()
        decide(restored, decision(restored, STASH), **WHO)
        with restored.open(OpenMode.WRITABLE, **WHO) as third:
            assert [item.value.name for item in third.get_items()] == ["a"]


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
def test_commits_stop_after_the_grace_while_the_other_store_is_unreachable(truth: Backend) -> None:
    world, book, broken = World(), Book(), Broken()
    handle = opened(world.process(broken).linked(backend=truth), book)
    assert handle is not None
    broken.store = truth.other.value.lower()
    assert add(handle, book, "a")
    assert broken.asked == 0, "asked though the last look is new"
    world.now_ms += int(RECENT_S * 1000) + 1
    assert add(handle, book, "b")
    assert add(handle, book, "c")
    assert broken.asked == 1, "asked again at once"
    handle.confirm_leadership()
    assert broken.asked == 2
    world.now_ms += int(RETRY_S * 1000) + 1
    assert add(handle, book, "d")
    assert broken.asked == 3
    world.now_ms += int(GRACE_S * 1000)
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="nothing shows"):
            add(handle, book, "e")
    with pytest.raises(StorageError):
        handle.confirm_leadership()
    broken.store = ""
    handle.confirm_leadership()
    assert add(handle, book, "f")


def test_a_writer_is_fenced_by_a_token_in_the_other_store() -> None:
    world, book = World(), Book()
    handle = opened(world.process().linked(backend=STASH), book)
    assert handle is not None
    before = world.stash.stored
    assert opened(world.process().linked(), book) is not None
    world.is_watched = False
    world.stash.stored = before
    with pytest.raises(Fenced):
        handle.confirm_leadership()
    assert not add(handle, book, "a")
