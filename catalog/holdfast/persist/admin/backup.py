"""Backup and restore of a location whose consensus store is a SQLite file, while its clients run.

A backup is a folder with the two stores of a location: `blob` and `consensus.sqlite`.

Why a backup is consistent
- The consensus file is copied first, as of one moment. All shards are in it at that moment, and so is the
  write lock. The state of each shard follows from the copy, and the backup has exactly the blobs that those
  states name.
- Clients go on meanwhile: they compact, and garbage collection deletes blobs that the copy names. If a blob
  is gone when it is its turn, the consensus file is copied again. The newer copy doesn't name that blob,
  because a blob is deleted only after a version that doesn't name it was committed. What has been copied
  stays, so each round has less to do than the one before.
- A blob that is gone although the log of its shard has not moved is lost: the location is damaged.
- Blobs first and consensus last would not do: the copy of the consensus file names blobs that were put after
  the blobs were listed.

Why a restore is safe
- It makes a new folder, so no old `-wal` is left beside the restored file. SQLite would replay that over it.
- Clients may know versions later than the backup. The logs are made anew in another epoch, as `recover` does,
  so such a client fails instead of going on from the past.

Backup and restore build their folder under a hidden name, read all of it again, and rename it when it is
whole. They never write into a folder that has anything in it.
"""

import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast.errors import BadInput, CorruptBlob, StorageError, UnusablePath
from holdfast.folders import check_usable, flush_folder, make_folder, open_error
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.verify import of_store, verify
from holdfast.persist.client import PersistClient
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import BLOB_NAME, CUT_NAME, LINE_NAME, MARKER_NAME
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import live_keys
from holdfast.persist.stores import Blob, Consensus, FileBlob, Location, SqliteConsensus
from holdfast.persist.stores.location import BLOB_KEY, CONSENSUS_KEY, decode_location
from holdfast.persist.stores.url import BLOB_FOLDER, CONSENSUS_FILE

