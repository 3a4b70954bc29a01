"""The meaning of each kind of failed S3 request."""

from urllib.parse import urlsplit

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

from holdfast.errors import Determinate, Indeterminate, StorageError, StoreUnreachable
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_errors import cause, failed, not_deleted, passing, unreachable
from holdfast.persist.stores.s3_objects import S3Objects
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import S3Session

URL = "http://127.0.0.1:9"


def answer(code: str, status: int, request: str = "PutObject") -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "secret", "StringToSign": "secret"},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        request,
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
    assert "AWS_ACCESS_KEY_ID" in failed(answer("InvalidAccessKeyId", 403), "write k", certain=False).hint


@pytest.mark.parametrize(
    ("request_", "right"),
    [
        ("GetObject", "s3:GetObject"),
        ("HeadObject", "s3:GetObject"),
        ("ListObjectsV2", "s3:ListBucket"),
        ("PutObject", "s3:PutObject"),
        ("UploadPart", "s3:PutObject"),
        ("DeleteObject", "s3:DeleteObject"),
    ],
)
def test_a_missing_right_is_named_and_not_tried_again(request_: str, right: str) -> None:
    denied = answer("AccessDenied", 403, request_)
    found = failed(denied, "write k in S3 bucket b", certain=False)
    assert (type(found), found.lasting) == (Determinate, True)
    for told in (found, unreachable(denied, "S3 bucket b")):
        assert f"right {right} " in str(told)
        assert "S3 bucket b" in str(told)
        assert "s3:ListBucket" in told.hint


@pytest.mark.parametrize(
    "error",
    [
        answer("RequestTimeTooSkewed", 403),
        answer("ExpiredToken", 403),
        answer("InvalidAccessKeyId", 403),
        # The response to a HEAD has no body, and so no code.
        answer("403", 403, "HeadObject"),
        answer("SlowDown", 503),
    ],
    ids=repr,
)
def test_other_refusals_may_pass(error: Exception) -> None:
    assert not failed(error, "write k", certain=False).lasting


def test_objects_that_were_not_deleted() -> None:
    denied, other = {"Key": "a", "Code": "AccessDenied"}, {"Key": "b", "Code": "InternalError"}
    found = not_deleted([denied, denied], 3, "S3 bucket b")
    assert found.lasting
    assert "2 of 3 objects in S3 bucket b" in str(found)
    assert "s3:DeleteObject" in str(found)
    assert not not_deleted([denied, other], 2, "S3 bucket b").lasting
    assert not not_deleted([other], 2, "S3 bucket b").lasting


def test_who_only_reads_is_asked_for_no_other_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise NoCredentialsError

    monkeypatch.setattr(S3Session, "_connect", refuse)
    place = S3Place.of(urlsplit("s3://bucket/p"))
    for opened, rights in (
        (lambda: S3Blob(place, read_only=True), "list and get"),
        (lambda: S3Objects(place, reads=True), "list and get"),
        (lambda: S3Blob(place), "list, get, put and delete"),
    ):
        with pytest.raises(StoreUnreachable) as told:
            opened()
        assert f"may {rights} objects" in told.value.hint
