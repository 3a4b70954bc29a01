"""Backup and restore of a location whose consensus store is a SQLite file, while its clients run.

A backup is a folder with the two stores of a location: `blob` and `consensus.sqlite`.

Why a backup is consistent:

- The consensus file is copied first, as of one point in time. It contains all shards and the write lock. The
  state of each shard follows from the copy, and the backup has exactly the blobs that those states name.
- Clients continue during the backup. They compact, and garbage collection deletes blobs that the copy names.
  If a blob is gone before it is copied, the consensus file is copied again. The newer copy does not name that
  blob, because a blob is deleted only after a version that does not name it was committed. Blobs that were
  copied stay, so each round has less to do.
- If a blob is gone although the log of its shard has not moved, the blob is lost and the location is damaged.
- Copying the blobs first and consensus last would be wrong: the copy of the consensus file would name blobs
  that were put after the blobs were listed.

Why a restore is safe:

- It makes a new folder, so there is no old `-wal` file next to the restored file. SQLite would replay it over
  the file.
- Clients may know versions that are newer than the backup. The logs continue in another epoch, as after
  `recover`. So such a client fails instead of continuing from the past.

Backup and restore build their folder under a hidden name, read all of it again, and rename it when it is
complete. They never write into a folder that is not empty.
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

import pyarrow as pa

from holdfast.errors import BadInput, CorruptBlob, StorageError, UnusablePath
from holdfast.folders import check_usable, flush_folder, make_folder, open_error, reason
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.verify import of_store, verify
from holdfast.persist.client import PersistClient
from holdfast.persist.clock import Clock
from holdfast.persist.config import PersistConfig
from holdfast.persist.ids import APPENDS_NAME, BLOB_NAME, CUT_NAME, LINE_NAME, MARKER_NAME
from holdfast.persist.state.machine import Machine
from holdfast.persist.state.state import live_keys
from holdfast.persist.stores import Blob, Consensus, FileBlob, Location, SqliteConsensus
from holdfast.persist.stores.location import BLOB_KEY, CONSENSUS_KEY, decode_location
from holdfast.persist.stores.url import BLOB_FOLDER, CONSENSUS_FILE

# Digests of cut rows, markers and lines. A restore begins another epoch, and none of them is valid there.
_OF_HISTORY: Final = (CUT_NAME, MARKER_NAME, LINE_NAME)
_MOST_ROUNDS: Final = 50
_PIECE: Final = 4 << 20
_MOST_FETCHED: Final = 4 << 30
"""More than a blob of persist has: parts stay far below it, and rollups are frames."""
_CONFIG: Final = PersistConfig(maintenance="off")


@dataclass(frozen=True, slots=True)
class Copied:
    """What a backup or restore copied. `rounds` is how often the consensus file was copied."""

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
        BadInput: `target` is not empty, or the consensus store is not a SQLite file.
        CorruptBlob: the location or the copy is damaged.
        StorageError: a store can't be read, or the copy can't be written.
    """
    if not isinstance(consensus, SqliteConsensus):
        raise BadInput(
            f"{consensus.description} is not a SQLite file, and can't be backed up by this command",
            hint="use 'pg_dump' for Postgres, or versioning or replication of the bucket for S3; copy the"
            " blobs after that, and set retain_for_s to more seconds than all of it takes",
        )
    with _new_folder(target) as folder:
        copied = _copy(blob.direct, consensus.path, folder, looking_at)
        _check_copy(folder, looking_at)
    return copied


