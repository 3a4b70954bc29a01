"""Files of earlier Holdfasts: this one reads them, and upgrades them before it writes to them."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob, StorageError
from holdfast.stash import Stash, StashUpdate, open_stash
from holdfast.stash.sqlite import SqliteStash
from testbed.earlier import EarlierHoldfast
from testbed.errors import Unavailable
from testbed.require import Tier, required

PLAIN = "645fc424bbfcaf687be38e5ea5a404fa809375ba"
WITH_CHECKSUMS = "f01aa44473c6043b7192450e8f7e345f50b007a6"
USER = Path(__file__).with_name("stash_user.py")


@pytest.fixture(scope="module", params=[PLAIN, WITH_CHECKSUMS], ids=["plain", "with checksums"])
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EarlierHoldfast:
    try:
        return EarlierHoldfast(request.param, tmp_path_factory.mktemp("earlier"))
    except Unavailable as error:
        if Tier.POSTGRES in required(os.environ):
            raise
        pytest.skip(str(error))


INDEXES_WITH_COPIES = (
    "CREATE INDEX data_copy ON data (time, diff, value) WHERE length(value) >= 0",
    "CREATE INDEX sinces_copy ON sinces (since)",
    "CREATE INDEX uppers_copy ON uppers (upper)",
    "CREATE INDEX holds_copy ON holds (time)",
    "CREATE INDEX collections_copy ON collections (name)",
)


def query(file: Path, *statements: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        found = [connection.execute(statement).fetchall() for statement in statements]
        connection.commit()
    return found[-1]


def layout(file: Path) -> object:
    return query(file, "PRAGMA user_version")[0][0]


def use(earlier: EarlierHoldfast, url: str, at: int) -> str:
    process = earlier.start(USER, url, str(at))
    said, _ = process.communicate()
    assert process.returncode == 0
    return said.strip()


def refusal(earlier: EarlierHoldfast, url: str, program: Path) -> str:
    """The error of an earlier Holdfast that opens the file."""
    program.write_text(f"""
from holdfast.stash import open_stash
try:
    open_stash({url!r}, read_only=True)
except Exception as error:
    print(type(error).__name__, error)
""")
    said, _ = earlier.start(program).communicate()
    return said


def contents(stash: Stash) -> object:
    frontiers = stash.frontiers()
    as_of = frontiers.upper - 1
    rows = sorted(map(tuple, stash.rows(as_of)))
    return frontiers, rows, stash.sizes(as_of), stash.holds(), list(stash.changes(frontiers.since + 1))


def flip_each_value(file: Path) -> None:
    """Each flipped value is found by a read; some bytes are of rows that are there no more."""
    with open_stash(f"sqlite://{file}") as stash:
        right = contents(stash)
    query(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = file.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"value" * 100, at)]
    found = 0
    for at in places:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            with open_stash(f"sqlite://{file}") as stash:
                assert contents(stash) == right
        except CorruptBlob:
            found += 1
    file.write_bytes(data)
    assert found > 0


def test_a_file_is_read_as_it_is_and_upgraded_by_the_first_write(
    earlier: EarlierHoldfast, tmp_path: Path
) -> None:
    file = tmp_path / "stash.db"
    url = f"sqlite://{file}"
    row = "[(1, b'key%d', b'" + "value" * 100 + "', 1)]"
    for at in (0, 1):
        assert use(earlier, url, at) == row % at

    with open_stash(url, read_only=True) as reader, open_stash(url, read_only=False) as writer:
        before = contents(reader)
        assert str(sorted(map(tuple, reader.rows(1)))) == row % 1
        assert layout(file) == 1
        writer.hold("other", 1)
        assert layout(file) == 2
        assert reader.holds() == {"other": 1}
        writer.release("other")
        assert contents(reader) == before
    flip_each_value(file)
    assert query(file, "PRAGMA integrity_check") == [("ok",)]
    said = refusal(earlier, url, tmp_path / "program.py")
    assert said.startswith("VersionTooNew")
    assert "layout 2" in said

    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    vacuumed = tmp_path / "vacuumed.db"
    query(file, f"VACUUM INTO '{vacuumed}'")
    for each in (copy, vacuumed):
        with open_stash(f"sqlite://{each}", read_only=True) as stash:
            assert contents(stash) == before
        with open_stash(f"sqlite://{each}", read_only=False) as stash:
            stash.append([StashUpdate(1, b"more", b"", 1)], 2)
            assert len(list(stash.changes(2))) == 1
            assert len(list(stash.rows(2))) == 2


def test_an_earlier_client_that_has_the_file_open_fails_after_the_upgrade(
    earlier: EarlierHoldfast, tmp_path: Path
) -> None:
    file = tmp_path / "stash.db"
    url = f"sqlite://{file}"
    use(earlier, url, 0)
    program = tmp_path / "program.py"
    program.write_text(f"""
from holdfast import stash as library
from holdfast.stash import open_stash
Update = getattr(library, "StashUpdate", None) or library.Update
with open_stash({url!r}, read_only=False) as stash:
    stash.append([Update(1, b"a", b"", 1)], 1)
    print("ready", flush=True)
    input()
    for act in (lambda: stash.append([Update(1, b"b", b"", 1)], 2), stash.frontiers):
        try:
            act()
            print("done")
        except Exception as error:
            print(type(error).__name__)
""")
    process = earlier.start(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with open_stash(url, read_only=False) as stash:
        stash.append([StashUpdate(1, b"c", b"", 1)], 2)
        said, _ = process.communicate("\n")
        assert said.split() == ["Determinate", "VersionTooNew"]
        assert sorted(row.key for row in stash.rows(2)) == [b"a", b"c", b"key0"]


def test_indexes_with_copies_are_removed(earlier: EarlierHoldfast, tmp_path: Path) -> None:
    if earlier.commit != PLAIN:
        return
    file = tmp_path / "stash.db"
    use(earlier, f"sqlite://{file}", 0)
    query(file, *INDEXES_WITH_COPIES)
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        assert len(list(stash.rows(0))) == 1
    with open_stash(f"sqlite://{file}", read_only=False) as stash:
        stash.append([], 1)
    assert query(file, "SELECT name FROM sqlite_schema WHERE name LIKE '%\\_copy' ESCAPE '\\'") == []
    flip_each_value(file)


def test_a_damaged_file_is_not_upgraded(
    earlier: EarlierHoldfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digests would be those of the damaged rows. Here the file is too large for a check at its open."""
    file = tmp_path / "stash.db"
    for at in range(3):
        use(earlier, f"sqlite://{file}", at)
    query(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(file.read_bytes())
    for at in range(len(data)):
        if data.startswith(b"\x01key2", at):  # the key of an index entry, or of a row
            data[at + 4] ^= 1
    file.write_bytes(data)
    monkeypatch.setattr("holdfast.stash.sqlite.CHECK_AT_OPEN_BYTES", 0)
    with open_stash(f"sqlite://{file}", read_only=False) as stash, pytest.raises(CorruptBlob):
        stash.append([], 3)
    assert layout(file) == 1


def test_an_upgrade_waits_for_the_write_lock(earlier: EarlierHoldfast, tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    use(earlier, f"sqlite://{file}", 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with SqliteStash(file, create=False, read_only=False, names={}, busy_timeout_s=0.1) as stash:
            with pytest.raises(StorageError, match="locked by another process"):
                stash.append([], 1)
            other.execute("ROLLBACK")
            stash.append([], 1)
    assert layout(file) == 2
