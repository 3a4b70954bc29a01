"""What a failed S3 request means: whether it may have taken effect, and whether to ask again.

Invariants:

- A write that was not certainly refused is `Indeterminate`: no answer, or any answer from 500 up except
  `SlowDown`, which a service gives in place of beginning.
- A message holds the code of an answer or the kind of a failure, never what a client library says: that
  may quote a header.
"""

import re
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from urllib3.exceptions import HTTPError

from holdfast.errors import Determinate, Indeterminate, StorageError, StoreUnreachable

# What a request may raise. Reading a body may fail in urllib3 itself.
FAILURES: Final = (BotoCoreError, ClientError, HTTPError)

# The request was never sent.
_UNSENT: Final = (
    EndpointConnectionError,
    ConnectTimeoutError,
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
)
_PASSING: Final = (
    HTTPClientError,
    EndpointConnectionError,
    ConnectTimeoutError,
    IncompleteReadError,
    ResponseStreamingError,
    HTTPError,
)
_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NoCredentialsError, "no credentials were found"),
    (PartialCredentialsError, "the credentials are incomplete"),
    (CredentialRetrievalError, "the credentials could not be had"),
    (EndpointConnectionError, "there is no connection"),
    (ConnectTimeoutError, "there is no connection within the time limit"),
    (ReadTimeoutError, "there was no answer within the time limit"),
    (ConnectionClosedError, "the connection was closed without an answer"),
)
_CREDENTIALS_HINT: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of the AWS configuration, to a user "
    "who may list, get, put and delete there"
)

_CLOCK_HINT: Final = (
    "set the clock of this host, for example with NTP: it differs from the service's by more than the "
    "service allows (15 minutes for most); the credentials may be right"
)


def code(error: Exception) -> str:
    """The code of the answer, such as `NoSuchKey`; "" where there was none."""
    if not isinstance(error, ClientError):
        return ""
    found = str(error.response.get("Error", {}).get("Code", ""))
    return found if re.fullmatch(r"[\w.-]{1,64}", found) else "an unknown code"


def refused(error: Exception) -> bool:
    """Whether the request was certainly not carried out."""
    if isinstance(error, ClientError):
        return 400 <= _status(error) < 500 or code(error) == "SlowDown"
    return isinstance(error, _UNSENT)


def passing(error: Exception) -> bool:
    """Whether the same request may succeed soon."""
    if isinstance(error, ClientError):
        return _status(error) >= 500 or _status(error) == 429 or code(error) in ("SlowDown", "RequestTimeout")
    return isinstance(error, _PASSING)


def cause(error: Exception) -> Exception | None:
    """What to raise an error from: `error`, unless it quotes what it could not send, such as a token."""
    return None if type(error) is HTTPClientError else error


def failed(error: Exception, what: str, *, certain: bool) -> StorageError:
    """The error of a request to `what`; `certain` where it changes nothing whatever came of it."""
    kind = Determinate if certain or refused(error) else Indeterminate
    return kind(f"can't {what}: {_reason(error)}", hint=_hint(error))


def unreachable(error: Exception, where: str) -> StoreUnreachable:
    """The error of the first request to a store."""
    name = code(error)
    if name == "NoSuchBucket":
        return StoreUnreachable(
            f"there is no {where}", hint="check the URL, or make the bucket: Holdfast makes none"
        )
    if _denied(error):
        return StoreUnreachable(f"{where} can't be opened: {_reason(error)}", hint=_hint(error))
    if name in (
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "301",
        "IllegalLocationConstraintException",
    ):
        hint = "name the bucket's region: s3://bucket/prefix?region=..."
    else:
        hint = "check the endpoint and that the service runs"
    return StoreUnreachable(f"{where} can't be reached: {_reason(error)}", hint=hint)


def _hint(error: Exception) -> str:
    if code(error) == "RequestTimeTooSkewed":
        return _CLOCK_HINT
    return _CREDENTIALS_HINT if _denied(error) else ""


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _denied(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return _status(error) in (401, 403)
    return isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError)


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        return f"the answer is {code(error)} (HTTP {_status(error)})"
    return next((told for kind, told in _REASONS if isinstance(error, kind)), type(error).__name__)
