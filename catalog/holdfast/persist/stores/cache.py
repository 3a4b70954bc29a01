# ruff: noqa: D102 - the trait documents its methods
"""A bounded cache of blobs in memory, in a local folder, or in both.

Invariants:

- Keys are written once, so what was correct when it was read under a key stays correct. A cached object may
  outlive the object in the store. To find out what the store has, use the store itself (`direct`).
- The cache can't know whether the store returned the right bytes. A caller that finds wrong bytes calls
  `forget` and reads again, so a bad read does not stay in the cache.
- A file of the cache is complete: it is renamed into place. It contains its key, length and checksum, which
  are checked at each read. Any other file is deleted and counts as a miss. So nothing that happens to the
  folder, from power loss to a flipped bit, is ever returned as data.
- A large object that is open is in a temporary file. So a cache pays off over S3, where this is also the case
  without a cache.
- A cache that can't be read or written makes reads slower, never wrong. Its errors are counted and not
  raised.
- Several processes may share a folder, for any locations. The least recently used objects are deleted first.
  The bound may be exceeded by what other processes write between two checks of the folder: for each of them
  at most 1/32 of the bound, or one object.
"""

import hashlib
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from holdfast.errors import BadInput, HoldfastError
from holdfast.persist.stores.frame import seal, unseal
from holdfast.persist.stores.layer import BlobLayer
from holdfast.persist.stores.spool import opened
from holdfast.persist.stores.traits import Blob, check_key

MAGIC: Final = b"HFb\n"
FORMAT_VERSION: Final = 1
_TEMPORARY: Final = ".tmp-"
_ABANDONED_AFTER_S: Final = 3600
_LARGEST: Final = 4
"""An object larger than this part of the bound is not cached, because it would replace too many others."""
_LOOK_EVERY: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """The bounds of a cache of a location's blobs. 0 bytes means no cache. Raises `BadInput` if below 0."""

    memory_bytes: int = 64 * 1024 * 1024
    """The most bytes of objects in memory: rollups and small parts, which are read again and again."""

    folder: Path | str | None = None
    """The folder on the local disk for objects. Processes and locations may share it."""

    folder_bytes: int = 4 * 1024 * 1024 * 1024
    """The most bytes of files in the folder."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 0 or self.folder_bytes < 0:
            raise BadInput("the bounds of a cache are numbers of bytes, and must be 0 or more")


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts of a cache. `dropped` counts damaged files, `failures` failed operations on the folder."""

    memory_hits: int
    folder_hits: int
    misses: int
    dropped: int
    failures: int
    memory_bytes: int


class CachedBlob(BlobLayer):
    """`inner` behind a cache. `scope` separates its keys from those of other locations in the folder.

    Raises `BadInput` if the folder can't be made.
    """

    def __init__(self, inner: Blob, config: CacheConfig, *, scope: str) -> None:
        super().__init__(inner)
        self._memory: Final = _Memory(config.memory_bytes)
        self._folder: Final = (
            None if config.folder is None else _Folder(Path(config.folder), config.folder_bytes, scope)
        )
        self._lock: Final = threading.Lock()
        self._memory_hits = self._folder_hits = self._misses = 0

    def stats(self) -> CacheStats:
        """Return the counts so far."""
        folder = self._folder
        return CacheStats(
            self._memory_hits,
            self._folder_hits,
            self._misses,
            folder.dropped if folder else 0,
            folder.failures if folder else 0,
            self._memory.size,
        )

    def get(self, key: str) -> bytes | None:
        return self._get(key, lambda: self.inner.get(key))

    def get_start(self, key: str, most: int) -> bytes | None:
        data = self._get(key, lambda: self.inner.get_start(key, most), most)
        return None if data is None else data[:most]

    def _get(self, key: str, read: Callable[[], bytes | None], most: int | None = None) -> bytes | None:
        """The object, or the first `most` bytes of it. Only a whole object is kept."""
        data = self._memory.get(check_key(key))
        if data is not None:
            with self._lock:
                self._memory_hits += 1
            return data
        data = self._folder.get(key) if self._folder else None
        if data is not None:
            with self._lock:
                self._folder_hits += 1
            self._memory.put(key, data)
            return data
        with self._lock:
            self._misses += 1
        data = read()
        if data is not None and (most is None or len(data) < most):
            self._keep(key, data)
        return data

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._drop(check_key(key))
        self.inner.put(key, data)
        self._keep(key, bytes(data))

    def delete(self, key: str) -> bool:
        check_key(key)
        try:
            return self.inner.delete(key)
        finally:
            self._drop(key)

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        data = self.get_start(key, most)
        return None if data is None else opened(data)

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        # The next read may want others of an object that is kept.
        if size <= max(self._memory.most_bytes, self._folder.most_bytes if self._folder else 0):
            return self.open_input(key, size + 1)
        return self.inner.open_spans(key, size, spans)

    def forget(self, key: str) -> None:
        self._drop(check_key(key))
        self.inner.forget(key)

    @property
    def direct(self) -> Blob:
        return self.inner.direct

    def _keep(self, key: str, data: bytes) -> None:
        self._memory.put(key, data)
        if self._folder:
            self._folder.put(key, data)

    def _drop(self, key: str) -> None:
        self._memory.drop(key)
        if self._folder:
            self._folder.drop(key)


