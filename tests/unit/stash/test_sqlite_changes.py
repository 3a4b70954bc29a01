"""Changes of a stash in SQLite for readers that are far behind. The record knows the last commits only."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob
from holdfast.stash import StashUpdate, open_stash
from holdfast.stash.sqlite import SqliteStash

COMMITS = 500
CHUNK = 100


def update(time: int) -> StashUpdate:
    return StashUpdate(1, b"k%d" % time, b"v", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with 500 commits of one row each, of which no read knows the digests."""
    with open_stash(f"sqlite://{tmp_path}/stash", create=True) as stash:
        for time in range(COMMITS):
            stash.append([update(time)], time)
    return tmp_path / "stash"


@pytest.fixture
def stash(file: Path) -> Iterator[SqliteStash]:
    with SqliteStash(file, create=False, read_only=False, names={}) as stash:
        yield stash


@pytest.fixture
def full_reads(stash: SqliteStash, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each read of all rows."""
    reads: list[None] = []
    read = stash._every_row
    monkeypatch.setattr(stash, "_every_row", lambda *args: reads.append(None) or read(*args))
    return reads


def test_a_reader_that_is_far_behind_reads_all_rows_once(stash: SqliteStash, full_reads: list[None]) -> None:
    found = []
    for lower in range(0, COMMITS, CHUNK):
        upper = stash.frontiers().upper
        stash.append([update(upper)], upper)
        found += stash.changes(lower, lower + CHUNK)
    assert found == [(time, update(time)) for time in range(COMMITS)]
    assert len(full_reads) == 1
    assert list(stash.changes(COMMITS)) == [(time, update(time)) for time in range(COMMITS, COMMITS + 5)]
    assert len(full_reads) == 1


@pytest.mark.parametrize("column", ["value", "time"])
def test_damage_is_found_in_what_was_read_before(stash: SqliteStash, file: Path, column: str) -> None:
    assert len(list(stash.changes(0, CHUNK))) == CHUNK
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(f"UPDATE data SET {column} = {column} || '1' WHERE key = ?", (b"k150",))
    with pytest.raises(CorruptBlob):
        list(stash.changes(CHUNK, 2 * CHUNK))


def test_consolidation_ends_what_is_known_of_times_up_to_since(stash: SqliteStash) -> None:
    assert len(list(stash.changes(0, CHUNK))) == CHUNK
    stash.append([update(150)._replace(diff=-1)], COMMITS)
    stash.allow_compaction(COMMITS)
    assert stash.consolidate()
    stash.append([update(0)], COMMITS + 1)
    assert list(stash.changes(COMMITS + 1)) == [(COMMITS + 1, update(0))]


def test_empty_commits_after_a_consolidation_need_no_read_of_all_rows(
    stash: SqliteStash, full_reads: list[None]
) -> None:
    stash.append([update(0)._replace(diff=-1)], COMMITS)
    stash.allow_compaction(COMMITS)
    stash.append([], COMMITS + 1)
    assert stash.consolidate()
    full_reads.clear()
    stash.append([], COMMITS + 2)
    stash.append([update(0)], COMMITS + 3)
    for lower in range(COMMITS + 1, COMMITS + 4):
        assert list(stash.changes(lower)) == [(COMMITS + 3, update(0))]
    assert not full_reads
