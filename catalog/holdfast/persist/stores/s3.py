# ruff: noqa: D102 - the trait documents its methods
"""Objects of an S3 service: key `a/b` is object `<prefix>/a/b` of one bucket.

Invariants:

- The service is linearizable per object, as AWS S3 and MinIO are, and lists keys in order.
- A write of unknown outcome is not repeated, because it might take effect after a later one. Reads, and
  writes that were certainly refused, get a few attempts. The client library's own retries are off.
- An object larger than `PART_BYTES` * 2 is uploaded in parts. Nobody sees them before the last request
  completes the upload. A put that fails earlier did not happen, and its parts are aborted.
- The service checks a CRC-32C of each uploaded body. The CRC-32C of a response is checked if the response has
  one.

`modified_ms` has the service's resolution (1 s on AWS). For an object in parts it is the time when its put
began.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from holdfast.errors import BadInput, Determinate, NotWritable
from holdfast.persist.stores.s3_errors import FAILURES, cause, code, failed, passing
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import (
    ANSWER_S,
    S3Session,
    crc32c,
    passing_and_refused,
    patiently,
    read_body,
)
from holdfast.persist.stores.spool import IN_MEMORY_BYTES, opened, opened_spans
from holdfast.persist.stores.traits import MAX_KEY_BYTES, Blob, BlobMeta, check_key, check_prefix, is_key

T = TypeVar("T")

PART_BYTES: Final = 8 * 1024 * 1024
_MAX_PARTS: Final = 10_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class S3Blob(Blob):
    """The objects at `place`. The bucket must exist.

    `answer_s` is how many seconds a request may wait for any data. Raises `StoreUnreachable` if the service
    does not respond, the bucket is missing, or credentials are missing or refused. With `read_only` nothing
    is written, and writes raise `NotWritable`. If two clients delete one key at the same time, both may
    return that it was there. `credentials` has the names of AWS's environment variables.
    """

    def __init__(
        self,
        place: S3Place,
        *,
        read_only: bool = False,
        answer_s: float = ANSWER_S,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        self._place: Final = place
        self._base: Final = place.prefix + "/" if place.prefix else ""
        self._read_only: Final = read_only
        self._session: Final = S3Session(place, answer_s=answer_s, reads=read_only, credentials=credentials)

    @property
    def description(self) -> str:
        return str(self._place)

    def clock_ms(self) -> int | None:
        try:
            answer = self._session.page(self._base, None, most=1)
        except FAILURES as error:
            raise failed(error, f"ask {self.description} for the time", certain=True) from cause(error)
        told = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return None if told is None else int(parsedate_to_datetime(told).timestamp() * 1000)

    def get(self, key: str) -> bytes | None:
        return self._get(key)

    def get_start(self, key: str, most: int) -> bytes | None:
        return self._get(key, most)

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        data = self.get_start(key, most)
        return None if data is None else opened(data)

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        wanted = sum(end - start for start, end in spans)
        if size <= IN_MEMORY_BYTES or wanted > size // 2:
            return self.open_input(key, size + 1)
        name = self._name(key)
        try:
            found = self.together([partial(self._fetch_span, name, size, span) for span in spans])
        except FAILURES as error:
            if code(error) == "NoSuchKey":
                return None
            if code(error) != "InvalidRange":
                raise failed(error, self._what("read", key), certain=True) from cause(error)
            found = ()
        fetched = {start: data for (start, _), data in zip(spans, found, strict=False) if data is not None}
        if len(fetched) == len(spans):
            with suppress(OSError):
                return opened_spans(size, fetched)
        return self.open_input(key, size + 1)

    def _fetch_span(self, name: str, size: int, span: tuple[int, int]) -> bytes | None:
        """A span of an object of `size` bytes; None if it has another size, or no range came back."""
        start, end = span
        where = {"Bucket": self._place.bucket, "Key": name, "Range": f"bytes={start}-{end - 1}"}

        def ask() -> bytes | None:
            answer = self._session.client.get_object(**where)
            data = read_body(answer["Body"], end - start)
            is_it = answer.get("ContentRange") == f"bytes {start}-{end - 1}/{size}"
            return data if is_it and len(data) == end - start else None

        return patiently(ask, passing)

    def _get(self, key: str, most: int | None = None) -> bytes | None:
        name = self._name(key)
        try:
            return patiently(lambda: self._fetch(key, name, most), passing)
        except FAILURES as error:
            if code(error) == "NoSuchKey":
                return None
            raise failed(error, self._what("read", key), certain=True) from cause(error)

    def put(self, key: str, data: bytes | memoryview) -> None:
        name = self._name(key)
        self._check_writable()
        view = memoryview(data).cast("B")
        if len(view) > 2 * PART_BYTES:
            self._put_parts(key, name, view)
            return
        body = bytes(view)
        try:
            patiently(
                lambda: self._session.client.put_object(
                    Bucket=self._place.bucket, Key=name, Body=body, ChecksumCRC32C=crc32c(body)
                ),
                passing_and_refused,
            )
        except FAILURES as error:
            raise failed(error, self._what("write", key), certain=False) from cause(error)

    def delete(self, key: str) -> bool:
        name = self._name(key)
        self._check_writable()
        where = {"Bucket": self._place.bucket, "Key": name}
        try:
            patiently(lambda: self._session.client.head_object(**where), passing)
        except FAILURES as error:
            if code(error) in ("404", "NoSuchKey"):
                return False
            raise failed(error, self._what("delete", key), certain=True) from cause(error)
        try:
            patiently(lambda: self._session.client.delete_object(**where), passing_and_refused)
        except FAILURES as error:
            raise failed(error, self._what("delete", key), certain=False) from cause(error)
        return True

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return self._walk(self._base + check_prefix(prefix))

    def together(self, asks: Sequence[Callable[[], T]]) -> Sequence[T]:
        return self._session.together(asks)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._session.close()

    def _walk(self, prefix: str) -> Iterator[BlobMeta]:
        token: str | None = None
        while True:
            try:
                page = self._session.page(prefix, token)
            except FAILURES as error:
                raise failed(error, f"list {self.description}", certain=True) from cause(error)
            for found in page.get("Contents", ()):
                key = found["Key"][len(self._base) :]
                if not is_key(key):
                    continue
                modified = (found["LastModified"] - _EPOCH) // timedelta(milliseconds=1)
                yield BlobMeta(key, found["Size"], modified)
            token = page.get("NextContinuationToken")
            if token is None:
                return

    def _fetch(self, key: str, name: str, most: int | None) -> bytes:
        answer = self._session.client.get_object(Bucket=self._place.bucket, Key=name, ChecksumMode="ENABLED")
        data = read_body(answer["Body"], most)
        if len(data) == most:
            return data
        promised = answer.get("ChecksumCRC32C", "")
        # For an object in parts it is a checksum of checksums, which can't be compared with the body.
        if promised and "-" not in promised and promised != crc32c(data):
            raise Determinate(
                f"can't {self._what('read', key)}: the received bytes don't match their checksum"
            )
        return data

    def _put_parts(self, key: str, name: str, view: memoryview) -> None:
        where = {"Bucket": self._place.bucket, "Key": name}
        what = self._what("write", key)
        try:
            upload = patiently(
                lambda: self._session.client.create_multipart_upload(**where, ChecksumAlgorithm="CRC32C"),
                passing,
            )
        except FAILURES as error:
            raise failed(error, what, certain=True) from cause(error)
        where["UploadId"] = upload["UploadId"]
        certain = True
        try:
            parts = self._upload(where, view)
            certain = False
            self._session.client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
        except BaseException as error:
            # If the upload was completed after all, there is nothing to abort, and the service says so.
            with suppress(*FAILURES):
                self._session.client.abort_multipart_upload(**where)
            if isinstance(error, FAILURES):
                raise failed(error, what, certain=certain) from cause(error)
            raise

    def _upload(self, where: dict[str, str], view: memoryview) -> Sequence[dict[str, Any]]:
        """Send all parts. If one fails, wait for the others to end before raising the error."""
        size = max(PART_BYTES, -(-len(view) // _MAX_PARTS))
        uploads = self._session.threads
        sent: list[Future[dict[str, Any]]] = [
            uploads.submit(self._upload_part, where, number, view[start : start + size])
            for number, start in enumerate(range(0, len(view), size), 1)
        ]
        try:
            wait(sent, return_when=FIRST_EXCEPTION)
        finally:
            for future in sent:
                future.cancel()
            wait(sent)
        for future in sent:
            if not future.cancelled():
                future.result()  # raises the error that stopped the upload, never a cancellation
        return [future.result() for future in sent]

    def _upload_part(self, where: dict[str, str], number: int, view: memoryview) -> dict[str, Any]:
        body = bytes(view)
        # Unlike a put, it may be repeated: nobody sees a part before the upload is completed.
        answer = patiently(
            lambda: self._session.client.upload_part(
                **where, PartNumber=number, Body=body, ChecksumCRC32C=crc32c(body)
            ),
            passing,
        )
        kept = {name: answer[name] for name in ("ETag", "ChecksumCRC32C") if name in answer}
        return {"PartNumber": number, **kept}

    def _name(self, key: str) -> str:
        name = self._base + check_key(key)
        if len(name.encode()) > MAX_KEY_BYTES:
            raise BadInput(
                f"storage key {key[:40]!r}... with its prefix has more than {MAX_KEY_BYTES} bytes",
                hint="choose a shorter prefix",
            )
        return name

    def _what(self, act: str, key: str) -> str:
        return f"{act} {key} in {self.description}"

    def _check_writable(self) -> None:
        if self._read_only:
            raise NotWritable(f"can't write to {self.description}: it was opened for reading only")
