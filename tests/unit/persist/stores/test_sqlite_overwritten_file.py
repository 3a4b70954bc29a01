"""A user copies an older file over the main file of a SQLite store. A live client stops."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import sqlite_guard
from holdfast.errors import CorruptBlob, LogRegressed
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Put, SqliteConsensus
from unit.persist.open_stores import SCHEMA, SHARD, rows
from unit.persist.stores.test_sqlite_replaced_files import Client

KINDS = pytest.mark.parametrize("kind", ["consensus", "stash"])


def checkpoint(path: Path) -> None:
    """In another process: to open and close the file in this one would end the locks of its stores."""
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def overwrite(path: Path, copy: Path) -> None:
    inode = path.stat().st_ino
    subprocess.run(["cp", str(copy), str(path)], check=True)
    assert path.stat().st_ino == inode


def fill(client: Client, count: int) -> None:
    """Write rows of some size, so that the pages of both files contradict each other."""
    store = client.store
    for _ in range(count):
        if isinstance(store, SqliteConsensus):
            head = store.heads(["a"]).get("a")
            assert store.compare_and_set([Put("a", head.seqno + 1 if head else 1, b"x" * 500)])
        else:
            client.commit()


def mixed(kind: str, path: Path) -> tuple[Client, Path]:
    """A client with commits in the WAL that belong to a newer main file than the copy."""
    client = Client(kind, path)
    fill(client, 200)
    client.close()
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    client = Client(kind, path)
    # So many that the two files contradict each other: not all mixtures do.
    fill(client, 20 if kind == "consensus" else 200)
    checkpoint(path)
    fill(client, 3)
    return client, copy


@KINDS
@pytest.mark.parametrize("first", ["commit", "count"])
def test_a_live_client_stops_before_it_mixes_both_files(kind: str, first: str, tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    client, copy = mixed(kind, path)
    overwrite(path, copy)
    log = Path(f"{path}-wal").read_bytes()
    for name in (first, "commit", "count"):
        with pytest.raises(CorruptBlob, match="a sound SQLite database") as caught:
            getattr(client, name)()
        assert "backup" in caught.value.hint
    client.close()
    assert path.read_bytes() == copy.read_bytes(), "nothing was mixed into the copy"
    assert Path(f"{path}-wal").read_bytes() == log


@KINDS
def test_what_others_write_to_the_file_stops_nobody(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    client = Client(kind, path)
    for number in range(1, 40):
        client.commit()
        if number % 10 == 0:
            checkpoint(path)
        if number % 10 == 5:
            os.utime(path)
    before = client.count()
    client.commit()
    assert client.count() == before + 1
    client.close()


def checks_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose pages the client checks from now on."""
    checked: list[Path] = []
    module = sys.modules[type(client.store).__module__]
    monkeypatch.setattr(module, "check_pages", lambda _, path: checked.append(path))
    return checked


@KINDS
def test_a_file_that_nobody_writes_to_is_not_checked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.sqlite"
    client = Client(kind, path)
    client.commit()
    checked = checks_of(client, monkeypatch)
    for _ in range(50):
        client.commit()
        client.count()
    assert checked == []
    os.utime(path, ns=(1, 1))
    client.commit()
    assert checked == [path]
    client.close()


@KINDS
def test_checkpoints_of_its_own_commits_are_not_checked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.sqlite"
    client = Client(kind, path)
    client.commit()
    checked = checks_of(client, monkeypatch)
    before = path.stat().st_mtime_ns
    for _ in range(1000):
        client.commit()
    assert path.stat().st_mtime_ns != before
    assert client.count()
    assert checked == []
    checkpoint(path)
    client.commit()
    assert checked == [path]
    client.close()


def test_checks_take_a_part_of_the_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(sqlite_guard.time, "monotonic", lambda: now_s)
    path = tmp_path / "file"
    path.touch()
    files = sqlite_guard.OpenFiles(path, "file")
    files.check()
    checks = 0
    for number in range(1, 1001):
        os.utime(path, ns=(number, number))
        files.check()
        if files.is_due():
            checks += 1
            with files.checking():
                now_s += 0.01
        now_s += 0.01
    assert 50 < checks < 90, "a twentieth of 10 s, and 0.2 s before"
    now_s += 10
    for _ in range(10):
        assert files.is_due()
        with files.checking():
            now_s += 0.01
        files.foreign_writes += 1


def test_a_whole_older_file_is_another_history(tmp_path: Path) -> None:
    """The WAL is empty: the copy has no contradiction, and only the page cache would hide it."""
    url, path = f"file://{tmp_path}/place", tmp_path / "place" / "consensus.sqlite"
    config = PersistConfig(maintenance="off", retry_deadline_s=1.0)
    with PersistClient.open(url, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="t")
        for time in range(5):
            writer.compare_and_append(rows(time), time, time + 1)
        checkpoint(path)
        copy = tmp_path / "copy"
        subprocess.run(["cp", str(path), str(copy)], check=True)
        for time in range(5, 8):
            writer.compare_and_append(rows(time), time, time + 1)
        checkpoint(path)
        assert client.recent_upper(SHARD) == 8
        overwrite(path, copy)
        with pytest.raises(LogRegressed):
            writer.compare_and_append(rows(8), 8, 9)
        with pytest.raises(LogRegressed):
            client.recent_upper(SHARD)
    with PersistClient.open(url, config=config, mode="read") as client:
        assert client.recent_upper(SHARD) == 5
