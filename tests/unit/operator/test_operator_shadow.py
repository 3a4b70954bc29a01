"""A catalog that is shadowed in a stash: in step, diverged, out of reach, and another's."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.durable import OpenMode, persist_catalog
from holdfast.durable.codec import Update, encode
from holdfast.durable.registry import SYSTEM_CONFIGURATIONS
from holdfast.durable.shadow import shadow_catalog
from holdfast.durable.shadow_handle import ShadowCatalog
from holdfast.durable.stash_store import StashStore, stash_catalog
from holdfast.persist import PersistClient, Schema
from holdfast_operator.reconcile import shadowing
from holdfast_operator.reconcile.catalogmarks import mark_shadow
from holdfast_operator.reconcile.facts import ItemName, Opening, ShadowFacts
from holdfast_operator.reconcile.opencatalog import OpenCatalog
from holdfast_operator.reconcile.shadowing import Shadow, ShadowStash
from holdfast_operator.reconcile.steps import ready
from holdfast_operator.reconcile.storage import StashPlace, Storage, url_with
from holdfast_operator.runtime.events import transitions

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
PURPOSE = "operator for Catalog ns/demo"
NAME = ItemName("holdfast", "public", "flights")
SCHEMA = Schema.of(key={"id": "int64"}, value={})


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    stash = StashPlace(f"sqlite://{tmp_path}/stash.sqlite")
    storage = Storage(url=(tmp_path / "store").as_uri())
    return Opening(storage, ORGANIZATION, 0, "default", (), "me", PURPOSE, stash=stash, shadow=True)


def stash_url(opening: Opening) -> str:
    assert opening.stash is not None
    return opening.stash.url


def plant(opening: Opening) -> None:
    """Change the stash behind the back of whoever shadows in it."""
    store = StashStore(stash_url(opening))
    row = encode(
        SYSTEM_CONFIGURATIONS,
        pb.SystemConfigurationKey(name="planted"),
        pb.SystemConfigurationValue(value="x"),
    )
    store.append([Update(row, 1)], store.upper())
    store.close()


def test_what_is_done_is_done_on_both(opening: Opening) -> None:
    catalog = OpenCatalog.open(opening)
    catalog.ensure_item(NAME, SCHEMA, 1)
    facts = catalog.confirm()
    assert facts.shadow == ShadowFacts()
    assert dict(facts.object_counts)["items"] == 1
    catalog.close()
    with stash_catalog(stash_url(opening), read_only=True).open(OpenMode.READ_ONLY) as found:
        assert found.object_counts()["items"] == 1


def test_a_difference_is_told_once_and_the_catalog_goes_on(opening: Opening) -> None:
    catalog = OpenCatalog.open(opening)
    catalog.confirm()
    plant(opening)
    catalog.ensure_item(NAME, SCHEMA, 1)
    shadow = catalog.confirm().shadow
    assert shadow is not None
    assert shadow.diverged
    catalog.drop_item(NAME)
    assert catalog.confirm().shadow == shadow
    catalog.close()
    # Whoever opens it anew makes the shadow anew.
    again = OpenCatalog.open(opening)
    assert again.confirm().shadow == ShadowFacts()
    again.close()


def test_a_stash_out_of_reach_stops_nobody_and_is_tried_again(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "RESYNC_SECONDS", 0.0)
    (tmp_path / "stash.sqlite").mkdir()
    catalog = OpenCatalog.open(opening)
    catalog.ensure_item(NAME, SCHEMA, 1)
    shadow = catalog.confirm().shadow
    assert shadow is not None
    assert shadow.out_of_date
    (tmp_path / "stash.sqlite").rmdir()
    assert catalog.confirm().shadow == ShadowFacts()
    catalog.close()
    with stash_catalog(stash_url(opening), read_only=True).open(OpenMode.READ_ONLY) as found:
        assert found.object_counts()["items"] == 1


@pytest.mark.parametrize("purpose", ["nightly load", "operator for Catalog ns/other"])
def test_the_stash_of_another_catalog_is_left_alone(opening: Opening, purpose: str) -> None:
    other = stash_catalog(stash_url(opening))
    with other.open(OpenMode.WRITABLE, holder="them", purpose=purpose) as theirs:
        theirs.ensure_item("holdfast", "public", "precious")
    before = other.dump()
    catalog = OpenCatalog.open(opening)
    shadow = catalog.confirm().shadow
    assert shadow is not None
    assert purpose in shadow.out_of_date
    assert "left alone" in shadow.out_of_date
    assert not shadow.diverged
    catalog.close()
    assert other.dump() == before


def test_a_stash_that_failed_is_not_asked_all_the_time(opening: Opening, tmp_path: Path) -> None:
    (tmp_path / "stash.sqlite").mkdir()
    now = [0.0]
    with PersistClient.open(opening.storage.url) as client:
        assert opening.stash is not None
        closed = shadow_catalog(persist_catalog(client, ORGANIZATION), ShadowStash(opening.stash, {}))
        with closed.open(OpenMode.WRITABLE, holder="me", purpose=PURPOSE) as catalog:
            assert isinstance(catalog, ShadowCatalog)
            shadow = Shadow(catalog, lambda: now[0])
            (tmp_path / "stash.sqlite").rmdir()
            now[0] = shadowing.RESYNC_SECONDS - 1
            assert shadow.look().out_of_date
            now[0] += 1
            assert shadow.look() == ShadowFacts()


@pytest.mark.parametrize(
    ("place", "credentials", "url"),
    [
        (StashPlace("postgresql://h/d"), {}, "postgresql://h/d"),
        (
            StashPlace("postgresql://h:5433/d?sslmode=require", schema="shop"),
            {"user": "me", "password": "p@s:s/#?%"},
            "postgresql://me:p%40s%3As%2F%23%3F%25@h:5433/d?sslmode=require&schema=shop",
        ),
        (StashPlace("postgresql://h/d"), {"password": "pw"}, "postgresql://:pw@h/d"),
        (StashPlace("sqlite:///a/b"), {"user": "me", "password": "pw"}, "sqlite:///a/b"),
    ],
)
def test_the_url_with_its_credentials(place: StashPlace, credentials: dict[str, str], url: str) -> None:
    assert url_with(place, credentials) == url


def test_no_credentials_are_shown(opening: Opening) -> None:
    place = StashPlace("postgresql://127.0.0.1:1/d?connect_timeout=2", secret="keys")
    credentials = {"user": "planted-user", "password": "planted-p@ssword"}
    catalog = OpenCatalog.open(replace(opening, stash=place), credentials)
    facts = catalog.confirm()
    assert facts.shadow is not None
    assert "127.0.0.1" in facts.shadow.out_of_date
    assert "planted" not in repr((facts, catalog.opening, vars(catalog)))
    catalog.close()


PLACE = StashPlace("sqlite:///a")


@pytest.mark.parametrize(
    ("shadow", "status", "reason", "warning"),
    [
        (ShadowFacts(), "False", "ShadowInStep", False),
        (ShadowFacts(diverged="roles differ"), "True", "ShadowDiverged", True),
        (ShadowFacts(out_of_date="down"), "Unknown", "ShadowOutOfDate", False),
    ],
)
def test_what_is_shown_of_a_shadow(shadow: ShadowFacts, status: str, reason: str, warning: bool) -> None:
    (mark,) = mark_shadow(PLACE, shadow)
    assert (mark.status, mark.reason) == (status, reason)
    assert (shadow.diverged or shadow.out_of_date or PLACE.url) in mark.message
    (_, note) = transitions([], ready("fine"), [mark])
    assert (note.reason, note.warning) == (reason, warning)
    assert mark_shadow(None, None) == ()
