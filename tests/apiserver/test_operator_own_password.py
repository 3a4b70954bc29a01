"""A Catalog on a foreign database: an operator without places does not send its own password there."""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.askingpostgres import AskingPostgres
from testbed.postgres import USER, PostgresServer

pytestmark = [pytest.mark.kube, pytest.mark.postgres]

Make = Callable[..., dict[str, Any]]


def test_a_database_that_asks_for_the_password_is_told_none(
    world: Any, make_catalog: Make, postgres: PostgresServer
) -> None:
    blob = f"{world.volume('blobs')}"
    world.start(environment={"PGUSER": USER, "PGPASSWORD": postgres.password})
    with AskingPostgres() as asking, postgres.database() as name:
        own = postgres.url(name, password=False).replace(f"{USER}@", "", 1)
        world.apply(
            make_catalog("theirs", storage={"blob": f"{blob}-1", "consensus": asking.url()}),
            make_catalog("ours", storage={"blob": f"{blob}-2", "consensus": own}),
        )
        world.wait_ready("catalog/ours")
        message = world.wait_stalled("catalog/theirs", "StoreUnreachable")
        assert "server requested a cleartext password" in message
        assert asking.asked
        assert asking.told == []
        world.delete("catalog/theirs", "catalog/ours")
