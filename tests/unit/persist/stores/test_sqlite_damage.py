"""Damage that no SQLite query notices is found: at the open, by upkeep and verify, and on request."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import sqlite_guard
from holdfast.cli import main
from holdfast.errors import CorruptBlob, Determinate, StorageError
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.stores import MemoryConsensus, Put, SqliteConsensus
from holdfast.persist.stores.layer import ConsensusLayer
from holdfast.stash import StashUpdate, open_stash

SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})


def flip_in_index(path: Path, key: bytes, seqno: int) -> None:
    """Change one bit of an index entry (key, seqno, rowid), so that the row is found no more."""
    data = bytearray(path.read_bytes())
    entry = key + bytes([seqno, seqno])  # seqno and rowid are equal here: the only row of the only key
    assert data.count(entry) == 1
    data[data.index(entry) + len(key)] ^= 64
    path.write_bytes(data)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A consensus file of 40 rows; one bit of the index is flipped, so the head isn't found."""
    path = tmp_path / "consensus.sqlite"
    store = SqliteConsensus(path)
    for seqno in range(1, 41):
        assert store.compare_and_set([Put("key", seqno, b"x")])
    store.close()
    flip_in_index(path, b"key", 40)
    return path


@pytest.fixture
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("holdfast.persist.stores.sqlite", "holdfast.stash.sqlite"):
        monkeypatch.setattr(f"{module}.CHECK_AT_OPEN_BYTES", 0)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_flipped_bit_of_an_index_is_found_at_open(damaged: Path, read_only: bool) -> None:
    before = damaged.read_bytes()

    with pytest.raises(CorruptBlob, match="index") as raised:
        SqliteConsensus(damaged, read_only=read_only)

    assert str(damaged) in str(raised.value)
    assert "backup" in raised.value.hint
    assert damaged.read_bytes() == before


@pytest.mark.usefixtures("every_file_is_large")
def test_a_large_file_is_checked_when_asked_and_refused_from_then_on(damaged: Path) -> None:
    store = SqliteConsensus(damaged)
    assert store.heads(["key"])["key"].seqno < 40 or store.heads(["key"])["key"].seqno > 100

    with pytest.raises(CorruptBlob, match="index"):
        ConsensusLayer(store).check_integrity()

    acts: list[Callable[[], object]] = [
        lambda: store.heads(["key"]),
        lambda: store.scan("key", 0, 100),
        store.list_keys,
        lambda: store.compare_and_set([Put("key", 40, b"fork")]),
        lambda: store.truncate("key", 3),
    ]
    for act in acts:
        with pytest.raises(CorruptBlob, match="index"):
            act()
    store.close()
    with pytest.raises(Determinate, match="closed"):
        store.check_integrity()


def test_a_sound_file_passes(tmp_path: Path) -> None:
    store = SqliteConsensus(tmp_path / "consensus.sqlite")
    store.compare_and_set([Put("key", 1, b"x")])
    store.check_integrity()
    assert store.heads(["key"])["key"].seqno == 1
    store.close()
    MemoryConsensus().check_integrity()


def location(folder: Path) -> None:
    config = PersistConfig(maintenance="off", inline_max_bytes=1 << 20)
    with PersistClient.open(f"file://{folder}", config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(40):
            writer.compare_and_append([{"k": time, "v": ""}], time, time + 1)
    path = folder / "consensus.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (rowid,) = connection.execute(
            "SELECT rowid FROM consensus WHERE key = ? ORDER BY seqno DESC", (SHARD,)
        ).fetchone()
        (seqno,) = connection.execute("SELECT seqno FROM consensus WHERE rowid = ?", (rowid,)).fetchone()
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    data = bytearray(path.read_bytes())
    entry = SHARD.encode() + bytes([seqno, rowid])
    assert data.count(entry) == 1
    data[data.index(entry) + len(SHARD)] ^= 64
    path.write_bytes(data)


def test_verify_and_every_open_say_it(tmp_path: Path) -> None:
    location(tmp_path / "here")

    for command in ("verify", "inspect"):
        done = CliRunner().invoke(main, ["persist", command, f"file://{tmp_path}/here"])
        assert done.exit_code == CorruptBlob.exit_code
        assert "is corrupt" in done.stderr
        assert "persist recover" in done.stderr


@pytest.mark.usefixtures("every_file_is_large")
def test_verify_finds_it_in_a_large_file(tmp_path: Path) -> None:
    location(tmp_path / "here")

    done = CliRunner().invoke(main, ["persist", "verify", f"file://{tmp_path}/here"])

    assert done.exit_code == 1
    assert "consensus.sqlite" in done.stdout
    assert "index" in done.stdout


@pytest.mark.usefixtures("every_file_is_large")
def test_upkeep_finds_it_in_a_large_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    location(tmp_path / "here")
    config = PersistConfig(maintenance="inline", rollup_every=1, retry_deadline_s=0.0)
    with PersistClient.open(f"file://{tmp_path}/here", config=config) as client:
        writer = client.writer("s00000000-0000-4000-8000-000000000002", SCHEMA, purpose="test")
        writer.compare_and_append([{"k": 1, "v": ""}], 0, 1)
        with pytest.raises(CorruptBlob, match="index"):
            writer.compare_and_append([{"k": 1, "v": ""}], 1, 2)
    assert "upkeep of the consensus store failed" in caplog.text


