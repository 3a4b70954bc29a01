"""A thousand shards on one Postgres server, one append per second to each: are two cores enough?

One client process appends one row at a time, with file blobs and Postgres consensus. Its threads take the
shards in turns as fast as they can. The server runs on the same two cores. The result is appends per second
against the goal of 600, that is, the number of shards that can get an append each second.

The note shows the rate of the server when its client costs almost nothing: `pgbench` (psycopg if it is
missing) with as many connections, each transaction one INSERT of as many bytes as our log rows have. It
also shows appends per second by number of threads, the CPU time of an append in the client, and the memory
of the client per open shard. The rate stops growing at the store's number of connections, 8. An append
spends most of its time waiting until the server flushes its log, which the server does for all connections
at once. With more threads, the others wait for a connection instead.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
from append_postgres import log_row_bytes
from common import Goal, Row, log, main, median, scratch

from holdfast.persist import PersistClient, Schema, WriteHandle
from holdfast.persist.stores.postgres import POOL_SIZE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.postgres import PostgresServer, find

SHARDS = 1000
SECONDS = 5.0
ROUNDS = 3
THREADS = (1, 2, 4, 8, 16)
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string"})


def make_fleet(client: PersistClient) -> tuple[list[WriteHandle], float]:
    """Return the writers of new shards, each with one append, and the bytes of memory of one."""
    before = resident()
    writers = [client.writer(client.new_shard_id(), SCHEMA, purpose="bench fleet") for _ in range(SHARDS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, writers))
    return writers, (resident() - before) / SHARDS


def append(writer: WriteHandle) -> None:
    """Do one append."""
    upper = writer.cached_upper
    writer.compare_and_append([{"id": upper, "name": "a name"}], upper, upper + 1)


def sail(writers: Sequence[WriteHandle], threads: int) -> tuple[float, float]:
    """Return appends per second with so many threads, and the share of one core that this process used."""
    end = time.monotonic() + SECONDS
    started, cpu = time.monotonic(), time.process_time()

    def some(number: int) -> int:
        mine = writers[number::threads]
        done = 0
        while True:
            for writer in mine:
                if time.monotonic() >= end:
                    return done
                append(writer)
                done += 1

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(some, range(threads)))
    seconds = time.monotonic() - started
    return done / seconds, (time.process_time() - cpu) / seconds


def resident() -> int:
    """Return the resident size of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bare_inserts(server: PostgresServer, database: str, size: int, connections: int, folder: Path) -> float:
    """Return plain INSERTs of `size` bytes per second over so many connections."""
    binary = find()
    pgbench = shutil.which("pgbench") or (str(binary / "pgbench") if binary else "")
    if not Path(pgbench).is_file():
        return psycopg_inserts(server.url(database), size, connections)
    script = folder / "insert.sql"
    script.write_text(
        "\\set key random(1, 1000)\n"
        f"INSERT INTO bare VALUES (:key, nextval('bare_seqno'), '\\x{bytes(size).hex()}'::bytea);\n"
    )
    flags = ["-n", "-M", "prepared", "-f", str(script), "-c", str(connections), "-T", str(int(SECONDS))]
    done = subprocess.run([pgbench, *flags, server.url(database)], capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tps")]
    return float(line.split()[2])


def psycopg_inserts(url: str, size: int, connections: int) -> float:
    """Measure the same with psycopg, if there is no pgbench."""
    end = time.monotonic() + SECONDS

    def insert(_: int) -> int:
        done = 0
        with psycopg.connect(url, autocommit=True) as connection:
            while time.monotonic() < end:
                connection.execute(
                    "INSERT INTO bare VALUES (%s, nextval('bare_seqno'), %s)", (done % 1000, bytes(size))
                )
                done += 1
        return done

    with ThreadPoolExecutor(connections) as pool:
        return sum(pool.map(insert, range(connections))) / SECONDS


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    with scratch() as folder, PostgresServer.start() as server, server.database() as name:
        url = server.url(name)
        with (
            psycopg.connect(url, autocommit=True) as connection,
            PersistClient.open(blob=f"file://{folder}/blob", consensus=url) as client,
        ):
            connection.execute(
                "CREATE TABLE bare (key bigint, seqno bigint, data bytea, PRIMARY KEY (key, seqno))"
            )
            connection.execute("CREATE SEQUENCE bare_seqno")
            log(f"making {SHARDS} shards")
            writers, memory = make_fleet(client)
            size = log_row_bytes(connection)
            knee = {}
            for threads in THREADS:
                knee[threads] = sail(writers, threads)
                log(f"{threads} threads: {knee[threads][0]:.0f} appends/s")
            best = max(knee, key=lambda threads: knee[threads][0])
            ours: list[float] = []
            peer: list[float] = []
            busy: list[float] = []
            for _ in range(ROUNDS):
                rate, cpu = sail(writers, best)
                ours.append(rate)
                busy.append(cpu)
                peer.append(bare_inserts(server, name, size, min(best, POOL_SIZE), folder))
    by_threads = ", ".join(f"{rate:.0f} with {threads}" for threads, (rate, _) in knee.items())
    yield Row(
        f"{SHARDS} shards on Postgres, appends / goal of 600 a second",
        median(ours),
        600,
        "appends/s",
        Goal(">=", 1),
        f"median of {ROUNDS} rounds of {SECONDS:.0f} s, {best} threads; by threads: {by_threads};"
        f" {median(busy) * 1e3 / median(ours):.2f} ms of the client's processor time per append"
        f" ({median(busy) * 100:.0f} % of one core);"
        f" pgbench: {median(peer):.0f} INSERTs/s of {size} bytes, of which ours is"
        f" {median(ours) / median(peer):.2f};"
        f" {memory / 1024:.0f} KiB per open shard",
    )


if __name__ == "__main__":
    main(rows)
