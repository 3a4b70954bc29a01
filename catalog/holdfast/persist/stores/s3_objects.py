# ruff: noqa: D102 - the protocol documents its methods
"""Objects with conditional puts in one bucket of an S3 service.

The service must support both conditions, If-None-Match: * and If-Match, as AWS S3 and MinIO do.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from holdfast.errors import CorruptBlob, Determinate
from holdfast.persist.stores.frame import MOST_BYTES
from holdfast.persist.stores.objects import MANY, NO_TAG, Found
from holdfast.persist.stores.s3_errors import FAILURES, cause, code, failed, not_deleted, passing
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import (
    ANSWER_S,
    S3Session,
    crc32c,
    passing_and_refused,
    patiently,
    read_body,
)

T = TypeVar("T")

_OTHER: Final = ("PreconditionFailed", "412")
_SAME: Final = ("NotModified", "304")
# Another conditional put of the object was in progress, and this one was certainly not carried out.
_BUSY: Final = ("ConditionalRequestConflict", "409")


class S3Objects:
    """The objects at `place`. Raises the same errors as `S3Session`.

    An object of `frame.MOST_BYTES` or more can't be one of a log. A read raises `CorruptBlob` for it.
    """

    def __init__(
        self,
        place: S3Place,
        *,
        answer_s: float = ANSWER_S,
        reads: bool = False,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self._place: Final = place
        self._session: Final = S3Session(place, answer_s=answer_s, reads=reads, credentials=credentials)

    @property
    def description(self) -> str:
        return str(self._place)

    def get(self, name: str, tag: str = NO_TAG) -> Found | None:
        try:
            return patiently(lambda: self._fetch(name, tag), passing)
        except FAILURES as error:
            if code(error) in _SAME:
                return Found(b"", tag)
            if code(error) == "NoSuchKey":
                return None
            raise failed(error, self._what("read", name), certain=True) from cause(error)

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        return self._session.together(asks)

    def create(self, name: str, data: bytes) -> str:
        return self._put(name, data, {"IfNoneMatch": "*"})

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        return bool(self._put(name, data, {"IfMatch": tag}))

    def first_names(self, prefix: str, after: str = "") -> list[str]:
        base = self._session.base
        names: list[str] = []
        page: dict[str, Any] = {}
        try:
            while not page or (page.get("IsTruncated") and len(names) < MANY):
                token = page.get("NextContinuationToken")
                page = self._session.page(base + prefix, token, after=base + after if after else "")
                names += [found["Key"][len(base) :] for found in page.get("Contents", ())]
        except FAILURES as error:
            raise failed(error, f"list {self.description}", certain=True) from cause(error)
        return names

    def delete(self, names: Sequence[str]) -> None:
        if not names:
            return
        doomed = {"Objects": [{"Key": self._session.base + name} for name in names], "Quiet": True}
        try:
            answer = patiently(
                lambda: self._session.client.delete_objects(Bucket=self._place.bucket, Delete=doomed), passing
            )
        except FAILURES as error:
            raise failed(error, self._what("delete", names[0]), certain=False) from cause(error)
        if left := answer.get("Errors"):
            raise not_deleted(left, len(names), self.description)

    def close(self) -> None:
        self._session.close()

    def _fetch(self, name: str, tag: str) -> Found:
        unless = {} if tag == NO_TAG else {"IfNoneMatch": tag}
        answer = self._session.client.get_object(
            Bucket=self._place.bucket, Key=self._session.base + name, ChecksumMode="ENABLED", **unless
        )
        data = read_body(answer["Body"], MOST_BYTES)
        if len(data) == MOST_BYTES:
            where = f"{name} in {self.description}"
            raise CorruptBlob(where, f"less than {MOST_BYTES} bytes", "more")
        promised = answer.get("ChecksumCRC32C", "")
        if promised and promised != crc32c(data):
            raise Determinate(
                f"can't {self._what('read', name)}: the received bytes don't match their checksum"
            )
        return Found(data, answer["ETag"])

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> str:
        """Put an object and return its tag; "" if the condition did not hold."""
        try:
            answer: dict[str, Any] = patiently(
                lambda: self._session.client.put_object(
                    Bucket=self._place.bucket,
                    Key=self._session.base + name,
                    Body=data,
                    ChecksumCRC32C=crc32c(data),
                    **condition,
                ),
                lambda error: code(error) in _BUSY or passing_and_refused(error),
            )
        except FAILURES as error:
            if code(error) in _OTHER:
                return ""
            raise failed(error, self._what("write", name), certain=False) from cause(error)
        return str(answer.get("ETag") or NO_TAG)

    def _what(self, act: str, name: str) -> str:
        return f"{act} {name} in {self.description}"
