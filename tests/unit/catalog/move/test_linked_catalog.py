"""A catalog in one of two linked stores. It opens where it is, and one token writes both stores."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, IdKind, OpenMode
from holdfast.catalog.cache import Cache
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.move.two_stores import take_over_both
from holdfast.catalog.objects.registry import CONFIGS
from holdfast.catalog.replacement import is_content
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CatalogOutOfSync,
    Fenced,
    LinkConflict,
    MigrationInProgress,
    NotSourceOfTruth,
    Uninitialized,
    VersionTooNew,
)
from testbed.linkedstores import WHO, LinkedPlace, claim, contents
from testbed.oldcatalogs import rows_of
from testbed.oldstores import begin

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def both(place: LinkedPlace, **options: Any) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), sleep=lambda _: None, **options)


def begun(place: LinkedPlace, truth: Backend, strategy: Strategy = ONE) -> LinkedCatalog:
    """A linked catalog with an item."""
    catalog = both(place, backend=truth, strategy=strategy)
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "first")
    return catalog


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("truth", Backend)
def test_a_new_catalog_begins_where_it_is_said(
    place: LinkedPlace, truth: Backend, strategy: Strategy
) -> None:
    catalog = both(place, backend=truth, strategy=strategy)
    assert not catalog.is_initialized()
    assert catalog.link() is None
    assert catalog.source_of_truth() is truth
    with pytest.raises(Uninitialized):
        catalog.open(OpenMode.READ_ONLY)
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    assert opened.ensure_item("holdfast", "public", "first") == "u1"
    link = catalog.link()
    assert link is not None
    assert (link.strategy, link.truth) == (strategy, truth)
    assert place.alone(truth).is_initialized()
    assert not place.alone(truth.other).is_initialized()
    configs = place.configs()
    assert configs[truth]["truth"] == 1
    assert "truth" not in configs[truth.other]
    # Both stores have its token.
    assert place.seen().stash.token == place.seen().persist.token == opened.fence_token()
    reader = catalog.open(OpenMode.READ_ONLY)
    assert {item.value.name for item in reader.get_items()} == {"first"}


@pytest.mark.parametrize("truth", Backend)
def test_each_open_is_one_commit_on_persist_and_two_in_the_stash(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    before = place.uppers()
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    # The fences; then the stash notes that of persist.
    assert place.uppers() == (before[0] + 2, before[1] + 1)
    assert opened.upper == place.seen().of(truth).upper
    opened.confirm_leadership()
    # The note of the truth goes with what is written anyway.
    place.set_config(truth, truth=None)
    before = place.uppers()
    catalog.open(OpenMode.WRITABLE, **WHO)
    assert place.uppers() == (before[0] + 2, before[1] + 1)
    assert place.configs()[truth]["truth"] == 1


@pytest.mark.parametrize("truth", Backend)
def test_an_open_decodes_the_catalog_once(
    place: LinkedPlace, truth: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = begun(place, truth)
    place.set_config(truth, truth=None)
    loads: list[int] = []
    load = Cache.load

    def counted(batches: Any) -> Cache:
        loads.append(1)
        return load(batches)

    monkeypatch.setattr(Cache, "load", counted)
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    assert loads == [1]
    assert {item.value.name for item in opened.get_items()} == {"first"}


@pytest.mark.parametrize("truth", Backend)
def test_an_open_fences_the_one_before(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    first = catalog.open(OpenMode.WRITABLE, **WHO)
    second = both(place).open(OpenMode.WRITABLE, holder="you", purpose="test")
    assert second.fence_token().epoch == first.fence_token().epoch + 1
    with pytest.raises(Fenced):
        first.ensure_item("holdfast", "public", "second")
    second.ensure_item("holdfast", "public", "third")
    assert catalog.epoch() == second.fence_token().epoch


@pytest.mark.parametrize("truth", Backend)
def test_what_is_refused_writes_nothing(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    other = linked_catalog(place.stash(), place.persist(), through=truth.other)
    before = place.uppers()
    with pytest.raises(NotSourceOfTruth, match=f"source of truth is {truth.value}") as caught:
        other.open(OpenMode.WRITABLE, **WHO)
    assert caught.value.truth == truth.value
    with pytest.raises(NotSourceOfTruth):
        other.open(OpenMode.READ_ONLY)
    with pytest.raises(BadInput, match="holder"):
        catalog.open(OpenMode.WRITABLE)
    dumped = contents(place.stores().of(truth))
    with pytest.raises(CatalogOutOfSync):
        catalog.load(dumped, only_new=True, **WHO)
    with pytest.raises(BadInput, match="not a complete catalog"):
        catalog.load([], **WHO)
    assert not catalog.initialize(**WHO)
    with pytest.raises(BadInput, match="out of range"):
        catalog.raise_fence(0, **WHO)
    with pytest.raises(BadInput, match="can't be linked"):
        linked_catalog(catalog, place.persist())
    _put_version(place, truth, CATALOG_VERSION + 1)
    after = place.uppers()
    for refused in (catalog.check_open, lambda: catalog.open(OpenMode.WRITABLE, **WHO)):
        with pytest.raises(VersionTooNew):
            refused()
    assert place.uppers() == after
    assert sum(after) == sum(before) + 1
    linked_catalog(place.stash(), place.persist(), through=truth)


def _put_version(place: LinkedPlace, backend: Backend, version: int) -> None:
    place.set_config(backend, user_version=version)


@pytest.mark.parametrize("truth", Backend)
def test_the_store_that_is_not_the_truth_may_hold_anything(place: LinkedPlace, truth: Backend) -> None:
    begin(place.stores().of(truth.other), tuple(rows_of(MIN_VERSION, items=3)))
    _put_version(place, truth.other, CATALOG_VERSION + 7)
    place.alone(truth).initialize(**WHO)
    catalog = both(place, truth=truth)
    before = {row for row in contents(place.stores().of(truth.other)) if is_content(row)}
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "first")
    catalog.check_open()
    assert {row for row in contents(place.stores().of(truth.other)) if is_content(row)} == before


@pytest.mark.parametrize("truth", Backend)
def test_an_older_catalog_is_upgraded_where_it_is(place: LinkedPlace, truth: Backend) -> None:
    begin(place.stores().of(truth), tuple(rows_of(MIN_VERSION, items=3)))
    catalog = both(place, backend=truth.other)
    preview = catalog.open(OpenMode.SAVEPOINT)
    assert preview.catalog_version == CATALOG_VERSION
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    assert opened.upgrade_report is not None
    assert (opened.upgrade_report.source, opened.upgrade_report.target) == (MIN_VERSION, CATALOG_VERSION)
    assert opened.catalog_version == CATALOG_VERSION
    assert len(opened.get_items()) == 3
    assert opened.allocate_ids(IdKind.USER_ITEM)
    assert place.seen().stash.token == place.seen().persist.token == opened.fence_token()
    (kept,) = catalog.kept_dumps()
    assert kept.version == MIN_VERSION
    assert "items" in catalog.dump(as_of=kept.time)
    catalog.release_dump(MIN_VERSION)
    assert catalog.kept_dumps() == []


@pytest.mark.parametrize("truth", Backend)
def test_a_savepoint_changes_nothing(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    before = place.uppers()
    with catalog.open(OpenMode.SAVEPOINT, **WHO) as savepoint:
        assert savepoint.fence_token().epoch == (catalog.epoch() or 0) + 1
        savepoint.ensure_item("holdfast", "public", "second")
    assert place.uppers() == before


@pytest.mark.parametrize("truth", Backend)
def test_fences_and_loads_go_to_both_stores(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    token = catalog.raise_fence(50, **WHO)
    assert token.rank == (0, 50)
    assert place.seen().stash.token == place.seen().persist.token == token
    before = place.uppers()
    assert catalog.raise_fence(50, **WHO) == token
    assert place.uppers() == before
    assert catalog.raise_fence(1, deploy_generation=3, **WHO).deploy_generation == 3
    with pytest.raises(Fenced, match="generation 3"):
        catalog.raise_fence(90, deploy_generation=2, **WHO)
    with pytest.raises(Fenced):
        opened.sync()
    dumped = contents(place.stores().of(truth))
    with catalog.open(OpenMode.WRITABLE, deploy_generation=3, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "second")
    rehearsed = catalog.load(dumped, exact=True, rehearse=True)
    loaded = catalog.load(dumped, exact=True, **WHO)
    assert (rehearsed.added, rehearsed.retracted) == (loaded.added, loaded.retracted)
    assert place.seen().stash.token == place.seen().persist.token == loaded.token
    assert catalog.source_of_truth() is truth
    reader = catalog.open(OpenMode.READ_ONLY)
    assert {item.value.name for item in reader.get_items()} == {"first"}
    assert catalog.sizes() == place.alone(truth).sizes()


def test_a_fence_below_one_store_is_raised_in_both(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.PERSIST)
    store = place.stores().stash
    seen = read_preamble(store, store.upper())
    assert seen.token is not None
    store.append(seen.fence(replace(claim(), epoch=40)), seen.upper)
    assert catalog.epoch() == 40
    assert catalog.raise_fence(7, **WHO).epoch == 41
    assert place.seen().stash.token == place.seen().persist.token


@pytest.mark.parametrize("start", Backend)
def test_all_follow_the_truth_when_it_moves(place: LinkedPlace, start: Backend) -> None:
    catalog = begun(place, start)
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    reader = catalog.open(OpenMode.READ_ONLY)
    alone = place.alone(start).open(OpenMode.READ_ONLY)
    upper = writer.upper
    place.moved(start.other)
    assert catalog.source_of_truth() is start.other
    for handle in (writer, reader):
        with pytest.raises(NotSourceOfTruth, match=f"source of truth is {start.other.value}") as caught:
            handle.sync()
        assert caught.value.truth == start.other.value
        # It stays so.
        with pytest.raises(NotSourceOfTruth):
            handle.get_items()
    with pytest.raises(Exception, match="linked with another store"):
        alone.sync()
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        assert {item.value.name for item in opened.get_items()} == {"first"}
        opened.ensure_item("holdfast", "public", "second")
        since = place.configs()[start.other]["truth_since"]
        assert opened.since == since
        assert since >= upper
        for early in (lambda: opened.dump(since - 1), lambda: opened.subscribe(upper)):
            with pytest.raises(AsOfTooEarly, match=str(since)):
                early()
        with pytest.raises(AsOfTooEarly, match=str(since)):
            catalog.dump(since - 1)
        assert "first" in opened.dump(since)
    reader = catalog.open(OpenMode.READ_ONLY)
    assert len(reader.get_items()) == 2


@pytest.mark.parametrize("truth", Backend)
def test_a_reader_without_the_note_asks_the_other_store(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    reader = catalog.open(OpenMode.READ_ONLY)
    place.set_config(truth, truth=None)
    reader.sync()
    assert len(reader.get_items()) == 1
    # There and back, while it does not look.
    place.moved(truth.other)
    with both(place).open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "second")
    place.moved(truth)
    place.set_config(truth, truth=None)
    reader.sync()
    assert len(reader.get_items()) == 2


@pytest.mark.parametrize("truth", Backend)
def test_a_subscriber_of_a_store_that_stops_being_the_truth_is_told(
    place: LinkedPlace, truth: Backend
) -> None:
    catalog = begun(place, truth)
    reader = catalog.open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    late = reader.subscribe()
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "second")
    names = [c.object.value.name for c in _until(subscription, "items") if c.collection.name == "items"]
    assert names == ["second"]
    place.set_config(truth, truth=None)
    # It is still the truth: the note is gone, but the other store says so.
    assert [change.collection.name for change in subscription.next(60)] == ["config"]
    place.moved(truth.other)
    with pytest.raises(NotSourceOfTruth):
        _until(subscription, "nothing")
    # Nothing is lost by it, and it stays so.
    with pytest.raises(NotSourceOfTruth):
        subscription.next()
    assert [c.object.value.name for c in _until(late, "items") if c.collection.name == "items"] == ["second"]
    # There and back: what comes is no past of what it was told.
    place.moved(truth)
    with pytest.raises(AsOfTooEarly):
        _until(late, "nothing")


def _until(subscription: Any, name: str) -> list[Any]:
    found: list[Any] = []
    while not any(change.collection.name == name for change in found):
        found += subscription.next(60)
    return found


def test_a_subscriber_of_a_store_alone_ends_with_the_note(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.PERSIST)
    reader = place.persist().open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "second")
    assert _until(subscription, "items")
    place.set_config(Backend.PERSIST, truth=None)
    with pytest.raises(Exception, match="linked with another store"):
        subscription.next()


def test_a_running_migration_shuts_out_whoever_would_write(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.STASH)
    dumped = contents(place.stores().stash)
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    far = 1 << 50
    taken = take_over_both(place.stores(), claim(holder="the migrator"))
    place.set_config(
        Backend.STASH,
        **{"migration/m1": 1, "migration_target/m1": 2, "migration_deadline": far, "truth": None},
    )
    with pytest.raises(MigrationInProgress, match="m1") as caught:
        writer.confirm_leadership()
    assert caught.value.holder == "the migrator"
    before = place.uppers()
    for write in (
        lambda: catalog.open(OpenMode.WRITABLE, **WHO),
        lambda: catalog.raise_fence(90, **WHO),
        lambda: catalog.load(dumped, **WHO),
    ):
        with pytest.raises(MigrationInProgress) as caught:
            write()
        assert (caught.value.migration_id, caught.value.holder) == ("m1", "the migrator")
    assert place.uppers() == before
    # Who reads may, and the migration itself.
    assert len(catalog.open(OpenMode.READ_ONLY).get_items()) == 1
    catalog.in_migration("m1").open(OpenMode.WRITABLE, **WHO).close()
    place.set_config(Backend.STASH, migration_deadline=0)
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    assert opened.fence_token().epoch == taken.token.epoch + 2


@pytest.mark.parametrize("truth", Backend)
def test_what_tells_the_truth_is_not_edited_by_hand(place: LinkedPlace, truth: Backend) -> None:
    catalog = begun(place, truth)
    before = place.configs()
    for mode in (OpenMode.WRITABLE, OpenMode.SAVEPOINT):
        with catalog.open(mode, **WHO) as opened:
            for key in ("tombstone", "link", "stash_linked", "migration/7", "link_note/stash/moved"):
                with pytest.raises(BadInput, match=r"linked stores|would link the catalog"):
                    opened.dangerous_edit(CONFIGS, pb.ConfigKey(key=key), pb.ConfigValue(value=1))
            opened.dangerous_edit(CONFIGS, pb.ConfigKey(key="mine"), pb.ConfigValue(value=1))
    after = {key: value for key, value in place.configs()[truth].items() if "/saw_" not in key}
    assert after == {**{key: value for key, value in before[truth].items() if "/saw_" not in key}, "mine": 1}


@pytest.mark.parametrize("key", ["link", "stash_linked"])
def test_a_catalog_is_not_linked_by_hand(place: LinkedPlace, key: str) -> None:
    with (
        place.persist().open(OpenMode.WRITABLE, **WHO) as opened,
        pytest.raises(BadInput, match="would link the catalog"),
    ):
        opened.dangerous_edit(CONFIGS, pb.ConfigKey(key=key), pb.ConfigValue(value=1))
    place.persist().open(OpenMode.WRITABLE, **WHO).close()


def test_a_conflict_is_told_by_every_question(place: LinkedPlace) -> None:
    for backend in Backend:
        place.alone(backend).initialize(**WHO)
    catalog = both(place)
    for ask in (
        catalog.is_initialized,
        catalog.source_of_truth,
        catalog.link,
        catalog.dump,
        lambda: catalog.open(OpenMode.READ_ONLY),
        lambda: catalog.open(OpenMode.WRITABLE, **WHO),
    ):
        with pytest.raises(LinkConflict):
            ask()
    assert both(place, truth=Backend.STASH).source_of_truth() is Backend.STASH
