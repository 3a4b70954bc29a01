"""A catalog that is written and compared in both its stores: equal, diverged, unreachable, moved."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Backend, Catalog, OpenMode
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import ITEMS, SYSTEM_CONFIGURATIONS
from holdfast.catalog.one_store import stash_catalog
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.catalog.shadow.side import ShadowSide
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import LinkConflict, StoreUnreachable
from holdfast.persist import Schema
from holdfast_operator.api.migration import Verify
from holdfast_operator.catalogs import shadow as shadowing
from holdfast_operator.catalogs.conditions import shadow_condition
from holdfast_operator.catalogs.facts import Opening, OwnedByAnother, ShadowFacts, purpose_of
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.shadow import Shadow
from holdfast_operator.collections import store
from holdfast_operator.collections.facts import ItemName
from holdfast_operator.collections.steps import DropItem, EnsureItem
from holdfast_operator.engine.events import transitions
from holdfast_operator.engine.steps import ready
from holdfast_operator.migrations.conductor import Conductor
from holdfast_operator.migrations.facts import Course, RequestedMove
from holdfast_operator.places.credentials import NO_CREDENTIALS, Credentials
from holdfast_operator.places.storage import StashLocation, Storage, url_with

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
PURPOSE = "operator for Catalog ns/demo"
NAME = ItemName("holdfast", "public", "flights")
SCHEMA = Schema.of(key={"id": "int64"}, value={})


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    stash = StashLocation(f"sqlite://{tmp_path}/stash.sqlite")
    storage = Storage(url=(tmp_path / "store").as_uri())
    return Opening(storage, ORGANIZATION, 0, "default", (), "me", PURPOSE, stash=stash, shadow=True)


def stash_url(opening: Opening) -> str:
    assert opening.stash is not None
    return opening.stash.url


def items_in_stash(opening: Opening) -> int:
    """As they are stored there, whichever store is the truth."""
    store = StashStore(stash_url(opening), read_only=True)
    try:
        return sum(row.kind == ITEMS.kind for row in store.rows(store.upper() - 1))
    finally:
        store.close()


def plant(opening: Opening) -> None:
    """Change the stash behind the back of whoever shadows in it."""
    store = StashStore(stash_url(opening))
    row = encode(
        SYSTEM_CONFIGURATIONS,
        pb.SystemConfigurationKey(name="planted"),
        pb.SystemConfigurationValue(value="x"),
    )
    store.append([RowUpdate(row, 1)], store.upper())
    store.close()


def test_what_is_done_is_done_on_both(opening: Opening) -> None:
    catalog = OpenCatalog.open(opening)
    store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
    facts = catalog.confirm()
    assert facts.shadow == ShadowFacts()
    assert dict(facts.object_counts)["items"] == 1
    catalog.close()
    assert items_in_stash(opening) == 1


def test_a_difference_is_told_once_and_the_catalog_goes_on(opening: Opening) -> None:
    catalog = OpenCatalog.open(opening)
    catalog.confirm()
    plant(opening)
    store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
    shadow = catalog.confirm().shadow
    assert shadow is not None
    assert shadow.diverged
    store.take(catalog, DropItem(NAME))
    assert catalog.confirm().shadow == shadow
    catalog.close()
    # Whoever opens it anew makes the shadow anew.
    again = OpenCatalog.open(opening)
    assert again.confirm().shadow == ShadowFacts()
    again.close()


def test_a_store_that_failed_is_not_asked_all_the_time(tmp_path: Path) -> None:
    now, asked = [0.0], []
    with stash_catalog(f"sqlite://{tmp_path}/a").open(
        OpenMode.WRITABLE, holder="me", purpose="test"
    ) as catalog:

        def attach(_: Catalog) -> Catalog:
            asked.append(now[0])
            raise StoreUnreachable("down")

        side: ShadowSide[Catalog] = ShadowSide("there", strict=False, on_diverged=None)
        shadowed = ShadowCatalog(catalog, side, attach)
        shadowed.resync()
        shadow = Shadow(shadowed, lambda: now[0])
        for now[0] in (0.0, shadowing.RESYNC_SECONDS - 1, shadowing.RESYNC_SECONDS):
            assert "down" in shadow.look().out_of_date
        assert asked == [0.0, shadowing.RESYNC_SECONDS]


def test_a_stash_out_of_reach_may_be_the_source_of_truth(opening: Opening, tmp_path: Path) -> None:
    (tmp_path / "stash.sqlite").mkdir()
    with pytest.raises(StoreUnreachable):
        OpenCatalog.open(opening)
    (tmp_path / "stash.sqlite").rmdir()
    OpenCatalog.open(opening).close()


def test_a_shadow_is_turned_on_and_off_and_the_truth_moves_between(opening: Opening) -> None:
    alone = replace(opening, shadow=False)
    for each in (alone, opening, alone, opening):
        catalog = OpenCatalog.open(each)
        assert catalog.confirm().truth == "Persist"
        assert catalog.confirm().shadow == (ShadowFacts() if each.shadow else None)
        catalog.close()
    move = RequestedMove("m", Backend.STASH, False, Verify.COMPARE, "move", opening)
    conductor, course = Conductor.of(move, NO_CREDENTIALS, timeout=60), Course(move)
    while (after := conductor.advance(course)) is not None:
        course = after
    conductor.close()
    catalog = OpenCatalog.open(opening)
    store.take(catalog, EnsureItem(NAME, SCHEMA, 1))
    facts = catalog.confirm()
    assert (facts.truth, facts.shadow) == ("Stash", ShadowFacts())
    assert dict(facts.object_counts)["items"] == 1
    catalog.close()


def test_what_is_another_catalogs_is_not_moved(opening: Opening) -> None:
    OpenCatalog.open(opening).close()
    other = replace(opening, purpose=purpose_of("ns/other"))
    move = RequestedMove("m", Backend.STASH, False, Verify.COMPARE, purpose_of("ns/other", "ns/m"), other)
    there = {("ns/demo", ORGANIZATION)}
    with pytest.raises(OwnedByAnother, match="Catalog ns/demo has this organization"):
        Conductor.of(move, NO_CREDENTIALS, timeout=60, has_catalog=lambda *each: each in there)
    there.clear()
    conductor = Conductor.of(move, NO_CREDENTIALS, timeout=60, has_catalog=lambda *each: each in there)
    conductor.advance(Course(move))
    conductor.close()
    # A move takes the catalog over for its Catalog.
    there.add(("ns/other", ORGANIZATION))
    with pytest.raises(OwnedByAnother, match="Catalog ns/other has"):
        OpenCatalog.open(opening, has_catalog=lambda *each: each in there)


@pytest.mark.parametrize("purpose", ["nightly load", PURPOSE])
def test_a_stash_that_holds_a_catalog_already_is_left_alone(opening: Opening, purpose: str) -> None:
    other = stash_catalog(stash_url(opening))
    with other.open(OpenMode.WRITABLE, holder="them", purpose=purpose) as theirs:
        theirs.ensure_item("holdfast", "public", "precious")
    OpenCatalog.open(replace(opening, stash=None, shadow=False)).close()
    before = other.dump()
    with pytest.raises(LinkConflict, match="each hold a catalog"):
        OpenCatalog.open(opening)
    assert other.dump() == before


@pytest.mark.parametrize(
    ("place", "credentials", "url"),
    [
        (StashLocation("postgresql://h/d"), {}, "postgresql://h/d"),
        (
            StashLocation("postgresql://h:5433/d?sslmode=require", schema="shop"),
            {"user": "me", "password": "p@s:s/#?%"},
            "postgresql://me:p%40s%3As%2F%23%3F%25@h:5433/d?sslmode=require&schema=shop",
        ),
        (StashLocation("postgresql://h/d"), {"password": "pw"}, "postgresql://:pw@h/d"),
        (StashLocation("postgresql://h/d"), {"username": "me", "password": "pw"}, "postgresql://me:pw@h/d"),
        (StashLocation("postgresql://h/d"), {"user": "me", "username": "you"}, "postgresql://me@h/d"),
        (StashLocation("sqlite:///a/b"), {"user": "me", "password": "pw"}, "sqlite:///a/b"),
    ],
)
def test_the_url_with_its_credentials(place: StashLocation, credentials: dict[str, str], url: str) -> None:
    assert url_with(place, credentials) == url


def test_no_credentials_are_shown(opening: Opening) -> None:
    place = StashLocation("postgresql://127.0.0.1:1/d?connect_timeout=2", secret="keys")
    credentials = {"user": "planted-user", "password": "planted-p@ssword"}
    with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1") as error:
        OpenCatalog.open(replace(opening, stash=place), Credentials(stash=credentials))
    assert "planted" not in str(error.value)


PLACE = StashLocation("sqlite:///a")


@pytest.mark.parametrize(
    ("shadow", "status", "reason", "warning"),
    [
        (ShadowFacts(), "False", "ShadowInStep", False),
        (ShadowFacts(diverged="roles differ"), "True", "ShadowDiverged", True),
        (ShadowFacts(out_of_date="down"), "Unknown", "ShadowOutOfDate", False),
    ],
)
def test_what_is_shown_of_a_shadow(shadow: ShadowFacts, status: str, reason: str, warning: bool) -> None:
    (condition,) = shadow_condition(PLACE, shadow)
    assert (condition.status, condition.reason) == (status, reason)
    assert (shadow.diverged or shadow.out_of_date or PLACE.url) in condition.message
    (_, note) = transitions([], ready("fine"), [condition])
    assert (note.reason, note.warning) == (reason, warning)
    assert shadow_condition(None, None) == ()
