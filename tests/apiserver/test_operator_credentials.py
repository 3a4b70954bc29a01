"""A Catalog with credentials of its own on a real Postgres: they are rotated while the operator runs."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.kube, pytest.mark.postgres, pytest.mark.long]

Make = Callable[..., dict[str, Any]]


class Role:
    """A role of a server, which can't log in with an earlier password, nor stay logged in."""

    def __init__(self, server: PostgresServer, connection: "psycopg.Connection[Any]", name: str) -> None:
        self.server, self.name, self.password = server, name, ""
        self._connection = connection
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))

    def rotate(self) -> None:
        self.password = f"planted-{secrets.token_hex(8)}"
        change = sql.SQL("ALTER ROLE {} PASSWORD {}")
        self._connection.execute(change.format(sql.Identifier(self.name), sql.Literal(self.password)))
        self._connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (self.name,)
        )

    def values(self, password: str | None = None) -> dict[str, str]:
        return {"PGUSER": self.name, "PGPASSWORD": password or self.password}


@contextmanager
def role_in(server: PostgresServer, database: str) -> Iterator[Role]:
    with psycopg.connect(server.url(database), autocommit=True) as connection:
        role = Role(server, connection, f"role_{secrets.token_hex(6)}")
        name = sql.Identifier(role.name)
        role.rotate()
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database), name)
        )
        try:
            yield role
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
            connection.execute(sql.SQL("DROP ROLE {}").format(name))


def keep_secret(world: Any, values: Mapping[str, str]) -> None:
    world.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "keys", "namespace": world.namespace},
            "stringData": dict(values),
        }
    )


def test_a_rotated_password_is_used_without_a_restart(
    world: Any, make_catalog: Make, postgres: PostgresServer
) -> None:
    operator = world.start(environment={"PGPASSFILE": "/nowhere"})
    with postgres.database() as database, role_in(postgres, database) as role:
        keep_secret(world, role.values())
        storage = {
            "blob": world.volume("blobs"),
            "consensus": f"postgresql://{postgres.address}:{postgres.port}/{database}",
            "credentialsSecretRef": {"name": "keys"},
        }
        world.apply(make_catalog(storage=storage))
        world.wait_ready("catalog/demo")
        assert world.status("catalog/demo")["epoch"] == 1

        role.rotate()
        message = world.wait_stalled("catalog/demo", "StoreUnreachable")
        assert "password authentication failed" in message
        keep_secret(world, role.values())
        world.wait_for("catalog/demo", ".status.epoch", 2)
        world.wait_ready("catalog/demo")

        keep_secret(world, role.values("planted-wrong"))
        message = world.wait_stalled("catalog/demo", "StoreUnreachable")
        assert "in the Secret that the spec names for the store (credentialsSecretRef)" in message
        assert "\n" not in message
        assert world.status("catalog/demo")["epoch"] == 2
        keep_secret(world, role.values())
        world.wait_for("catalog/demo", ".status.epoch", 3)
        world.wait_ready("catalog/demo")

        keep_secret(world, {**role.values(), "PGUSER": ""})
        message = world.wait_stalled("catalog/demo", "InvalidSpec")
        assert "Secret 'keys' has PGPASSWORD, but not PGUSER; add PGUSER to it" in message
        keep_secret(world, role.values())
        world.wait_ready("catalog/demo")

        assert operator.child.poll() is None
        assert "fencedBy" not in world.status("catalog/demo")
        told = operator.log.read_text() + world.kubectl("get", "catalogs,events,configmaps", "-o", "json")
        assert "planted" not in told
        world.delete("catalog/demo")
