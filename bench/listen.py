"""The time from the end of an append until a listener has its rows, and the cost of a waiting listener.

Timed: a writer appends 10 rows with the default settings every 20 ms or so. A listener, in another thread
of the client (same process) or in another process, waits in `Listen.next`. Both note the time of the host's
monotonic clock: the writer when its append returns, the listener when it has the rows in memory. `ours` is
the median of the difference, so it doesn't include the append. It can be below zero, because a listener may
see a commit before the append returns. `peer` is the goal in ms: there is no other system to compare with.

The note has the p99 and the processor time of the listener's process while nothing is written, in percent
of one core.
"""

import multiprocessing as mp
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from append import SCHEMA, ten_rows
from common import Goal, Row, main, median, percentile, scratch

from holdfast.persist import Listen, PersistClient, Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from testbed.postgres import PostgresServer

ROUNDS = 200
WARMUP = 20
PAUSE_S = 0.02
IDLE_S = 5.0


def hear(listen: Listen, count: int) -> dict[int, float]:
    """Return when each of the next `count` frontiers arrived, by frontier."""
    heard: dict[int, float] = {}
    while len(heard) < count:
        for event in listen.next(60):
            if isinstance(event, Progress):
                heard[event.frontier] = time.monotonic()
    return heard


def listening(pipe: Connection, places: dict[str, Any], shard: str) -> None:
    """Run the other process: wait idle for a while, then listen."""
    with PersistClient.open(**places) as client:
        listen = client.reader(shard, purpose="bench listen").listen(0)
        listen.next(1.0)
        begun = time.process_time()
        listen.next(IDLE_S)
        pipe.send((time.process_time() - begun) / IDLE_S)
        heard: dict[int, float] = {}
        while max(heard, default=0) < ROUNDS + WARMUP + 1:
            heard.update(hear(listen, 1))
        pipe.send(heard)


def append_all(client: PersistClient, shard: str) -> dict[int, float]:
    """Return when each append was done, by the frontier that it made."""
    writer = client.writer(shard, SCHEMA, purpose="bench listen")
    rows = ten_rows()
    done: dict[int, float] = {}
    for upper in range(1, ROUNDS + WARMUP + 1):
        writer.compare_and_append(rows, upper, upper + 1)
        done[upper + 1] = time.monotonic()
        time.sleep(PAUSE_S)
    return done


def late(done: dict[int, float], heard: dict[int, float]) -> list[float]:
    """Return the milliseconds from the end of each append to its arrival, perhaps with a later one."""
    found = []
    for frontier in sorted(done)[WARMUP:]:
        first = min(at for reached, at in heard.items() if reached >= frontier)
        found.append((first - done[frontier]) * 1e3)
    return found


def in_another_process(places: dict[str, Any]) -> tuple[list[float], float]:
    """Measure the delay of a listener in another process, and its cost while it waits."""
    with PersistClient.open(**places) as client:
        shard = client.new_shard_id()
        client.writer(shard, SCHEMA, purpose="bench listen").seal(1)
        ours, theirs = mp.Pipe()
        process = mp.get_context("spawn").Process(target=listening, args=(theirs, places, shard))
        process.start()
        idle = ours.recv()
        done = append_all(client, shard)
        heard = ours.recv()
        process.join()
    return late(done, heard), idle


def in_this_process(places: dict[str, Any]) -> tuple[list[float], float]:
    """Measure the same for a thread of the writing client."""
    with PersistClient.open(**places) as client:
        shard = client.new_shard_id()
        client.writer(shard, SCHEMA, purpose="bench listen").seal(1)
        listen = client.reader(shard, purpose="bench listen").listen(0)
        listen.next(1.0)
        begun = time.process_time()
        listen.next(IDLE_S)
        idle = (time.process_time() - begun) / IDLE_S
        heard: dict[int, float] = {}

        def follow() -> None:
            while max(heard, default=0) < ROUNDS + WARMUP + 1:
                heard.update(hear(listen, 1))

        thread = threading.Thread(target=follow)
        thread.start()
        done = append_all(client, shard)
        thread.join()
    return late(done, heard), idle


def row(name: str, goal_ms: float, measured: tuple[list[float], float]) -> Row:
    """Return a row of the table."""
    lateness, idle = measured
    note = f"p50 of {ROUNDS} beyond the append; p99 {percentile(lateness, 99):.2f} ms;"
    note += f" mean {statistics.fmean(lateness):.2f} ms; idle {idle * 100:.2f} % of a core"
    return Row(f"write -> listener, {name} / goal", median(lateness), goal_ms, "ms", Goal("<=", 1), note)


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    measures: list[tuple[str, float, Callable[[dict[str, Any]], tuple[list[float], float]]]] = [
        ("same process", 1.0, in_this_process),
        ("other process, SQLite", 10.0, in_another_process),
    ]
    for name, goal_ms, measure in measures:
        with scratch() as folder:
            yield row(name, goal_ms, measure({"url": f"file://{folder}/holdfast"}))
    with scratch() as folder, PostgresServer.start() as server, server.database() as name:
        places = {"blob": f"file://{folder}", "consensus": server.url(name)}
        yield row("Postgres", 3.0, in_another_process(places))


if __name__ == "__main__":
    main(rows)
