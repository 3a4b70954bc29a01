"""What only a stash in Postgres does: who waits for whom, and lost connections."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.errors import Determinate, HoldfastError, Indeterminate, StoreUnreachable, UpperMismatch
from holdfast.pg_session import PostgresAddress
from holdfast.stash import Stash, StashFrontiers, StashUpdate, open_stash, postgres

pytestmark = pytest.mark.postgres

Session = psycopg.Connection[tuple[object, ...]]
ROW = StashUpdate(1, b"k", b"v", 1)
OTHERS = "INSERT INTO data VALUES (1, 'other', 'v', 0, 1)"


@pytest.fixture
def stash(postgres_url: str) -> Iterator[Stash]:
    with open_stash(postgres_url, create=True) as stash:
        yield stash


@pytest.fixture
def other(postgres_url: str, stash: Stash) -> Iterator[Session]:
    """A session that a test drives statement by statement."""
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("SET search_path = holdfast_stash")
        yield session


@pytest.fixture
def watcher(postgres_url: str, stash: Stash) -> Iterator[Session]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        yield session


@contextmanager
def meanwhile(call: Callable[..., object], *arguments: object) -> Iterator[Future[object]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call, *arguments)


def until_blocked(watcher: Session, by: Session) -> int:
    """The server's process id of a session that waits for `by`."""
    statement = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    while True:
        row = watcher.execute(statement, (by.info.backend_pid,)).fetchone()
        if row is not None:
            assert isinstance(row[0], int)
            return row[0]


def keys(stash: Stash, as_of: int) -> set[bytes]:
    return {row.key for row in stash.rows(as_of)}


def test_who_waited_for_a_commit_finds_its_upper_gone(stash: Stash, other: Session, watcher: Session) -> None:
    other.execute("BEGIN")
    other.execute("UPDATE uppers SET upper = 1")
    other.execute(OTHERS)
    with meanwhile(stash.append, [ROW], 0) as told:
        until_blocked(watcher, other)
        other.execute("COMMIT")
        assert type(told.exception(60)) is UpperMismatch
    assert (stash.frontiers(), keys(stash, 0)) == (StashFrontiers(0, 1), {b"other"})


def test_without_its_condition_the_upper_would_be_committed_to_twice(
    stash: Stash, other: Session, watcher: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(
        postgres, "_MOVE_UPPER", "UPDATE {schema}.uppers SET upper = %s::bigint + 1 WHERE %s >= 0"
    )
    other.execute("BEGIN")
    other.execute("UPDATE uppers SET upper = 1")
    other.execute(OTHERS)
    with meanwhile(stash.append, [ROW], 0) as told:
        until_blocked(watcher, other)
        other.execute("COMMIT")
        assert told.exception(60) is None
    assert keys(stash, 0) == {b"other", b"k"}


def test_who_waited_for_a_commit_that_did_not_happen_goes_on(
    stash: Stash, other: Session, watcher: Session
) -> None:
    other.execute("BEGIN")
    other.execute("UPDATE uppers SET upper = 1")
    with meanwhile(stash.append, [ROW], 0) as told:
        until_blocked(watcher, other)
        other.execute("ROLLBACK")
        assert told.exception(60) is None
    assert (stash.frontiers(), keys(stash, 0)) == (StashFrontiers(0, 1), {b"k"})


def test_a_long_commit_holds_up_nobody_and_loses(stash: Stash, postgres_url: str) -> None:
    """So who takes a catalog over needn't wait for whom it fences."""

    def updates() -> Iterator[StashUpdate]:
        for number in range(10_000):
            yield ROW._replace(key=b"late %d" % number, value=bytes(1000))
        with open_stash(postgres_url) as another:
            another.append([ROW], 0)

    with pytest.raises(UpperMismatch):
        stash.append(updates(), 0)
    assert (stash.frontiers(), keys(stash, 0)) == (StashFrontiers(0, 1), {b"k"})


def hold_up(other: Session, statement: str) -> None:
    """Let a commit wait for the advisory lock 7 at `statement`: before COMMIT, or in it."""
    other.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$"
    )
    other.execute(f"{statement} FOR EACH ROW EXECUTE FUNCTION hold()")  # type: ignore[call-overload]
    other.execute("SELECT pg_advisory_lock(7)")


@pytest.mark.parametrize(
    ("trigger", "kind"),
    [
        ("CREATE TRIGGER hold AFTER UPDATE ON uppers", StoreUnreachable),
        (
            "CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON uppers DEFERRABLE INITIALLY DEFERRED",
            Indeterminate,
        ),
    ],
    ids=["before COMMIT", "in COMMIT"],
)
def test_a_connection_that_is_lost(
    stash: Stash, other: Session, watcher: Session, trigger: str, kind: type[HoldfastError]
) -> None:
    hold_up(other, trigger)
    with meanwhile(stash.append, [ROW], 0) as told:
        watcher.execute("SELECT pg_terminate_backend(%s)", (until_blocked(watcher, other),))
        assert type(told.exception(60)) is kind
    other.execute("SELECT pg_advisory_unlock(7)")
    other.execute("DROP TRIGGER hold ON uppers")
    assert stash.frontiers() == StashFrontiers(0, 0)
    stash.append([ROW], 0)
    assert keys(stash, 0) == {b"k"}


