"""A stash in SQLite that an earlier Holdfast and this one write in turns keeps its second copies."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob
from holdfast.stash import open_stash
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


def copies(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%\\_copy' ESCAPE '\\'")
        return {name for (name,) in found}


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
    assert copies(file) == set()

    with open_stash(url, read_only=True) as reader:
        assert len(list(reader.rows(0))) == 1
    assert copies(file) == set()

    open_stash(url, read_only=False).close()
    assert copies(file) == {"data_copy", "sinces_copy", "uppers_copy", "holds_copy", "collections_copy"}

    # The earlier client appends, deletes and moves rows: SQLite maintains the copies for it.
    for at in (1, 2):
        assert use(earlier, url, at) == row % at
    with open_stash(url) as stash:
        assert str(sorted(map(tuple, stash.rows(2)))) == row % 2
        stash._check_integrity()  # type: ignore[attr-defined]

    data = file.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(b"value" * 100, at)]
    assert len(places) >= 2
    for at in places:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptBlob, match="data_copy"):
            open_stash(url)
    file.write_bytes(data)


def test_a_file_that_is_locked_gets_its_copies_later(
    earlier: EarlierHoldfast, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "stash.db"
    use(earlier, f"sqlite://{file}", 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        open_stash(f"sqlite://{file}").close()
        assert "no second copy" in caplog.text
        other.execute("ROLLBACK")
    assert copies(file) == set()
    open_stash(f"sqlite://{file}").close()
    assert len(copies(file)) == 5
