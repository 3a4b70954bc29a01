# ruff: noqa: D102 - the protocol documents its methods
"""Objects with conditional puts in one bucket of an S3 service.

The service must know both conditions, If-None-Match: * and If-Match, as AWS S3 and MinIO do.
"""

from collections.abc import Sequence
from typing import Final

from holdfast.errors import Determinate
from holdfast.persist.stores.objects import Found
from holdfast.persist.stores.s3errors import FAILURES, cause, code, failed, passing
from holdfast.persist.stores.s3place import S3Place
from holdfast.persist.stores.s3session import ANSWER_S, S3Session, crc32c, passing_and_refused, patiently

_OTHER: Final = ("PreconditionFailed", "412")
# Another conditional put of the object was under way, and this one was certainly not carried out.
_BUSY: Final = ("ConditionalRequestConflict", "409")


class S3Objects:
    """The objects at `place`; raises as `S3Session` does."""

    def __init__(self, place: S3Place, *, answer_s: float = ANSWER_S) -> None:
        self._place: Final = place
        self._session: Final = S3Session(place, answer_s=answer_s)

    @property
    def description(self) -> str:
        return str(self._place)

    def get(self, name: str) -> Found | None:
        try:
            return patiently(lambda: self._fetch(name), passing)
        except FAILURES as error:
            if code(error) == "NoSuchKey":
                return None
            raise failed(error, self._what("read", name), certain=True) from cause(error)

    def get_each(self, names: Sequence[str]) -> Sequence[Found | None]:
        if len(names) == 1:
            return [self.get(names[0])]
        return list(self._session.threads.map(self.get, names))

    def create(self, name: str, data: bytes) -> bool:
        return self._put(name, data, {"IfNoneMatch": "*"})

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        return self._put(name, data, {"IfMatch": tag})

    def first_names(self, prefix: str) -> list[str]:
        try:
            page = self._session.page(self._session.base + prefix)
        except FAILURES as error:
            raise failed(error, f"list {self.description}", certain=True) from cause(error)
        return [found["Key"][len(self._session.base) :] for found in page.get("Contents", ())]

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
            raise Determinate(f"{len(left)} of {len(names)} objects in {self.description} were not deleted")

    def close(self) -> None:
        self._session.close()

    def _fetch(self, name: str) -> Found:
        answer = self._session.client.get_object(
            Bucket=self._place.bucket, Key=self._session.base + name, ChecksumMode="ENABLED"
        )
        data: bytes = answer["Body"].read()
        promised = answer.get("ChecksumCRC32C", "")
        if promised and promised != crc32c(data):
            raise Determinate(f"can't {self._what('read', name)}: what arrived differs from its checksum")
        return Found(data, answer["ETag"])

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> bool:
        try:
            patiently(
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
                return False
            raise failed(error, self._what("write", name), certain=False) from cause(error)
        return True

    def _what(self, act: str, name: str) -> str:
        return f"{act} {name} in {self.description}"
