"""Kills of ingesting processes and of Postgres, while transactions go on: each change counts once."""

import contextlib
import json
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import psycopg
import pytest

import holdfast
from testbed.postgres import PostgresServer
from unit.ingest.pgtable import DEADLINE_S, PgTable
from unit.ingest.test_ingest_cli import ingested, started, wait_for_line

pytestmark = pytest.mark.postgres

KEYS: Final = 40


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[PgTable]:
    """A table on a server of its own, which survives its kills."""
    with PostgresServer.start(wal_level="logical") as server:
        monkeypatch.setenv("PGPASSWORD", server.password)
        table = PgTable(server, "postgres", "id bigint PRIMARY KEY, amount bigint NOT NULL")
        table.run("INSERT INTO orders SELECT each, 100 FROM generate_series(1, %s) each", KEYS // 2)
        yield table
        table.connection.close()


class Transfers:
    """Transactions in a thread that keep the sum of all amounts."""

    def __init__(self, table: PgTable, seed: int) -> None:
        self._table = table
        self._draw = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed = 0
        self.error = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self.error == ""

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                with contextlib.suppress(psycopg.OperationalError):
                    self._connected()
                time.sleep(0.05)
        except psycopg.Error as error:
            self.error = str(error)

    def _connected(self) -> None:
        with psycopg.connect(self._table.url, autocommit=True) as connection:
            while not self._ended.wait(0.005):
                with connection.transaction():
                    self._transfer(connection)
                self.committed += 1

    def _transfer(self, connection: psycopg.Connection) -> None:
        one, two = self._draw.sample(range(1, KEYS + 1), 2)
        add = "INSERT INTO orders AS o VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET amount = o.amount + %s"
        for id_, amount in ((one, 7), (two, -7)):
            connection.execute(add, (id_, amount, amount))
        connection.execute("DELETE FROM orders WHERE amount = 0")
        if self._draw.random() < 0.2:
            moved = (
                "UPDATE orders SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM orders WHERE id = %s)"
            )
            connection.execute(moved, (two, one, two))
            connection.execute(moved, (one + KEYS, one, one + KEYS))


def location(folder: Path, table: PgTable) -> None:
    block = {
        "postgres": table.block(),
        "run": {"interval": "20ms", "progressInterval": "1s"},
        "batch": {"maxRows": 50},
    }
    columns = {"key": {"id": "int64"}, "columns": {"amount": "int64"}}
    (folder / "orders.yaml").write_text(json.dumps({"collection": "orders", **columns, "source": block}))


def rows(folder: Path) -> Counter[tuple[int, int]]:
    with holdfast.table(f"file://{folder}/location", "orders") as found:
        return Counter((row["id"], row["amount"]) for row in found.read().to_pylist())


def check_sum(folder: Path, told: str) -> bool:
    """Each time has all of a transaction, and all of the initial contents or nothing."""
    try:
        total = sum(amount for _, amount in rows(folder))
    except holdfast.HoldfastError:
        # The collection is not there yet.
        return False
    assert total in {0, 100 * KEYS // 2}, told
    return total > 0


@pytest.mark.long
def test_kills_of_instances_lose_and_repeat_nothing(tmp_path: Path, table: PgTable) -> None:
    seed = random.randrange(2**32)
    told = f"seed {seed}"
    draw = random.Random(seed)
    location(tmp_path, table)
    processes = [started(tmp_path) for _ in range(2)]
    with Transfers(table, seed) as transfers, contextlib.ExitStack() as stack:
        stack.callback(lambda: [end(each) for each in processes])
        for _ in range(8):
            until = time.monotonic() + 0.3 + draw.random() * 2
            while time.monotonic() < until:
                check_sum(tmp_path, told)
                time.sleep(0.1)
            victim = draw.randrange(2)
            assert processes[victim].poll() is None, (told, (tmp_path / "stderr").read_text()[-2000:])
            end(processes[victim])
            processes[victim] = started(tmp_path)
    check(tmp_path, table, transfers, told)


@pytest.mark.long
def test_a_killed_server_loses_and_repeats_nothing(tmp_path: Path, table: PgTable) -> None:
    seed = random.randrange(2**32)
    location(tmp_path, table)
    process = started(tmp_path)
    try:
        with Transfers(table, seed) as transfers:
            for number in range(3):
                deadline = time.monotonic() + DEADLINE_S
                before = transfers.committed
                while transfers.committed < before + 30 or not check_sum(tmp_path, f"seed {seed}"):
                    assert process.poll() is None, (tmp_path / "stderr").read_text()[-2000:]
                    assert time.monotonic() < deadline, (tmp_path / "stderr").read_text()[-2000:]
                    time.sleep(0.05)
                if number < 2:
                    table.server.kill()
                    wait_for_line(tmp_path, "waiting for Postgres at ")
                    table.server.resume()
    finally:
        end(process)
    wait_for_line(tmp_path, "going on after ")
    check(tmp_path, table, transfers, f"seed {seed}")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def check(folder: Path, table: PgTable, transfers: Transfers, told: str) -> None:
    """The collection has what the table has, and no slot is left over."""
    result = ingested(folder)
    assert result.exit_code == 0, f"{told}: {result.stderr}"
    assert transfers.committed > 50, told
    table.reconnect()
    assert rows(folder) == table.rows("id, amount"), told
    assert len(table.slots()) == 1, told
