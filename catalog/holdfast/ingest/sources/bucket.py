"""Objects below a prefix of an S3 bucket. The identity of an object is its ETag.

A key that ends with "/" stands for a folder, and is left out. One with contents is shown once. Any other key
is the name of a file, with whatever characters it has.

An object appears whole, so it needs no other name while it is written. Credentials come from the Secret that
the spec names, or else from the environment, as for a location in S3. The source needs the rights
s3:ListBucket and s3:GetObject.
"""

from collections.abc import Container, Iterator

from holdfast.errors import SourceChanged
from holdfast.ingest.credentials import SecretRef
from holdfast.ingest.source import Range
from holdfast.ingest.sources.files import MAX_FILE_BYTES, Files, FoundFile, LeftOut
from holdfast.ingest.waits import Waits
from holdfast.persist.stores.s3_errors import FAILURES, cause, code, failed, passing
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import ANSWER_S, S3Session, patiently, read_body
from holdfast.store_keys import OF_S3, StoreKeys
from holdfast.text import one_line


class Bucket(Files):
    """The source."""

    def __init__(
        self,
        place: S3Place,
        pattern: str,
        waits: Waits,
        *,
        whole: bool,
        on_changed: str,
        secret: SecretRef | None = None,
        raw: bool = False,
        lexical: bool = False,
    ) -> None:
        super().__init__(pattern, waits, whole=whole, on_changed=on_changed, raw=raw, lexical=lexical)
        self._is_checked = False
        self._place = place
        credentials = StoreKeys.of_process(OF_S3) if secret is None else secret.read()
        self._session = S3Session(place, answer_s=ANSWER_S, reads=True, credentials=credentials)

    @property
    def name(self) -> str:
        """The URL of the bucket and prefix."""
        return self._place.url

    def _listing(self) -> Iterator[FoundFile]:
        return self._listed_after("")

    def _following(self, last: str, bound: Container[str]) -> Iterator[FoundFile]:
        # What is before the last object is only listed once, so that it costs no requests later.
        for each in self._listed_after(last if self._is_checked else self.passed):
            if each.name > last:
                self._is_checked = True
                yield each
            elif self._is_late(each.name, bound):
                raise self._late(each.name, last)
        self._is_checked = True

    def _listed_after(self, name: str) -> Iterator[FoundFile]:
        base, left_out = self._session.base, LeftOut()
        after = base + name if name else ""
        while True:
            try:
                page = self._session.page(base, after=after)
            except FAILURES as error:
                raise failed(error, f"list {self._place}", certain=True, reads=True) from cause(error)
            found = page.get("Contents", [])
            for each in found:
                name = each["Key"].removeprefix(base)
                if not name or not self._is_wanted(name):
                    continue
                if not name.endswith("/"):
                    modified = int(each["LastModified"].timestamp() * 1000)
                    yield FoundFile(name, each["ETag"].strip('"'), each["Size"], modified)
                elif each["Size"]:
                    # An empty one is what programs put there to show a folder.
                    left_out.add(name, "a key that ends with /")
            if not page.get("IsTruncated") or not found:
                self._note(left_out)
                return
            after = found[-1]["Key"]

    def _contents(self, wanted: Range) -> bytes:
        where = f"object {one_line(wanted.partition)} in {self.name}"

        def get() -> bytes:
            answer = self._session.client.get_object(
                Bucket=self._place.bucket,
                Key=self._session.base + wanted.partition,
                IfMatch=f'"{wanted.identity}"',
            )
            return read_body(answer["Body"], MAX_FILE_BYTES + 1)

        try:
            return patiently(get, passing)
        except FAILURES as error:
            if code(error) in ("NoSuchKey", "404"):
                raise SourceChanged(f"{where} is gone") from None
            if code(error) in ("PreconditionFailed", "412"):
                raise SourceChanged(f"{where} was written anew") from None
            raise failed(error, f"get {where}", certain=True, reads=True) from cause(error)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
