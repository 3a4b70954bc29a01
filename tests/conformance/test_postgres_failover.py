"""A real Postgres primary dies and a lagging standby is promoted, as in an asynchronous failover."""

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.catalogs import role, roles, writable
from holdfast.catalog import persist_catalog
from holdfast.catalog.objects.registry import ROLES
from holdfast.errors import FenceRegressed, LogRegressed, StorageError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.state.divergence import lines_of, markers_of, why_keep
from holdfast.persist.stores.postgres import PostgresConsensus
from testbed.postgres import USER, PostgresServer
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.start() as server:
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with primary.standby() as server:
        yield server


def consensus_url(*servers: PostgresServer) -> str:
    """Both hosts in one URL: clients find the primary, whichever it is."""
    hosts = ",".join(f"{server.address}:{server.port}" for server in servers)
    (password,) = {server.password for server in servers}
    return f"postgresql://{USER}:{password}@{hosts}/postgres?target_session_attrs=read-write"


def opened(folder: Path, *servers: PostgresServer, **settings: object) -> PersistClient:
    config = PersistConfig(maintenance="off", retry_deadline_s=30.0, **settings)  # type: ignore[arg-type]
    blob = (folder / "blob").as_uri()
    return PersistClient.open(blob=blob, consensus=consensus_url(*servers), config=config)


def append(client: PersistClient, *times: int, value: str = "x", shard: str = SHARD) -> None:
    with client.writer(shard, SCHEMA, purpose="test") as writer:
        for time in times:
            writer.compare_and_append(rows(time, value=value), time, time + 1)


def test_a_standby_that_lacks_the_newest_rollup_is_readable(
    tmp_path: Path, primary: PostgresServer, standby: PostgresServer
) -> None:
    both = (primary, standby)
    a = opened(tmp_path, *both, rollup_every=8)
    append(a, *range(10))
    a.maintain(SHARD)
    standby.follow(primary)
    standby.stop()
    append(a, *range(10, 30), value="lost")
    a.maintain(SHARD)
    primary.kill()
    standby.resume()
    standby.promote()

    b = opened(tmp_path, *both)
    append(b, 10, value="b")
    assert len(contents(b.reader(SHARD, purpose="r").snapshot(10).to_table())) == 11
    for client in (a, b):
        client.close()


def test_no_history_is_mixed_after_an_asynchronous_failover(
    tmp_path: Path, primary: PostgresServer, standby: PostgresServer
) -> None:
    both = (primary, standby)
    a = opened(tmp_path, *both)
    append(a, *range(8))
    append(a, 0, shard=OTHER)
    standby.follow(primary)
    standby.stop()
    append(a, 8, 9, value="a")
    append(a, 1, value="a", shard=OTHER)
    primary.kill()
    standby.resume()
    standby.promote()

    b = opened(tmp_path, *both)
    append(b, *range(8, 12), value="b")
    for _ in range(2):
        with pytest.raises(LogRegressed):
            a.recent_upper(SHARD)
        with pytest.raises(LogRegressed):
            append(a, 12, value="a")
    found = contents(b.reader(SHARD, purpose="r").snapshot(11).to_table())
    assert {value for (time, value) in found if time >= 8} == {"b"}
    assert len(found) == 12
    for shard in (SHARD, OTHER):
        assert len(list(markers_of(b.location.blob, shard))) == 1
    assert [line.line[-8:] for line in lines_of(b.location.blob)] == ["00000001", "00000002"]
    for client in (a, b):
        client.close()


def test_a_planned_switchover_loses_nothing_and_disconnects_nobody(
    tmp_path: Path, primary: PostgresServer, standby: PostgresServer
) -> None:
    both = (primary, standby)
    client = opened(tmp_path, *both)
    append(client, *range(8))
    listener = client.reader(SHARD, purpose="r").listen(7)
    primary.stop()
    standby.promote()
    append(client, *range(8, 12))
    assert client.recent_upper(SHARD) == 12
    assert len(contents(client.reader(SHARD, purpose="r").snapshot(11).to_table())) == 12
    while listener.frontier < 12:
        assert listener.next(30)
    assert list(markers_of(client.location.blob, SHARD)) == []
    client.session.machine(SHARD).refresh()
    assert why_keep(client.session.machine(SHARD)) == ""
    client.close()


def test_a_collector_on_an_old_primary_deletes_nothing(
    tmp_path: Path, primary: PostgresServer, standby: PostgresServer
) -> None:
    """The network is cut between them: one client still reaches the old primary alone."""
    isolated = opened(
        tmp_path, primary, gc_grace_s=0.0, rollup_every=4, inline_max_bytes=0, compaction_fanin=3
    )
    append(isolated, *range(4))
    standby.follow(primary)
    standby.promote()
    moved = opened(tmp_path, standby)
    append(moved, *range(4, 8), value="b")
    blobs = {meta.key for meta in moved.location.blob.list("s")}

    append(isolated, *range(4, 12), value="a")
    isolated.maintain(SHARD)
    assert "old primary" in isolated.session.machine(SHARD).kept_because
    assert blobs <= {meta.key for meta in moved.location.blob.list("s")}
    assert len(contents(moved.reader(SHARD, purpose="r").snapshot(7).to_table())) == 8
    for client in (isolated, moved):
        client.close()


def test_a_standby_is_refused(primary: PostgresServer, standby: PostgresServer) -> None:
    PostgresConsensus(primary.url()).close()
    standby.follow(primary)
    for read_only in (False, True):
        with pytest.raises(StorageError, match="standby, which may lag"):
            PostgresConsensus(standby.url(), create=False, read_only=read_only)


def test_a_user_who_may_not_read_the_timeline_is_told_once(
    primary: PostgresServer,
    caplog: pytest.LogCaptureFixture,
    own_records: Callable[[], list[logging.LogRecord]],
) -> None:
    import psycopg

    with psycopg.connect(primary.url(), autocommit=True) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
        connection.execute("CREATE ROLE little LOGIN PASSWORD 'little'")
        connection.execute("CREATE SCHEMA small AUTHORIZATION little")
    url = f"postgresql://little:little@{primary.address}:{primary.port}/postgres?schema=small"
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        store = PostgresConsensus(url)
        assert store.heads(["a"]) == {}
    assert store.line() is None
    assert [record.name for record in own_records()] == ["holdfast.persist.stores.postgres"]
    assert "pg_walfile_name" in caplog.text
    store.close()


def test_a_catalog_that_was_fenced_in_the_promoted_history_commits_nothing(
    tmp_path: Path, primary: PostgresServer, standby: PostgresServer
) -> None:
    """A had committed what the standby lacks; B opens the catalog on the standby, which fences A."""
    both, organization = (primary, standby), uuid.uuid4()
    a_client = opened(tmp_path, *both)
    a = writable(persist_catalog(a_client, organization), "a")
    a.set_objects(ROLES, [role(1, "kept")])
    standby.follow(primary)
    standby.stop()
    a.set_objects(ROLES, [role(2, "lost")])
    primary.kill()
    standby.resume()
    standby.promote()

    b_client = opened(tmp_path, *both)
    b = writable(persist_catalog(b_client, organization), "b")
    b.set_objects(ROLES, [role(3, "new")])
    b.set_objects(ROLES, [role(4, "newer")])
    with pytest.raises((FenceRegressed, LogRegressed)):
        a.set_objects(ROLES, [role(5, "of a")])
    with pytest.raises((FenceRegressed, LogRegressed)):
        a.confirm_leadership()
    b.sync()
    assert roles(b) == ["kept", "new", "newer"]
    for client in (a_client, b_client):
        client.close()
