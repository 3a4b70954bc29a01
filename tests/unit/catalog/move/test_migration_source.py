"""A migration reads its source once, before it fences anybody, and then follows it."""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Kind, OpenMode, linked_catalog
from holdfast.catalog.move import source
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.catalog.stores.preamble import Preamble, read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import AsOfTooEarly
from testbed.linkedstores import WHO, LinkedPlace, stored_contents


def setting(name: str) -> Row:
    return encode(SETTINGS, pb.SettingKey(name=name), pb.SettingValue(value=name))


def put(store: CatalogStore, *updates: RowUpdate) -> Preamble:
    """Commit to a store; what it says of itself then."""
    seen = read_preamble(store, store.upper())
    store.append(updates, seen.upper, fence=seen.fence_row)
    return read_preamble(store, store.upper())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    with closing(LinkedPlace(tmp_path)) as place:
        for backend in Backend:
            place.alone(backend).open(OpenMode.WRITABLE, **WHO).close()
        yield place


@pytest.mark.parametrize("backend", Backend)
def test_what_was_read_is_followed_to_what_reading_it_again_gives(
    place: LinkedPlace, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = place.stores()
    store = stores.of(backend)
    found = source.checked(store, put(store, RowUpdate(setting("a"), 1)), stores.of(backend.other))
    assert found is not None
    put(store, RowUpdate(setting("b"), 1))
    seen = put(store, RowUpdate(setting("a"), -1), RowUpdate(setting("c"), 1))
    again = source.read(store, seen)
    monkeypatch.setattr(store, "batches", lambda *_args, **_more: pytest.fail("it is read again"))
    followed = source.followed(store, found, seen)
    assert followed.seen == seen
    assert followed.wanted.digests == again.wanted.digests != found.wanted.digests
    assert sorted(followed.wanted.hashes.tolist()) == sorted(again.wanted.hashes.tolist())


@pytest.mark.parametrize("backend", Backend)
def test_it_is_read_again_where_the_store_has_let_go_of_the_changes(
    place: LinkedPlace, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = place.stores()
    store = stores.of(backend)
    found = source.read(store, read_preamble(store, store.upper()))
    seen = put(store, RowUpdate(setting("b"), 1))

    def gone(*_args: object, **_more: object) -> object:
        raise AsOfTooEarly(0, 1)

    monkeypatch.setattr(store, "changes", gone)
    assert source.followed(store, found, seen).wanted.digests == source.read(store, seen).wanted.digests


def test_it_is_read_again_where_another_history_was_restored(place: LinkedPlace) -> None:
    store = place.stores().stash
    before = read_preamble(store, store.upper())
    # What was read was of a stash that had another fence, and a row that this one never had.
    other = place.stores().persist
    found = source.read(other, put(other, RowUpdate(setting("lost"), 1)))
    known = source.Read(replace(found.seen, upper=before.upper), found.wanted)
    seen = put(store, RowUpdate(setting("b"), 1))
    assert source.followed(store, known, seen).wanted.digests == source.read(store, seen).wanted.digests


class CountingStash(StashStore):
    """A stash that tells how often all its contents were read."""

    def __init__(self, url: str, reads: list[int]) -> None:
        super().__init__(url)
        self._of_all, self._reads = url, reads

    def another(self, *, purpose: str) -> "CountingStash":
        return CountingStash(self._of_all, self._reads)

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        self._reads.append(as_of)
        return super().batches(as_of, but=but)


def test_a_move_back_reads_each_store_no_more_often_than_it_must(tmp_path: Path) -> None:
    with closing(LinkedPlace(tmp_path)) as place:
        catalog = linked_catalog(place.stash(), place.persist(), backend=Backend.STASH)
        with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
            opened.set_setting("a", "b")
        reads: list[int] = []
        stores = TwoStores(CountingStash(f"sqlite://{tmp_path}/stash.sqlite", reads), place.stores().persist)
        counted = cast("LinkedCatalog", SimpleNamespace(stores=stores))
        BackendMigration(counted, migration_id="m", target=Backend.PERSIST, holder="me").run()
        # To check it and have its hashes, to write it, and once more before the truth moves.
        assert len(reads) == 3
        reads.clear()
        BackendMigration(counted, migration_id="m", target=Backend.PERSIST, rollback=True, holder="me").run()
        # To see what is there already, and to verify what is there then.
        assert len(reads) == 2
        stash, persist = place.stores().stash, place.stores().persist
        assert stored_contents(stash, stash.upper()) == stored_contents(persist, persist.upper())
