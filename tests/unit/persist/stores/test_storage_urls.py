"""URLs open what they name. A URL that cannot be opened gives one line without secrets."""

import sys
import uuid
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    LocationMismatch,
    StorageError,
    UnusablePath,
)
from holdfast.persist.stores import FileBlob, Location, MemoryBlob, MemoryConsensus, Put, SqliteConsensus
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.url import arguments_of


def test_a_folder_has_the_layout_of_the_format(tmp_path: Path) -> None:
    location = Location.open(f"file://{tmp_path}/data")

    assert isinstance(location.blob, FileBlob)
    assert isinstance(location.consensus, SqliteConsensus)
    assert (tmp_path / "data" / "blob" / "location.json").is_file()
    assert (tmp_path / "data" / "consensus.sqlite").is_file()
    location.close()


def test_the_stores_may_be_given_apart(tmp_path: Path) -> None:
    location = Location.open(
        blob=f"file://{tmp_path}/data/blob", consensus=f"sqlite://{tmp_path}/data/consensus.sqlite"
    )
    location.close()

    again = Location.open(f"file://{tmp_path}/data", read_only=True)

    assert again.location_id == location.location_id
    again.close()


def test_a_memory_location_is_found_by_its_name() -> None:
    name = f"memory://{uuid.uuid4()}"
    one, other = Location.open(name), Location.open(name)

    one.blob.put("s1/p", b"x")
    one.close()

    assert isinstance(one.blob, MemoryBlob)
    assert isinstance(one.consensus, MemoryConsensus)
    assert other.location_id == one.location_id
    assert other.blob.get("s1/p") == b"x"
    assert Location.open(f"{name}-other").location_id != one.location_id


def test_stores_may_be_mixed(tmp_path: Path) -> None:
    name = f"memory://{uuid.uuid4()}"
    location = Location.open(blob=f"file://{tmp_path}/blob", consensus=name)

    assert location.consensus.compare_and_set([Put("s1", 1, b"x")])
    location.close()


