"""A pooler in front of Postgres works, or the open refuses it with one line."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from holdfast.errors import StoreUnreachable
from holdfast.persist.stores import Entry, Put
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.stash import StashUpdate, open_stash
from testbed import pgbouncer
from testbed.errors import Unavailable
from testbed.postgres import PostgresServer
from testbed.require import Tier, required

pytestmark = pytest.mark.postgres

OPEN: list[Callable[[str], object]] = [PostgresConsensus, lambda url: open_stash(url, create=True)]


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    try:
        pgbouncer.provide()
    except Unavailable as error:
        if Tier.POSTGRES in required(os.environ):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("round_robin", [False, True])
@pytest.mark.parametrize("sessions", [1, 2, 20])
@pytest.mark.parametrize("open_", OPEN, ids=["consensus", "stash"])
def test_a_pooler_that_shares_sessions_is_refused(
    postgres: PostgresServer, open_: Callable[[str], object], sessions: int, round_robin: bool
) -> None:
    with (
        postgres.database() as name,
        pgbouncer.pooled(postgres, "transaction", sessions=sessions, round_robin=round_robin) as pooler,
    ):
        with pytest.raises(StoreUnreachable, match="shares server sessions between clients") as caught:
            open_(f"{pooler}/{name}")
        assert "\n" not in str(caught.value).partition("\nhint: ")[0]
        assert postgres.password not in str(caught.value)
        assert "pool_mode=session" in caught.value.hint


def test_a_pooler_that_shares_sessions_is_refused_while_others_use_it(postgres: PostgresServer) -> None:
    def look(url: str) -> str:
        try:
            PostgresConsensus(url).close()
        except StoreUnreachable as error:
            return str(error)
        return "opened"

    with (
        postgres.database() as name,
        pgbouncer.pooled(postgres, "transaction", sessions=3) as pooler,
        ThreadPoolExecutor(12) as threads,
    ):
        said = set(threads.map(look, [f"{pooler}/{name}"] * 60))
    assert all("shares server sessions" in one for one in said), said


def test_a_pooler_that_shares_no_session_serves_both_stores(postgres: PostgresServer) -> None:
    with postgres.database() as name, pgbouncer.pooled(postgres, "session") as pooler:
        url = f"{pooler}/{name}"
        for seqno in (1, 2):
            with closing(PostgresConsensus(url)) as store:
                assert store.compare_and_set([Put("a", seqno, b"x")])
                assert store.scan("a", seqno, 9) == [Entry(seqno, b"x")]
        with open_stash(url, create=True) as stash:
            stash.append([StashUpdate(1, b"k", b"v", 1)], 0)
        with open_stash(url, create=False) as stash:
            assert [row.key for row in stash.rows(0)] == [b"k"]


def test_a_pooler_without_a_second_session_is_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pg_session._LOOK_S", 0.2)
    with (
        postgres.database() as name,
        pgbouncer.pooled(postgres, "session", sessions=1) as pooler,
        pytest.raises(StoreUnreachable, match="gives no second session"),
    ):
        PostgresConsensus(f"{pooler}/{name}")
