"""The phase of a migration in which every write goes to both stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode, config
from holdfast.catalog.move.attempt import Verify
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.truth import Action, Backend, Strategy
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.objects.registry import CONFIGS, SETTINGS
from holdfast.catalog.stores.preamble import config_row
from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    ContentsDiffer,
    Fenced,
    MigrationInProgress,
    ShadowDiverged,
)
from testbed.linkedstores import WHO, LinkedPlace, stored_contents

WAYS = [(strategy, target) for strategy in Strategy for target in Backend]
every_way = pytest.mark.parametrize(("strategy", "target"), WAYS, ids=str)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def linked(place: LinkedPlace, strategy: Strategy | None = None) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), strategy=strategy, sleep=lambda _: None)


def migration(catalog: LinkedCatalog, target: Backend, **options: Any) -> BackendMigration:
    options = {"verify": Verify.SHADOW, "migration_id": "m", "holder": "me", **options}
    return BackendMigration(catalog, target=target, sleep=lambda _: None, **options)


def put(catalog: Catalog, name: str) -> None:
    catalog.in_transaction(
        lambda tx: tx.set(SETTINGS, pb.SettingKey(name=name), pb.SettingValue(value="written"))
    )


def names(catalog: Any) -> set[str]:
    return {each.key.name for each in catalog.objects(SETTINGS)}


@every_way
def test_what_is_written_goes_to_both_and_the_truth_moves_after_it(
    place: LinkedPlace, strategy: Strategy, target: Backend
) -> None:
    place.alone(target.other).initialize(**WHO)
    catalog = linked(place, strategy)
    moving = migration(catalog, target)
    shadow = moving.open_shadow()
    assert moving.next_step is not None
    assert moving.next_step.action is Action.SET_TOMBSTONE
    assert catalog.source_of_truth() is target.other
    for number in range(5):
        put(shadow, f"{number}")
    shadow.sync()
    assert shadow.object_counts()["settings"] == 6
    assert len(list(shadow.objects(CONFIGS))) >= 1
    for backend in Backend:
        store = place.stores().of(backend)
        stored = {row.value for row in stored_contents(store, store.upper())}
        assert pb.SettingValue(value="written").SerializeToString() in stored
    # Nobody else may write meanwhile.
    with pytest.raises(MigrationInProgress):
        catalog.open(OpenMode.WRITABLE, **WHO)
    upper = place.seen().of(target.other).upper
    assert moving.run().truth is target
    assert catalog.source_of_truth() is target
    # Nothing can be written by it any more, on either side.
    before = place.uppers()
    with pytest.raises(MigrationInProgress):
        put(shadow, "too late")
    assert place.uppers() == before
    # What a reader of the source may have kept is no past of the target.
    assert place.seen().of(target).config[config.TRUTH_SINCE] > upper
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        assert {"0", "1", "2", "3", "4"} < names(opened)
        put(opened, "after")


def test_what_is_written_past_the_shadow_is_found_before_the_truth_moves(place: LinkedPlace) -> None:
    place.stash().initialize(**WHO)
    catalog = linked(place)
    moving = migration(catalog, Backend.PERSIST)
    put(moving.open_shadow(), "a")
    store = place.stores().persist
    store.append([RowUpdate(config_row("somebody's", 1), 1)], store.upper())
    with pytest.raises(ContentsDiffer, match="config"):
        moving.run()
    assert catalog.source_of_truth() is Backend.STASH
    assert moving.run().moved
    with catalog.open(OpenMode.READ_ONLY) as opened:
        assert "a" in names(opened)


def test_a_target_that_did_not_follow_stops_it(place: LinkedPlace) -> None:
    place.stash().initialize(**WHO)
    catalog = linked(place)
    moving = migration(catalog, Backend.PERSIST)
    shadow = moving.open_shadow()
    store = place.stores().persist
    store.append([RowUpdate(config_row("somebody's", 1), 1)], store.upper())
    put(shadow, "a")
    with pytest.raises((CatalogOutOfSync, ShadowDiverged)):
        moving.run()
    assert catalog.source_of_truth() is Backend.STASH
    # Nothing that was committed is lost, and the next attempt begins at the first step.
    assert moving.run().moved
    with catalog.open(OpenMode.READ_ONLY) as opened:
        assert "a" in names(opened)


def test_who_takes_over_ends_both_sides(place: LinkedPlace) -> None:
    place.stash().initialize(**WHO)
    catalog = linked(place)
    moving = migration(catalog, Backend.PERSIST)
    shadow = moving.open_shadow()
    other = migration(catalog, Backend.PERSIST)
    other.advance()
    with pytest.raises((Fenced, MigrationInProgress)):
        put(shadow, "a")
    with pytest.raises(Fenced):
        moving.advance()
    assert other.run().moved


def test_it_may_be_opened_again_and_is_closed_with_the_migration(place: LinkedPlace) -> None:
    place.stash().initialize(**WHO)
    moving = migration(linked(place), Backend.PERSIST)
    first = moving.open_shadow()
    put(first, "a")
    second = moving.open_shadow()
    put(second, "b")
    with pytest.raises(MigrationInProgress):
        put(first, "c")
    moving.close()
    with pytest.raises(MigrationInProgress):
        put(second, "c")
    assert moving.run().moved


def test_there_is_none_without_that_verification_or_after_the_end(place: LinkedPlace) -> None:
    place.stash().initialize(**WHO)
    catalog = linked(place)
    with pytest.raises(BadInput, match="has no shadow"):
        migration(catalog, Backend.PERSIST, verify=Verify.COMPARE).open_shadow()
    # Without anybody who writes it is a comparison.
    assert migration(catalog, Backend.PERSIST).run().moved
    with pytest.raises(BadInput, match="has ended"):
        migration(catalog, Backend.PERSIST).open_shadow()
