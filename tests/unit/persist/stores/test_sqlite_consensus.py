"""What only consensus in a SQLite file meets: opening, locks, forks, reading without writing."""

import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    Indeterminate,
    NotWritable,
    StorageError,
    StoreUnreachable,
    UnusablePath,
    VersionTooNew,
)
from holdfast.persist.stores import Entry, Head, Put, SqliteConsensus


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "consensus.sqlite"


def _filled(path: Path, count: int = 3) -> None:
    store = SqliteConsensus(path)
    for seqno in range(1, count + 1):
        assert store.compare_and_set([Put("a", seqno, b"x")])
    store.close()


def _write_elsewhere(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_the_file_is_what_the_format_says(path: Path) -> None:
    _filled(path, 2)

    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall() == [
        ("consensus",)
    ]
    assert connection.execute("SELECT key, seqno, data FROM consensus").fetchall() == [
        ("a", 1, b"x"),
        ("a", 2, b"x"),
    ]
    connection.close()


def test_entries_outlive_the_store(path: Path) -> None:
    _filled(path, 3)

    store = SqliteConsensus(path)

    assert store.scan("a", 0, 10) == [Entry(seqno, b"x") for seqno in (1, 2, 3)]
    store.close()


def test_a_write_is_flushed_before_it_is_reported(path: Path) -> None:
    store = SqliteConsensus(path)

    assert store._writer is not None
    assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_store_keeps_few_pages_in_memory(path: Path) -> None:
    """A process with twenty locations kept 80 MB of pages."""
    store = SqliteConsensus(path)

    for connection in (store._writer, store._reader):
        assert connection is not None
        assert connection.execute("PRAGMA cache_size").fetchone() == (-256,)
    store.close()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    store = SqliteConsensus(tmp_path / "some" / "where" / "consensus.sqlite")

    assert store.compare_and_set([Put("a", 1, b"x")])
    store.close()


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
def test_a_missing_file_is_told_and_not_made(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "folder" / "consensus.sqlite"

    with pytest.raises(StoreUnreachable, match="does not exist"):
        SqliteConsensus(path, **options)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}], ids=repr)
def test_an_empty_file_is_told(path: Path, options: dict[str, bool]) -> None:
    path.touch()

    with pytest.raises(StoreUnreachable, match="is empty"):
        SqliteConsensus(path, **options)

    assert path.stat().st_size == 0


