"""A SQLite store stops when somebody removes or replaces one of its three files, and forks no history."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import Determinate, HoldfastError, Indeterminate, StorageError
from holdfast.persist import Clock, PersistClient, PersistConfig, Schema
from holdfast.persist.config import Maintenance
from holdfast.persist.stores import Put, SqliteConsensus
from holdfast.sqlite_guard import OpenFiles
from holdfast.stash import Stash, StashUpdate, open_stash

SCHEMA = Schema.of({"k": "int64"})
ROW = StashUpdate(1, b"k", b"v", 1)


class Client:
    """An open store, with one way to write and one to read."""

    def __init__(self, kind: str, path: Path) -> None:
        self.path = path
        if kind == "consensus":
            consensus = SqliteConsensus(path)
            self.close, self.store = consensus.close, consensus
            self.commit = lambda: self._put(consensus)
            self.count = lambda: len(consensus.scan("a", 0, 1000))
        else:
            stash = open_stash(f"sqlite://{path}", create=True)
            self.close, self.store = stash.close, stash  # type: ignore[assignment]
            self.commit = lambda: self._append(stash)
            self.count = lambda: stash.frontiers().upper

    def _put(self, consensus: SqliteConsensus) -> None:
        head = consensus.heads(["a"]).get("a")
        assert consensus.compare_and_set([Put("a", head.seqno + 1 if head else 1, b"x")])

    def _append(self, stash: Stash) -> None:
        stash.append([ROW], stash.frontiers().upper)


@pytest.fixture(params=["consensus", "stash"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Client]:
    """Open one more client of the same file."""
    return lambda: Client(request.param, tmp_path / "file.sqlite")


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """With a copy of the same bytes: only the inode tells."""
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.rename(path)


@pytest.mark.parametrize("names", [("-wal", "-shm"), ("-wal",), ("-shm",), ("",)], ids=str)
@pytest.mark.parametrize("change", [remove, replace])
def test_a_client_stops_when_a_file_is_removed_or_replaced(
    opened: Callable[[], Client], names: tuple[str, ...], change: Callable[[Path], None]
) -> None:
    client = opened()
    client.commit()
    for name in names:
        change(Path(f"{client.path}{name}"))

    for act in (client.commit, client.count):
        with pytest.raises(StorageError, match=r"removed or replaced|can't be reached"):
            act()
    client.close()


@pytest.mark.parametrize("names", [("-wal", "-shm"), ("-wal",), ("-shm",), ("",)], ids=str)
@pytest.mark.parametrize("change", [remove, replace])
@pytest.mark.parametrize("maintenance", ["off", "background"])
def test_a_client_does_not_wait_for_a_file_that_does_not_come_back(
    names: tuple[str, ...],
    change: Callable[[Path], None],
    maintenance: Maintenance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    config = PersistConfig(retry_deadline_s=60, maintenance=maintenance)
    client = PersistClient.open(tmp_path.as_uri(), config=config)
    shard = client.create_or_load("shard", SCHEMA)
    client.exclusive("job")
    writer = client.writer(shard, SCHEMA, purpose="test")
    writer.compare_and_append([{"k": 1}], 0, 1)
    reader = client.reader(shard, purpose="test")
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: slept.append(seconds))
    for name in names:
        change(tmp_path / f"consensus.sqlite{name}")

    for call in (
        lambda: writer.compare_and_append([{"k": 2}], 1, 2),
        lambda: reader.upper(),
        lambda: client.recent_upper(shard),
        lambda: client.names(),
        lambda: client.maintain(shard),
    ):
        with pytest.raises(Determinate, match=r"removed or replaced|can't be reached") as caught:
            call()
        assert "restore the right file" in caught.value.hint
    client.close()
    assert slept == []


def test_an_append_that_met_the_removal_of_a_file_is_in_doubt_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    config = PersistConfig(retry_deadline_s=60, maintenance="off")
    client = PersistClient.open(tmp_path.as_uri(), config=config)
    writer = client.writer(client.create_or_load("shard", SCHEMA), SCHEMA, purpose="test")
    writer.compare_and_append([{"k": 1}], 0, 1)
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: slept.append(seconds))
    write = SqliteConsensus._write

    def written(store: SqliteConsensus, statement: str, values: Sequence[object]) -> int:
        with monkeypatch.context() as patch:
            look = OpenFiles.check
            looks = iter([lambda: None, lambda: (tmp_path / "consensus.sqlite-wal").unlink(missing_ok=True)])

            def check(files: OpenFiles, *given: type[StorageError]) -> None:
                next(looks)()
                look(files, *given)

            patch.setattr(OpenFiles, "check", check)
            return write(store, statement, values)

    monkeypatch.setattr(SqliteConsensus, "_write", written)
    with pytest.raises(Indeterminate, match="removed or replaced"):
        writer.compare_and_append([{"k": 2}], 1, 2)
    client.close()
    assert slept == []


COMMIT = (
    "import sys; from pathlib import Path; from unit.persist.stores.test_sqlite_replaced_files import Client;"
)


@pytest.mark.parametrize("kind", ["consensus", "stash"])
def test_two_clients_never_acknowledge_two_histories(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    one = Client(kind, path)
    one.commit()
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink()
    code = COMMIT + f"c = Client({kind!r}, Path(sys.argv[1])); c.commit(); print(c.count()); c.close()"
    other = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        check=True,
    )

    with pytest.raises(Determinate, match="removed or replaced"):
        one.commit()
    one.close()

    again = Client(kind, path)
    assert again.count() == int(other.stdout)
    again.close()


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_store_beside_one_with_removed_files_is_not_opened(
    opened: Callable[[], Client], made_anew: bool
) -> None:
    """The connections of one process share what they know of a WAL, also after it was removed."""
    one = opened()
    one.commit()
    for name in ("-wal", "-shm"):
        Path(f"{one.path}{name}").unlink()
        if made_anew:
            Path(f"{one.path}{name}").touch()

    with pytest.raises(StorageError, match="removed or replaced"):
        opened()
    one.close()
    other = opened()
    other.commit()
    other.close()


@pytest.mark.parametrize("kind", ["consensus", "stash"])
def test_a_file_that_is_replaced_during_a_commit_leaves_it_in_doubt(kind: str, tmp_path: Path) -> None:
    client = Client(kind, tmp_path / "file.sqlite")
    client.commit()
    writer = client.store._writer
    assert writer is not None
    log = Path(f"{client.path}-wal")

    def removed(_: object) -> None:
        log.unlink(missing_ok=True)

    # Runs between the look before the commit and the one after it.
    writer.set_trace_callback(removed)
    with pytest.raises(Indeterminate, match="removed or replaced"):
        client.commit()
    client.close()


def test_files_that_a_last_close_removed_are_no_replacement(tmp_path: Path) -> None:
    """Another program may be the last to close the database, and SQLite removes its files then."""
    path = tmp_path / "file.sqlite"
    first = Client("consensus", path)
    first.commit()
    first.close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM consensus").fetchone()
    assert not Path(f"{path}-wal").exists()

    client = Client("consensus", path)
    client.commit()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM consensus").fetchone() == (2,)
    client.commit()
    assert client.count() == 3
    client.close()


@pytest.mark.parametrize("kind", ["consensus", "stash"])
def test_a_copy_that_is_not_in_wal_mode_is_put_into_it(kind: str, tmp_path: Path) -> None:
    """`VACUUM INTO` makes such copies, and so does a restored dump."""
    client = Client(kind, tmp_path / "first.sqlite")
    client.commit()
    client.close()
    with closing(sqlite3.connect(client.path)) as connection:
        connection.execute(f"VACUUM INTO '{tmp_path}/copy.sqlite'")
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() != ("wal",)

    copy = Client(kind, tmp_path / "copy.sqlite")
    copy.commit()
    with closing(sqlite3.connect(copy.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert copy.count() == 2
    Path(f"{copy.path}-wal").unlink()
    with pytest.raises(HoldfastError, match="removed or replaced"):
        copy.commit()
    copy.close()


def test_a_link_to_the_file_is_the_file(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "there" / "log.sqlite")
    second = SqliteConsensus(tmp_path / "there" / "log.sqlite")
    first = SqliteConsensus(tmp_path / "link.sqlite")
    assert first.compare_and_set([Put("a", 1, b"x")])
    assert second.compare_and_set([Put("a", 2, b"y")])
    assert first.heads(["a"])["a"].seqno == 2
    first.close()
    second.close()
