"""Hints wake listeners, but no listener needs them. Lost or foreign hints change only how soon it wakes."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.errors import BadInput
from holdfast.persist import Listen, PersistClient, PersistConfig, Progress, Updates
from holdfast.persist.stores import Consensus, Digest, Entry, Expect, Head, Location, LogRow, Put, Watch
from holdfast.persist.stores.traits import NOTHING_KNOWN
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows

NEVER_S = 10_000.0
COUNT = 30
WRITER = """
import sys
import pyarrow as pa
from holdfast.persist import PersistClient, Schema

*places, shard, count = sys.argv[1:]
where = {"url": places[0]} if len(places) == 1 else {"blob": places[0], "consensus": places[1]}
with PersistClient.open(**where) as client:
    writer = client.writer(shard, Schema.of({"k": "int64"}, {"v": "string"}), purpose="other process")
    for time in range(writer.upper(), int(count)):
        sys.stdin.readline()
        writer.compare_and_append(pa.table({"k": [time], "v": ["x"]}), time, time + 1)
"""


class Mute(Consensus):
    """A store that promises hints and loses them all."""

    def __init__(self, inner: Consensus) -> None:
        self._inner = inner

    @property
    def description(self) -> str:
        return self._inner.description

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        return self._inner.heads(keys, known)

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self._inner.scan(key, from_seqno, limit)

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        return self._inner.digests(key, from_seqno, limit)

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        return self._inner.compare_and_set(puts, expect)

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        return self._inner.truncate(key, seqno, known)

    def list_keys(self) -> list[str]:
        return self._inner.list_keys()

    def watch(self, key: str) -> Watch:
        return Watch()


def hear(listen: Listen, until: int, patience: float = 60) -> Counter[tuple[int, int]]:
    """The keys and times up to the frontier `until`, with every promise of a listen checked."""
    found: Counter[tuple[int, int]] = Counter()
    frontier = listen.frontier
    while frontier < until:
        events = listen.next(patience)
        assert events, "nothing came in time"
        for event in events:
            match event:
                case Updates(table):
                    assert min(table["_time"].to_pylist()) >= frontier
                    found.update(zip(table["k"].to_pylist(), table["_time"].to_pylist(), strict=True))
                case Progress(next_frontier):
                    assert next_frontier > frontier
                    assert all(time < next_frontier for _, time in found)
                    frontier = next_frontier
    return found


def every(count: int = COUNT) -> dict[tuple[int, int], int]:
    """What was written at the times from 1 on, each once."""
    return {(time, time): 1 for time in range(1, count)}


@pytest.mark.parametrize("other", ["same client", "another client"])
def test_a_hint_wakes_a_listener_that_would_wait_for_ever(stores: Stores, other: str) -> None:
    listening = stores.open(hinted_poll_interval_s=NEVER_S)
    writing = listening if other == "same client" else stores.open()
    writer = writing.writer(SHARD, SCHEMA, purpose="test")
    writer.seal(1)
    listen = listening.reader(SHARD, purpose="test").listen(0)
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(hear, listen, COUNT)
        for time in range(1, COUNT):
            writer.compare_and_append(rows(time), time, time + 1)
        assert heard.result(60) == every()


def test_a_listener_whose_hints_are_lost_sees_the_same_later(stores: Stores) -> None:
    writer = stores.open().writer(SHARD, SCHEMA, purpose="test")
    writer.seal(1)
    mute = Location(stores.blob, Mute(stores.consensus), stores.location_id)
    listening = PersistClient(mute, config=PersistConfig(hinted_poll_interval_s=0.02, maintenance="off"))
    listen = listening.reader(SHARD, purpose="test").listen(0)
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(hear, listen, COUNT)
        for time in range(1, COUNT):
            writer.compare_and_append(rows(time), time, time + 1)
        assert heard.result(60) == every()


def test_closing_the_client_ends_the_wait(stores: Stores) -> None:
    client = stores.open(hinted_poll_interval_s=NEVER_S)
    client.writer(SHARD, SCHEMA, purpose="test").seal(1)
    listen = client.reader(SHARD, purpose="test").listen(0)
    begun = threading.Event()

    def wait() -> Any:
        begun.set()
        return listen.next()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        assert begun.wait(30)
        client.close()
        with pytest.raises(BadInput, match="closed"):
            waiting.result(60)


def _process(places: Sequence[str], count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, *places, SHARD, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _hear_other_process(
    client: PersistClient, places: Sequence[str], disturb: Any = lambda _time: None
) -> None:
    with PersistClient.open(**_named(places)) as first:
        first.writer(SHARD, SCHEMA, purpose="test").seal(1)
    listen = client.reader(SHARD, purpose="test").listen(0)
    found: Counter[tuple[int, int]] = Counter()
    with _process(places, COUNT) as process:
        assert process.stdin is not None
        for time in range(1, COUNT):
            disturb(time)
            process.stdin.write("\n")
            process.stdin.flush()
            # Each one is waited for: it comes by its own hint, not with the next.
            found.update(hear(listen, time + 1))
    assert process.returncode == 0
    assert found == every()


def _named(places: Sequence[str]) -> dict[str, str]:
    return {"url": places[0]} if len(places) == 1 else {"blob": places[0], "consensus": places[1]}


@pytest.mark.parametrize("mode", ["write", "read"])
def test_commits_of_another_process_on_a_file_are_hinted(tmp_path: Path, mode: Any) -> None:
    url = f"file://{tmp_path}"
    PersistClient.open(url).close()
    config = PersistConfig(hinted_poll_interval_s=NEVER_S)
    with PersistClient.open(url, mode=mode, config=config) as client:
        _hear_other_process(client, [url])


@pytest.mark.postgres
def test_commits_of_another_process_on_postgres_are_hinted_across_lost_sessions(
    tmp_path: Path, postgres_url: str
) -> None:
    def end_all_hints(time: int) -> None:
        if time % 10 == 0:
            with psycopg.connect(postgres_url, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                    " current_database() AND (query LIKE 'LISTEN%' OR query LIKE '%pg_notify%')"
                    " AND pid <> pg_backend_pid()"
                )

    places = [f"file://{tmp_path}", postgres_url]
    # A notification that was lost with its session is made up for by the next look.
    config = PersistConfig(hinted_poll_interval_s=2.0)
    with PersistClient.open(blob=places[0], consensus=places[1], config=config) as client:
        _hear_other_process(client, places, end_all_hints)
