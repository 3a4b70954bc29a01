"""An older, complete copy is copied over the file of a stash in SQLite while clients have it open.

`cp` keeps the inode, so the files look the same. A client that has seen a commit that is gone must not go on.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import OtherHistory, StorageError, UpperMismatch
from holdfast.sqlite_guard import CHECK_AT_OPEN_BYTES
from holdfast.stash import KnownPast, Stash, StashUpdate, open_stash
from holdfast.stash.sqlite_file import _LAYOUT_1, APPLICATION_ID
from holdfast.stash.sqlite_record import RECENT_COMMITS

Place = tuple[Path, str]


def update(name: str, value: bytes = b"v") -> StashUpdate:
    return StashUpdate(1, name.encode(), value, 1)


def commit(stash: Stash, *names: str) -> None:
    for name in names:
        stash.append([update(name)], stash.frontiers().upper)


def keys(stash: Stash) -> list[str]:
    return sorted(row.key.decode() for row in stash.rows(stash.frontiers().upper - 1))


def back_up(file: Path) -> None:
    with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(f"{file}.copy")) as new:
        old.backup(new)


def put_back(file: Path) -> None:
    """Empty the WAL as the close of another client does, and copy the older file over this one."""
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    inode = file.stat().st_ino
    # Not in this process: to close a file drops the locks that SQLite has on it.
    subprocess.run([shutil.which("cp") or "cp", f"{file}.copy", file], check=True)
    assert file.stat().st_ino == inode


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A stash with two commits, of which a copy was taken."""
    return make_place(tmp_path, b"v")


def make_place(folder: Path, value: bytes) -> Place:
    file = folder / "stash.db"
    with open_stash(f"sqlite://{file}", create=True) as stash:
        stash.append([update("first", value)], 0)
        commit(stash, "one")
    back_up(file)
    return file, f"sqlite://{file}"


CALLS: dict[str, Callable[[Stash], object]] = {
    "frontiers": lambda stash: stash.frontiers(),
    "append": lambda stash: stash.append([update("on top")], 2),
    "append at the time that it knows": lambda stash: stash.append([update("on top")], 3),
    "rows": lambda stash: list(stash.rows(1)),
    "rows of a collection": lambda stash: list(stash.rows(1, [1])),
    "columns": lambda stash: list(stash.columns(1)),
    "sizes": lambda stash: stash.sizes(1),
    "changes": lambda stash: list(stash.changes(1)),
    "allow_compaction": lambda stash: stash.allow_compaction(1),
    "hold": lambda stash: stash.hold("h", 1),
    "holds": lambda stash: stash.holds(),
    "release": lambda stash: stash.release("h"),
    "consolidate": lambda stash: stash.consolidate(),
}


