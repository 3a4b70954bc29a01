"""A frozen process of the server blocks no step for ever, and a pipeline that is to end waits for nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from holdfast.errors import StoreUnreachable
from holdfast.ingest import Ingestion, StepOutcome, waits
from holdfast.ingest.sources import postgres, postgres_client, postgres_contents, postgres_stream
from holdfast.ingest.sources.postgres import Postgres
from holdfast.ingest.sources.postgres_client import PostgresClient
from holdfast.ingest.sources.postgres_server import SlotWait
from holdfast.persist import PersistClient
from unit.ingest.pgtable import DEADLINE_S, PgTable
from unit.ingest.pipelines import drained, positions, rows
from unit.ingest.sources.test_postgres_kills import location
from unit.ingest.sources.test_postgres_stream import (
    client,
    noted,
    opened,
    receivers,
    server,
    table,
    until,
)
from unit.ingest.test_ingest_cli import started

__all__ = ["client", "server", "table"]

pytestmark = pytest.mark.postgres

AT_ONCE_S: Final = 5.0
"""A stop takes less, even on a machine that is busy. A wait that doesn't end takes a minute."""


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """A process of the server that does nothing in this block, while its kernel still confirms what comes."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def asking(source: Postgres) -> int:
    """The server's process of the connection that asks."""
    assert source._client._kept is not None
    return source._client._kept.info.backend_pid


# A process that is frozen


@pytest.mark.long
def test_a_frozen_sender_is_left_and_waited_for(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_stream, "ANSWER_S", 0.5)
    monkeypatch.setattr(waits, "_SHOWN_AFTER_S", 0.0)
    source, ingestion = opened(client, table)
    told = noted(source)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        drained(ingestion)
        (process,) = receivers(table)
        table.insert((2, "b"))
        with frozen(process):
            assert ingestion.step().outcome is StepOutcome.IDLE
            # Its slot is not free before it goes on.
            assert ingestion.step().outcome is StepOutcome.IDLE
            lost, left = told
            assert "can't read the changes" in lost
            assert "the server has sent nothing for 0.5 s" in lost
            assert "waiting for a process of the server: it still sends a lost stream" in left
        until(lambda: drained(ingestion))
        assert (rows(client), len(told)) == (table.rows(), 3)


def test_a_frozen_process_that_is_asked_is_replaced(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_client, "ANSWER_S", 0.5)
    source, ingestion = opened(client, table, streams=False)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        with frozen(asking(source)):
            until(lambda: drained(ingestion))
        assert rows(client) == table.rows()


def test_a_frozen_process_that_peeks_is_replaced(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_client, "LONG_ANSWER_S", 0.5)
    source, ingestion = opened(client, table, streams=False)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        peek = PostgresClient.stream

        def peek_of_frozen(client: PostgresClient, *asked: Any) -> Any:
            os.kill(asking(source), signal.SIGSTOP)
            return peek(client, *asked)

        process = asking(source)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(PostgresClient, "stream", peek_of_frozen)
                assert ingestion.step().outcome is StepOutcome.IDLE
            until(lambda: drained(ingestion))
        finally:
            os.kill(process, signal.SIGCONT)
        assert rows(client) == table.rows()


def test_it_is_shown_what_the_making_of_a_slot_waits_for(
    table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_contents, "PATIENCE_S", 0.2)
    monkeypatch.setattr(postgres_contents, "_LOOK_S", 0.1)
    monkeypatch.setattr(postgres_client, "SOON_S", 0.5)
    monkeypatch.setattr(waits, "_SHOWN_AFTER_S", 0.0)
    source = table.source()
    told = noted(source)
    with closing(source), psycopg.connect(table.url) as other:
        other.execute("INSERT INTO orders VALUES (1, 'open')")
        source._contents.propose(0)
        with closing(source._client.replication()) as making:
            making.send("CREATE_REPLICATION_SLOT stuck TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')")
            until(lambda: "transaction of process" in source._table.slot_wait(making.process).who)
            with frozen(asking(source)):
                assert source._table.slot_wait(making.process).reason == "it does not respond"
            with frozen(making.process):
                other.rollback()
                wait = source._table.slot_wait(making.process)
            assert wait.who == f"process {making.process} of the server"
            assert "waits for no transaction, and does not go on" in wait.reason
            until(lambda: making.row(0.1) is not None)
        process = other.info.backend_pid
        other.execute("INSERT INTO orders VALUES (1, 'open')")
        with pytest.raises(StoreUnreachable, match=f"the transaction of process {process} "):
            source._contents._begin()
    (line,) = told
    assert line.startswith(f"waiting for the transaction of process {process} (user postgres")
    assert "it is open for 0 s, and a slot waits for the transactions before it (table public.orders" in line


def test_a_prepared_transaction_is_named_with_what_ends_it() -> None:
    row = [True, None, None, None, 4000.2, "o'clock", "Lock transactionid"]
    wait = SlotWait.of("db", 7, [row])
    assert wait.who == """the prepared transaction 'o''clock'"""
    assert wait.reason == "it is open for 4000 s, and a slot waits for the transactions before it"
    assert "ROLLBACK PREPARED 'o''clock'" in wait.hint
    # Nobody sees when a transaction of another user began.
    wait = SlotWait.of("db", 7, [[True, 9, "bob", "", None, None, ""]])
    assert (wait.who, wait.reason[:23]) == (
        "the transaction of process 9 (user bob)",
        "it is open since before",
    )


