"""An earlier Holdfast and this one write a stash in SQLite in turns. It keeps its copies and checksums."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob
from holdfast.stash import StashUpdate, open_stash
from testbed.earlier import EarlierHoldfast
from testbed.errors import Unavailable
from testbed.require import Tier, required

WITH_STASH = "645fc424bbfcaf687be38e5ea5a404fa809375ba"
USER = Path(__file__).with_name("stash_user.py")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> EarlierHoldfast:
    try:
        return EarlierHoldfast(WITH_STASH, tmp_path_factory.mktemp("earlier"))
    except Unavailable as error:
        if Tier.POSTGRES in required(os.environ):
            raise
        pytest.skip(str(error))


COPIES = (
    "CREATE INDEX data_copy ON data (time, diff, value) WHERE length(value) >= 0",
    "CREATE INDEX sinces_copy ON sinces (since)",
    "CREATE INDEX uppers_copy ON uppers (upper)",
    "CREATE INDEX holds_copy ON holds (time)",
    "CREATE INDEX collections_copy ON collections (name)",
)


def query(file: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def has_checksums(file: Path) -> bool:
    tables = query(
        file, "SELECT name FROM sqlite_schema WHERE sql LIKE '%copy %AS (%' OR sql LIKE '%checksum%'"
    )
    assert len(tables) in (0, 5)
    return bool(tables)


def unchecked(file: Path) -> int:
    return len(query(file, "SELECT 1 FROM data WHERE checksum IS NULL"))


def flip_each_value(file: Path) -> None:
    """Each flipped value is found when the file is opened; some bytes are of rows that are there no more."""
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        right = list(stash.rows(stash.frontiers().upper - 1))
    query(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = file.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"value" * 100, at)]
    found = 0
    for at in places:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            with open_stash(f"sqlite://{file}", read_only=True) as stash:
                assert list(stash.rows(stash.frontiers().upper - 1)) == right
        except CorruptBlob as error:
            assert "checksum" in str(error)  # noqa: PT017 - not each raises
            found += 1
    file.write_bytes(data)
    assert found == len(right)


def use(earlier: EarlierHoldfast, url: str, at: int) -> str:
    process = earlier.start(USER, url, str(at))
    said, _ = process.communicate()
    assert process.returncode == 0
    return said.strip()


def test_an_earlier_client_and_this_one_take_turns(earlier: EarlierHoldfast, tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    url = f"sqlite://{file}"
    row = "[(1, b'key%d', b'" + "value" * 100 + "', 1)]"
    assert use(earlier, url, 0) == row % 0
    assert not has_checksums(file)

    with open_stash(url, read_only=True) as reader:
        assert str(sorted(map(tuple, reader.rows(0)))) == row % 0
        assert (reader.sizes(0), reader.holds(), len(list(reader.changes(0)))) == ({1: 1}, {}, 1)
    assert not has_checksums(file)

    with open_stash(url, read_only=True) as reader:
        open_stash(url, read_only=False).close()
        assert has_checksums(file)
        assert unchecked(file) == 0
        assert str(sorted(map(tuple, reader.rows(0)))) == row % 0
    flip_each_value(file)

    # The earlier client appends, deletes and moves rows. It computes no checksums, and SQLite the copies.
    for at in (1, 2):
        assert use(earlier, url, at) == row % at
    assert unchecked(file) == 1
    with open_stash(url, read_only=True) as stash:
        assert str(sorted(map(tuple, stash.rows(2)))) == row % 2
    assert unchecked(file) == 1
    with open_stash(url, read_only=False) as stash:
        assert unchecked(file) == 0
        assert str(sorted(map(tuple, stash.rows(2)))) == row % 2
        stash._check_integrity()  # type: ignore[attr-defined]
    flip_each_value(file)


def test_a_large_file_gets_the_checksums_when_it_is_consolidated(
    earlier: EarlierHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stash.db"
    url = f"sqlite://{file}"
    open_stash(url, create=True).close()
    use(earlier, url, 0)
    monkeypatch.setattr("holdfast.stash.sqlite.CHECK_AT_OPEN_BYTES", 0)
    with open_stash(url) as stash:
        assert unchecked(file) == 1
        stash.consolidate()
        assert unchecked(file) == 0


def test_indexes_with_copies_are_removed(earlier: EarlierHoldfast, tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    use(earlier, f"sqlite://{file}", 0)
    with closing(sqlite3.connect(file)) as connection:
        for statement in COPIES:
            connection.execute(statement)
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        assert len(list(stash.rows(0))) == 1
    open_stash(f"sqlite://{file}").close()
    assert has_checksums(file)
    assert query(file, "SELECT name FROM sqlite_schema WHERE name LIKE '%\\_copy' ESCAPE '\\'") == []
    flip_each_value(file)


def test_a_file_that_is_locked_gets_its_checksums_later(
    earlier: EarlierHoldfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "stash.db"
    use(earlier, f"sqlite://{file}", 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        stash = open_stash(f"sqlite://{file}")
        assert "without a checksum" in caplog.text
        other.execute("ROLLBACK")
    assert not has_checksums(file)
    with stash:
        stash.append([StashUpdate(1, b"another", b"value" * 100, 1)], 1)
    assert has_checksums(file)
    assert unchecked(file) == 0
    flip_each_value(file)
