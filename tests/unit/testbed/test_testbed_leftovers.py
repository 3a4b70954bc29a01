"""A test that leaves a client open behind its database fails, and no other test does."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.persist import PersistClient, PersistConfig
from testbed import leftovers
from testbed.errors import LeftOpen
from testbed.postgres import PostgresServer
from unit.persist.open_stores import SCHEMA, SHARD, rows


@pytest.mark.postgres
def test_a_client_that_outlives_its_database_is_named(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_ENDING_S", 0.1)

    def opened(name: str) -> PersistClient:
        config = PersistConfig(retry_deadline_s=0.1)
        client = PersistClient.open(
            blob=f"file://{tmp_path}/{name}", consensus=postgres.url(name), config=config
        )
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 0, 1)
        client.reader(SHARD, purpose="test")
        return client

    with postgres.database() as name:
        opened(name).close()
    with (
        pytest.raises(
            LeftOpen, match=r"clients of database test_\w+: holdfast-hints, holdfast-maintenance, pool-"
        ),
        postgres.database() as name,
    ):
        left = opened(name)
    left.close()


def test_what_threads_of_other_tests_log_is_not_of_this_test(request: pytest.FixtureRequest) -> None:
    begin, logged = threading.Event(), threading.Event()

    def other() -> None:
        begin.wait(60)
        logging.getLogger("holdfast").warning("of another test")
        logged.set()

    thread = threading.Thread(target=other)
    thread.start()
    own_records: Callable[[], list[logging.LogRecord]] = request.getfixturevalue("own_records")
    begin.set()
    assert logged.wait(60)
    thread.join()
    here = threading.Thread(target=logging.getLogger("holdfast").warning, args=("of a thread of this test",))
    here.start()
    here.join()
    logging.getLogger("holdfast").warning("of this test")
    assert [each.getMessage() for each in own_records()] == ["of a thread of this test", "of this test"]
    caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
    assert caplog.messages[0] == "of another test"
