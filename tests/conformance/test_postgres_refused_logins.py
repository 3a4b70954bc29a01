"""A server that lets a role in no more is one lasting refusal with its reason, and no server that is down."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.errors import Determinate, StorageError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.stash import StashUpdate, open_stash
from testbed.postgres import PostgresServer
from unit.persist.open_stores import SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

CONFIG = PersistConfig(maintenance="off", retry_deadline_s=30.0)
REFUSALS = {
    "no login": ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN", "is not permitted to log in"),
    "password": (
        "ALTER ROLE {role} PASSWORD 'other'",
        "ALTER ROLE {role} PASSWORD 'secret'",
        "password authentication failed",
    ),
    "no connect": (
        'REVOKE CONNECT ON DATABASE "{database}" FROM public',
        'GRANT CONNECT ON DATABASE "{database}" TO public',
        "permission denied for database",
    ),
}


class Role:
    """A role with a schema of its own, and somebody who changes its rights."""

    def __init__(self, postgres_url: str, admin: psycopg.Connection) -> None:
        parts = urlsplit(postgres_url)
        self.database, self.name = parts.path[1:], f"role_{uuid.uuid4().hex}"
        self._admin = admin
        self.url = urlunsplit(parts._replace(netloc=f"{self.name}:secret@{parts.netloc.rpartition('@')[2]}"))

    def tell(self, statement: str) -> None:
        self._admin.execute(statement.format(role=self.name, database=self.database).encode())

    def is_let_in(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def end_sessions(self) -> None:
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", [self.name]
        )


@pytest.fixture
def role(postgres_url: str) -> Iterator[Role]:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        role = Role(postgres_url, admin)
        role.tell("CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        role.tell('GRANT CREATE ON DATABASE "{database}" TO {role}')
        yield role
        role.end_sessions()
        role.tell("DROP OWNED BY {role} CASCADE")
        role.tell("DROP ROLE {role}")


@pytest.mark.parametrize(("refuse", "allow", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_refused_login_is_told_at_once_and_may_end(
    role: Role, tmp_path: Path, refuse: str, allow: str, reason: str
) -> None:
    with PersistClient.open(blob=tmp_path.as_uri(), consensus=role.url, config=CONFIG) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(0), 0, 1)
        role.tell(refuse)
        role.end_sessions()
        for call in (
            lambda: writer.compare_and_append(rows(1), 1, 2),
            lambda: client.recent_upper(SHARD),
            lambda: client.reader(SHARD, purpose="test"),
        ):
            began = time.monotonic()
            with pytest.raises(StorageError, match=reason) as raised:
                call()
            assert raised.value.lasting
            assert "LOGIN" in raised.value.hint
            assert "secret" not in f"{raised.value} {raised.value.hint}"
            # Far from the deadline of 30 s.
            assert time.monotonic() - began < 15
        role.tell(allow)
        writer.compare_and_append(rows(1), 1, 2)
        with client.reader(SHARD, purpose="test") as reader:
            assert {key for key, _ in contents(reader.snapshot(1).to_table())} == {0, 1}


def test_a_role_that_may_only_read_is_told_so(role: Role, tmp_path: Path) -> None:
    """Passing, because after a failover the old primary is a standby for a while."""
    config = PersistConfig(maintenance="off", retry_deadline_s=1.0)
    with PersistClient.open(blob=tmp_path.as_uri(), consensus=role.url, config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        role.tell("ALTER ROLE {role} SET default_transaction_read_only = on")
        role.end_sessions()
        with pytest.raises(Determinate, match="read-only transaction") as raised:
            writer.compare_and_append(rows(0), 0, 1)
        assert "default_transaction_read_only" in raised.value.hint
        role.tell("ALTER ROLE {role} RESET default_transaction_read_only")
        # A session keeps its setting for as long as it lives, so this needs another session.
        writer.compare_and_append(rows(0), 0, 1)
        assert client.recent_upper(SHARD) == 1


def test_a_stash_whose_role_may_write_again_goes_on(role: Role) -> None:
    with open_stash(role.url, create=True) as stash:
        stash.append([StashUpdate(1, b"key", b"value", 1)], 0)
        role.tell("ALTER ROLE {role} SET default_transaction_read_only = on")
        role.end_sessions()
        # Each stream has a session of its own, and each session may only read.
        for _ in zip(stash.rows(0), stash.rows(0), strict=True):
            pass
        with pytest.raises(Determinate, match="read-only transaction") as raised:
            stash.append([], 1)
        assert "default_transaction_read_only" in raised.value.hint
        role.tell("ALTER ROLE {role} RESET default_transaction_read_only")
        stash.append([], 1)
        assert stash.frontiers().upper == 2


@pytest.mark.long
def test_rules_that_reject_a_role_are_a_lasting_refusal_and_a_server_that_hangs_is_none(
    tmp_path: Path,
) -> None:
    with (
        PostgresServer.start(durable=False) as server,
        psycopg.connect(server.url(), autocommit=True) as admin,
    ):
        role = Role(server.url(), admin)
        role.tell("CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        role.tell('GRANT CREATE ON DATABASE "{database}" TO {role}')
        (row,) = admin.execute("SHOW hba_file").fetchall()
        rules = Path(row[0])
        allowing = rules.read_text()
        config = PersistConfig(maintenance="off", retry_deadline_s=1.0)
        with PersistClient.open(blob=tmp_path.as_uri(), consensus=role.url, config=config) as client:
            writer = client.writer(SHARD, SCHEMA, purpose="test")
            writer.compare_and_append(rows(0), 0, 1)
            rules.write_text(f"host all {role.name} all reject\n{allowing}")
            admin.execute("SELECT pg_reload_conf()")
            while role.is_let_in():
                pass
            role.end_sessions()
            with pytest.raises(Determinate, match=r"pg_hba\.conf rejects connection") as raised:
                client.recent_upper(SHARD)
            assert raised.value.lasting
            postmaster = int((rules.parent / "postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGSTOP)
            try:
                with pytest.raises(Determinate, match="no connection") as raised:
                    client.recent_upper(SHARD)
            finally:
                os.kill(postmaster, signal.SIGCONT)
            assert not raised.value.lasting
            rules.write_text(allowing)
            admin.execute("SELECT pg_reload_conf()")
            while not role.is_let_in():
                pass
            assert client.recent_upper(SHARD) == 1


PROGRAM = """
import sys
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from unit.persist.open_stores import SCHEMA, SHARD, rows
with PersistClient.open(
    blob=sys.argv[1], consensus=sys.argv[2], config=PersistConfig(maintenance="off")
) as client:
    for act in (
        lambda: client.exclusive("me"),
        lambda: client.writer(SHARD, SCHEMA, purpose="w").compare_and_append(rows(0), 0, 1),
    ):
        try:
            act()
        except HoldfastError as error:
            print(type(error).__name__)
"""


def test_a_refused_statement_prints_nothing_of_its_own(role: Role, tmp_path: Path) -> None:
    """psycopg reports the end of a pipeline, and a program without logging would print that."""
    PersistClient.open(blob=tmp_path.as_uri(), consensus=role.url).close()
    role.tell("REVOKE INSERT ON ALL TABLES IN SCHEMA holdfast FROM {role}")
    command = [sys.executable, "-c", PROGRAM, tmp_path.as_uri(), role.url]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert (done.stdout.split(), done.stderr) == (["Determinate", "Determinate"], "")
