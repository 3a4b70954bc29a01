"""Decides by hand which of two stores counts, if the stores no longer show it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog import OpenMode, config, detach, emergency_catalog, stash_catalog
from holdfast.catalog.move import decision as deciding
from holdfast.catalog.move.decision import FAR, decide, decision
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.errors import (
    AsOfTooEarly,
    CorruptBlob,
    Fenced,
    LinkConflict,
    LinkedElsewhere,
    MigrationInProgress,
    NeedsPersist,
    NotSourceOfTruth,
    StrategyMismatch,
    Uninitialized,
)
from testbed.linkedstores import WHO, LinkedPlace, PostgresLinkedPlace

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES
STASH, PERSIST = Backend


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LinkedPlace]:
    """A place with the stash in SQLite, or where a test says so."""
    if getattr(request, "param", "SQLite") == "SQLite":
        made = LinkedPlace(tmp_path)
    else:
        made = PostgresLinkedPlace(tmp_path, request.getfixturevalue("postgres_url"))
    yield made
    made.close()


on_every_stash = pytest.mark.parametrize(
    "place", ["SQLite", pytest.param("Postgres", marks=pytest.mark.postgres)], indirect=True
)


def both(place: LinkedPlace, **options: Any) -> LinkedCatalog:
    return linked_catalog(place.stash(), place.persist(), sleep=lambda _: None, **options)


def write(catalog: Any, name: str) -> None:
    with catalog.open(OpenMode.WRITABLE, **WHO) as opened:
        opened.ensure_item("holdfast", "public", name)


def items(catalog: Any) -> set[str]:
    with catalog.open(OpenMode.READ_ONLY) as reader:
        return {item.value.name for item in reader.get_items()}


def move(catalog: LinkedCatalog, migration_id: str, target: Backend) -> None:
    BackendMigration(catalog, migration_id=migration_id.replace(" ", "-"), target=target, **WHO).run()


def restored(place: LinkedPlace, strategy: Strategy, *, back: bool) -> None:
    """A stash that is what it was before the catalog moved to persist (and back): fenced above it, or not."""
    catalog = both(place, backend=STASH, strategy=strategy)
    write(catalog, "both")
    place.back_up_stash()
    move(catalog, "there", PERSIST)
    write(catalog, "on persist")
    if back:
        move(catalog, "back", STASH)
        write(catalog, "lost with the stash")
    place.restore_stash()
    write(emergency_catalog(place.stash()), "in the stash")


def both_noted(place: LinkedPlace) -> None:
    """The stash was restored from before the move, and raised its fence: each says that it is the truth."""
    restored(place, ONE, back=False)
    emergency_catalog(place.stash()).raise_fence(50, **WHO)


def two_restored(place: LinkedPlace) -> None:
    """Two tombstones, and a stash from before the round trip: tombstones that no step leads to."""
    restored(place, TWO, back=True)
    emergency_catalog(place.stash()).raise_fence(50, **WHO)


def stash_behind(place: LinkedPlace) -> None:
    """A stash that was restored from an older state, without a word."""
    restored(place, ONE, back=True)


def stash_anew(place: LinkedPlace) -> None:
    """The stash with the truth is lost, another one is in its place, which has a catalog of its own."""
    catalog = both(place, backend=PERSIST)
    write(catalog, "on persist")
    move(catalog, "to the stash", STASH)
    write(catalog, "lost with the stash")
    place.lose_stash()
    write(place.stash(), "in the stash")


def persist_anew(place: LinkedPlace) -> None:
    """Persist with the truth is lost, another one is in its place."""
    catalog = both(place, backend=STASH, strategy=TWO)
    write(catalog, "in the stash")
    move(catalog, "to persist", PERSIST)
    place.renew_persist()
    write(place.persist(), "on persist")


def told(place: LinkedPlace) -> None:
    """Nothing is wrong: persist is the truth, the stash holds what it held before."""
    catalog = both(place, backend=STASH)
    write(catalog, "in the stash")
    move(catalog, "to persist", PERSIST)
    write(catalog, "on persist")


CONFLICTS = [both_noted, two_restored, stash_behind, stash_anew, persist_anew]


@on_every_stash
@pytest.mark.parametrize(
    "truth",
    [Backend.PERSIST, pytest.param(Backend.STASH, marks=pytest.mark.long)],
    ids=lambda truth: truth.value,
)
@pytest.mark.parametrize("conflict", [*CONFLICTS, told], ids=lambda made: made.__name__)
@pytest.mark.long
def test_what_was_decided_is_the_catalog_and_everybody_is_fenced(
    place: LinkedPlace, conflict: Callable[..., None], truth: Backend
) -> None:
    conflict(place)
    catalog = both(place)
    alone = writers_alone(place)
    before = place.uppers()
    if conflict is not told:
        for refused in (lambda: write(catalog, "x"), lambda: items(catalog), catalog.source_of_truth):
            with pytest.raises(LinkConflict) as caught:
                refused()
            assert "--accept-loss" in caught.value.hint
    found = decision(catalog, truth)
    assert found.gives_up is (conflict is not told or truth is STASH)
    if not found.gives_up:
        return
    assert (found.told, found.conflict is None) == ((PERSIST, True) if conflict is told else (None, False))
    for backend in Backend:
        sizes = found.sizes(backend)
        assert sizes is not None
        assert sizes["items"].rows > 0
    assert place.uppers() == before
    link = decide(catalog, found, **WHO)
    assert (link.truth, catalog.link()) == (truth, link)
    kept = {STASH: "in the stash", PERSIST: "on persist"}[truth]
    assert kept in items(catalog)
    assert {STASH: "on persist", PERSIST: "in the stash"}[truth] not in items(catalog)
    configs = place.configs()
    assert configs[truth]["truth"] == 1
    assert "truth" not in configs[truth.other]
    assert configs[truth]["truth_since"] > max(before) + FAR
    assert config.SETTLING not in configs[PERSIST]
    assert place.seen().stash.token == place.seen().persist.token
    for writer in alone:
        with pytest.raises((Fenced, LinkedElsewhere)):
            writer.ensure_item("holdfast", "public", "too late")
    write(catalog, "afterwards")
    assert {kept, "afterwards"} <= items(catalog)
    with catalog.open(OpenMode.READ_ONLY) as reader, pytest.raises(AsOfTooEarly):
        reader.subscribe(since=max(before) + 5)
    # It can be moved like any other, and what was given up is gone then.
    move(catalog, "after the decision", truth.other)
    assert {kept, "afterwards"} <= items(catalog)


def writers_alone(place: LinkedPlace) -> list[Any]:
    """Who has a store open that has no link, or is used in an emergency."""
    found = []
    for openable in (place.persist(), emergency_catalog(place.stash())):
        try:
            found.append(openable.open(OpenMode.WRITABLE, **WHO))
        except (LinkedElsewhere, NeedsPersist):
            continue
    return found


def test_a_store_that_is_changed_after_the_look_is_not_decided_about(place: LinkedPlace) -> None:
    told(place)
    catalog = both(place)
    found = decision(catalog, STASH)
    write(catalog, "meanwhile")
    before = place.uppers()
    with pytest.raises(LinkConflict, match="was changed after it was read"):
        decide(catalog, found, **WHO)
    assert place.uppers() == before


def test_a_writer_who_goes_on_meanwhile_does_not_keep_it_out(place: LinkedPlace) -> None:
    told(place)
    catalog = both(place)
    writer = catalog.open(OpenMode.WRITABLE, **WHO)
    found = decision(catalog, STASH)
    writer.ensure_item("holdfast", "public", "meanwhile")
    decide(catalog, found, **WHO)
    with pytest.raises(NotSourceOfTruth):
        writer.ensure_item("holdfast", "public", "too late")
    assert items(catalog) == {"in the stash"}


def broken_off(place: LinkedPlace, catalog: LinkedCatalog, truth: Backend) -> None:
    """What a decision leaves behind that ended after its mark."""
    link = deciding._Deciding(catalog.stores.another("a test"), decision(catalog, truth))
    link._mark()


@on_every_stash
def test_nobody_gets_in_while_it_is_being_decided(place: LinkedPlace) -> None:
    told(place)
    catalog = both(place)
    reader = place.persist().open(OpenMode.READ_ONLY)
    linked_reader = catalog.open(OpenMode.READ_ONLY)
    broken_off(place, catalog, STASH)
    before = place.uppers()
    for refused in (
        lambda: write(catalog, "x"),
        lambda: items(catalog),
        lambda: both(place, truth=PERSIST).source_of_truth(),
        lambda: detach(catalog, **WHO),
        lambda: detach(place.persist(), stash_lost=True, **WHO),
        lambda: move(catalog, "m", STASH),
        linked_reader.sync,
    ):
        with pytest.raises(LinkConflict):
            refused()
    for alone in (lambda: items(place.persist()), lambda: write(place.persist(), "x"), reader.sync):
        with pytest.raises(LinkedElsewhere):
            alone()
    with pytest.raises(LinkConflict, match=r"a decision that .* is Stash was begun") as caught:
        catalog.source_of_truth()
    assert "link --truth stash --accept-loss' continues it" in caught.value.hint
    assert place.uppers() == before
    for truth in (PERSIST, STASH):
        # Nothing is lost yet: it may still be decided either way.
        broken_off(place, catalog, truth)
    decide(catalog, decision(catalog, PERSIST), **WHO)
    assert items(catalog) == {"in the stash", "on persist"}


def test_of_two_decisions_the_later_one_counts(place: LinkedPlace) -> None:
    both_noted(place)
    catalog = both(place)
    with catalog.stores.opened("a test") as stores:
        slow = deciding._Deciding(stores, decision(catalog, STASH))
        slow._mark()
        decide(catalog, decision(catalog, PERSIST), **WHO)
        before = place.uppers()
        with pytest.raises(LinkConflict, match="another decision"):
            slow._take_over(catalog.claim(0, "slow", "a test"), lambda _: None)
    assert place.uppers() == before
    assert "on persist" in items(catalog)


def test_a_migration_that_was_running_ends_with_the_decision(place: LinkedPlace) -> None:
    told(place)
    catalog = both(place)
    moving = BackendMigration(catalog, migration_id="m", target=STASH, **WHO)
    for _ in range(3):
        moving.advance()
    # The stores tell it, and somebody has them.
    with pytest.raises(MigrationInProgress):
        decision(catalog, STASH)
    place.set_config(STASH, truth=1)
    decide(catalog, decision(catalog, PERSIST), **WHO)
    with pytest.raises(Fenced):
        moving.advance()
    assert not [key for key in place.configs()[STASH] if key.startswith("migration/m")]
    write(catalog, "afterwards")


def test_what_can_not_be_is_refused_before_anything_is_written(place: LinkedPlace) -> None:
    stash_anew(place)
    place.lose_stash()
    catalog = both(place)
    before = place.uppers()
    with pytest.raises(Uninitialized, match="there is no catalog in "):
        decision(catalog, STASH)
    found = decision(catalog, PERSIST)
    assert found.sizes(STASH) is None
    assert place.uppers() == before
    decide(catalog, found, **WHO)
    assert items(catalog) == {"on persist"}


def test_a_store_that_can_not_be_read_is_given_up_but_never_kept(place: LinkedPlace) -> None:
    both_noted(place)
    store = place.stores().stash
    store.append([RowUpdate(Row(SETTINGS.kind.tag + b"\xff", b""), 1)], store.upper())
    catalog = both(place)
    with pytest.raises(CorruptBlob):
        decision(catalog, STASH)
    decide(catalog, decision(catalog, PERSIST), **WHO)
    assert "on persist" in items(catalog)


def test_it_is_told_where_nothing_would_be_lost(place: LinkedPlace) -> None:
    catalog = both(place, backend=STASH)
    write(catalog, "in both")
    move(catalog, "to persist", PERSIST)
    assert decision(catalog, STASH).same
    write(catalog, "on persist")
    assert not decision(catalog, STASH).same


def test_a_decision_keeps_the_strategy(place: LinkedPlace) -> None:
    two_restored(place)
    other = both(place, strategy=ONE)
    with pytest.raises(StrategyMismatch):
        decide(other, decision(both(place), PERSIST), **WHO)
    assert decide(both(place), decision(both(place), PERSIST), **WHO).strategy is TWO


@on_every_stash
@pytest.mark.parametrize("strategy", Strategy)
def test_the_loss_of_a_stash_with_the_catalog_is_accepted(
    place: LinkedPlace, tmp_path: Path, strategy: Strategy
) -> None:
    catalog = both(place, backend=PERSIST, strategy=strategy)
    write(catalog, "on persist")
    move(catalog, "to the stash", STASH)
    write(catalog, "lost with the stash")
    place.lose_stash()
    upper = place.seen().persist.upper
    with pytest.raises(LinkConflict, match="does not record that it is the source of truth") as caught:
        detach(place.persist(), stash_lost=True, **WHO)
    assert "--accept-loss" in caught.value.hint
    assert place.seen().persist.upper == upper
    detach(place.persist(), stash_lost=True, accept_loss=True, **WHO)
    assert items(place.persist()) == {"on persist"}
    write(place.persist(), "afterwards")
    with place.persist().open(OpenMode.READ_ONLY) as reader, pytest.raises(AsOfTooEarly):
        # What somebody remembers of the stash is no time of persist.
        reader.subscribe(since=upper + 1000)
    # Another stash may be linked now; the old one, should it turn up, may not.
    write(linked_catalog(stash_catalog(f"sqlite://{tmp_path}/new.sqlite"), place.persist()), "linked anew")
