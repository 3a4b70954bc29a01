"""Fleets on one Postgres server on two cores: a thousand shards of one process, and ten thousand writers.

A thousand shards, one append per second to each: are two cores enough? One client process appends one row at
a time, with file blobs and Postgres consensus. Its threads take the shards in turns as fast as they can. The
server runs on the same two cores. The result is appends per second against the goal of 600, that is, the
number of shards that can get an append each second.

The note shows the rate of the server when its client costs almost nothing: `pgbench` (psycopg if it is
missing) with as many connections, each transaction one INSERT of as many bytes as our log rows have. It
also shows appends per second by number of threads, the CPU time of an append in the client, and the memory
of the client per open shard. The rate stops growing at the store's number of connections, 8. An append
spends most of its time waiting until the server flushes its log, which the server does for all connections
at once. With more threads, the others wait for a connection instead.

Ten thousand writers: where is the knee? `pgbench` stands in for them, because their own processes don't fit
on the machine. It sends the statement of an append to the tables of a real location, to one of 10,000 shards
at random, at a given rate, through 64 connections that are 1 ms away. A row is as large as ours. The latency
counts from the moment at which an append is due. The result is the greatest rate at which 99 % of the appends
take at most 50 ms, against one append per writer in 10 seconds. The note shows the latencies at each rate.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
from append_postgres import log_row_bytes
from common import Goal, Row, log, main, median, percentile, scratch

from holdfast.persist import PersistClient, Schema, WriteHandle
from holdfast.persist.stores.postgres import POOL_SIZE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.postgres import PostgresServer, find

SHARDS = 1000
SECONDS = 5.0
ROUNDS = 3
THREADS = (1, 2, 4, 8, 16)
WRITERS = 10_000
FLEET_SECONDS = 10
CONNECTIONS = 64
AWAY_MS = 1
RATES = (500, 1000, 2000, 3000, 4000, 6000, 8000)
MOST_MS = 50.0
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


def pgbench() -> str:
    """Return the path of `pgbench`, or nothing if it is missing."""
    binary = find()
    path = shutil.which("pgbench") or (str(binary / "pgbench") if binary else "")
    return path if Path(path).is_file() else ""


def bare_inserts(server: PostgresServer, database: str, size: int, connections: int, folder: Path) -> float:
    """Return plain INSERTs of `size` bytes per second over so many connections."""
    if not pgbench():
        return psycopg_inserts(server.url(database), size, connections)
    script = folder / "insert.sql"
    script.write_text(
        "\\set key random(1, 1000)\n"
        f"INSERT INTO bare VALUES (:key, nextval('bare_seqno'), '\\x{bytes(size).hex()}'::bytea);\n"
    )
    flags = ["-n", "-M", "prepared", "-f", str(script), "-c", str(connections), "-T", str(int(SECONDS))]
    done = subprocess.run(
        [pgbench(), *flags, server.url(database)], capture_output=True, text=True, check=True
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tps")]
    return float(line.split()[2])


def latencies(server: PostgresServer, database: str, script: Path, rate: int) -> list[float]:
    """Return the milliseconds of appends that are due at a rate per second, of those that began."""
    with tempfile.TemporaryDirectory(dir=script.parent) as logs:
        flags = ["-n", "-M", "prepared", "-f", str(script), "-c", str(CONNECTIONS), "-j", "2"]
        flags += ["-T", str(FLEET_SECONDS), "-R", str(rate), "-l", "--log-prefix", f"{logs}/log"]
        command = [pgbench(), *flags, server.url(database)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        # The third field is the time in microseconds.
        found = [line.split()[2] for path in Path(logs).iterdir() for line in path.read_text().splitlines()]
    return [int(each) / 1000 for each in found]


def knee(server: PostgresServer, folder: Path) -> Row:
    """Find the greatest rate that a fleet of writers can have."""
    with server.database() as database, psycopg.connect(server.url(database), autocommit=True) as connection:
        with PersistClient.open(blob=f"file://{folder}/fleet", consensus=server.url(database)) as client:
            append(client.writer(client.new_shard_id(), SCHEMA, purpose="bench fleet"))
        size = log_row_bytes(connection)
        for table, columns in (("keys", "format('w%s', n)"), ("entries", "format('w%s', n), 1, ''")):
            connection.execute(
                f"INSERT INTO holdfast.{table} SELECT {columns} FROM generate_series(1, {WRITERS}) AS n"
            )
        connection.execute("VACUUM ANALYZE")
        script = folder / "append.sql"
        script.write_text(
            f"\\set n random(1, {WRITERS})\n\\sleep {AWAY_MS} ms\n"
            "INSERT INTO holdfast.entries (key, seqno, data)"
            f" SELECT k.key, prev.seqno + 1, '\\x{bytes(size).hex()}'"
            " FROM holdfast.keys AS k JOIN LATERAL (SELECT seqno, key FROM holdfast.entries AS e"
            " WHERE e.key = k.key ORDER BY seqno DESC LIMIT 1) AS prev ON true"
            " WHERE k.key = format('w%s', :n::int)"
            " FOR NO KEY UPDATE OF k ON CONFLICT (key, seqno) DO NOTHING;\n"
        )
        best, told = 0, []
        for rate in RATES:
            found = latencies(server, database, script, rate)
            half, most = percentile(found, 50), percentile(found, 99)
            told.append(f"{rate}: {half:.1f} and {most:.1f}")
            log(f"{rate} appends/s: 50 % within {half:.1f} ms, 99 % within {most:.1f} ms")
            if most > MOST_MS:
                break
            best = rate
    return Row(
        f"{WRITERS:,} writers on one Postgres, knee / an append each 10 s",
        best,
        WRITERS / 10,
        "appends/s",
        Goal(">=", 1),
        f"50 % and 99 % of the appends within ms, by rate: {'; '.join(told)}",
    )


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
    if not pgbench():
        log("no knee: pgbench is missing")
        return
    with scratch() as folder, PostgresServer.start() as server:
        yield knee(server, folder)


if __name__ == "__main__":
    main(rows)