# A pipeline that is to end


def ended_at_once(source: Postgres, ingestion: Ingestion, stopped: Callable[[float], bool]) -> None:
    """Run until `stopped`, as a command does."""
    ingestion._waits = source._waits
    began_s = time.monotonic()
    ingestion.run(stopped=stopped)
    source.close()
    assert time.monotonic() - began_s < AT_ONCE_S


def soon() -> Callable[[float], bool]:
    """Tells to end, some time after a step began to wait."""
    ended = threading.Event()
    threading.Timer(1.0, ended.set).start()
    return ended.wait


@pytest.mark.parametrize("streams", [True, False])
def test_a_stop_ends_the_wait_for_a_frozen_process(
    client: PersistClient, table: PgTable, streams: bool
) -> None:
    source, ingestion = opened(client, table, streams=streams)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        drained(ingestion)
        before = positions(client)
        table.insert((2, "b"))
        with frozen(receivers(table)[0] if streams else asking(source)):
            ended_at_once(source, ingestion, soon())
    assert positions(client) == before
    source, ingestion = opened(client, table)
    with closing(source):
        until(lambda: drained(ingestion))
    assert rows(client) == table.rows()


def test_a_stop_ends_the_wait_for_a_server_that_lets_nobody_in(client: PersistClient, table: PgTable) -> None:
    source, ingestion = opened(client, table, streams=False)
    with closing(source):
        drained(ingestion)
        ((first,),) = table.run(r"SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int")
        with frozen(first):
            table.run("SELECT pg_terminate_backend(%s)", asking(source))
            ended_at_once(source, ingestion, soon())


def test_a_stop_at_the_end_of_the_patience_is_no_error(
    table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table.source()
    with closing(source):
        monkeypatch.setattr(postgres_client, "PATIENCE_S", 0.0)
        source._waits.stopped = lambda _: True
        table.run("SELECT pg_terminate_backend(%s)", asking(source))
        with pytest.raises(waits.Stopped):
            source._client.retried(lambda connection: connection.execute("SELECT 1"))


def test_a_stop_ends_the_wait_for_open_transactions_and_locks(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"))
    for statement in ("INSERT INTO orders VALUES (2, 'late')", "LOCK TABLE orders"):
        source, ingestion = opened(client, table)
        with psycopg.connect(table.url) as other:
            other.execute(statement)
            ended_at_once(source, ingestion, soon())
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
    assert rows(client) == table.rows()
    assert len(table.slots()) == 1


@pytest.mark.long
def test_a_stop_ends_the_reading_of_the_contents(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_contents, "PIECE_BYTES", 1)
    table.run("INSERT INTO orders SELECT each, 'x' FROM generate_series(1, 1000) each")
    source, ingestion = opened(client, table)
    pieces = 0

    def stopped(seconds: float) -> bool:
        nonlocal pieces
        pieces += source._contents._snapshot is not None
        return pieces > 10

    ended_at_once(source, ingestion, stopped)
    assert not rows(client)
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
    assert rows(client) == table.rows()
    assert len(table.slots()) == 1


@pytest.mark.parametrize("streams", [True, False])
def test_a_stop_ends_the_reading_of_what_is_bound_already(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setattr(postgres, "_CHECK_EVERY", 1)
    monkeypatch.setattr(postgres_stream, "_BATCH_BYTES", 1)
    source, ingestion = opened(client, table, streams=False)
    with closing(source), monkeypatch.context() as patched:
        patched.setattr(Postgres, "_acknowledge", lambda _: None)
        drained(ingestion)
        table.run("INSERT INTO orders SELECT each, 'x' FROM generate_series(1, 1000) each")
        drained(ingestion)
    before = (table.confirmed(), positions(client))
    table.insert((-1, "a"))
    source, ingestion = opened(client, table, streams=streams)
    looks = 0

    def stopped(seconds: float) -> bool:
        nonlocal looks
        looks += 1
        return looks > 100

    ended_at_once(source, ingestion, stopped)
    assert 100 < looks < 500
    assert (table.confirmed(), positions(client)) == before
    source, ingestion = opened(client, table, streams=streams)
    with closing(source):
        until(lambda: drained(ingestion))
    assert rows(client) == table.rows()


@pytest.mark.long
def test_a_command_whose_sender_is_frozen_ends_when_it_is_told_to(tmp_path: Path, table: PgTable) -> None:
    table.run("ALTER TABLE orders DROP COLUMN name, ADD COLUMN amount bigint NOT NULL DEFAULT 1")
    table.run("INSERT INTO orders VALUES (1)")
    location(tmp_path, table)
    process = started(tmp_path)
    try:
        until(lambda: receivers(table))
        with frozen(receivers(table)[0]):
            table.run("INSERT INTO orders VALUES (2)")
            time.sleep(1)
            began_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=DEADLINE_S)
            assert time.monotonic() - began_s < AT_ONCE_S
        assert process.returncode == 0
        assert out.startswith("fed orders with "), out
    finally:
        process.kill()
        process.communicate()
    until(lambda: not receivers(table))
