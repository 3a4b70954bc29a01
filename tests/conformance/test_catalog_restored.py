"""A catalog in a stash whose older state was restored in place, and then taken over.

Its upper passes the upper of every earlier process. None of them continues as if nothing had happened.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from conformance.catalogs import Catalogs, make_catalogs, role, roles, writable
from holdfast.catalog import Catalog, IdKind, OpenMode
from holdfast.catalog.objects.registry import ROLES
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.errors import CatalogOutOfSync, Fenced, OtherHistory

_TABLES = ("data", "uppers", "sinces", "collections")


@pytest.fixture(params=["stash in SQLite", pytest.param("stash in Postgres", marks=pytest.mark.postgres)])
def catalogs(request: pytest.FixtureRequest, tmp_path: Path) -> Catalogs:
    return make_catalogs(request.param, tmp_path, request)


def back_up(catalogs: Catalogs) -> Callable[[], None]:
    """Take a copy; what is given back restores it in place."""
    url = catalogs.address["stash"]
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite://")
        _copy(path, f"{path}.copy")
        return lambda: _copy(f"{path}.copy", path)
    with psycopg.connect(url) as server:
        for table in _TABLES:
            server.execute(f"CREATE TABLE public.copy_{table} AS TABLE holdfast_stash.{table}".encode())

    def restore() -> None:
        with psycopg.connect(url) as server:
            for table in _TABLES:
                server.execute(f"TRUNCATE holdfast_stash.{table}".encode())
                server.execute(f"INSERT INTO holdfast_stash.{table} TABLE public.copy_{table}".encode())

    return restore


def _copy(source: str, target: str) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def pass_by(catalogs: Catalogs, upper: int, more: int = 0) -> Catalog:
    """Take the restored catalog over, and commit until its upper is that one and `more`."""
    catalog = writable(catalogs.openable(), "after")
    number = 100
    while catalog.upper < upper + more:
        number += 1
        catalog.set_objects(ROLES, [role(number, f"new{number}")])
    return catalog


def before_and_after(catalogs: Catalogs) -> tuple[Catalog, Catalog]:
    """A writer of before, whose last commits are lost, and the one that has taken over, at the same upper."""
    old = writable(catalogs.openable(), "before")
    old.set_objects(ROLES, [role(1, "a")])
    restore = back_up(catalogs)
    for number in range(5):
        old.set_objects(ROLES, [role(1, f"lost{number}")])
    restore()
    new = pass_by(catalogs, old.upper)
    assert new.upper == old.upper
    return old, new


ACTIONS: dict[str, Callable[[Catalog], object]] = {
    "replaces a row that is lost": lambda old: old.set_objects(ROLES, [role(1, "stale")]),
    "allocates": lambda old: old.allocate_ids(IdKind.USER_ITEM),
    "confirms": lambda old: old.confirm_leadership(),
    "syncs": lambda old: old.sync(),
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_a_writer_of_before_is_fenced(catalogs: Catalogs, action: Callable[[Catalog], object]) -> None:
    old, new = before_and_after(catalogs)
    dump = new.dump()
    with pytest.raises(Fenced):
        action(old)
    with pytest.raises(Fenced):
        old.allocate_ids(IdKind.USER_ITEM)
    assert catalogs.openable().dump() == dump
    new.set_objects(ROLES, [role(2, "b")])
    assert roles(writable(catalogs.openable())) == roles(new)


def test_a_commit_under_another_token_changes_nothing(catalogs: Catalogs) -> None:
    writable(catalogs.openable())
    store = catalogs.behind()
    old = read_preamble(store, store.upper())
    new = writable(catalogs.openable())
    with pytest.raises(OtherHistory) as caught:
        store.append((), store.upper(), fence=old.fence_row)
    assert isinstance(caught.value, CatalogOutOfSync)
    assert "\n" not in str(caught.value)
    assert store.upper() == new.upper
    store.append((), store.upper(), fence=read_preamble(store, store.upper()).fence_row)
    assert store.upper() == new.upper + 1


@pytest.mark.parametrize("more", [0, 3])
def test_a_reader_of_before_reads_all_anew(catalogs: Catalogs, more: int) -> None:
    old = writable(catalogs.openable())
    old.set_objects(ROLES, [role(1, "a")])
    restore = back_up(catalogs)
    old.set_objects(ROLES, [role(2, "lost")])
    old.set_objects(ROLES, [role(1, "also lost")])
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    assert roles(reader) == ["also lost", "lost"]
    restore()
    new = pass_by(catalogs, reader.upper, more)
    reader.sync()
    assert (roles(reader), reader.upper) == (roles(new), new.upper)
    new.set_objects(ROLES, [role(3, "c")])
    reader.sync()
    assert roles(reader) == roles(new)


def test_a_subscription_of_before_tells(catalogs: Catalogs) -> None:
    old = writable(catalogs.openable())
    restore = back_up(catalogs)
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    from_memory, from_start = reader.subscribe(), reader.subscribe(0)
    at_once = reader.subscribe(1)
    for number in range(3):
        old.set_objects(ROLES, [role(1, f"lost{number}")])
    subscriptions = [from_memory, from_start, at_once]
    for subscription in subscriptions:
        while subscription.frontier < old.upper:
            subscription.next(60)
    reader.sync()
    from_reload = reader.subscribe()
    restore()
    # The upper is below what was given out.
    for subscription in subscriptions:
        with pytest.raises(OtherHistory):
            subscription.next(60)
    new = pass_by(catalogs, old.upper, more=2)
    for subscription in (*subscriptions, from_reload):
        for _ in range(2):
            with pytest.raises(OtherHistory) as caught:
                subscription.next(60)
        assert "subscribe" in caught.value.hint
        subscription.close()
    reader.sync()
    subscription = reader.subscribe()
    new.set_objects(ROLES, [role(9, "seen")])
    found = subscription.next(60)
    assert [change.object.value.name for change in found] == ["seen"]
    # A take-over is no other history.
    newest = writable(catalogs.openable())
    newest.set_objects(ROLES, [role(10, "d")])
    while subscription.frontier < newest.upper:
        assert subscription.next(60)
    subscription.close()
