# ruff: noqa: D102 - the base class documents its methods
"""The folder of a snapshot in an S3 bucket: the objects below a prefix.

- Creating the folder puts an object `_claim` that only one process can create. It stays as long as the
  folder.
- A file is first written to a temporary file, and then uploaded whole, in parts if it is large.
- A put with an unknown outcome is sent again. One process writes a name, always with the same bytes.
- A process that is killed may leave parts of an upload, which no reader sees. Use a lifecycle rule of the
  bucket to remove them.
"""

import mmap
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Final, Self, cast

from holdfast.collections.snapshots.folder import OpenFile, SnapshotFolder
from holdfast.errors import Indeterminate
from holdfast.persist.stores.retry import RetryingBlob, RetryPolicy
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_input import open_s3_input
from holdfast.persist.stores.s3_objects import S3Objects
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.traits import Blob

_CLAIM: Final = "_claim"
_RETRY_S: Final = 10.0
_DELETE_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class S3Folder(SnapshotFolder):
    """The objects below the prefix of `place`.

    `credentials` have the names of AWS's environment variables (default: the environment of each process).
    """

    place: S3Place
    credentials: Mapping[str, str] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.place.url

    def below(self, name: str) -> Self:
        return replace(self, place=self.place.below(name))

    def claim(self) -> bool:
        return self.create(_CLAIM, uuid.uuid4().bytes)

    def create(self, name: str, data: bytes) -> bool:
        with closing(S3Objects(self.place, credentials=self.credentials)) as objects:
            try:
                return bool(objects.create(name, data))
            except Indeterminate:
                found = objects.get(name)
                if found is None:
                    raise
                return found.data == data

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._names() if "/" in name})

    @contextmanager
    def open(self, name: str) -> Iterator[OpenFile]:
        with open_s3_input(self.place, name, self.credentials) as found:
            if found is None:
                raise FileNotFoundError(f"there is no {self.below(name)}")
            yield OpenFile(cast("IO[bytes]", found), found.size)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with tempfile.TemporaryFile() as out:
            yield out
            out.flush()
            # It is unmapped when nothing refers to it any more, including errors of failed attempts.
            data = memoryview(mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) if out.tell() else b"")
            with self._blob() as blob:
                blob.put(name, data)

    def keep_only(self, names: Collection[str]) -> None:
        kept = {*names, _CLAIM}
        self._delete([name for name in self._names() if name not in kept])

    def remove(self) -> None:
        self._delete(self._names())

    def _names(self) -> list[str]:
        with self._blob() as blob:
            return [meta.key for meta in blob.list("")]

    def _delete(self, names: list[str]) -> None:
        with closing(S3Objects(self.place, credentials=self.credentials)) as objects:
            for start in range(0, len(names), _DELETE_AT_ONCE):
                objects.delete(names[start : start + _DELETE_AT_ONCE])

    def _blob(self) -> AbstractContextManager[Blob]:
        blob = S3Blob(self.place, credentials=self.credentials)
        return closing(RetryingBlob(blob, RetryPolicy(deadline_s=_RETRY_S)))