@pytest.mark.parametrize("others", [(), ("other",), ("other", "later")], ids=["", "same upper", "later"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_of_a_client_whose_commit_is_gone_raises(
    place: Place, call: Callable[[Stash], object], others: tuple[str, ...]
) -> None:
    file, url = place
    with open_stash(url) as writer, open_stash(url, read_only=True) as reader:
        commit(writer, "acknowledged")
        assert keys(reader) == ["acknowledged", "first", "one"]
        put_back(file)
        with open_stash(url) as other:
            commit(other, *others)
        for _ in range(2):
            with pytest.raises(OtherHistory, match="an older state"):
                call(writer)
        for _ in range(2):
            with pytest.raises(OtherHistory):
                reader.frontiers()
        with open_stash(url) as anew:
            assert keys(anew) == sorted(["first", "one", *others]), "no call changed anything"
            commit(anew, "anew")


def test_a_file_that_is_too_large_for_a_check_of_its_pages(tmp_path: Path) -> None:
    file, url = make_place(tmp_path, bytes(2 * CHECK_AT_OPEN_BYTES))
    with open_stash(url) as writer, open_stash(url, read_only=True) as reader:
        commit(writer, "acknowledged")
        assert reader.frontiers().upper == 3
        put_back(file)
        with open_stash(url) as other:
            commit(other, "other")
        with pytest.raises(OtherHistory):
            writer.append([update("on top")], 3)
        with pytest.raises(OtherHistory):
            list(reader.rows(2))


@pytest.mark.parametrize("others", [1, RECENT_COMMITS, RECENT_COMMITS + 1])
def test_a_client_that_lags_behind(place: Place, others: int) -> None:
    """If the record no longer has the commit that the client knows, its rows show that it is gone."""
    file, url = place
    with open_stash(url) as lost, open_stash(url) as kept:
        assert kept.frontiers().upper == 2
        commit(lost, "acknowledged")
        put_back(file)
        with open_stash(url) as other:
            commit(other, *map(str, range(others)))
        with pytest.raises(OtherHistory):
            lost.frontiers()
        # It has seen only what is in the copy too.
        commit(kept, "on top")
        assert {"first", "one", "on top"} <= set(keys(kept))


@pytest.mark.parametrize("later", [1, RECENT_COMMITS + 1])
def test_an_idle_client_goes_on_after_its_commit_was_consolidated(place: Place, later: int) -> None:
    _, url = place
    with open_stash(url) as idle, open_stash(url) as writer:
        commit(idle, "seen")
        seen = idle.frontiers()
        commit(writer, *map(str, range(later)))
        upper = writer.frontiers().upper
        writer.append([update("seen")._replace(diff=-1), update("one")._replace(diff=-1)], upper)
        writer.append([], upper + 1)
        writer.allow_compaction(upper)
        assert writer.consolidate()
        assert idle.frontiers() == (upper, upper + 2)
        assert seen.upper == 3
        commit(idle, "on top")
        assert keys(idle) == sorted(["first", "on top", *map(str, range(later))])


def test_a_commit_up_to_since_is_compared_as_long_as_the_record_has_it(place: Place) -> None:
    file, url = place
    with open_stash(url) as writer:
        commit(writer, "acknowledged")
        put_back(file)
        with open_stash(url) as other:
            commit(other, "other")
            other.append([update("one")._replace(diff=-1)], 3)
            other.append([], 4)
            other.allow_compaction(4)
            assert other.consolidate()
        with pytest.raises(OtherHistory):
            writer.frontiers()


def test_a_since_that_goes_back(place: Place) -> None:
    file, url = place
    with open_stash(url) as writer:
        writer.allow_compaction(1)
        put_back(file)
        with pytest.raises(OtherHistory):
            writer.frontiers()


def test_a_commit_that_was_rolled_back_is_not_expected(place: Place) -> None:
    _, url = place
    with open_stash(url) as stash, open_stash(url) as other:
        stash.frontiers()
        with closing(sqlite3.connect(place[0], isolation_level=None)) as connection:
            connection.execute(
                "CREATE TRIGGER t BEFORE UPDATE ON record BEGIN SELECT RAISE(ABORT, 'no'); END"
            )
            with pytest.raises(StorageError):
                commit(stash, "refused")
            connection.execute("DROP TRIGGER t")
        stash.release("nothing")
        commit(other, "other")
        assert keys(stash) == ["first", "one", "other"]


def test_the_past_that_a_caller_knows_is_compared_by_another_client(place: Place) -> None:
    """As for a subscription, which has its own client, or a catalog that opens the stash again."""
    file, url = place
    history = KnownPast()
    with open_stash(url) as writer:
        commit(writer, "before")
        assert list(writer.rows(2, history=history))
        assert history.past is not None
        assert history.past.upper == 3
        writer.append([update("acknowledged")], 3, history=history)
    known = history.past
    assert known.upper == 4
    with open_stash(url) as same:
        assert same.frontiers(history=KnownPast(known)).upper == 4
        assert list(same.changes(3, history=history)) == [(3, update("acknowledged"))]
        assert history.past == known
    put_back(file)
    with open_stash(url) as other:
        commit(other, "a", "b", "c")
    calls: list[Callable[[Stash], object]] = [
        lambda stash: stash.frontiers(history=KnownPast(known)),
        lambda stash: list(stash.rows(3, history=KnownPast(known))),
        lambda stash: list(stash.columns(3, history=KnownPast(known))),
        lambda stash: list(stash.changes(4, history=KnownPast(known))),
        lambda stash: stash.append([], 5, history=KnownPast(known)),
    ]
    for call in calls:
        with open_stash(url) as anew, pytest.raises(OtherHistory):
            call(anew)
    with open_stash(url) as anew:
        assert keys(anew) == ["a", "b", "c", "first", "one"]


def test_the_past_of_a_reader_that_is_far_behind_is_not_known(place: Place) -> None:
    _, url = place
    with open_stash(url) as stash:
        commit(stash, *map(str, range(2 * RECENT_COMMITS)))
        history = KnownPast()
        assert len(list(stash.changes(0, 100, history=history))) == 100
        assert history.past is None
        assert list(stash.changes(100, history=history))
        assert history.past is not None


def test_threads_of_one_client_see_no_other_history(place: Place) -> None:
    _, url = place
    with open_stash(url) as stash, open_stash(url) as other, ThreadPoolExecutor(4) as pool:

        def write(each: Stash, name: str) -> None:
            done = 0
            while done < 50:
                try:
                    commit(each, f"{name}{done}")
                except UpperMismatch:
                    continue
                done += 1

        def read() -> None:
            while (upper := stash.frontiers().upper) < 102:
                assert len(list(stash.rows(upper - 1))) == upper

        calls = [
            pool.submit(write, stash, "a"),
            pool.submit(write, other, "b"),
            pool.submit(read),
            pool.submit(read),
        ]
        for each in calls:
            each.result()
        assert len(keys(stash)) == 102


@pytest.mark.parametrize("others", [2, RECENT_COMMITS + 5])
def test_an_empty_commit_that_is_gone(place: Place, others: int) -> None:
    file, url = place
    with open_stash(url) as client:
        known = KnownPast()
        client.append([], 2, upper=10, history=known)
        put_back(file)
        with open_stash(url) as other:
            for time in range(2, 2 + max(others, 9)):
                other.append([update(f"other {time}")], time)
        # The client knows that nothing was written at the times 2 to 9.
        with pytest.raises(OtherHistory):
            client.frontiers()
    with open_stash(url) as client, pytest.raises(OtherHistory):
        client.frontiers(history=known)


def test_a_commit_from_before_the_upgrade_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    make_layout_1(file, times=range(5))
    back_up(file)
    commit_in_layout_1(file, 5)
    with open_stash(f"sqlite://{file}") as client:
        client.hold("upgrades the file", 5)
        put_back(file)
        with open_stash(f"sqlite://{file}") as other:
            commit(other, "p", "q", "r")
        with pytest.raises(OtherHistory):
            client.frontiers()


def test_the_commits_of_a_file_that_was_upgraded_are_compared_and_continue(tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    make_layout_1(file, times=range(RECENT_COMMITS + 9))
    with open_stash(f"sqlite://{file}") as client, open_stash(f"sqlite://{file}") as other:
        client.hold("upgrades the file", 5)
        known = KnownPast()
        client.frontiers(history=known)
        list(client.changes(RECENT_COMMITS, history=known))
        commit(other, *(f"other {number}" for number in range(RECENT_COMMITS + 3)))
        client.frontiers(history=known)
        assert len(keys(client)) == 2 * RECENT_COMMITS + 12


def make_layout_1(file: Path, times: range) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for statement in (
            *_LAYOUT_1,
            f"PRAGMA application_id = {APPLICATION_ID}",
            "PRAGMA user_version = 1",
            "INSERT INTO sinces VALUES (0)",
            "INSERT INTO uppers VALUES (0)",
            "INSERT INTO collections VALUES (1, 'c')",
        ):
            connection.execute(statement)
    for time in times:
        commit_in_layout_1(file, time)


def commit_in_layout_1(file: Path, time: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        row = (f"at {time}".encode(), b"v", time)
        connection.execute(
            "INSERT INTO data (collection_id, key, value, time, diff) VALUES (1, ?, ?, ?, 1)", row
        )
        connection.execute("UPDATE uppers SET upper = ?", (time + 1,))
        connection.execute("COMMIT")


def test_a_commit_that_a_thread_sees_while_another_waits_for_the_lock_is_compared(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = place
    with open_stash(url) as stash:
        commit(stash, "acknowledged")
        wait = stash._again_while_busy  # type: ignore[attr-defined]

        def waited(*given: object) -> object:
            monkeypatch.undo()
            with open_stash(url) as other:
                commit(other, "seen")
            assert stash.frontiers().upper == 4
            put_back(file)
            with open_stash(url) as other:
                commit(other, "acknowledged", "another", "later")
            return wait(*given)

        monkeypatch.setattr(stash, "_again_while_busy", waited)
        with pytest.raises(OtherHistory):
            stash.append([update("on top")], 5)
    with open_stash(url) as anew:
        assert keys(anew) == ["acknowledged", "another", "first", "later", "one"]
