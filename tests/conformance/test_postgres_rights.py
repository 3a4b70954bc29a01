"""Roles of Postgres that lack rights: the error names the right that is missing, and nothing retries."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.errors import Determinate, StoreUnreachable
from holdfast.persist import PersistClient
from holdfast.stash import StashUpdate, open_stash
from unit.persist.open_stores import SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

ROW = StashUpdate(1, b"k", b"v", 1)


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        yield session


@pytest.fixture
def role(admin: psycopg.Connection) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = f"role_{uuid.uuid4().hex}"
    admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'".encode())
    yield name
    admin.execute(f"DROP OWNED BY {name}".encode())
    admin.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def role_url(postgres_url: str, role: str) -> str:
    parts = urlsplit(postgres_url)
    place = f"{role}:secret@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=place))


def may_read(admin: psycopg.Connection, role: str, schema: str) -> None:
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}".encode())


def test_a_location_needs_rights_on_its_schema(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection, tmp_path: Path
) -> None:
    blob = f"file://{tmp_path}"
    with PersistClient.open(blob=blob, consensus=postgres_url) as client:
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(0), 0, 1)
    with pytest.raises(StoreUnreachable, match="permission denied for schema holdfast") as refused:
        PersistClient.open(blob=blob, consensus=role_url, mode="read")
    assert "USAGE on the schema" in refused.value.hint

    may_read(admin, role, "holdfast")
    with PersistClient.open(blob=blob, consensus=role_url, mode="read") as client:
        snapshot = client.reader(SHARD, purpose="test").snapshot(0)
        assert dict(contents(snapshot.to_table())) == {(0, "x"): 1}
    with PersistClient.open(blob=blob, consensus=role_url) as client:
        with pytest.raises(Determinate, match="permission denied for table") as refused_row:
            client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 1, 2)
        assert refused_row.value.lasting
        assert "SELECT, INSERT, UPDATE and DELETE" in refused_row.value.hint


def test_a_stash_needs_rights_on_its_schema(
    postgres_url: str, role_url: str, role: str, admin: psycopg.Connection
) -> None:
    with open_stash(postgres_url, create=True) as stash:
        stash.append([ROW], 0)
    with pytest.raises(StoreUnreachable, match="permission denied for schema holdfast_stash") as refused:
        open_stash(role_url, read_only=True)
    assert "USAGE on the schema" in refused.value.hint

    may_read(admin, role, "holdfast_stash")
    with open_stash(role_url, read_only=True) as stash:
        assert list(stash.rows(0)) == [ROW]
    with open_stash(role_url) as stash, pytest.raises(Determinate, match="permission denied for table") as no:
        stash.append([ROW], 1)
    assert "SELECT, INSERT, UPDATE and DELETE" in no.value.hint
