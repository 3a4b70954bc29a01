"""A catalog in two linked stores on real servers: the stash in Postgres, persist on S3 and Postgres."""

from pathlib import Path

import pytest

from conformance.catalogs import LinkedCatalogs, make_catalogs, role, roles, writable
from holdfast.catalog import Backend, OpenMode, linked_catalog
from holdfast.catalog.objects.registry import ROLES
from holdfast.errors import Fenced, LinkConflict, LinkedElsewhere


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.parametrize("truth", Backend)
def test_two_stores_on_servers_are_one_catalog(
    request: pytest.FixtureRequest, tmp_path: Path, truth: Backend
) -> None:
    stash = make_catalogs("stash in Postgres", tmp_path, request)
    persist = make_catalogs("persist on S3 and Postgres", tmp_path, request)
    catalogs = LinkedCatalogs("linked, on servers", truth, stash, persist)
    first = writable(catalogs.openable(), "first")
    first.set_objects(ROLES, [role(1, "a")])
    reader = catalogs.openable("read").open(OpenMode.READ_ONLY)
    second = writable(catalogs.openable(), "second")
    with pytest.raises(Fenced):
        first.confirm_leadership()
    second.set_objects(ROLES, [role(1, "b")])
    reader.sync()
    assert roles(reader) == ["b"]
    for alone in (stash, persist):
        with pytest.raises(LinkedElsewhere):
            writable(alone.openable())
    empty = make_catalogs("stash in SQLite", tmp_path, request)
    with pytest.raises(LinkConflict):
        writable(linked_catalog(empty.openable(), persist.openable()))
    assert roles(catalogs.openable().open(OpenMode.READ_ONLY)) == ["b"]
    for opened in (first, second, reader, catalogs):
        opened.close()
