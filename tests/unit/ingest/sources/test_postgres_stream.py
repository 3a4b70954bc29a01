"""A stream of the changes of a table reads what a peek reads, costs less, and confirms only what is bound."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.errors import SourceChanged, StoreUnreachable
from holdfast.ingest import Ingestion, StepOutcome, waits
from holdfast.ingest.source import Binding, Piece, Range
from holdfast.ingest.sources import postgres_asked, postgres_rows, postgres_stream
from holdfast.ingest.sources.postgres import Postgres
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient
from testbed.postgres import PostgresServer
from unit.collections.stores import Stores
from unit.ingest.pgtable import DEADLINE_S, PgTable
from unit.ingest.pipelines import created, drained, pipeline, positions, rows
from unit.ingest.sources.test_postgres_kills import location
from unit.ingest.sources.test_postgres_kills import rows as rows_in
from unit.ingest.test_ingest_cli import ingested, started, wait_for_line

pytestmark = pytest.mark.postgres

PARTITION = "public.orders"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that keeps changes for others. No test stops it."""
    with PostgresServer.start(durable=False, wal_level="logical") as server:
        yield server


@pytest.fixture
def table(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PgTable]:
    monkeypatch.setenv("PGPASSWORD", server.password)
    with server.database() as name, PgTable(server, name) as table:
        yield table


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def opened(
    client: PersistClient, table: PgTable, *, streams: bool = True, block: Any = None, **changed: Any
) -> tuple[Postgres, Ingestion]:
    """The pipeline of another process, and its source."""
    source = table.source(block=block, streams=streams, **changed)
    blocks = {"generator": None, "format": None, "postgres": table.block(), **(block or {})}
    return source, pipeline(client, source, **blocks)


