"""The owner of a store: the operator never takes a database's catalog, even under another store name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.catalog import Backend, Catalog, OpenMode, persist_catalog
from holdfast.catalog.move.linked import linked_catalog
from holdfast.catalog.one_store import stash_catalog
from holdfast.errors import StoreUnreachable
from holdfast.persist import PersistClient
from holdfast_operator.api.migration import Verify
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs.facts import ObservedByAnother, Opening, OwnerUnknown, purpose_of
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.opening import Observer
from holdfast_operator.engine.failures import settled
from holdfast_operator.migrations.conductor import Conductor
from holdfast_operator.migrations.facts import RequestedMove
from holdfast_operator.places.credentials import NO_CREDENTIALS
from holdfast_operator.places.storage import StashLocation, Storage

ORGANIZATION = "11111111-2222-3333-4444-555555555555"


def opening_of(name: str, folder: Path, stash: Path | None = None) -> Opening:
    place = None if stash is None else StashLocation(f"sqlite://{stash}")
    storage = Storage(url=folder.as_uri())
    return Opening(storage, ORGANIZATION, 0, "default", (), "me", purpose_of(name), stash=place)


@pytest.fixture
def observer(tmp_path: Path) -> Observer:
    """Of a store that is also found by a link."""
    (tmp_path / "link").symlink_to(tmp_path / "store")
    return Observer(replace(opening_of("victim/observed", tmp_path / "store"), observed=True))


@pytest.fixture
def alias(tmp_path: Path) -> Opening:
    return opening_of("other/alias", tmp_path / "link")


@contextmanager
def database(folder: Path) -> Iterator[Catalog]:
    """A database process that writes the catalog there."""
    with (
        PersistClient.open(folder.as_uri()) as client,
        persist_catalog(client, ORGANIZATION).open(
            OpenMode.WRITABLE, holder="database 1", purpose="serving"
        ) as catalog,
    ):
        yield catalog


def test_what_another_observes_is_not_taken_over_under_another_name(
    tmp_path: Path, observer: Observer, alias: Opening
) -> None:
    with database(tmp_path / "store") as theirs:
        for opening in (alias, replace(alias, existing_only=True)):
            with pytest.raises(ObservedByAnother, match="Catalog victim/observed observes") as caught:
                OpenCatalog.open(opening, observers=[observer])
        assert settled(caught.value).health.reason is Reason.DUPLICATE_CATALOG
        theirs.confirm_leadership()
    # It is whoever's who asks when nobody observes it any more.
    OpenCatalog.open(alias).close()


def test_a_store_that_a_database_process_is_to_fill_is_left_to_it(
    tmp_path: Path, observer: Observer, alias: Opening
) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(ObservedByAnother):
        OpenCatalog.open(alias, observers=[observer])
    with PersistClient.open((tmp_path / "store").as_uri(), mode="read") as client:
        assert not persist_catalog(client, ORGANIZATION).is_initialized()
    # Who came first begins it, but takes nothing from who wrote to it since.
    younger = replace(observer, older=False)
    OpenCatalog.open(alias, observers=[younger]).close()
    with database(tmp_path / "store") as theirs:
        with pytest.raises(ObservedByAnother):
            OpenCatalog.open(alias, observers=[younger])
        theirs.confirm_leadership()


def test_what_is_ours_by_its_token_stays_ours(observer: Observer, alias: Opening, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    OpenCatalog.open(alias).close()
    OpenCatalog.open(alias, observers=[observer]).close()


def test_another_store_of_the_same_organization_is_another(tmp_path: Path, observer: Observer) -> None:
    with database(tmp_path / "store"), database(tmp_path / "elsewhere"):
        OpenCatalog.open(opening_of("other/there", tmp_path / "elsewhere"), observers=[observer]).close()


def test_what_an_observed_catalog_names_without_sense_is_not_observed(
    tmp_path: Path, observer: Observer
) -> None:
    nowhere = replace(observer.opening, storage=Storage(url="gs://a"))
    with database(tmp_path / "store"):
        OpenCatalog.open(opening_of("other/here", tmp_path / "store"), observers=[Observer(nowhere)]).close()


def test_whose_it_is_may_be_unknown(tmp_path: Path, observer: Observer, alias: Opening) -> None:
    nobody = Storage(blob=(tmp_path / "store" / "blob").as_uri(), consensus="postgresql://127.0.0.1:1/d")
    silent = Observer(replace(observer.opening, storage=nobody))
    with database(tmp_path / "store") as theirs:
        with pytest.raises(OwnerUnknown, match="Catalog victim/observed") as caught:
            OpenCatalog.open(alias, observers=[silent])
        assert settled(caught.value).health.reason is Reason.STORE_UNREACHABLE
        assert "127.0.0.1" not in settled(caught.value).health.message  # It is another namespace's.
        assert not isinstance(caught.value, StoreUnreachable)  # Ours answers.
        theirs.confirm_leadership()
    # Where nobody wrote anything there is nothing to be lost.
    OpenCatalog.open(opening_of("other/new", tmp_path / "new"), observers=[silent]).close()


def test_a_stash_that_another_observes_is_not_linked_with_another_store(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "stash")
    theirs = opening_of("victim/observed", tmp_path / "store", tmp_path / "stash")
    with (
        PersistClient.open(theirs.storage.url or "") as client,
        linked_catalog(
            stash_catalog(f"sqlite://{tmp_path}/stash"), persist_catalog(client, ORGANIZATION)
        ).open(OpenMode.WRITABLE, holder="database 1", purpose="serving") as catalog,
    ):
        # What the thief has on persist is its own, also by a greater epoch.
        alone = opening_of("other/thief", tmp_path / "own")
        for _ in range(3):
            OpenCatalog.open(alone).close()
        thief = opening_of("other/thief", tmp_path / "own", tmp_path / "link")
        for truth in Backend:
            with pytest.raises(ObservedByAnother):
                OpenCatalog.open(replace(thief, truth=truth.value), observers=[Observer(theirs)])
        catalog.confirm_leadership()


def test_what_another_observes_is_not_moved(tmp_path: Path, observer: Observer) -> None:
    with database(tmp_path / "store") as theirs:
        other = opening_of("other/alias", tmp_path / "link", tmp_path / "stash")
        move = RequestedMove(
            "m", Backend.STASH, False, Verify.COMPARE, purpose_of("other/alias", "other/m"), other
        )
        with pytest.raises(ObservedByAnother):
            Conductor.of(move, NO_CREDENTIALS, timeout=60, observers=[observer])
        theirs.confirm_leadership()
        assert theirs.fence_token().epoch == 1
