"""A damaged WAL frame ends the replay, and later commits disappear. It is found before that."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob
from holdfast.persist.stores import Put, SqliteConsensus
from holdfast.stash import StashUpdate, open_stash

COMMITS = 8
FRAME = 24 + 4096


def make_consensus(file: Path) -> Callable[[], None]:
    store = SqliteConsensus(file)
    for seqno in range(1, COMMITS + 1):
        assert store.compare_and_set([Put("key", seqno, b"x" * 100)])
    return store.close


def read_consensus(file: Path) -> int:
    with closing(SqliteConsensus(file, read_only=True)) as store:
        return len(store.scan("key", 0, 100))


def make_stash(file: Path) -> Callable[[], None]:
    stash = open_stash(f"sqlite://{file}", create=True)
    for time in range(COMMITS):
        stash.append([StashUpdate(1, b"key%d" % time, b"value", 1)], time)
    return stash.close


def read_stash(file: Path) -> int:
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        return stash.frontiers().upper


@pytest.fixture(
    params=[(make_consensus, read_consensus), (make_stash, read_stash)], ids=["consensus", "stash"]
)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[bytes], int], bytes, list[int]]:
    """What a process that was killed left: how to read it with another WAL, its WAL, where commits end."""
    make, read = request.param
    (tmp_path / "live").mkdir()
    close = make(tmp_path / "live" / "db")
    shutil.copytree(tmp_path / "live", tmp_path / "left")
    close()
    main = (tmp_path / "left" / "db").read_bytes()
    wal = (tmp_path / "left" / "db-wal").read_bytes()

    def reading(data: bytes) -> int:
        (tmp_path / "left" / "db").write_bytes(main)
        (tmp_path / "left" / "db-wal").write_bytes(data)
        (tmp_path / "left" / "db-shm").unlink(missing_ok=True)
        return int(read(tmp_path / "left" / "db"))

    ends = [at + FRAME for at in range(32, len(wal) - FRAME + 1, FRAME) if wal[at + 4 : at + 8] != bytes(4)]
    return reading, wal, ends


def test_a_flipped_bit_before_the_last_commit_is_found(
    left: tuple[Callable[[bytes], int], bytes, list[int]],
) -> None:
    reading, wal, ends = left
    assert reading(wal) == COMMITS
    chance = random.Random(5)
    last, found = ends[-2], 0
    frames = range(32, len(wal), FRAME)
    places = [*range(32), *(at + byte for at in frames[::3] for byte in range(0, 24, 3))]
    places += chance.sample(range(32, len(wal)), 100)
    flips = [(at, chance.randrange(8)) for at in places]
    # All bits in the header of the last frame of the commit before the last one.
    flips += [(last - FRAME + byte, bit) for byte in range(24) for bit in range(8)]
    for at, bit in flips:
        flipped = wal[:at] + bytes([wal[at] ^ 1 << bit]) + wal[at + 1 :]
        # A crash leaves a last commit that is cut short: it isn't found, and nothing but this commit is lost.
        allowed = (COMMITS, COMMITS - 1) if at >= last else (COMMITS,)
        try:
            assert reading(flipped) in allowed, at
        except CorruptBlob:
            found += at < last
    assert found > 50


def test_a_commit_that_a_crash_cut_short_is_no_damage(
    left: tuple[Callable[[bytes], int], bytes, list[int]],
) -> None:
    reading, wal, ends = left
    for commits, (begin, end) in enumerate(zip(ends[-COMMITS - 1 :], ends[-COMMITS:], strict=False)):
        for at in range(begin, end, 1000):
            assert reading(wal[:at]) == commits
    torn = wal[: ends[-2]] + bytes(FRAME) + wal[ends[-2] + FRAME :]
    assert reading(torn) == COMMITS - 1


def test_what_an_earlier_wal_left_behind_is_no_damage(tmp_path: Path) -> None:
    file = tmp_path / "db"
    store = SqliteConsensus(file)
    for seqno in range(1, 9):
        assert store.compare_and_set([Put("key", seqno, b"x")])
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    size = Path(f"{file}-wal").stat().st_size
    assert store.compare_and_set([Put("key", 9, b"x")])
    assert Path(f"{file}-wal").stat().st_size == size
    assert read_consensus(file) == 9
    store.close()
