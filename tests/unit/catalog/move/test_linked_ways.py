"""Other operations on linked catalogs: reopening, emergencies, unlinking, writing to both stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import Backend, OpenMode, ShadowCatalog, Strategy, detach, emergency_catalog, reopened
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.two_stores import take_over_both
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.replacement import is_content
from holdfast.errors import (
    BadInput,
    Fenced,
    FencedByMove,
    LinkConflict,
    LinkedElsewhere,
    MigrationInProgress,
    NeedsPersist,
    NotSourceOfTruth,
)
from testbed.linkedstores import WHO, LinkedPlace, claim, contents

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES
RUNNING = {"migration/m1": 1, "migration_target/m1": 2, "migration_deadline": 1 << 50}
ENDED = {"migration/m1": 2, "migration_deadline": None}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def both(place: LinkedPlace, **options: Any) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), sleep=lambda _: None, **options)


def begun(place: LinkedPlace, truth: Backend, strategy: Strategy = ONE) -> LinkedCatalog:
    catalog = both(place, backend=truth, strategy=strategy)
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "first")
    return catalog


def items(catalog: Any) -> set[str]:
    return {item.value.name for item in catalog.get_items()}


def fenced_by_a_migration(place: LinkedPlace, catalog: LinkedCatalog) -> MigrationInProgress:
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    take_over_both(place.stores(), claim(holder="the migrator"))
    place.set_config(Backend.STASH, **RUNNING)
    with pytest.raises(MigrationInProgress) as caught:
        writer.sync()
    return caught.value


def test_who_was_shut_out_waits_and_opens_where_the_catalog_is(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.STASH)
    error = fenced_by_a_migration(place, catalog)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            place.moved(Backend.PERSIST)
            place.set_config(Backend.STASH, **ENDED)

    with reopened(catalog, error, sleep=sleep, **WHO) as opened:
        assert items(opened) == {"first"}
        assert opened.place == place.persist().place
    assert len(pauses) == 3
    assert pauses == sorted(pauses)


def test_who_is_shut_out_for_too_long_is_told(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.STASH)
    error = fenced_by_a_migration(place, catalog)
    pauses: list[float] = []
    with pytest.raises(MigrationInProgress, match="m1"):
        reopened(catalog, error, timeout_s=7.5, sleep=pauses.append, **WHO)
    assert sum(pauses) == pytest.approx(7.5)
    # Whoever reads need not wait.
    with reopened(catalog, error, mode=OpenMode.READ_ONLY, sleep=pauses.append) as reader:
        assert items(reader) == {"first"}


def test_who_was_overtaken_by_somebody_is_not_reopened(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.PERSIST)
    first = catalog.open(OpenMode.WRITABLE, **WHO)
    second = catalog.open(OpenMode.WRITABLE, **WHO)
    with pytest.raises(Fenced) as caught:
        first.sync()
    with pytest.raises(Fenced):
        reopened(catalog, caught.value, **WHO)
    second.confirm_leadership()


@pytest.mark.parametrize("strategy", Strategy)
def test_who_slept_through_a_move_and_its_way_back_goes_on(place: LinkedPlace, strategy: Strategy) -> None:
    catalog = begun(place, Backend.STASH, strategy)
    first, second = (catalog.open(OpenMode.WRITABLE, **WHO) for _ in range(2))
    move = {"migration_id": "m1", "target": Backend.PERSIST, "holder": "the migrator"}
    BackendMigration(catalog, **move).run()
    BackendMigration(catalog, rollback=True, **move).run()
    with pytest.raises(FencedByMove, match="moved to its other store and back since") as caught:
        second.sync()
    with reopened(catalog, caught.value, **WHO) as opened:
        assert items(opened) == {"first"}
        # Somebody has it now: who slept longer must stop.
        with pytest.raises(Fenced) as late:
            first.sync()
        assert not isinstance(late.value, FencedByMove)
        with pytest.raises(Fenced):
            reopened(catalog, late.value, **WHO)
        opened.ensure_item("holdfast", "public", "second")


def test_until_when_a_migration_shuts_others_out_is_told(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.STASH)
    place.set_config(Backend.STASH, **{**RUNNING, "migration_deadline": 4_102_444_800_000})
    for refused in (lambda: catalog.open(OpenMode.WRITABLE, **WHO), catalog.check_takeover):
        with pytest.raises(
            MigrationInProgress, match="until 2100-01-01 00:00:00 UTC at the latest"
        ) as caught:
            refused()
        assert caught.value.deadline_ms == 4_102_444_800_000
    # A number that is no time is not told as one.
    place.set_config(Backend.STASH, migration_deadline=1 << 63)
    with pytest.raises(MigrationInProgress) as caught:
        catalog.open(OpenMode.WRITABLE, **WHO)
    assert str(caught.value).endswith(")")


def test_a_reader_alone_goes_on_with_both_stores(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.PERSIST)
    alone = place.persist().open(OpenMode.READ_ONLY)
    place.set_config(Backend.PERSIST, truth=None)
    with pytest.raises(LinkedElsewhere) as caught:
        alone.sync()
    with reopened(catalog, caught.value, mode=OpenMode.READ_ONLY) as reader:
        assert items(reader) == {"first"}


@pytest.mark.parametrize("strategy", Strategy)
def test_in_an_emergency_the_stash_opens_alone_where_it_counts(
    place: LinkedPlace, strategy: Strategy
) -> None:
    catalog = begun(place, Backend.STASH, strategy)
    # Without the note its config alone tells it.
    place.set_config(Backend.STASH, truth=None)
    before = place.uppers()
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    emergency = emergency_catalog(place.stash())
    with emergency.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", "second")
    with pytest.raises(Fenced):
        writer.sync()
    reader = emergency.open(OpenMode.READ_ONLY)
    reader.sync()
    assert items(reader) == {"first", "second"}
    emergency.raise_fence(90, **WHO)
    # Persist was never touched but by the open with both.
    assert place.uppers()[1] == before[1] + 1
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        assert items(opened) == {"first", "second"}
        assert opened.fence_token().epoch == 91
    place.set_config(Backend.STASH, **RUNNING)
    with pytest.raises(MigrationInProgress):
        emergency.open(OpenMode.WRITABLE, **WHO)


@pytest.mark.parametrize(
    ("strategy", "truth", "tombstone"),
    [(ONE, Backend.PERSIST, 1), (TWO, Backend.PERSIST, 1), (TWO, Backend.STASH, 0), (TWO, Backend.STASH, 1)],
)
def test_where_the_stash_alone_does_not_tell_persist_is_needed(
    place: LinkedPlace, strategy: Strategy, truth: Backend, tombstone: int
) -> None:
    begun(place, truth, strategy)
    place.set_config(Backend.STASH, tombstone=tombstone, truth=None)
    emergency = emergency_catalog(place.stash())
    before = place.uppers()
    for refused in (
        lambda: emergency.open(OpenMode.WRITABLE, **WHO),
        lambda: emergency.open(OpenMode.READ_ONLY),
        lambda: emergency.raise_fence(90, **WHO),
        lambda: emergency.initialize(**WHO),
    ):
        with pytest.raises(NeedsPersist) as caught:
            refused()
        assert "both of its stores" in caught.value.hint
    assert place.uppers() == before


def test_in_an_emergency_nothing_new_is_begun(place: LinkedPlace) -> None:
    place.persist().initialize(**WHO)
    with pytest.raises(NeedsPersist, match="empty"):
        emergency_catalog(place.stash()).open(OpenMode.WRITABLE, **WHO)
    assert place.uppers()[0] == 0
    with pytest.raises(BadInput):
        emergency_catalog(both(place))


def test_a_link_is_ended_where_the_catalog_is_on_persist(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.PERSIST, TWO)
    writer = catalog.open(OpenMode.WRITABLE, deploy_generation=3, **WHO)
    token = detach(catalog, **WHO)
    assert token.deploy_generation == 3
    with pytest.raises(Fenced):
        writer.sync()
    config = place.configs()
    assert set(config[Backend.PERSIST]) == {"user_version"}
    assert "link" in config[Backend.STASH]
    with place.persist().open(OpenMode.WRITABLE, deploy_generation=3, **WHO) as opened:
        assert items(opened) == {"first"}
    # Nobody takes what is left in the stash for the catalog, and it is never linked again.
    with pytest.raises(LinkedElsewhere):
        place.stash().open(OpenMode.WRITABLE, **WHO)
    with pytest.raises(LinkConflict, match="it was detached"):
        catalog.open(OpenMode.WRITABLE, deploy_generation=3, **WHO)


def test_a_link_is_not_ended_where_that_could_lose_the_catalog(place: LinkedPlace) -> None:
    unlinked = both(place)
    with pytest.raises(BadInput, match="not linked"):
        detach(unlinked, **WHO)
    catalog = begun(place, Backend.STASH)
    before = place.uppers()
    with pytest.raises(BadInput, match="is the stash in") as caught:
        detach(catalog, **WHO)
    assert "migrate" in caught.value.hint
    for lost in (catalog, place.persist()):
        with pytest.raises(LinkConflict, match="does not record that it is the source of truth"):
            detach(lost, stash_lost=True, **WHO)
    with pytest.raises(BadInput, match="stash of a link"):
        detach(place.stash(), stash_lost=True, **WHO)
    with pytest.raises(BadInput, match="both of its stores"):
        detach(place.persist(), **WHO)
    assert place.uppers() == before
    place.moved(Backend.PERSIST)
    place.set_config(Backend.STASH, **RUNNING)
    with pytest.raises(MigrationInProgress):
        detach(catalog, **WHO)


def test_a_catalog_whose_stash_is_lost_is_opened_without_it(place: LinkedPlace, tmp_path: Path) -> None:
    begun(place, Backend.PERSIST)
    (tmp_path / "stash.sqlite").unlink()
    # A new and empty one is never taken for it.
    with pytest.raises(LinkConflict, match="never linked") as caught:
        both(place).open(OpenMode.WRITABLE, **WHO)
    assert "--stash-lost" in caught.value.hint
    detach(place.persist(), stash_lost=True, **WHO)
    with place.persist().open(OpenMode.WRITABLE, **WHO) as opened:
        assert items(opened) == {"first"}
    # Now it may have a new one.
    with both(place).open(OpenMode.WRITABLE, **WHO) as opened:
        assert items(opened) == {"first"}


@pytest.mark.parametrize("truth", Backend)
def test_with_a_shadow_both_stores_hold_the_same(place: LinkedPlace, truth: Backend) -> None:
    begun(place, truth)
    found: list[Exception] = []
    catalog = both(place, shadow=True, on_diverged=found.append)
    opened = catalog.open(OpenMode.WRITABLE, **WHO)
    assert isinstance(opened, ShadowCatalog)
    opened.ensure_item("holdfast", "public", "second")
    opened.object_counts()
    opened.snapshot()
    opened.compare()
    assert (found, opened.diverged, opened.out_of_date) == ([], None, None)
    mine, theirs = (
        {row for row in contents(place.stores().of(backend)) if is_content(row)} for backend in Backend
    )
    assert mine == theirs
    # The other one is not the truth by that.
    assert catalog.source_of_truth() is truth
    assert "truth" not in place.configs()[truth.other]
    assert place.seen().stash.token == place.seen().persist.token == opened.fence_token()
    other = place.stores().of(truth.other)
    row = next(row for row in contents(other) if b"second" in row.value)
    other.append([RowUpdate(row, -1)], other.upper())
    opened.resync()
    assert any(b"second" in row.value for row in contents(other))
    plain = both(place).open(OpenMode.WRITABLE, **WHO)
    with pytest.raises(Fenced):
        opened.ensure_item("holdfast", "public", "third")
    assert items(plain) == {"first", "second"}


def test_who_lost_the_truth_is_told_where_it_is(place: LinkedPlace) -> None:
    catalog = begun(place, Backend.STASH)
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    place.moved(Backend.PERSIST)
    with pytest.raises(NotSourceOfTruth) as caught:
        writer.ensure_item("holdfast", "public", "lost")
    assert caught.value.truth == "Persist"
    with reopened(catalog, caught.value, **WHO) as opened:
        assert items(opened) == {"first"}
        opened.ensure_item("holdfast", "public", "second")