class _Memory:
    """Objects by key, least recently used first."""

    def __init__(self, bound: int) -> None:
        self._bound: Final = bound
        self._lock: Final = threading.Lock()
        self._objects: Final[OrderedDict[str, bytes]] = OrderedDict()
        self.size = 0
        self.most_bytes: Final = bound // _LARGEST

    def get(self, key: str) -> bytes | None:
        with self._lock:
            data = self._objects.get(key)
            if data is not None:
                self._objects.move_to_end(key)
            return data

    def put(self, key: str, data: bytes) -> None:
        if not self.most_bytes or len(data) > self.most_bytes:
            return
        with self._lock:
            self.size += len(data) - len(self._objects.pop(key, b""))
            self._objects[key] = data
            while self.size > self._bound:
                self.size -= len(self._objects.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        with self._lock:
            self.size -= len(self._objects.pop(key, b""))


class _Folder:
    """Files named by a hash of scope and key. A file's modification time is the time of its last use."""

    def __init__(self, folder: Path, bound: int, scope: str) -> None:
        self._folder: Final = folder
        self._bound: Final = bound
        self._scope: Final = scope
        self._lock: Final = threading.Lock()
        self.most_bytes: Final = bound // _LARGEST
        self._unlooked = bound  # bytes that this process wrote since its last check; the first put checks
        self.dropped = 0
        self.failures = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"can't make the cache folder {folder}: {os.strerror(error.errno or 0)}",
                hint="choose a folder that this process can write to, or use no cache",
            ) from error

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            framed = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:
            self.failures += 1
            return None
        label = self._label(key)
        try:
            body = unseal(MAGIC, FORMAT_VERSION, framed, str(path))
        except HoldfastError:
            body = b""
        if not body.startswith(label):
            self.dropped += 1
            self.drop(key)
            return None
        return body[len(label) :]

    def put(self, key: str, data: bytes) -> None:
        framed = seal(MAGIC, FORMAT_VERSION, self._label(key) + data)
        if len(framed) > self.most_bytes:
            return
        temporary = self._folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            self._make_room(len(framed))
            try:
                temporary.write_bytes(framed)
                temporary.replace(self._path(key))
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        except OSError:
            self.failures += 1

    def drop(self, key: str) -> None:
        with suppress(OSError):
            self._path(key).unlink()

    def _make_room(self, size: int) -> None:
        """Check the folder from time to time. If it is full, delete the least recently used files."""
        with self._lock:
            self._unlooked += size
            if self._unlooked <= self._bound // _LOOK_EVERY:
                return
            self._unlooked = size
            found = []
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, Path(entry.path)))
            oldest_temporary = time.time() - _ABANDONED_AFTER_S
            total = sum(each for _, each, _ in found) + size
            most = self._bound - self._bound // _LOOK_EVERY
            for used, each, path in sorted(found):
                is_temporary = path.name.startswith(_TEMPORARY)
                if (is_temporary and used < oldest_temporary) or (not is_temporary and total > most):
                    with suppress(FileNotFoundError):
                        path.unlink()
                    total -= each

    def _path(self, key: str) -> Path:
        return self._folder / hashlib.sha256(self._label(key)).hexdigest()

    def _label(self, key: str) -> bytes:
        """Return the header of a file, which identifies its scope and key. No key contains a zero byte."""
        return f"{self._scope}\0{key}\0".encode()