def test_a_consolidation_that_is_cut_off_changes_nothing(
    stash: Stash, other: Session, watcher: Session
) -> None:
    stash.append([ROW], 0)
    stash.append([ROW._replace(diff=-1)], 1)
    stash.append([ROW], 2)
    stash.allow_compaction(2)
    other.execute("BEGIN")
    other.execute("SELECT FROM data WHERE diff < 0 FOR UPDATE")
    with meanwhile(stash.consolidate) as told:
        watcher.execute("SELECT pg_terminate_backend(%s)", (until_blocked(watcher, other),))
        assert type(told.exception(60)) is StoreUnreachable
    assert other.execute("SELECT count(*) FROM data").fetchone() == (3,)
    other.execute("COMMIT")
    assert list(stash.rows(2)) == [ROW]
    assert stash.consolidate()
    assert other.execute("SELECT time, diff FROM data").fetchall() == [(2, 1)]


def test_rows_are_the_same_some_at_a_time_and_one_by_one(stash: Stash) -> None:
    small = [StashUpdate(1, str(number).encode(), b"v", 1) for number in range(2 * postgres.FETCHED_ROWS + 1)]
    stash.append(small, 0)
    large = StashUpdate(2, b"large", bytes(postgres.STATEMENT_BYTES // postgres.LEAST_FETCHED_ROWS), 1)
    stash.append([large], 1)
    stash.append([StashUpdate(1, small[0].key, b"v", -1)], 2)
    # With the large row there, rows come one by one, whatever is asked for.
    assert sorted(stash.rows(1)) == sorted([*small, large])
    assert sorted(stash.rows(2, but=[2])) == sorted(small[1:])


def test_a_stash_that_never_held_a_large_row_is_read_some_at_a_time(stash: Stash) -> None:
    rows = [StashUpdate(1, str(number).encode(), b"v", 1) for number in range(2 * postgres.FETCHED_ROWS + 1)]
    stash.append(rows, 0)
    assert sorted(stash.rows(0)) == sorted(rows)
    assert sorted(stash.rows(0, but=[1])) == []
    reading = stash.rows(0)
    some = [next(reading) for _ in range(postgres.FETCHED_ROWS)]
    # A commit meanwhile is not among them, even a consolidation.
    stash.append([StashUpdate(1, row.key, b"v", -1) for row in rows], 1)
    stash.allow_compaction(1)
    stash.consolidate()
    assert sorted([*some, *reading]) == sorted(rows)


def test_a_connection_that_is_lost_between_two_fetches_is_no_end_of_the_rows(
    stash: Stash, other: Session
) -> None:
    stash.append(
        (StashUpdate(1, str(number).encode(), b"v", 1) for number in range(2 * postgres.FETCHED_ROWS)), 0
    )
    reading = stash.rows(0)
    next(reading)
    other.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
        " WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    with pytest.raises(StoreUnreachable):
        list(reading)
    assert len(keys(stash, 0)) == 2 * postgres.FETCHED_ROWS


def test_one_process_consolidates_at_a_time(stash: Stash, other: Session) -> None:
    stash.append([ROW, ROW._replace(diff=-1)], 0)
    other.execute("BEGIN")
    other.execute("SELECT FROM sinces FOR UPDATE")
    assert not stash.consolidate(), "it leaves it to the other one"
    other.execute("COMMIT")
    assert stash.consolidate()
    assert other.execute("SELECT count(*) FROM data").fetchone() == (0,)


def test_whoever_deletes_a_row_of_a_sum_takes_it_along(
    stash: Stash, other: Session, watcher: Session, postgres_url: str
) -> None:
    """Without the lock that keeps consolidations apart: rows that another one takes away are not counted."""
    stash.append([ROW._replace(diff=5)], 0)
    stash.append([ROW._replace(diff=-1)], 1)
    stash.allow_compaction(1)
    consolidate = postgres._CONSOLIDATE
    schema = PostgresAddress.parse(postgres_url, default_schema="holdfast_stash").schema
    with psycopg.connect(postgres_url) as mine:
        other.execute("BEGIN")
        statement = consolidate.replace("{schema}", schema)
        wanted = ([1], [b"k"], [b"v"], 1)
        other.execute(statement, wanted)  # type: ignore[call-overload]
        with meanwhile(mine.execute, statement, wanted) as told:
            until_blocked(watcher, other)
            other.execute("COMMIT")
            assert told.exception(60) is None
    assert list(stash.rows(1)) == [ROW._replace(diff=4)]


@pytest.mark.parametrize("table", ["collections", "holds"])
def test_nothing_is_inserted_while_a_restore_has_not_made_the_primary_key(
    stash: Stash, other: Session, table: str
) -> None:
    stash.append([ROW], 0)
    stash.hold("there", 0)
    step = {
        "collections": lambda: stash.append([StashUpdate(2, b"k", b"v", 1)], 1),
        "holds": lambda: stash.hold("new", 0),
    }[table]
    column = {"collections": "id", "holds": "name"}[table]
    other.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey".encode())
    with pytest.raises(Determinate, match="lacks its primary key"):
        step()
    assert (stash.frontiers(), stash.holds()) == (StashFrontiers(0, 1), {"there": 0})
    other.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({column})".encode())
    step()