def restore(backup: Path, target: Path, *, looking_at: Callable[[str], None] = lambda _: None) -> Copied:
    """Make the location `target` from a backup. Its logs continue in another epoch.

    The backup does not change.

    Raises:
        BadInput: `target` is not empty, or `backup` is not a backup.
        CorruptBlob: the backup is damaged.
        StorageError: the backup can't be read, or the location can't be written.
    """
    file = backup / CONSENSUS_FILE
    if not file.is_file() or not (backup / BLOB_FOLDER / BLOB_KEY).is_file():
        raise BadInput(f"{backup} is not a backup of a location", hint="give the folder that 'backup' made")
    with _new_folder(target) as folder:
        try:
            blob = FileBlob(backup / BLOB_FOLDER, create=False, read_only=True)
            copied = _copy(blob, file, folder, looking_at)
            _check_copy(folder, looking_at)
        except CorruptBlob as error:
            key = error.key.replace(str(folder), str(backup))
            hint = "the backup is damaged, and nothing was restored: use another backup"
            raise CorruptBlob(key, error.expected, error.actual, hint=hint) from error
        with closing(SqliteConsensus(folder / CONSENSUS_FILE, create=False)) as log:
            Recovery(FileBlob(folder / BLOB_FOLDER, create=False), log).run(restored=True)
    return copied


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Make a folder that becomes `target` if the block succeeds, and is removed if the block raises."""
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
            f"{target} exists, and this command overwrites nothing",
            hint="choose another folder, or move this one away after all its clients have stopped",
        )


def _copy(blob: Blob, file: Path, folder: Path, looking_at: Callable[[str], None]) -> Copied:
    copies = FileBlob(folder / BLOB_FOLDER)
    sizes: dict[str, int] = {}
    # The head of each shard when one of its blobs was gone.
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
                    # Its rollup or a part is gone or damaged. If the shard has moved on, a newer copy of the
                    # consensus file does not name it.
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
            # Blobs with other names, such as the location's id, are never deleted while they are needed.
            more = {}
            for key in others:
                try:
                    more[key] = _copy_blob(blob, copies, key)
                except CorruptBlob:
                    # A cut replaced the appends that it keeps.
                    if not APPENDS_NAME.fullmatch(key):
                        raise
            kept = {**{key: sizes[key] for key in named}, **more}
            return Copied(str(location_id), len(shards), len(kept), sum(kept.values()), rounds)
        gone = missing
    raise StorageError(
        f"the location changed faster than it could be copied, {_MOST_ROUNDS} times",
        hint="set retain_for_s in all clients to more seconds than a backup takes, and try again",
    )


def _location_id(log: SqliteConsensus) -> uuid.UUID:
    entry = log.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
    if entry is None:
        raise BadInput(
            "the consensus store belongs to no location",
            hint="check the URL; the first client that writes creates the location",
        )
    return decode_location(entry.data, CONSENSUS_KEY).location_id


def _copy_blob(blob: Blob, copies: FileBlob, key: str) -> int:
    """Copy a blob in pieces, and return its size. A blob store that must fetch it fetches it as a whole."""
    source = blob.open_input(key, _MOST_FETCHED)
    if source is None:
        raise CorruptBlob.missing(key, "the log names it")
    with source:
        size = int(source.size())
        if size == _MOST_FETCHED:
            raise StorageError(f"{key} in {blob.description} has {size} bytes or more, and can't be copied")
        copies.put_pieces(key, _pieces(source, f"{key} in {blob.description}"))
    return size


def _pieces(source: pa.NativeFile, what: str) -> Iterator[bytes]:
    while True:
        try:
            piece = source.read(_PIECE)
        except OSError as error:
            raise StorageError(f"can't read {what}: {reason(error)}") from error
        if not piece:
            return
        yield piece


def _copy_database(file: Path, copy: Path) -> None:
    """Copy a database as of one point in time, into one file without a WAL."""
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
    """Read all of a copy again. Raises `CorruptBlob` for the first fault."""
    with PersistClient(
        Location.open(f"file://{quote(str(folder))}", read_only=True), mode="read", config=_CONFIG
    ) as client:
        findings = list(of_store(client))
        for shard in () if findings else client.shards():
            findings += verify(client, shard, looking_at=looking_at).findings
    if findings:
        raise CorruptBlob(
            findings[0].key,
            "an intact copy",
            findings[0].what,
            hint="run 'holdfast persist verify' on the location that was copied",
        )