def stash_file(path: Path) -> None:
    with open_stash(f"sqlite://{path}", create=True) as stash:
        for time in range(20):
            stash.append([StashUpdate(1, b"key-%03d" % time, b"value", 1)], time)
        stash.allow_compaction(10)
    data = bytearray(path.read_bytes())
    # The second of two is in the table, or in the index by key.
    at = data.index(b"key-007")
    data[at + 6] ^= 2
    path.write_bytes(data)


def test_a_flipped_bit_of_a_stash_is_found_at_open(tmp_path: Path) -> None:
    stash_file(tmp_path / "stash.db")
    for create, read_only in ((False, True), (False, False), (True, False)):
        with pytest.raises(CorruptBlob, match="index"):
            open_stash(f"sqlite://{tmp_path}/stash.db", create=create, read_only=read_only)


@pytest.mark.usefixtures("every_file_is_large")
def test_a_consolidation_of_a_large_stash_finds_it(tmp_path: Path) -> None:
    stash_file(tmp_path / "stash.db")
    with open_stash(f"sqlite://{tmp_path}/stash.db") as stash:
        with pytest.raises(CorruptBlob, match="index"):
            stash.consolidate()
        with pytest.raises(CorruptBlob, match="index"):
            stash.frontiers()


def test_an_integrity_check_that_cannot_read_finds_no_damage(tmp_path: Path) -> None:
    """What SQLite says of a page whose read failed with EIO is a line of its findings."""

    class Failing:
        """Stands for a connection to a file on a disk that fails for a moment."""

        text_factory: object = str

        def __init__(self, found: str) -> None:
            self.found = found

        def execute(self, _: str) -> "Failing":
            return self

        def fetchone(self) -> tuple[str]:
            return (f"*** in database main ***\n{self.found}",)

    with pytest.raises(sqlite3.OperationalError, match="can't read a page"):
        sqlite_guard.check_pages(
            Failing("Page 3: unable to get the page. error code=266"),  # type: ignore[arg-type]
            tmp_path,
        )
    with pytest.raises(CorruptBlob):
        sqlite_guard.check_pages(
            Failing("Page 2: btreeInitPage() returns error code 11"),  # type: ignore[arg-type]
            tmp_path,
        )


EIO = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
typedef ssize_t (*reading)(int, void *, size_t, off_t);
ssize_t pread64(int file, void *data, size_t size, off_t at) {
  static reading real;
  if (!real) real = (reading)dlsym(RTLD_NEXT, "pread64");
  if (size >= 4096 && access(getenv("FAILING"), F_OK) == 0) { errno = EIO; return -1; }
  return real(file, data, size, at);
}
"""

READS = """
import os, sys
from pathlib import Path
from holdfast.errors import CorruptBlob, StorageError
from holdfast.persist.stores import SqliteConsensus
store = SqliteConsensus(sys.argv[1])
flag = Path(os.environ["FAILING"])
flag.touch()
store._reader.execute("PRAGMA shrink_memory")
for act in (lambda: store.scan("key", 0, 100), store.check_integrity):
    try:
        act()
    except StorageError as error:
        print(type(error).__name__, error)
flag.unlink()
print(len(store.scan("key", 0, 100)))
store.check_integrity()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to make reads fail")
def test_a_disk_that_fails_for_a_moment_is_not_taken_for_damage(tmp_path: Path) -> None:
    path = tmp_path / "consensus.sqlite"
    store = SqliteConsensus(path)
    for seqno in range(1, 41):
        assert store.compare_and_set([Put("key", seqno, b"x" * 1000)])
    store.close()
    (tmp_path / "eio.c").write_text(EIO)
    library = tmp_path / "eio.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "eio.c", "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", READS, str(path)],
        env={**os.environ, "LD_PRELOAD": str(library), "FAILING": str(tmp_path / "failing")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scan, check, after = done.stdout.splitlines()
    assert scan.startswith("Determinate")
    assert check.startswith("StoreUnreachable")
    assert after == "40"


def test_text_that_is_no_unicode_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "consensus.sqlite"
    store = SqliteConsensus(path)
    store.compare_and_set([Put("key", 1, b"x")])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO consensus VALUES (CAST(x'ff80fe' AS TEXT), 1, x'00')")
    with pytest.raises(CorruptBlob, match="not Unicode"):
        store.list_keys()
    store.close()


def test_a_broken_name_in_the_schema_is_damage(tmp_path: Path) -> None:
    """The sqlite3 module raises UnicodeDecodeError for a message that quotes it."""
    path = tmp_path / "consensus.sqlite"
    SqliteConsensus(path).close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE consensus", b"CREATE TABL\xff consensus"))
    with pytest.raises(StorageError, match="is corrupt"):
        SqliteConsensus(path)
