"""The meaning of each kind of failed S3 request."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)

from holdfast.errors import Determinate, Indeterminate, StorageError
from holdfast.persist.stores.s3_errors import cause, failed, passing, unreachable

URL = "http://127.0.0.1:9"


def answer(code: str, status: int) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "secret", "StringToSign": "secret"},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "PutObject",
    )


@pytest.mark.parametrize(
    ("error", "kind", "again"),
    [
        (answer("SlowDown", 503), Determinate, True),
        (answer("TooManyRequests", 429), Determinate, True),
        (answer("RequestTimeout", 400), Determinate, True),
        (answer("AccessDenied", 403), Determinate, False),
        (answer("NoSuchBucket", 404), Determinate, False),
        (answer("BadDigest", 400), Determinate, False),
        (answer("InternalError", 500), Indeterminate, True),
        (answer("SlowDownWrite", 503), Indeterminate, True),
        (answer("ServiceUnavailable", 503), Indeterminate, True),
        (answer("504", 504), Indeterminate, True),
        (answer("Odd", 302), Indeterminate, False),
        (answer("Odd", 0), Indeterminate, False),
        (EndpointConnectionError(endpoint_url=URL), Determinate, True),
        (ConnectTimeoutError(endpoint_url=URL), Determinate, True),
        (NoCredentialsError(), Determinate, False),
        (PartialCredentialsError(provider="env", cred_var="x"), Determinate, False),
        (ReadTimeoutError(endpoint_url=URL), Indeterminate, True),
        (ConnectionClosedError(endpoint_url=URL), Indeterminate, True),
        (HTTPClientError(error=ValueError("secret")), Indeterminate, True),
    ],
    ids=repr,
)
def test_a_write_happened_not_only_where_it_was_certainly_refused(
    error: Exception, kind: type[StorageError], again: bool
) -> None:
    found = failed(error, "write k in S3 bucket b", certain=False)

    assert type(found) is kind
    assert passing(error) is again
    assert type(failed(error, "read k", certain=True)) is Determinate
    for told in (found, unreachable(error, "S3 bucket b")):
        assert "S3 bucket b" in str(told)
        assert "secret" not in f"{told} {told.hint}"
        assert "\n" not in str(told)


def test_a_code_that_is_no_code_is_not_repeated() -> None:
    assert "an unknown code" in str(failed(answer("<html>\nsecret", 500), "read k", certain=True))


def test_an_error_that_quotes_what_could_not_be_sent_is_no_cause() -> None:
    assert cause(HTTPClientError(error=ValueError("Invalid header value b'secret'"))) is None
    closed = ConnectionClosedError(endpoint_url=URL)
    assert cause(closed) is closed


def test_a_clock_that_is_wrong_is_no_matter_of_credentials() -> None:
    skewed = answer("RequestTimeTooSkewed", 403)
    for found in (failed(skewed, "write k", certain=False), unreachable(skewed, "S3 bucket b")):
        assert "set the clock of this host" in found.hint
        assert "AWS_ACCESS_KEY_ID" not in found.hint
    assert "AWS_ACCESS_KEY_ID" in failed(answer("AccessDenied", 403), "write k", certain=False).hint
