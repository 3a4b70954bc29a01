"""The keys of stores in files: what is read, what is refused, and that connections follow a change."""

import os
import pickle
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.errors import BadInput, StorageError, StoreUnreachable
from holdfast.persist import PersistClient
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_place import S3Place
from holdfast.pg_session import PostgresAddress
from holdfast.store_keys import OF_S3, StoreKeys, postgres_options, s3_keys
from testbed.minio import Minio
from testbed.mounts import mount
from testbed.postgres import PostgresServer

GIVEN = {
    "AWS_ACCESS_KEY_ID": "planted-id",
    "AWS_SECRET_ACCESS_KEY": "planted-9c1d",
    "AWS_SESSION_TOKEN": "planted-token",
    "PGUSER": "shop",
    "PGPASSWORD": "planted-7f3a",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def test_each_file_is_a_key_and_a_missing_or_empty_one_is_not_given(folder: Path) -> None:
    mount(folder, {**GIVEN, "PGPASSWORD": " planted-7f3a \r\n", "AWS_SESSION_TOKEN": "\n", "OTHER": "x"})
    keys = StoreKeys(folder)
    found = keys.read()
    wanted = {**GIVEN, "PGPASSWORD": " planted-7f3a "}
    del wanted["AWS_SESSION_TOKEN"]
    assert found == wanted
    assert dict(keys) == found
    assert s3_keys(keys) == {name: GIVEN[name] for name in OF_S3[:2]}
    assert postgres_options(keys) == {"user": "shop", "password": " planted-7f3a "}
    assert StoreKeys(folder, OF_S3).read() == s3_keys(keys)
    (folder / "PGPASSWORD").unlink()
    assert postgres_options(keys) == {"user": "shop"}


def test_the_environment_names_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_STORE_KEYS", raising=False)
    assert StoreKeys.of_process() is None
    monkeypatch.setenv("HOLDFAST_STORE_KEYS", "")
    assert StoreKeys.of_process() is None
    monkeypatch.setenv("HOLDFAST_STORE_KEYS", str(folder))
    assert StoreKeys.of_process() == StoreKeys(folder)


def test_what_can_not_be_read_is_told_in_one_line(folder: Path) -> None:
    keys = StoreKeys(folder)
    with pytest.raises(BadInput, match=f"there is no folder {folder}, which HOLDFAST_STORE_KEYS names") as no:
        keys.read()
    assert "PGPASSWORD, or unset it" in (no.value.hint or "")
    mount(folder, GIVEN)
    (folder / "PGPASSWORD").unlink()
    (folder / "PGPASSWORD").write_bytes(b"planted\xff")
    with pytest.raises(BadInput, match=rf"can't read PGPASSWORD in {folder}, .*: it is not UTF-8"):
        keys.read()
    (folder / "PGPASSWORD").unlink()
    (folder / "PGPASSWORD").mkdir()
    with pytest.raises(BadInput, match=r"can't read PGPASSWORD in .*: Is a directory"):
        keys.read()


def test_nothing_but_the_folder_is_shown_or_pickled(folder: Path) -> None:
    mount(folder, GIVEN)
    keys = StoreKeys(folder)
    keys.read()
    assert "planted" not in repr(keys)
    assert b"planted" not in pickle.dumps(keys)
    assert pickle.loads(pickle.dumps(keys)).read() == keys.read()
    assert "planted" not in repr(PostgresAddress.parse("postgresql://db/shop", keys=GIVEN))


def test_keys_of_two_versions_are_never_mixed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume is updated after the first file was read."""
    mount(folder, GIVEN)
    read = Path.read_text
    updates = [{name: f"new-{value}" for name, value in GIVEN.items()}]

    def read_slowly(path: Path, **options: str) -> str:
        text = read(path, **options)
        if updates:
            mount(folder, updates.pop())
        return text

    monkeypatch.setattr(Path, "read_text", read_slowly)
    assert StoreKeys(folder).read() == {name: f"new-{value}" for name, value in GIVEN.items()}


def test_keys_take_precedence_over_the_environment_and_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "other")
    address = PostgresAddress.parse("postgresql://somebody@db/shop", keys=GIVEN)
    assert psycopg.conninfo.conninfo_to_dict(address.conninfo_now)["user"] == "shop"
    assert psycopg.conninfo.conninfo_to_dict(address.conninfo_now)["password"] == "planted-7f3a"
    assert "planted" not in address.conninfo
    alone = PostgresAddress.parse("postgresql://somebody@db/shop", keys={"AWS_ACCESS_KEY_ID": "x"})
    assert alone.conninfo_now == alone.conninfo


def no_keys_of_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("PGPASSFILE", os.devnull)


@pytest.mark.s3
def test_a_bucket_is_opened_with_the_keys_in_the_files_of_the_moment(
    folder: Path, minio: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_keys_of_process(monkeypatch)
    given = {name: minio.credentials[name] for name in OF_S3 if name in minio.credentials}
    place = S3Place(bucket=minio.make_bucket(), endpoint=minio.endpoint)
    mount(folder, {"AWS_ACCESS_KEY_ID": given["AWS_ACCESS_KEY_ID"]})
    with pytest.raises(StoreUnreachable, match="the credentials are incomplete"):
        S3Blob(place, credentials=StoreKeys(folder))
    mount(folder, given)
    blob = S3Blob(place, credentials=StoreKeys(folder))
    try:
        blob.put("a", b"1")
        mount(folder, {**given, "AWS_SECRET_ACCESS_KEY": "planted-wrong"})
        with pytest.raises(StorageError) as refused:
            blob.get("a")
        assert "planted" not in str(refused.value)
        mount(folder, given)
        assert blob.get("a") == b"1"
    finally:
        blob.close()


@pytest.mark.postgres
def test_a_new_connection_has_the_password_in_the_files_of_the_moment(
    folder: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_keys_of_process(monkeypatch)
    who = f"role_{secrets.token_hex(6)}"
    role = sql.Identifier(who)
    with postgres.database() as database, psycopg.connect(postgres.url(database), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), role))

        def rotate() -> Mapping[str, str]:
            password = f"planted-{secrets.token_hex(8)}"
            admin.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(password)))
            return {"PGUSER": who, "PGPASSWORD": password}

        def end_sessions() -> None:
            # With a timeout in ms, it returns once the sessions have ended.
            end = "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE usename = %s"
            admin.execute(end, (who,))

        def error_of_new_session(store: PostgresConsensus) -> str:
            """End sessions until a call needs a new one. The pool may just have opened one."""
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                end_sessions()
                try:
                    store.list_keys()
                except StorageError as error:
                    if "password" in str(error):
                        return str(error)
            pytest.fail("the server never refused the old password")

        try:
            mount(folder, rotate())
            url = f"postgresql://{postgres.address}:{postgres.port}/{database}"
            store = PostgresConsensus(url, credentials=StoreKeys(folder))
            try:
                assert store.list_keys() == []
                later = rotate()
                refused = error_of_new_session(store)
                assert "password authentication failed" in refused
                assert "planted" not in refused
                mount(folder, later)
                assert store.list_keys() == []
            finally:
                store.close()
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.s3
@pytest.mark.postgres
def test_a_client_opens_both_stores_with_what_it_is_given(
    minio: Minio, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_keys_of_process(monkeypatch)
    given = {**minio.credentials, "PGUSER": "postgres", "PGPASSWORD": postgres.password}
    blob = f"s3://{minio.make_bucket()}/lake?endpoint={minio.endpoint}"
    with postgres.database() as database:
        consensus = f"postgresql://{postgres.address}:{postgres.port}/{database}"
        with PersistClient.open(blob=blob, consensus=consensus, credentials=given) as client:
            assert postgres.password not in repr(client)
            assert postgres.password not in client.location.arguments
