"""Backups are consistent while clients write, compact and collect. After a restore, no old client goes on."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.errors import BadInput, CorruptBlob, HandleExpired, HoldfastError, StorageError, UnusablePath
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.admin import backup
from holdfast.persist.admin.backup import back_up, restore
from holdfast.persist.stores import FileBlob, MemoryBlob, MemoryConsensus, SqliteConsensus
from holdfast.persist.stores.layer import BlobLayer
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, rows

# Garbage goes at once, so that a backup under way misses what it is about to copy.
CONFIG = PersistConfig(
    maintenance="off", inline_max_bytes=0, rollup_every=4, compaction_fanin=2, gc_grace_s=0.0
)


def client(folder: Path, config: PersistConfig = CONFIG) -> PersistClient:
    return PersistClient.open(f"file://{folder}", config=config)


def append(opened: PersistClient, shard: str, number: int) -> None:
    for _ in range(number):
        upper = opened.recent_upper(shard)
        opened.writer(shard, SCHEMA, purpose="test").compare_and_append(rows(upper), upper, upper + 1)


def log_of(folder: Path) -> closing[SqliteConsensus]:
    return closing(SqliteConsensus(folder / "consensus.sqlite", create=False, read_only=True))


def contents(folder: Path, shard: str = SHARD) -> tuple[int, list[int]]:
    with PersistClient.open(f"file://{folder}", mode="read") as opened:
        reader = opened.reader(shard, purpose="test")
        upper = reader.upper()
        return upper, sorted(reader.snapshot(upper - 1).to_table()["k"].to_pylist())


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["persist", *map(str, arguments)])


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A location of two shards with parts and rollups."""
    with client(tmp_path / "here") as opened:
        for shard in (SHARD, OTHER):
            append(opened, shard, 9)
            opened.maintain(shard)
            append(opened, shard, 3)
    return tmp_path / "here"


class Interrupted(BlobLayer):
    """Blobs; before the n-th blob of a shard is read something happens to the location."""

    def __init__(self, folder: Path, happen: Callable[[str], None], *, times: int = 1) -> None:
        super().__init__(FileBlob(folder / "blob", create=False, read_only=True))
        self.happen, self.left = happen, times
        self.missed = 0

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        if "/w" in key and self.left:
            self.left -= 1
            self.happen(key)
        found = super().open_input(key, most)
        self.missed += found is None
        return found


def test_a_backup_is_a_location_with_all_that_was_committed(here: Path, tmp_path: Path) -> None:
    target = tmp_path / "backups" / "monday"

    done = run("backup", f"file://{here}", target)

    assert done.exit_code == 0, done.output
    assert "2 shards" in done.stderr
    for shard in (SHARD, OTHER):
        assert contents(target, shard) == contents(here, shard) == (12, list(range(12)))
    assert run("verify", f"file://{target}").exit_code == 0
    assert [path.name for path in target.parent.iterdir()] == ["monday"]


def test_blobs_are_copied_in_pieces(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A location may contain large objects, also of others."""
    (here / "blob" / "large").write_bytes(bytes(range(256)) * 100)
    pieces: list[int] = []
    put = FileBlob.put_pieces

    def counted(blob: FileBlob, key: str, given: Iterable[bytes]) -> None:
        found = list(given)
        pieces.extend(map(len, found))
        put(blob, key, found)

    monkeypatch.setattr(backup, "_PIECE", 1000)
    monkeypatch.setattr(FileBlob, "put_pieces", counted)
    with log_of(here) as log:
        back_up(FileBlob(here / "blob", create=False, read_only=True), log, tmp_path / "copy")
    assert max(pieces) == 1000
    assert (tmp_path / "copy" / "blob" / "large").read_bytes() == (here / "blob" / "large").read_bytes()
    assert contents(tmp_path / "copy", SHARD) == (12, list(range(12)))


def test_a_blob_that_was_not_fetched_whole_is_not_copied(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that must fetch an object fetches no more than the limit."""
    (here / "blob" / "large").write_bytes(bytes(5000))
    monkeypatch.setattr(backup, "_MOST_FETCHED", 5000)
    with (
        log_of(here) as log,
        pytest.raises(StorageError, match=r"large in .* has 5000 bytes or more, and can't be copied"),
    ):
        back_up(FileBlob(here / "blob", create=False, read_only=True), log, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_backup_names_no_garbage_and_no_orphan(here: Path, tmp_path: Path) -> None:
    (here / "blob" / SHARD / "orphan").write_bytes(b"of another form")
    part = next((here / "blob" / SHARD).glob("w*/p*"))
    orphan = part.with_name("p00000000-0000-4000-8000-000000000009")
    shutil.copyfile(part, orphan)

    done = run("backup", f"file://{here}", tmp_path / "copy", "--json")

    assert json.loads(done.stdout)["rounds"] == 1
    assert not (tmp_path / "copy" / "blob" / SHARD / orphan.parent.name / orphan.name).exists()
    assert (tmp_path / "copy" / "blob" / SHARD / "orphan").exists()


def test_a_blob_that_is_collected_meanwhile_makes_another_round(here: Path, tmp_path: Path) -> None:
    with client(here) as other, log_of(here) as log:

        def compact(key: str) -> None:
            shard = key.split("/")[0]
            append(other, shard, 5)
            other.maintain(shard)

        blobs = Interrupted(here, compact, times=3)
        copied = back_up(blobs, log, tmp_path / "copy")

    assert blobs.missed > 0
    assert copied.rounds > 1
    for shard in (SHARD, OTHER):
        upper, found = contents(tmp_path / "copy", shard)
        assert upper >= 12
        assert found == list(range(upper))
    assert contents(tmp_path / "copy")[0] > 12 or contents(tmp_path / "copy", OTHER)[0] > 12


def test_backups_while_writers_compact_and_collect(here: Path, tmp_path: Path) -> None:
    done = threading.Event()
    failures: list[Exception] = []

    def work(shard: str) -> None:
        try:
            with client(here) as opened:
                while not done.is_set():
                    append(opened, shard, 3)
                    opened.maintain(shard)
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(shard,)) for shard in (SHARD, OTHER)]
    for thread in threads:
        thread.start()
    try:
        with log_of(here) as log:
            for number in range(5):
                back_up(
                    FileBlob(here / "blob", create=False, read_only=True), log, tmp_path / f"copy{number}"
                )
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    for number in range(5):
        for shard in (SHARD, OTHER):
            upper, found = contents(tmp_path / f"copy{number}", shard)
            assert found == list(range(upper))
    assert contents(tmp_path / "copy4")[0] > 12


