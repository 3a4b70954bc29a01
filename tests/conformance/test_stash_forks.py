"""A stash loses its last commit in a failover, and its writer continues under the same token.

The upper and the fence row are then the same as before. Only the last commit shows which history it is.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from conformance.catalogs import Catalogs, make_catalogs, role, roles, writable
from holdfast.catalog import Catalog, OpenMode, ReadOnlyCatalog, stash_catalog
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import ROLES, Kind
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import Indeterminate, OtherHistory
from testbed.postgres import USER, PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def catalogs(request: pytest.FixtureRequest) -> Catalogs:
    return make_catalogs("stash in Postgres", request.getfixturevalue("tmp_path"), request)


def commit(catalog: Catalog, number: int, name: str) -> None:
    catalog.in_transaction(lambda tx: tx.insert(ROLES, role(number, name).key, role(number, name).value))


def lose_last(catalogs: Catalogs, *instead: str) -> None:
    """Do to the tables and sessions what a failover does that loses the last commit, and commit others.

    They are made under the token that is there, as by its holder.
    """
    with psycopg.connect(catalogs.address["stash"], autocommit=True) as server:
        with server.transaction():
            server.execute("UPDATE holdfast_stash.uppers SET upper = upper - 1")
            server.execute("DELETE FROM holdfast_stash.data WHERE time = (TABLE holdfast_stash.uppers)")
        server.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'holdfast'"
        )
    store = StashStore(catalogs.address["stash"])
    for number, name in enumerate(instead, start=100):
        seen = read_preamble(store, store.upper())
        made = encode(ROLES, role(number, name).key, role(number, name).value)
        store.append([RowUpdate(made, 1)], seen.upper, fence=seen.fence_row)
    store.close()


@pytest.mark.parametrize("instead", [["kept"], ["kept", "later"]], ids=["same upper", "later upper"])
def test_a_reader_reads_anew_and_a_subscription_ends(catalogs: Catalogs, instead: list[str]) -> None:
    writer = writable(catalogs.openable())
    commit(writer, 1, "one")
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    followed, from_start = reader.subscribe(), reader.subscribe(0)
    commit(writer, 2, "lost")
    reader.sync()
    from_here = reader.subscribe()
    for subscription in (followed, from_start):
        while subscription.frontier < writer.upper:
            subscription.next(60)
    lose_last(catalogs, *instead)

    for subscription in (followed, from_start, from_here):
        for _ in range(2):
            with pytest.raises(OtherHistory, match="failover"):
                subscription.next(60)
    reader.sync()
    assert roles(reader) == sorted([*instead, "one"])
    subscription = reader.subscribe()
    lose_last(catalogs)
    with pytest.raises(OtherHistory):
        subscription.next(60)


def test_a_reader_that_saw_nothing_of_it_goes_on(catalogs: Catalogs) -> None:
    writer = writable(catalogs.openable())
    commit(writer, 1, "one")
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    commit(writer, 2, "lost")
    lose_last(catalogs, "kept")
    reader.sync()
    assert roles(reader) == ["kept", "one"]
    assert [change.object.value.name for change in subscription.next(60)] == ["kept"]


def in_doubt(writer: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a commit of which the writer isn't told whether it happened; it did not."""

    def append(*_args: object, **_options: object) -> None:
        raise Indeterminate("the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(StashStore, "append", append)
        with pytest.raises(Indeterminate):
            commit(writer, 9, "in doubt")


USES: dict[str, Callable[[Catalog], object]] = {
    "commits": lambda writer: commit(writer, 3, "on top"),
    "confirms": lambda writer: writer.confirm_leadership(),
    "syncs": lambda writer: writer.sync(),
}


@pytest.mark.parametrize("knows", [True, False], ids=["", "in doubt"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_writer_whose_own_commit_was_lost_ends(
    catalogs: Catalogs, use: Callable[[Catalog], object], knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after two failovers: the second one to a server with another commit at its time."""
    writer = writable(catalogs.openable())
    commit(writer, 1, "acknowledged")
    lose_last(catalogs, "other")
    if not knows:
        in_doubt(writer, monkeypatch)
    dump = catalogs.openable().dump()
    for action in (use, commit_again):
        with pytest.raises(OtherHistory):
            action(writer)
    assert catalogs.openable().dump() == dump
    restarted = writable(catalogs.openable())
    commit(restarted, 5, "restarted")
    assert roles(restarted) == ["other", "restarted"]


def commit_again(writer: Catalog) -> None:
    commit(writer, 4, "again")


def test_a_writer_in_doubt_goes_on_where_nothing_of_it_was_lost(
    catalogs: Catalogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writable(catalogs.openable())
    commit(writer, 1, "one")
    in_doubt(writer, monkeypatch)
    commit(writer, 2, "two")
    assert roles(writer) == ["one", "two"]


def test_contents_are_of_the_history_of_the_fence_row_that_was_read_before(catalogs: Catalogs) -> None:
    writer = writable(catalogs.openable())
    commit(writer, 1, "lost")
    store = StashStore(catalogs.address["stash"])
    seen = read_preamble(store, store.upper())
    lose_last(catalogs, "kept")
    for read in (store.batches, store.rows, lambda time: store.rows(time, [Kind.AUDIT_LOG])):
        with pytest.raises(OtherHistory):
            list(read(seen.upper - 1))
    with pytest.raises(OtherHistory):
        store.append([], seen.upper, fence=seen.fence_row)
    again = read_preamble(store, store.upper())
    assert list(store.batches(again.upper - 1))
    store.append([], again.upper, fence=again.fence_row)
    store.close()


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with PostgresServer.start() as primary, primary.standby() as standby:
        yield primary, standby


def until_cancelled(server: PostgresServer) -> None:
    """Cancel a session's wait for the standby, once there is one."""
    waiting = """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
      WHERE wait_event = 'SyncRep' AND application_name = 'holdfast'"""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while connection.execute(waiting).fetchone() is None:
            pass


def names_of(reader: ReadOnlyCatalog) -> list[str]:
    reader.sync()
    return roles(reader)


def test_a_commit_that_the_synchronous_standby_lacks_is_forgotten_by_all_who_saw_it(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, standby = pair
    primary.commit_with("*")
    hosts = f"{primary.address}:{primary.port},{standby.address}:{standby.port}"
    url = f"postgresql://{USER}:{primary.password}@{hosts}/postgres?target_session_attrs=read-write"
    writer = writable(stash_catalog(url))
    commit(writer, 1, "one")
    reader = stash_catalog(url, read_only=True).open(OpenMode.READ_ONLY)
    subscription = reader.subscribe()
    standby.follow(primary)
    standby.stop()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(commit, writer, 2, "lost")
        until_cancelled(primary)
        with pytest.raises(Indeterminate):
            told.result(60)
    assert names_of(reader) == ["lost", "one"]
    assert [change.object.value.name for change in subscription.next(60)] == ["lost"]
    seen = reader.upper

    primary.kill()
    standby.resume()
    standby.promote()
    with psycopg.connect(standby.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        connection.execute("SELECT pg_reload_conf()")
    commit(writer, 2, "kept")
    assert writer.upper == seen, "the test needs the same upper"
    with pytest.raises(OtherHistory):
        subscription.next(60)
    assert names_of(reader) == roles(writer) == ["kept", "one"]
    writer.close()
    reader.close()
