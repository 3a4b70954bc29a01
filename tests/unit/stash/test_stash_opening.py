"""Where a stash can be: schemas, credentials, foreign tables, other versions."""

import sqlite3
import traceback
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Deprecated,
    HoldfastError,
    NoLocation,
    StoreUnreachable,
    UnusablePath,
    VersionTooNew,
)
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.persist.stores.sqlite import SqliteConsensus
from holdfast.stash import StashFrontiers, StashUpdate, open_stash, pg_schema, sqlite_file
from testbed.postgres import PostgresServer

ROW = StashUpdate(1, b"k", b"v", 1)
SECRET = "hush%2Fhush"


def execute(url: str, *statements: str) -> None:
    """By other means than ours."""
    if url.startswith("sqlite://"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as file:
            for statement in statements:
                file.execute(statement)
            file.commit()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            for statement in statements:
                server.execute(statement)  # type: ignore[arg-type]


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as server:
        listing = (
            "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname !~ '^pg_|^information'"
        )
        return {str(name) for (name,) in server.execute(listing)}


def refuse(url: str, kind: type[HoldfastError], *, told: str = ".") -> None:
    """Opening is refused in one line, for reading and for writing."""
    for create, read_only in ((False, True), (False, False), (True, False)):
        with pytest.raises(kind, match=told) as raised:
            open_stash(url, create=create, read_only=read_only)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "is not a URL"),
        ("/a/path", "is not a URL"),
        ("s3://bucket/prefix", "s3:// of a stash is unknown"),
        ("someone:" + SECRET + "@host://prefix", "the stash is not a URL"),
        ("sqlite://relative/path", "absolute"),
        ("sqlite:///", "absolute"),
        ("sqlite:///a?b=c", "no options"),
        ("postgresql://u:" + SECRET + "@host/d?schema=No", "schema"),
        ("postgresql://u:" + SECRET + "@ho@st/d", "can't be parsed"),
    ],
)
def test_urls_without_meaning(url: str, told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        open_stash(url)
    assert "hush" not in str(raised.value) + raised.value.hint


def test_a_reader_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoLocation):
        open_stash(f"sqlite://{tmp_path}/folder/stash.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.postgres
def test_a_reader_makes_nothing_in_a_database(postgres_url: str) -> None:
    with pytest.raises(NoLocation):
        open_stash(postgres_url)
    assert tables(postgres_url) == set()


def test_a_newer_layout_is_refused_and_an_older_one(stash_url: str) -> None:
    with open_stash(stash_url, create=True) as stash:
        stash.append([ROW], 0)
    sqlite = stash_url.startswith("sqlite")
    set_layout = "PRAGMA user_version = {}" if sqlite else "UPDATE holdfast_stash.stash SET layout = {}"
    newest = sqlite_file.LAYOUT_VERSION if sqlite else pg_schema.LAYOUT_VERSION
    execute(stash_url, set_layout.format(newest + 1))
    refuse(stash_url, VersionTooNew, told=f"layout {newest + 1}")
    execute(stash_url, set_layout.format(0))
    refuse(stash_url, Deprecated, told="layout 0")
    execute(stash_url, set_layout.format(newest))
    with open_stash(stash_url) as stash:
        assert list(stash.rows(0)) == [ROW]


def test_tables_of_somebody_else_are_left_alone(stash_url: str) -> None:
    if not stash_url.startswith("sqlite"):
        execute(stash_url, "CREATE SCHEMA holdfast_stash", "SET search_path = holdfast_stash")
        stash_url += (
            "&options=-csearch_path%3Dholdfast_stash"
            if "?" in stash_url
            else "?options=-csearch_path%3Dholdfast_stash"
        )
    execute(stash_url, "CREATE TABLE data (mine integer)", "INSERT INTO data VALUES (1)")
    refuse(stash_url, BadInput, told="is not a stash")
    execute(stash_url, "CREATE TABLE stash (mine integer)")
    refuse(stash_url, BadInput, told="is not a stash")


@pytest.mark.postgres
def test_a_schema_of_consensus_is_none_of_a_stash(postgres_url: str) -> None:
    PostgresConsensus(postgres_url).close()
    before = tables(postgres_url)
    refuse(postgres_url + "?schema=holdfast", BadInput, told="such as entries")
    assert tables(postgres_url) == before
    open_stash(postgres_url, create=True).close()
    PostgresConsensus(postgres_url).close()


def test_a_file_of_consensus_is_none_of_a_stash(tmp_path: Path) -> None:
    SqliteConsensus(tmp_path / "file").close()
    before = (tmp_path / "file").read_bytes()
    refuse(f"sqlite://{tmp_path}/file", BadInput, told="is not a stash")
    assert (tmp_path / "file").read_bytes() == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("It was a dark and stormy night. " * 100)
    refuse(f"sqlite://{tmp_path}/file", CorruptBlob)
    assert (tmp_path / "file").read_text().startswith("It was a dark")
    refuse(f"sqlite://{tmp_path}", UnusablePath)
    refuse(f"sqlite://{tmp_path}/file/below", StoreUnreachable)


def test_a_file_that_vanished_takes_no_commits(tmp_path: Path) -> None:
    with open_stash(f"sqlite://{tmp_path}/stash.db", create=True) as stash:
        stash.append([ROW], 0)
        (tmp_path / "stash.db").rename(tmp_path / "away")
        with pytest.raises(StoreUnreachable, match="No such file"):
            stash.append([ROW], 1)
        (tmp_path / "away").rename(tmp_path / "stash.db")
        assert stash.frontiers() == StashFrontiers(0, 1)


@pytest.mark.postgres
def test_two_schemas_of_a_database_are_two_stashes(postgres_url: str) -> None:
    urls = [postgres_url + "?schema=one", postgres_url + "?schema=two"]
    one, two = (open_stash(url, create=True) for url in urls)
    with one, two:
        one.append([ROW], 0)
        one.append([], 1)
        one.allow_compaction(1)
        one.consolidate()
        assert two.frontiers() == StashFrontiers(0, 0)
        two.append([ROW._replace(key=b"other")], 0)
        assert [row.key for row in (*one.rows(1), *two.rows(0))] == [b"k", b"other"]
    with pytest.raises(NoLocation):
        open_stash(postgres_url)


@pytest.mark.postgres
def test_credentials_come_from_the_environment_and_are_never_told(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres_url.rpartition("/")[2]
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    with open_stash(postgres.url(database, password=False), create=True) as stash:
        stash.append([ROW], 0)
        assert postgres.password not in f"{stash} {stash.description} {vars(stash)}"
    monkeypatch.delenv("PGPASSWORD")
    for url in (
        postgres.url(database, password=False),
        postgres_url.replace(postgres.password, SECRET),
        postgres_url.replace(f":{postgres.port}/", ":1/"),
        postgres_url + "_is_missing",
    ):
        with pytest.raises(StoreUnreachable) as raised:
            open_stash(url, create=True)
        told = "".join(traceback.format_exception(raised.value)) + raised.value.hint
        assert "hush" not in told
        assert postgres.password not in told