def test_a_blob_that_is_lost_is_told_and_leaves_nothing(here: Path, tmp_path: Path) -> None:
    next((here / "blob" / SHARD).glob("w*/p*")).unlink()

    done = run("backup", f"file://{here}", tmp_path / "copies" / "copy")

    assert done.exit_code == CorruptBlob.exit_code
    assert SHARD in done.stderr
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_damaged_part_is_found_before_the_backup_appears(here: Path, tmp_path: Path) -> None:
    part = next((here / "blob" / SHARD).glob("w*/p*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)

    done = run("backup", f"file://{here}", tmp_path / "copy")

    assert done.exit_code == CorruptBlob.exit_code
    assert part.name in done.stderr
    assert not (tmp_path / "copy").exists()


def test_nothing_is_overwritten(here: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    with log_of(here) as log:
        for target in (full, here, full / "mine"):
            with pytest.raises((UnusablePath, BadInput)):
                back_up(FileBlob(here / "blob", create=False, read_only=True), log, target)
    run("backup", f"file://{here}", tmp_path / "copy")
    for url in (f"file://{full}", f"file://{here}"):
        done = run("restore", tmp_path / "copy", url)
        assert done.exit_code == BadInput.exit_code
        assert "overwrites nothing" in done.stderr
    assert (full / "mine").read_text() == "mine"
    assert contents(here) == (12, list(range(12)))


def test_what_is_no_sqlite_file_is_refused(here: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a SQLite file") as raised:
        back_up(MemoryBlob(), MemoryConsensus(), tmp_path / "copy")
    assert "pg_dump" in raised.value.hint
    assert run("restore", here / "blob", f"file://{tmp_path}/new").exit_code == BadInput.exit_code
    assert run("restore", here, "s3://bucket/prefix").exit_code == BadInput.exit_code


def test_a_restored_location_is_whole_and_stops_clients_that_know_more(here: Path, tmp_path: Path) -> None:
    assert run("backup", f"file://{here}", tmp_path / "copy").exit_code == 0
    running = client(here, replace(CONFIG, retry_deadline_s=0.1))
    append(running, SHARD, 4)
    here.rename(tmp_path / "old")

    done = run("restore", tmp_path / "copy", f"file://{here}")

    assert done.exit_code == 0, done.output
    assert contents(here) == (12, list(range(12)))
    with pytest.raises(HoldfastError):
        append(running, SHARD, 1)
    running.close()
    assert contents(tmp_path / "copy") == (12, list(range(12))), "the backup stays as it is"
    with client(here) as opened:
        append(opened, SHARD, 1)
    assert contents(here) == (13, list(range(13)))
    assert run("verify", f"file://{here}").exit_code == 0


def test_a_client_of_a_log_that_goes_on_finds_another_epoch(here: Path, tmp_path: Path) -> None:
    """Also where the file is exchanged in place, and its inode is the same."""
    run("backup", f"file://{here}", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    with log_of(tmp_path / "restored") as log:
        restored = log.heads([SHARD])[SHARD]
    with client(here) as opened:
        assert opened.session.machine(SHARD).refresh().seqno < restored.seqno
        with pytest.raises(HandleExpired, match="recovered"):
            opened.session.machine(SHARD).advance_to(restored, opened.session.machine(SHARD).version)


def test_a_damaged_backup_is_not_restored(here: Path, tmp_path: Path) -> None:
    run("backup", f"file://{here}", tmp_path / "copy")
    file = tmp_path / "copy" / "consensus.sqlite"
    with closing(sqlite3.connect(file)) as database, database:
        head = "key = ?1 AND seqno = (SELECT max(seqno) FROM consensus WHERE key = ?1)"
        cut = f"UPDATE consensus SET data = substr(data, 1, length(data) - 1) WHERE {head}"
        assert database.execute(cut, (SHARD,)).rowcount == 1

    done = run("restore", tmp_path / "copy", f"file://{tmp_path}/new")

    assert done.exit_code == CorruptBlob.exit_code
    assert "use another backup" in done.stderr
    assert ".partial" not in done.stderr
    assert not (tmp_path / "new").exists()
