"""Classifies failed S3 requests: whether they may have taken effect, and whether to retry.

Invariants:

- A write that was not certainly refused is `Indeterminate`: there was no response, or it has a status of 500
  or higher. The exception is `SlowDown`, which a service returns before it begins.
- A refusal with `AccessDenied` is lasting: it stays until somebody grants the right. Other refusals of
  credentials, such as a clock that is wrong or a token that has expired, may pass.
- A message contains the code of a response, or the kind of a failure. It never contains the text of a client
  library, because that may quote a header.
"""

import re
from collections.abc import Mapping, Sequence
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
from urllib3.exceptions import ReadTimeoutError as BodyTimeoutError

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
    (BodyTimeoutError, "there was no response within the time limit"),
    (ConnectionClosedError, "the connection was closed without a response"),
)
_CREDENTIALS_HINT: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or another source of the AWS configuration, to the "
    "credentials of a user who may {rights} objects there"
)

_DENIED: Final = "AccessDenied"
_LACKS: Final = "the user of the credentials does not have the right {right} there (AccessDenied)"
_RIGHTS: Final = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
}
"""The right that each request needs."""
_RIGHTS_HINT: Final = (
    "allow the user of the credentials s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and "
    "s3:DeleteObject on its objects; a client that is open for reading needs only the first two"
)
_READ_RIGHTS_HINT: Final = (
    "allow the user of the credentials s3:ListBucket on the bucket, and s3:GetObject on its objects"
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


def failed(error: Exception, what: str, *, certain: bool, reads: bool = False) -> StorageError:
    """Return the error of a request to `what`. `certain` means that the request changes nothing.

    `reads` means that its client only reads there, so that the hint asks for no other rights.
    """
    kind = Determinate if certain or refused(error) else Indeterminate
    found = kind(f"can't {what}: {_reason(error)}", hint=_hint(error, reads=reads))
    return found.for_good() if _lacks_right(error) else found


def not_deleted(errors: Sequence[Mapping[str, str]], count: int, where: str) -> Determinate:
    """Return the error of a request that deletes `count` objects. `errors` are those in its response."""
    codes = {each.get("Code", "") for each in errors}
    message = f"{len(errors)} of {count} objects in {where} were not deleted"
    if codes == {_DENIED}:
        return Determinate(
            f"{message}: {_LACKS.format(right='s3:DeleteObject')}", hint=_RIGHTS_HINT
        ).for_good()
    return Determinate(message)


def unreachable(error: Exception, where: str, *, reads: bool = False) -> StoreUnreachable:
    """Return the error of the first request to a store. `reads` is as for `failed`."""
    name = code(error)
    if name == "NoSuchBucket":
        return StoreUnreachable(
            f"there is no {where}", hint="check the URL, or create the bucket; Holdfast does not create it"
        )
    if _denied(error):
        return StoreUnreachable(f"{where} can't be opened: {_reason(error)}", hint=_hint(error, reads=reads))
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


def _hint(error: Exception, *, reads: bool) -> str:
    if code(error) == "RequestTimeTooSkewed":
        return _CLOCK_HINT
    if _lacks_right(error):
        return _READ_RIGHTS_HINT if reads else _RIGHTS_HINT
    if not _denied(error):
        return ""
    return _CREDENTIALS_HINT.format(rights="list and get" if reads else "list, get, put and delete")


def _lacks_right(error: Exception) -> bool:
    return code(error) == _DENIED


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _denied(error: Exception) -> bool:
    if isinstance(error, ClientError):
        return _status(error) in (401, 403)
    return isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError)


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        right = _RIGHTS.get(error.operation_name)
        if right is not None and _lacks_right(error):
            return _LACKS.format(right=right)
        return f"the response is {code(error)} (HTTP {_status(error)})"
    return next((told for kind, told in _REASONS if isinstance(error, kind)), type(error).__name__)