@pytest.mark.parametrize("size", [50, 600, 10_000])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_told_and_left_alone(path: Path, size: int, read_only: bool) -> None:
    path.write_bytes(b"!" * size)

    with pytest.raises(CorruptBlob, match=str(path)):
        SqliteConsensus(path, read_only=read_only)

    assert path.read_bytes() == b"!" * size


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE consensus (a, b)", "PRAGMA application_id = 77"], ids=["table", "id"]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_another_application_is_told_and_left_alone(
    path: Path, statement: str, read_only: bool
) -> None:
    _write_elsewhere(path, statement)
    before = path.read_bytes()

    with pytest.raises(CorruptBlob, match="another application"):
        SqliteConsensus(path, read_only=read_only)

    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_later_format_is_told(path: Path, read_only: bool) -> None:
    _filled(path)
    _write_elsewhere(path, "PRAGMA user_version = 2")

    with pytest.raises(VersionTooNew, match="format 2"):
        SqliteConsensus(path, read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_damaged_page_is_told_and_not_read_as_data(path: Path, read_only: bool) -> None:
    store = SqliteConsensus(path)
    for seqno in range(1, 40):
        assert store.compare_and_set([Put("a", seqno, b"x" * 1000)])
    store.close()
    Path(f"{path}-wal").unlink()
    Path(f"{path}-shm").unlink()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    path.write_bytes(data)

    with pytest.raises(CorruptBlob, match=str(path)):
        SqliteConsensus(path, read_only=read_only)


def test_a_path_that_is_a_folder_is_told(path: Path) -> None:
    path.mkdir()

    with pytest.raises(UnusablePath, match=str(path)):
        SqliteConsensus(path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(UnusablePath, match="is not a folder"):
        SqliteConsensus(tmp_path / "file" / "consensus.sqlite")


def test_opening_for_reading_makes_no_file_and_changes_none(path: Path) -> None:
    _filled(path)
    before = {file.name: file.stat().st_size for file in path.parent.iterdir()}
    content = path.read_bytes()

    store = SqliteConsensus(path, read_only=True)
    assert store.heads(["a"]) == {"a": Head(3, b"x")}
    with pytest.raises(NotWritable):
        store.compare_and_set([Put("a", 4, b"y")])
    with pytest.raises(NotWritable):
        store.truncate("a", 3)
    store.close()

    assert {file.name: file.stat().st_size for file in path.parent.iterdir()} == before
    assert path.read_bytes() == content


def test_a_clean_close_leaves_everything_in_the_database_file(path: Path) -> None:
    _filled(path, 3)

    copy = path.with_name("copy.sqlite")
    copy.write_bytes(path.read_bytes())
    store = SqliteConsensus(copy, create=False)

    assert store.heads(["a"]) == {"a": Head(3, b"x")}
    store.close()


def test_a_reader_sees_each_write_at_once(path: Path) -> None:
    writer = SqliteConsensus(path)
    reader = SqliteConsensus(path, read_only=True)

    for seqno in range(1, 20):
        writer.compare_and_set([Put("a", seqno, b"x")])
        assert reader.heads(["a"])["a"].seqno == seqno
    writer.close()
    assert reader.heads(["a"])["a"].seqno == 19
    again = SqliteConsensus(path)
    again.compare_and_set([Put("a", 20, b"x")])
    assert reader.heads(["a"])["a"].seqno == 20
    again.close()
    reader.close()


def test_the_mark_changes_with_each_commit_and_only_with_commits(path: Path) -> None:
    _filled(path)
    store, other = SqliteConsensus(path), SqliteConsensus(path)
    seen = [store.mark()]
    for write in (
        lambda: store.compare_and_set([Put("a", 4, b"own")]),
        lambda: other.compare_and_set([Put("b", 1, b"of another")]),
        lambda: store.truncate("a", 4),
    ):
        assert write()
        seen.append(store.mark())
        # Lost attempts and reads change nothing.
        assert not store.compare_and_set([Put("a", 4, b"late")])
        assert not other.compare_and_set([Put("a", 4, b"late")])
        assert store.heads(["a", "b"])
        assert store.scan("a", 1, 9)
        assert store.mark() == seen[-1]
    assert len(set(seen)) == 4
    store.close()
    other.close()
    with pytest.raises(Determinate):
        store.mark()


def test_a_locked_file_is_a_determinate_error_in_time(path: Path) -> None:
    store = SqliteConsensus(path, busy_timeout_s=0.05)
    store.compare_and_set([Put("a", 1, b"x")])
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    with pytest.raises(Determinate, match=r"locked by another process for 0\.05 s"):
        store.compare_and_set([Put("a", 2, b"x")])
    assert store.heads(["a"])["a"].seqno == 1
    blocker.execute("ROLLBACK")
    assert store.compare_and_set([Put("a", 2, b"x")])
    blocker.close()
    store.close()


def test_a_writer_waits_for_another_that_holds_the_lock(path: Path) -> None:
    store = SqliteConsensus(path)
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(store.compare_and_set([Put("a", 1, b"x")])))
    thread.start()
    assert store.heads(["a"]) == {}  # reads don't wait

    blocker.execute("COMMIT")
    thread.join()

    assert answers == [True]
    blocker.close()
    store.close()


def test_a_full_disk_is_a_determinate_error(path: Path) -> None:
    store = SqliteConsensus(path)
    store.compare_and_set([Put("a", 1, b"x")])
    assert store._writer is not None
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(Determinate, match="full"):
        store.compare_and_set([Put("a", 2, b"x" * 100_000), Put("b", 1, b"x")])

    assert store.list_keys() == ["a"]
    assert store.heads(["a"])["a"].seqno == 1
    assert store.compare_and_set([Put("a", 2, b"small")])
    store.close()


def test_a_write_that_the_file_system_refuses_is_indeterminate_and_survived(path: Path) -> None:
    store = SqliteConsensus(path)
    store.compare_and_set([Put("a", 1, b"x")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size, hard))
    try:
        with pytest.raises(Indeterminate, match=str(path)):
            store.compare_and_set([Put("a", 2, b"x" * 100_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    head = store.heads(["a"])["a"].seqno
    assert head in (1, 2)
    assert store.compare_and_set([Put("a", head + 1, b"on")])
    store.close()


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_was_removed_or_replaced_takes_no_writes(path: Path, replace: bool) -> None:
    store = SqliteConsensus(path)
    store.compare_and_set([Put("a", 1, b"x")])
    for file in list(path.parent.iterdir()):
        file.rename(file.with_name(f"old-{file.name}"))
    if replace:
        _filled(path, 1)

    with pytest.raises(StorageError, match=r"removed or replaced|can't be reached"):
        store.compare_and_set([Put("a", 2, b"x")])
    with pytest.raises(StorageError, match=r"removed or replaced|can't be reached"):
        store.heads(["a"])
    store.close()


def test_a_closed_store_says_so(path: Path) -> None:
    store = SqliteConsensus(path)
    store.close()
    store.close()

    with pytest.raises(Determinate, match="closed"):
        store.heads(["a"])
    with pytest.raises(Determinate, match="closed"):
        store.compare_and_set([Put("a", 1, b"x")])


def _in_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = int(not action())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _closes(store: SqliteConsensus) -> bool:
    store.close()
    return True


def test_parent_and_child_of_a_fork_both_write(path: Path) -> None:
    store = SqliteConsensus(path)
    assert store.compare_and_set([Put("a", 1, b"parent")])

    assert _in_child(lambda: store.compare_and_set([Put("a", 2, b"child")])) == 0
    assert not store.compare_and_set([Put("a", 2, b"parent")])
    assert store.compare_and_set([Put("a", 3, b"parent")])
    assert _in_child(lambda: [entry.seqno for entry in store.scan("a", 0, 10)] == [1, 2, 3]) == 0
    assert _in_child(lambda: _closes(store)) == 0

    assert store.compare_and_set([Put("a", 4, b"parent")])
    assert [entry.data for entry in store.scan("a", 0, 10)] == [b"parent", b"child", b"parent", b"parent"]
    store.close()


def test_forks_while_other_threads_write(path: Path) -> None:
    store = SqliteConsensus(path)
    done = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not done.is_set():
            assert store.compare_and_set([Put("thread", written + 1, b"x")])
            written += 1

    thread = threading.Thread(target=write)
    thread.start()
    codes = [_in_child(partial(store.compare_and_set, [Put(f"child{n}", 1, b"x")])) for n in range(8)]
    done.set()
    thread.join()

    assert codes == [0] * 8
    assert store.heads(["thread"])["thread"].seqno == written
    assert len(store.list_keys()) == 9
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_processes_that_create_the_file_at_once_agree(path: Path) -> None:
    code = (
        "import sys; from holdfast.persist.stores import Put, SqliteConsensus;"
        "print('ready', flush=True); sys.stdin.readline(); store = SqliteConsensus(sys.argv[1]);"
        "print(store.compare_and_set([Put('a', 1, b'x')])); store.close()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = [process.stdin for process in processes]
    for stdin in answers:
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
    outputs = [process.communicate()[0].strip() for process in processes]

    assert sorted(outputs) == ["False", "False", "False", "True"]
