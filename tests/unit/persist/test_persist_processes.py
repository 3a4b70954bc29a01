"""Concurrent clients: listeners in threads, processes on one SQLite file, a fresh start."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import UpperMismatch
from holdfast.persist import PersistClient, PersistConfig, Progress, ReadHandle, Updates
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, contents, rows

CONFIG = PersistConfig(gc_grace_s=0.0, debug_validate=True, rollup_every=16, lease_s=60.0)
COUNT = 60


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}"


@pytest.fixture
def client(url: str) -> Iterator[PersistClient]:
    with PersistClient.open(url, config=CONFIG) as client:
        yield client


def follow(reader: ReadHandle, until: int, ready: threading.Event) -> Counter[tuple[int, int]]:
    """The keys and times of all changes before `until`."""
    listen = reader.listen(0)
    ready.set()
    found: Counter[tuple[int, int]] = Counter()
    frontier = 0
    while frontier < until:
        for event in listen.next(timeout=30):
            match event:
                case Updates(table):
                    assert table["_time"].to_pylist()[0] >= frontier
                    found.update(zip(table["k"].to_pylist(), table["_time"].to_pylist(), strict=True))
                case Progress(frontier):
                    pass
    return found


@pytest.mark.parametrize("other", ["thread", "client", "reading client"])
def test_a_listener_elsewhere_hears_each_append_once(client: PersistClient, url: str, other: str) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.seal(1)
    mode = "read" if other == "reading client" else "write"
    listening = client if other == "thread" else PersistClient.open(url, mode=mode, config=CONFIG)  # type: ignore[arg-type]
    ready = threading.Event()
    with ThreadPoolExecutor() as pool:
        reader = listening.reader(SHARD, purpose="test")
        heard = pool.submit(follow, reader, COUNT, ready)
        assert ready.wait(30)
        for time in range(1, COUNT):
            writer.compare_and_append(rows(time), time, time + 1)
        assert heard.result(60) == {(time, time): 1 for time in range(1, COUNT)}
    if listening is not client:
        listening.close()


def test_iterating_waits_for_what_comes(client: PersistClient) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.seal(1)
    with ThreadPoolExecutor() as pool:
        listen = client.reader(SHARD, purpose="test").listen(0)
        heard = pool.submit(lambda: [*listen])
        writer.compare_and_append(rows(1), 1, 2)
        writer.seal(1 << 64)
        events = heard.result(60)
    assert events[-1] == Progress(1 << 64)
    assert sum(event.table.num_rows for event in events if isinstance(event, Updates)) == 1


def test_writers_in_several_clients_and_threads_lose_nothing(client: PersistClient, url: str) -> None:
    clients = [client, PersistClient.open(url, config=CONFIG), PersistClient.open(url, config=CONFIG)]

    def work(number: int) -> int:
        mine = clients[number % len(clients)]
        writer = mine.writer(SHARD, SCHEMA, purpose=f"writer {number}")
        lost = 0
        for step in range(COUNT // 3):
            while True:
                upper = writer.cached_upper
                try:
                    writer.compare_and_append(rows(number * 1000 + step), upper, upper + 1)
                    break
                except UpperMismatch:
                    lost += 1
        return lost

    with ThreadPoolExecutor(6) as pool:
        lost = sum(pool.map(work, range(6)))
    wanted = {(number * 1000 + step, "x"): 1 for number in range(6) for step in range(COUNT // 3)}
    for each in clients:
        upper = each.recent_upper(SHARD)
        assert upper == len(wanted)
        assert contents(each.reader(SHARD, purpose="test").snapshot(upper - 1).to_table()) == wanted
    assert lost > 0
    for each in clients[1:]:
        each.close()


def test_multi_writes_in_opposite_order_do_not_block_each_other(client: PersistClient) -> None:
    orders = [(SHARD, OTHER), (OTHER, SHARD)]

    def work(order: tuple[str, str]) -> None:
        writers = [client.writer(shard, SCHEMA, purpose="test") for shard in order]
        done = 0
        while done < COUNT // 2:
            upper = max(writer.cached_upper for writer in writers)
            try:
                client.multi_write([w.prepare_append(rows(done), upper, upper + 1) for w in writers])
                done += 1
            except UpperMismatch:
                pass

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(work, order) for order in orders]:
            future.result(60)
    assert client.recent_upper(SHARD) == client.recent_upper(OTHER) == 2 * (COUNT // 2)


def test_a_fresh_process_finds_everything_by_rollup_and_replay(client: PersistClient, url: str) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    for time in range(COUNT):
        writer.compare_and_append(rows(time), time, time + 1)
    client.maintain(SHARD)
    writer.compare_and_append(rows(-1), COUNT, COUNT + 1)
    machine = client.session.machine(SHARD)
    client.close()  # its upkeep has ended then
    state = machine.state
    assert state.rollups
    with PersistClient.open(url, mode="read", config=CONFIG) as fresh:
        assert fresh.session.machine(SHARD).refresh() == state
        found = contents(fresh.reader(SHARD, purpose="test").snapshot(COUNT).to_table())
    assert found == {(key, "x"): 1 for key in range(-1, COUNT)}
