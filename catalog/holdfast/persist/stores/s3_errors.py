"""Classifies failed S3 requests: whether they may have taken effect, and whether to retry.

Invariants:

- A write that was not certainly refused is `Indeterminate`: there was no response, or it has a status of 500
  or higher. The exception is `SlowDown`, which a service returns before it begins.
- A message contains the code of a response, or the kind of a failure. It never contains the text of a client
  library, because that may quote a header.
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

# The errors that a request may raise. Reading a body may fail in urllib3 itself.
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
    (CredentialRetrievalError, "the credentials could not be loaded"),
    (EndpointConnectionError, "there is no connection"),
    (ConnectTimeoutError, "there is no connection within the time limit"),
    (ReadTimeoutError, "there was no response within the time limit"),
    (ConnectionClosedError, "the connection was closed without a response"),
)
_CREDENTIALS_HINT: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of the AWS configuration, to the "
    "credentials of a user who may list, get, put and delete objects there"
)

_CLOCK_HINT: Final = (
    "set the clock of this host, for example with NTP: it differs from the service's clock by more than the "
    "service allows (15 minutes for most services); the credentials may be right"
)


def code(error: Exception) -> str:
    """Return the code of the response, such as `NoSuchKey`; "" if there was no response."""
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
    """Return `error` as the cause to raise from; None if it quotes data such as a token."""
    return None if type(error) is HTTPClientError else error


def failed(error: Exception, what: str, *, certain: bool) -> StorageError:
    """Return the error of a request to `what`. `certain` means that the request changes nothing."""
    kind = Determinate if certain or refused(error) else Indeterminate
    return kind(f"can't {what}: {_reason(error)}", hint=_hint(error))


def unreachable(error: Exception, where: str) -> StoreUnreachable:
    """Return the error of the first request to a store."""
    name = code(error)
    if name == "NoSuchBucket":
        return StoreUnreachable(
            f"there is no {where}", hint="check the URL, or create the bucket; Holdfast does not create it"
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
        return f"the response is {code(error)} (HTTP {_status(error)})"
    return next((told for kind, told in _REASONS if isinstance(error, kind)), type(error).__name__)
