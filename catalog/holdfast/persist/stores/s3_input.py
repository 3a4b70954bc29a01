# ruff: noqa: D102 - the base class documents its methods
"""One object of an S3 service for random access. Only the parts that are read are fetched.

- All reads are of one version of the object. If the object is replaced or removed, the next read fails.
- The checksum of an object covers all of it. It is checked only if the object is read from its beginning to
  its end. Callers that read ranges must check what they read themselves.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import google_crc32c

from holdfast.errors import Determinate
from holdfast.persist.stores.random_input import RandomInput
from holdfast.persist.stores.s3_errors import FAILURES, cause, code, failed, passing
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import ANSWER_S, S3Session, patiently, read_body, told


@contextmanager
def open_s3_input(
    place: S3Place, name: str, credentials: Mapping[str, str] | None = None
) -> Iterator["S3Input | None"]:
    """Open the object `name` at `place` for the block; None if there is none. Raises `StorageError`.

    `credentials` have the names of AWS's environment variables (default: the environment).
    """
    with closing(S3Session(place, answer_s=ANSWER_S, reads=True, credentials=credentials)) as session:
        where = {"Bucket": place.bucket, "Key": session.base + name}
        try:
            head = patiently(lambda: session.client.head_object(**where, ChecksumMode="ENABLED"), passing)
        except FAILURES as error:
            if code(error) not in ("404", "NoSuchKey"):
                raise failed(error, f"read {name} in {place}", certain=True, reads=True) from cause(error)
            yield None
            return
        version = {**where, "IfMatch": head["ETag"]}
        yield S3Input(session, version, head["ContentLength"], checksum=head.get("ChecksumCRC32C", ""))


class S3Input(RandomInput):
    """An object. `size` is in bytes. `checksum` is its CRC-32C as the service stores it, or empty.

    A failed read raises `Determinate`.
    """

    def __init__(self, session: S3Session, version: dict[str, str], size: int, *, checksum: str = "") -> None:
        super().__init__(size)
        self._session: Final = session
        self._version: Final = version
        # For an object in parts it is a checksum of checksums, which can't be compared with the contents.
        self.checksum: Final = "" if "-" in checksum else checksum
        self._summed = 0
        self._crc = 0

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.size - self.at)
        if wanted <= 0:
            return 0
        span = f"bytes={self.at}-{self.at + wanted - 1}"
        try:
            data = patiently(lambda: self._fetch(span, wanted), passing)
        except FAILURES as error:
            raise failed(error, self._what, certain=True, reads=True) from cause(error)
        self._compare(data)
        view[: len(data)] = data
        self.at += len(data)
        return len(data)

    @property
    def _what(self) -> str:
        return f"read {self._version['Key']} in {self._session.place}"

    def _compare(self, data: bytes) -> None:
        """Extend the checksum with data that continues it. At the end of the object, compare the checksum."""
        if not self.checksum or self.at != self._summed:
            return
        self._crc = google_crc32c.extend(self._crc, data)
        self._summed += len(data)
        if self._summed == self.size and told(self._crc) != self.checksum:
            raise Determinate(f"can't {self._what}: the received bytes don't match their checksum")

    def _fetch(self, span: str, wanted: int) -> bytes:
        # A service may return the whole object instead.
        return read_body(self._session.client.get_object(**self._version, Range=span)["Body"], wanted)
