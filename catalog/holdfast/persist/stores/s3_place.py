"""The part of an S3 service that holds the objects of a store, as a URL names it.

The form is `s3://bucket/prefix?endpoint=https://host:port&region=name`. You can leave out the prefix, the
endpoint (default: AWS) and the region (default: the environment's). The URL never contains credentials. They
come from the environment or the AWS configuration of the process.
"""

import re
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast.errors import BadInput
from holdfast.persist.stores.traits import check_key

FORM = "s3://bucket/prefix?endpoint=...&region=..."
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-zA-Z0-9-]{1,63}")
_OPTIONS = ("endpoint", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """A service, a bucket, and the prefix of all keys ("", or without a final "/").

    Raises `BadInput` for values that no service can have.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise BadInput(
                # Text with a colon may be a key and its secret, written at the wrong place.
                f"{'the bucket' if ':' in self.bucket else repr(self.bucket)} is not a valid name of an S3"
                " bucket: it needs 3 to 63 lower-case letters, digits, dots and hyphens",
                hint=f"write {FORM}",
            )
        if self.prefix:
            check_key(self.prefix)
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise BadInput("the region of an s3:// URL has letters, digits and hyphens")

    @classmethod
    def of(cls, parts: SplitResult) -> Self:
        """Return the place that a split URL names. No message repeats an option, which might be a secret."""
        try:
            options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise BadInput("the options of an s3:// URL can't be parsed", hint=f"write {FORM}") from error
        given = dict(options)
        if len(given) != len(options) or not given.keys() <= set(_OPTIONS):
            raise BadInput(
                "an s3:// URL takes the options endpoint and region, each once",
                hint="credentials come from the environment, such as AWS_ACCESS_KEY_ID",
            )
        return cls(
            bucket=parts.netloc,
            prefix=unquote(parts.path).strip("/"),
            endpoint=given.get("endpoint"),
            region=given.get("region"),
        )

    def below(self, folder: str) -> Self:
        """Return the part of this place below `folder`."""
        return replace(self, prefix=f"{self.prefix}/{folder}" if self.prefix else folder)

    @property
    def url(self) -> str:
        """The URL of this place."""
        given = {name: value for name in _OPTIONS if (value := getattr(self, name)) is not None}
        query = f"?{urlencode(given, safe=':/[]')}" if given else ""
        return f"s3://{self.bucket}/{quote(self.prefix)}{query}"

    def __str__(self) -> str:
        where = f"S3 bucket {self.bucket}"
        if self.prefix:
            where += f", prefix {self.prefix}"
        return where if self.endpoint is None else f"{where}, at {self.endpoint}"


def is_endpoint(text: str) -> bool:
    """Whether `text` is http(s)://, a host and an optional port. A path could select another bucket."""
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    whole = parts.path in ("", "/") and not parts.query and not parts.fragment
    return known and whole and "@" not in text and not re.search(r"[\s\x00-\x1f]", text)


def _check_endpoint(endpoint: str) -> None:
    if not is_endpoint(endpoint):
        raise BadInput(
            "the endpoint of an s3:// URL is http:// or https://, a host and an optional port",
            hint=f"write {FORM}; credentials come from the environment, such as AWS_ACCESS_KEY_ID",
        )