# Digests of cut rows, markers and lines: a restore begins another epoch, in which none of them counts.
_OF_HISTORY: Final = (CUT_NAME, MARKER_NAME, LINE_NAME)
_MOST_ROUNDS: Final = 50
_CONFIG: Final = PersistConfig(maintenance="off")


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup or a restore has: `rounds` is how often the consensus file was copied."""

    location_id: str
    shards: int
    blobs: int
    size_bytes: int
    rounds: int


def back_up(
    blob: Blob, consensus: Consensus, target: Path, *, looking_at: Callable[[str], None] = lambda _: None
) -> Copied:
    """Copy a location into the new folder `target`, and read the copy again.

    Clients may write meanwhile. `looking_at` is called with each key before it is read.

    Raises:
        BadInput: `target` has something in it, or the consensus store isn't a SQLite file.
        CorruptBlob: the location, or the copy, is damaged.
        StorageError: a store can't be read, or the copy not be written.
    """
    if not isinstance(consensus, SqliteConsensus):
        raise BadInput(
            f"{consensus.description} is no SQLite file, and can't be backed up by this command",
            hint="use 'pg_dump' for Postgres, and versioning or replication of the bucket for S3; copy the"
            " blobs after it, with retain_for_s longer than that takes",
        )
    with _new_folder(target) as folder:
        copied = _copy(blob.direct, consensus.path, folder, looking_at)
        _check_copy(folder, looking_at)
    return copied


def restore(backup: Path, target: Path, *, looking_at: Callable[[str], None] = lambda _: None) -> Copied:
    """Make the location `target` from a backup, and its logs anew in another epoch.

    The backup stays as it is.

    Raises:
        BadInput: `target` has something in it, or `backup` isn't a backup.
        CorruptBlob: the backup is damaged.
        StorageError: the backup can't be read, or the location not be written.
    """
    file = backup / CONSENSUS_FILE
    if not file.is_file() or not (backup / BLOB_FOLDER / BLOB_KEY).is_file():
        raise BadInput(f"{backup} isn't a backup of a location", hint="give the folder that 'backup' made")
    with _new_folder(target) as folder:
        copied = _copy(FileBlob(backup / BLOB_FOLDER, create=False, read_only=True), file, folder, looking_at)
        _check_copy(folder, looking_at)
        with closing(SqliteConsensus(folder / CONSENSUS_FILE, create=False)) as log:
            Recovery(FileBlob(folder / BLOB_FOLDER, create=False), log).run(restored=True)
    return copied


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` if the block ends without an error, and is removed if it doesn't."""
    _check_free(target)
    check_usable(target.parent)
    folder = target.parent / f".{target.name}.{uuid.uuid4().hex}.partial"
    try:
        make_folder(target.parent)
        folder.mkdir()
        yield folder
        flush_folder(folder)
        _check_free(target)
        folder.rename(target)
        flush_folder(target.parent)
    except OSError as error:
        raise open_error(f"can't write {target}", error, missing_is_bad=True) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_free(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UnusablePath(
            f"{target} exists, and nothing is overwritten",
            hint="choose another folder, or move this one away after all its clients have stopped",
        )


def _copy(blob: Blob, file: Path, folder: Path, looking_at: Callable[[str], None]) -> Copied:
    copies = FileBlob(folder / BLOB_FOLDER)
    sizes: dict[str, int] = {}
    # Where each shard ended when a blob of it was gone.
    gone: dict[str, int] = {}
    for rounds in range(1, _MOST_ROUNDS + 1):
        looking_at(str(file))
        _copy_database(file, folder / CONSENSUS_FILE)
        with closing(SqliteConsensus(folder / CONSENSUS_FILE, create=False, read_only=True)) as log:
            log.check_integrity()
            location_id = _location_id(log)
            location = Location(blob, log, location_id)
            shards = [key for key in log.list_keys() if key.startswith("s")]
            named: set[str] = set()
            missing: dict[str, int] = {}
            for shard in shards:
                head = log.heads([shard])[shard].seqno
                try:
                    keys = live_keys(Machine(shard, location, _CONFIG, Clock()).refresh())
                    for key in sorted(keys - sizes.keys()):
                        looking_at(key)
                        sizes[key] = _copy_blob(blob, copies, key)
                    named |= keys
                except CorruptBlob:
                    # Its rollup or a part of it is gone or damaged. If the shard has moved on, a newer copy
                    # doesn't name it.
                    if gone.get(shard) == head:
                        raise
                    missing[shard] = head
        if not missing:
            for key in sizes.keys() - named:
                copies.delete(key)
            others = [
                meta.key
                for meta in blob.list("")
                if not any(name.fullmatch(meta.key) for name in (BLOB_NAME, *_OF_HISTORY))
            ]
            # What has another form of name, such as the location's id, is never deleted while it is needed.
            more = {key: _copy_blob(blob, copies, key) for key in others}
            kept = {**{key: sizes[key] for key in named}, **more}
            return Copied(str(location_id), len(shards), len(kept), sum(kept.values()), rounds)
        gone = missing
    raise StorageError(
        f"the location moved on faster than it could be copied, {_MOST_ROUNDS} times",
        hint="set retain_for_s in all clients to more seconds than a backup takes, and try again",
    )


def _location_id(log: SqliteConsensus) -> uuid.UUID:
    entry = log.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
    if entry is None:
        raise BadInput(
            "the consensus store belongs to no location",
            hint="check the URL; a location is created by its first client that writes",
        )
    return decode_location(entry.data, CONSENSUS_KEY)


def _copy_blob(blob: Blob, copies: FileBlob, key: str) -> int:
    data = blob.get(key)
    if data is None:
        raise CorruptBlob(key, "a blob that the log names", "nothing")
    copies.put(key, data)
    return len(data)


def _copy_database(file: Path, copy: Path) -> None:
    """Copy a database as of one moment, into one file without a WAL."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{copy}{suffix}").unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(copy, isolation_level=None)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        raise StorageError(f"can't copy consensus file {file}: {error}") from error


def _check_copy(folder: Path, looking_at: Callable[[str], None]) -> None:
    """Read all of a copy again. Raises `CorruptBlob` for the first thing that is wrong."""
    with PersistClient(
        Location.open(f"file://{quote(str(folder))}", read_only=True), mode="read", config=_CONFIG
    ) as client:
        findings = list(of_store(client))
        for shard in () if findings else client.shards():
            findings += verify(client, shard, looking_at=looking_at).findings
    if findings:
        raise CorruptBlob(
            findings[0].key,
            "a sound copy",
            findings[0].what,
            hint="run 'holdfast persist verify' on what was copied",
        )