def test_a_path_may_be_quoted(tmp_path: Path) -> None:
    location = Location.open(f"file://{tmp_path}/with%20space%3F%23")
    location.close()

    assert (tmp_path / "with space?#" / "consensus.sqlite").is_file()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gopher://host/x", "gopher:// of the location URL is unknown"),
        ("postgresql://u:secret@host/db", "postgresql:// URL names a consensus store, not a location"),
        ("sqlite:///x/y.sqlite", "sqlite:// of the location URL is unknown"),
        ("/data/holdfast", "is not a URL"),
        ("data", "is not a URL"),
        ("", "is not a URL"),
        ("file:data", "is not a URL"),
        ("file://data/holdfast", "file://data/holdfast is not absolute"),
        ("file://./holdfast", "is not absolute"),
        ("file:///", "names no path"),
        ("file://", "names no path"),
        ("file:///x%00y", "names no path"),
        ("file://user:secret@host/data", "no user name or password"),
        ("file:///data?token=secret", "no options"),
        ("file:///data#secret", "no options"),
        ("memory://", "needs a name"),
        ("memory://name?x=secret", "no options"),
        ("file://[secret/data", "can't be parsed"),
    ],
)
def test_a_url_without_meaning_is_refused_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        Location.open(url)

    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert "secret" not in message + caught.value.hint
    assert caught.value.exit_code == 2


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(BadInput) as location:
        Location.open("gopher://x")
    with pytest.raises(BadInput) as consensus:
        Location.open(blob="memory://x", consensus="gopher://x")

    assert "file:///dir, s3://bucket/prefix?endpoint=...&region=..., memory://name" in location.value.hint
    assert "sqlite:///path, postgresql://user@host:port/database, s3://bucket/prefix" in consensus.value.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"blob": "memory://x"},
        {"consensus": "memory://x"},
        {"url": "memory://x", "blob": "memory://x"},
        {"url": "memory://x", "consensus": "memory://x"},
    ],
    ids=repr,
)
def test_half_a_location_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="location"):
        Location.open(**arguments)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    for url in (f"file://{tmp_path}/file/data", f"file://{tmp_path}/file", "file:///proc/holdfast"):
        with pytest.raises(UnusablePath) as caught:
            Location.open(url)
        assert "\n" not in str(caught.value)
        assert url.removeprefix("file://") in str(caught.value)
        assert caught.value.hint
        assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def open_below(folder: Path) -> list[Path]:
    """The files below a folder that this process has open. Others of the process come and go."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(link.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def test_a_refused_location_leaves_nothing_open(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with closing(Location.open(f"file://{tmp_path}/{name}")):
            assert open_below(tmp_path) != []
    with pytest.raises(LocationMismatch):
        Location.open(
            blob=f"file://{tmp_path}/one/blob", consensus=f"sqlite://{tmp_path}/other/consensus.sqlite"
        )
    with pytest.raises(StorageError):
        Location.open(
            blob=f"file://{tmp_path}/none",
            consensus=f"sqlite://{tmp_path}/one/consensus.sqlite",
            create=False,
        )

    assert open_below(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "name of an S3 bucket"),
        ("s3:///prefix", "name of an S3 bucket"),
        ("s3://Bucket", "name of an S3 bucket"),
        ("s3://bucket:9000/prefix", "name of an S3 bucket"),
        ("s3://key:secret@bucket/prefix", "no user name or password"),
        ("s3://bucket/prefix?secret_access_key=secret", "takes the options endpoint and region"),
        ("s3://bucket/prefix?secret", "can't be parsed"),
        ("s3://bucket?region=a&region=secret", "each once"),
        ("s3://bucket?region=", "letters, digits and hyphens"),
        ("s3://bucket?endpoint=", "http:// or https://"),
        ("s3://bucket?endpoint=host:9000", "http:// or https://"),
        ("s3://bucket?endpoint=ftp://host", "http:// or https://"),
        ("s3://bucket?endpoint=http://host/other", "http:// or https://"),
        ("s3://bucket?endpoint=https:%252F%252Fu:geheim%2540h", "http:// or https://"),
        ("s3://bucket?endpoint=http://", "http:// or https://"),
        ("s3://bucket?endpoint=http://host:x", "http:// or https://"),
        ("s3://bucket?endpoint=http://key:secret@host", "http:// or https://"),
        ("s3://bucket?endpoint=http://host%3Ftoken=secret", "http:// or https://"),
        ("s3://bucket?endpoint=http://ho%0Ast", "http:// or https://"),
        ("s3://bucket/a//b", "empty or begins with"),
        ("s3://bucket/..", "empty or begins with"),
        ("s3://bucket/a%00b", "control character"),
        ("s3://bucket/prefix#secret", "no options"),
    ],
)
def test_an_s3_url_without_meaning_is_refused_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        Location.open(blob=url, consensus=f"memory://{uuid.uuid4()}")

    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert "secret" not in message + caught.value.hint
    for arguments in ({"url": url}, {"blob": f"memory://{uuid.uuid4()}", "consensus": url}):
        with pytest.raises(BadInput) as again:
            Location.open(**arguments)
        assert str(again.value) == message


@pytest.mark.parametrize(
    ("blob", "consensus"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        ("s3://bucket/a/", "s3://bucket/a/log"),
        ("s3://bucket/a/blob", "s3://bucket/a?region=eu-west-1"),
        ("s3://bucket", "s3://bucket/log"),
    ],
)
def test_a_log_among_the_blobs_is_refused(blob: str, consensus: str) -> None:
    with pytest.raises(BadInput, match="at or below the same s3:// prefix"):
        Location.open(blob=blob, consensus=consensus)


def test_an_s3_url_names_bucket_prefix_endpoint_and_region() -> None:
    full = S3Place.of(urlsplit("s3://my-bucket/a%20b/c/?endpoint=http://127.0.0.1:9000&region=eu-west-1"))
    bare = S3Place.of(urlsplit("s3://my.bucket"))

    assert full == S3Place(
        bucket="my-bucket", prefix="a b/c", endpoint="http://127.0.0.1:9000", region="eu-west-1"
    )
    assert str(full) == "S3 bucket my-bucket, prefix a b/c, at http://127.0.0.1:9000"
    assert full.url == "s3://my-bucket/a%20b/c?endpoint=http://127.0.0.1:9000&region=eu-west-1"
    assert (bare.url, bare) == ("s3://my.bucket/", S3Place(bucket="my.bucket"))
    assert str(bare) == "S3 bucket my.bucket"


def test_a_missing_boto3_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "holdfast.persist.stores.s3",
        "holdfast.persist.stores.s3_objects",
        "holdfast.persist.stores.s3_session",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)

    for arguments in (
        {"url": "s3://bucket/prefix"},
        {"blob": "s3://bucket/prefix", "consensus": f"memory://{uuid.uuid4()}"},
        {"blob": f"memory://{uuid.uuid4()}", "consensus": "s3://bucket/prefix"},
    ):
        with pytest.raises(BadInput, match="needs botocore") as caught:
            Location.open(**arguments)
        assert caught.value.hint == "pip install 'holdfast[s3]'"


@pytest.mark.parametrize(
    ("urls", "shown"),
    [
        (("file:///data/a b", None, None), "'file:///data/a b'"),
        (
            ("s3://bucket/pre?endpoint=http://h:9&region=x", None, None),
            "'s3://bucket/pre?endpoint=http://h:9&region=x'",
        ),
        (
            (None, "s3://bucket", "postgresql://me:secret@h:5/db?schema=s&password=secret&sslmode=require"),
            "s3://bucket/ --consensus 'postgresql://USER:PASSWORD@h:5/db?schema=s&sslmode=require'",
        ),
        (
            (None, "file:///b", "postgresql://h,i/db?target_session_attrs=read-write&schema=s&passfile=p"),
            "file:///b --consensus 'postgresql://h,i/db?target_session_attrs=read-write&schema=s'",
        ),
        ((None, "file:///b", "postgres://me@h/db"), "file:///b --consensus postgres://USER@h/db"),
        ((None, "file:///b", "postgresql://h/db"), "file:///b --consensus postgresql://h/db"),
    ],
)
def test_the_arguments_of_a_command_name_the_location_without_secrets(
    urls: tuple[str | None, str | None, str | None], shown: str
) -> None:
    url, blob, consensus = urls
    assert arguments_of(url, blob=blob, consensus=consensus) == shown


def test_the_hint_of_a_log_with_a_gap_names_the_location(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def opened(*_: object, arguments: str, **__: object) -> None:
        given.append(arguments)
        raise CorruptBlob("the log", "an object", "nothing")

    monkeypatch.setattr("holdfast.persist.stores.s3_log.S3LogConsensus", opened)
    monkeypatch.setattr("holdfast.persist.stores.s3_objects.S3Objects", lambda *_, **__: Mock())
    for urls in ({"url": "s3://bucket/a"}, {"blob": "s3://bucket/b", "consensus": "s3://bucket/c"}):
        with pytest.raises(CorruptBlob):
            Location.open(**urls)
    assert given == ["s3://bucket/a", "s3://bucket/b --consensus s3://bucket/c"]