def until(check: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def receivers(table: PgTable) -> list[int]:
    """The server's processes that send changes of this database."""
    return [
        pid
        for (pid,) in table.run(
            "SELECT active_pid FROM pg_replication_slots"
            " WHERE database = current_database() AND active_pid IS NOT NULL"
        )
    ]


def is_confirmed(client: PersistClient, table: PgTable) -> bool:
    """Whether the slot has reached what is bound. It is never further."""
    confirmed, bound = table.confirmed(), positions(client)[PARTITION]
    assert confirmed <= bound
    return confirmed == bound


# The same messages


def whole(pieces: list[Piece]) -> tuple[Any, ...]:
    """All that pieces say, whatever their sizes."""
    messages = pa.concat_batches([each.messages for each in pieces])
    starts = [sum(one.messages.num_rows for one in pieces[:at]) for at in range(len(pieces))]
    bad = [
        (start + one.index, one.kind, one.reason)
        for start, each in zip(starts, pieces, strict=True)
        for one in each.bad
    ]
    clears = [start for start, each in zip(starts, pieces, strict=True) if each.clears]
    last = [each.last for each in pieces if each.last is not None][-1]
    return messages.to_pylist(), bad, clears, last


def read(source: Postgres, wanted: Range) -> list[Piece]:
    """The pieces of a range, up to the first one that ends after a row, as a step with a limit."""
    found = []
    for each in source.read(wanted):
        found.append(each)
        if not each.unfinished and sum(one.messages.num_rows for one in found) > 40:
            break
    return found


def write(table: PgTable, number: int, other: psycopg.Connection) -> None:
    """Some transactions that show what a stream has only once, or elsewhere."""
    table.run("INSERT INTO orders SELECT 100 * %s + each, 'é\"' FROM generate_series(1, 9) each", number)
    table.run("INSERT INTO others VALUES (1)")
    table.run("UPDATE orders SET id = -id WHERE id %% 5 = 0 AND id > 100 * %s", number)
    if number == 2:
        table.run("ALTER TABLE orders ADD COLUMN extra text DEFAULT 'x'")
        table.run("ALTER TABLE orders ALTER COLUMN name SET STORAGE EXTERNAL")
        table.run("UPDATE orders SET name = repeat('long', 2000) WHERE id = 201")
        table.run("UPDATE orders SET extra = 'z' WHERE id = 201")
    if number == 3:
        # It begins earlier than others, and commits later.
        other.execute("UPDATE orders SET extra = 'y' WHERE id = 201")
        table.run("INSERT INTO orders SELECT each, 'many' FROM generate_series(1000, 1060) each")
    if number == 4:
        other.commit()
        with table.connection.transaction():
            table.run("TRUNCATE orders, others")
            table.run("INSERT INTO orders VALUES (1, NULL)")
    table.run("DELETE FROM orders WHERE id < -300")


@pytest.mark.parametrize(("most", "piece"), [(1_000_000, 20_000), pytest.param(5, 7, marks=pytest.mark.long)])
def test_a_stream_reads_what_a_peek_reads(
    table: PgTable, monkeypatch: pytest.MonkeyPatch, most: int, piece: int
) -> None:
    table.run("CREATE TABLE others (id integer)")
    table.run("ALTER PUBLICATION shop ADD TABLE others")
    table.run("SET datestyle = 'German'")
    client = Stores().open()
    created(client)
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
        bound = dict(ingestion.bound)
    monkeypatch.setattr(postgres_rows, "_PIECE_ROWS", piece)
    streamed = []
    source = table.source(block={"batch": {"maxRows": most}}, streams=True)
    with closing(source), psycopg.connect(table.url) as other:
        processes = set()
        for number in range(1, 6):
            write(table, number, other)
            while ranges := source.probe(bound):
                (wanted,) = ranges
                found = read(source, wanted)
                (process,) = receivers(table)
                processes.add(process)
                reached = found[-1].reached
                streamed.append((wanted, reached, whole(found)))
                last = [each.last for each in found if each.last is not None][-1]
                bound[PARTITION] = Binding(reached, wanted.identity, last=last)
                if not any(each.messages.num_rows for each in found):
                    break
        # All of it came from one stream.
        assert len(processes) == 1
    assert len(streamed) >= 5
    assert any(bad for _, _, (_, bad, _, _) in streamed)
    assert any(clears for _, _, (_, _, clears, _) in streamed)
    with closing(table.source()) as source:
        for wanted, reached, expected in streamed:
            source.probe({PARTITION: Binding(wanted.begin, wanted.identity, last=wanted.after)})
            again = Range(PARTITION, wanted.begin, reached, wanted.identity, sparse=True, after=wanted.after)
            assert whole(list(source.read(again))) == expected


@pytest.mark.long
def test_instances_with_and_without_a_stream_take_turns(client: PersistClient, table: PgTable) -> None:
    table.insert((1, "a"), (2, "b"))
    for number in range(6):
        source, ingestion = opened(client, table, streams=number % 2 == 0)
        with closing(source):
            table.run("UPDATE orders SET name = name || %s", str(number))
            drained(ingestion)
            table.insert((10 + number, "x"))
            drained(ingestion)
            assert rows(client) == table.rows()
    until(lambda: is_confirmed(client, table))


# The cost


def spilled(table: PgTable) -> int:
    """The bytes of open transactions that the server has decoded and put aside."""
    ((found,),) = table.run(
        "SELECT sum(spill_bytes)::bigint FROM pg_stat_replication_slots WHERE slot_name = ANY (%s)",
        table.slots(),
    )
    return int(found)


@pytest.mark.parametrize("streams", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_step_costs_the_same_behind_a_large_open_transaction(
    client: PersistClient, table: PgTable, streams: bool
) -> None:
    table.run(f"ALTER DATABASE {table.database} SET logical_decoding_work_mem = '64kB'")
    table.run("CREATE TABLE large (filler text)")
    table.run("ALTER TABLE large ALTER COLUMN filler SET STORAGE PLAIN")
    source, ingestion = opened(client, table, streams=streams)
    with closing(source), psycopg.connect(table.url) as other:
        drained(ingestion)
        costs, before = [], 0
        for number in range(4):
            other.execute("INSERT INTO large SELECT repeat('x', 1000) FROM generate_series(1, 4000)")
            table.insert((number, "x"))
            assert ingestion.step().outcome is StepOutcome.COMMITTED
            until(lambda: is_confirmed(client, table))
            costs.append(spilled(table) - before)
            before += costs[-1]
        assert rows(client) == table.rows()
    each = 4_000_000
    if streams:
        assert all(each * 0.8 < cost < each * 1.5 for cost in costs), costs
    else:
        assert all(cost > each * 0.8 * (1 + at) for at, cost in enumerate(costs)), costs


@pytest.mark.parametrize("streams", [True, False])
def test_a_backlog_behind_a_slot_that_lags_is_read_in_steps(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    source, ingestion = opened(client, table, streams=False)
    with closing(source), monkeypatch.context() as patched:
        # It stands for a process that is killed between its commit and the move of the slot.
        patched.setattr(Postgres, "_acknowledge", lambda _: None)
        drained(ingestion)
        for number in range(30):
            table.insert((number, "bound"))
        drained(ingestion)
    confirmed = table.confirmed()
    for number in range(100, 140):
        table.insert((number, "new"))
    asked = []
    peek = Postgres._peek

    def noted_peek(source: Postgres, slot: str, end: int, most: int | None = None) -> Iterator[bytes]:
        asked.append((end, most))
        return peek(source, slot, end, most)

    monkeypatch.setattr(Postgres, "_peek", noted_peek)
    bound = positions(client)[PARTITION]
    source, ingestion = opened(client, table, streams=streams, block={"batch": {"maxRows": 20}})
    with closing(source):
        steps = []
        while (step := ingestion.step()).outcome is StepOutcome.COMMITTED:
            steps.append(step.messages)
    # A transaction has three messages in the log, and the first one has a fourth.
    assert (max(steps), sum(steps)) == (7, 40), steps
    # The server, too, puts aside no more than a step needs.
    assert all(most is not None or end == bound for end, most in asked)
    assert bool(asked) is not streams
    until(lambda: is_confirmed(client, table))
    assert table.confirmed() > confirmed
    assert rows(client) == table.rows()


# What is confirmed


def test_what_is_read_and_not_bound_is_not_confirmed(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_stream, "_STATUS_S", 0.05)
    monkeypatch.setattr(postgres_rows, "_PIECE_ROWS", 2)
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
        confirmed = table.confirmed()
        for number in range(3):
            table.insert((number, "a"), (10 + number, "b"))
        (wanted,) = source.probe(ingestion.bound)
        pieces = list(source.read(wanted))
        assert sum(each.messages.num_rows for each in pieces) == 6
        time.sleep(0.5)
        assert table.confirmed() == confirmed
        # Nobody bound it, so that it is read again.
        source.probe(ingestion.bound)
        assert table.confirmed() == confirmed
        assert drained(ingestion) == 1
        until(lambda: is_confirmed(client, table))
        assert table.confirmed() > confirmed
        assert rows(client) == table.rows()


def test_idle_steps_move_the_slot_and_keep_the_stream(client: PersistClient, table: PgTable) -> None:
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        drained(ingestion)
        (process,) = receivers(table)
        before = table.confirmed()
        for _ in range(3):
            # They are read, and not bound yet.
            table.run("SELECT pg_logical_emit_message(false, '', repeat('x', 100000))")
            assert ingestion.step().outcome is StepOutcome.IDLE
        ingestion._moved_s = -1e9
        step = ingestion.step()
        assert (step.outcome, step.messages) == (StepOutcome.COMMITTED, 0)
        until(lambda: is_confirmed(client, table))
        assert table.confirmed() > before + 300_000
        table.insert((2, "b"))
        assert drained(ingestion) == 1
        assert rows(client) == table.rows()
        assert receivers(table) == [process]


# Instances that wait, and those that are gone


def test_another_instance_waits_and_takes_over(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_SHOWN_AFTER_S", 0.0)
    table.insert((1, "a"))
    mine, ingestion = opened(client, table)
    drained(ingestion)
    table.insert((2, "b"))
    drained(ingestion)
    others = [opened(client, table, streams=streams) for streams in (True, False)]
    told = [noted(source) for source, _ in others]
    table.insert((3, "c"))
    for _, other in [*others, *others]:
        assert other.step().outcome is StepOutcome.IDLE
    where = f"127.0.0.1:{table.server.port}/{table.database}"
    line = f"waiting for another instance: it uses the slot of table public.orders at {where}"
    assert told == [[line], [line]]
    assert drained(ingestion) == 1
    table.insert((4, "d"))
    # It ends as a process that is killed: only its connections end.
    assert mine._stream is not None
    mine._stream._connection.close()
    until(lambda: not receivers(table))
    for _, other in reversed(others):
        drained(other)
        assert rows(client) == table.rows()
        table.insert((table.rows().total() + 1, "e"))
    # The one without the slot goes on once it is free.
    for source, other in others:
        drained(other)
        source.close()
    assert all(len(each) == 2 and each[1].startswith("going on after ") for each in told)
    drained(ingestion)
    mine.close()
    assert rows(client) == table.rows()
    assert len(table.slots()) == 1


@pytest.mark.long
def test_the_server_ends_the_stream_of_an_instance_that_says_nothing(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_stream, "_GONE_S", 1)
    monkeypatch.setattr(postgres_stream, "_STATUS_S", 0.1)
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        drained(ingestion)
        (process,) = receivers(table)
        # A step that takes long loses nothing.
        time.sleep(2.5)
        assert receivers(table) == [process]
        # It stands for an instance that is stopped, or whose machine is gone.
        monkeypatch.setattr(postgres_stream, "_UNUSED_S", 0.0)
        until(lambda: not receivers(table))
        other, twin = opened(client, table)
        with closing(other):
            table.insert((2, "b"))
            assert drained(twin) == 1
        table.insert((3, "c"))
        assert drained(ingestion) == 1
    assert rows(client) == table.rows()


def test_a_stream_that_is_lost_in_the_middle_is_read_again(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_rows, "_PIECE_ROWS", 500)
    source, ingestion = opened(client, table)
    with closing(source):
        drained(ingestion)
        for number in range(10):
            table.run(
                "INSERT INTO orders SELECT 10000 * %s + each, repeat('x', 1000)"
                " FROM generate_series(1, 1000) each",
                number,
            )
        (wanted,) = source.probe(ingestion.bound)
        pieces = source.read(wanted)
        next(pieces)
        table.run("SELECT pg_terminate_backend(%s)", receivers(table)[0])
        with pytest.raises(SourceChanged, match=r"can't read the changes of table public\.orders"):
            list(pieces)
        assert table.confirmed() == positions(client)[PARTITION]
        drained(ingestion)
        assert rows(client) == table.rows()
        # Between two steps, too.
        table.run("SELECT pg_terminate_backend(%s)", receivers(table)[0])
        until(lambda: not receivers(table))
        table.insert((-1, "a"))
        drained(ingestion)
        assert rows(client) == table.rows()
        # A slot that somebody drops is lost.
        (slot,) = table.slots()
        table.run("SELECT pg_terminate_backend(%s)", receivers(table)[0])
        until(lambda: not receivers(table))
        table.run("SELECT pg_drop_replication_slot(%s)", slot)
        table.insert((-2, "lost"))
        with pytest.raises(Exception, match=f"slot {slot} doesn't exist any more"):
            drained(ingestion)


# Without a stream


def noted(source: Postgres) -> list[str]:
    """What the source tells its user from now on."""
    told: list[str] = []
    source._waits = source._table.waits = Waits(told.append)
    return told


def test_without_a_free_sender_it_peeks_and_says_so(client: PersistClient, table: PgTable) -> None:
    source, ingestion = opened(client, table)
    told = noted(source)
    with closing(source), ExitStack() as stack:
        drained(ingestion)
        source._end_stream()
        senders = int(table.run("SELECT current_setting('max_wal_senders')")[0][0])
        for _ in range(senders):
            connection = psycopg.connect(f"{table.url}?replication=database", autocommit=True)
            stack.enter_context(closing(connection))
        for number in range(3):
            table.insert((number, "a"))
            assert drained(ingestion) == 1
        assert receivers(table) == []
        (line,) = told
        assert "without a stream: number of requested standby connections exceeds max_wal_senders" in line
        stack.close()
        source._no_stream_until = 0.0
        table.insert((4, "b"))
        until(lambda: drained(ingestion) or receivers(table))
        assert rows(client) == table.rows()


def test_without_a_free_slot_or_sender_one_line_says_what_to_do(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_asked, "PATIENCE_S", 0.5)
    monkeypatch.setattr(waits, "_SHOWN_AFTER_S", 0.0)
    table.insert((1, "a"))
    source, ingestion = opened(client, table)
    told = noted(source)
    with closing(source):
        # It binds the name of its slot.
        ingestion.step()
        with ExitStack() as stack:
            for _ in range(int(table.run("SELECT current_setting('max_wal_senders')")[0][0])):
                connection = psycopg.connect(f"{table.url}?replication=database", autocommit=True)
                stack.enter_context(closing(connection))
            with pytest.raises(StoreUnreachable, match="exceeds max_wal_senders") as senders:
                until(lambda: drained(ingestion))
        free = int(table.run("SELECT current_setting('max_replication_slots')")[0][0])
        free -= len(table.run("SELECT slot_name FROM pg_replication_slots"))
        for number in range(free):
            table.run("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", f"full_{number}")
        with pytest.raises(StoreUnreachable, match="all replication slots are in use") as slots:
            drained(ingestion)
        table.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE starts_with(slot_name, 'full_')"
        )
        assert drained(ingestion)
    assert str(slots.value.hint).endswith("or raise max_replication_slots")
    assert str(senders.value.hint).endswith("or raise max_wal_senders")
    assert not any("\n" in str(each.value) for each in (slots, senders))
    # It tries again for a while, and says what it waits for.
    assert [each.rpartition(": ")[2][:35] for each in told[:1]] == ["number of requested standby connect"]
    assert rows(client) == table.rows()


def test_a_stream_is_no_synchronous_standby(client: PersistClient, table: PgTable) -> None:
    source, ingestion = opened(client, table)
    told = noted(source)
    with closing(source):
        drained(ingestion)
        table.insert((1, "a"))
        drained(ingestion)
        assert receivers(table)
        table.insert((2, "b"))
        table.run("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        table.run("SELECT pg_reload_conf()")
        try:
            shown = "SELECT current_setting('synchronous_standby_names')"
            until(lambda: source._client.rows(shown) == [("ANY 1 (*)",)])
            assert drained(ingestion) == 1
            assert receivers(table) == []
            assert "without a stream: synchronous_standby_names has *" in told[0]
        finally:
            table.run("ALTER SYSTEM RESET synchronous_standby_names")
            table.run("SELECT pg_reload_conf()")
        assert rows(client) == table.rows()


def test_a_role_without_replication_is_refused(
    client: PersistClient, table: PgTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.run("CREATE ROLE feeder LOGIN PASSWORD 'p' REPLICATION")
    try:
        table.run("GRANT SELECT ON orders TO feeder")
        monkeypatch.setenv("PGPASSWORD", "p")
        url = table.server.url(table.database, password=False).replace("postgres@", "feeder@")
        source, ingestion = opened(client, table, url=url)
        with closing(source):
            drained(ingestion)
            table.insert((1, "a"))
            assert drained(ingestion) == 1
            source._end_stream()
            table.run("ALTER ROLE feeder NOREPLICATION")
            table.insert((2, "b"))
            with pytest.raises(StoreUnreachable) as told:
                drained(ingestion)
            assert "the role needs REPLICATION" in str(told.value.hint)
    finally:
        table.run("DROP OWNED BY feeder")
        table.run("DROP ROLE feeder")


# Processes and the server


@pytest.mark.long
def test_a_killed_process_is_followed_by_its_twin_and_holds_up_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer.start(wal_level="logical") as server:
        monkeypatch.setenv("PGPASSWORD", server.password)
        table = PgTable(server, "postgres", "id bigint PRIMARY KEY, amount bigint NOT NULL")
        table.run("INSERT INTO orders VALUES (1, 1)")
        location(tmp_path, table)
        first = started(tmp_path)
        second = None
        try:
            until(lambda: receivers(table))
            second = started(tmp_path)
            table.run("INSERT INTO orders SELECT each, 1 FROM generate_series(2, 3000) each")
            first.send_signal(signal.SIGKILL)
            first.wait()
            table.run("DELETE FROM orders WHERE id < 1000")
            until(lambda: rows_in(tmp_path) == table.rows("id, amount"))
            until(lambda: receivers(table))
            table.connection.close()
            began_s = time.monotonic()
            server.stop()
            assert time.monotonic() - began_s < 20
            wait_for_line(tmp_path, "waiting for Postgres at ")
            server.resume()
            table.reconnect()
            table.run("INSERT INTO orders VALUES (1, 2)")
            until(lambda: rows_in(tmp_path) == table.rows("id, amount"))
        finally:
            for each in (first, second):
                if each is not None:
                    each.kill()
                    each.communicate()
        until(lambda: not receivers(table))
        assert ingested(tmp_path).exit_code == 0
        assert rows_in(tmp_path) == table.rows("id, amount")
        assert len(table.slots()) == 1
        table.connection.close()
