"""Processes race on one Postgres server. The tests kill processes, and the server under them.

`test_racing_writers.py` has the judge, and the negative controls that show that it can fail.
"""

import random
from collections.abc import Sequence

import pytest

from conformance.test_racing_writers import _claims, _pipes, _release, _start, check_history
from holdfast.persist.stores import Put
from holdfast.persist.stores.postgres import PostgresConsensus
from testbed.postgres import PostgresServer

pytestmark = pytest.mark.postgres

KEYS = ["a", "b"]


def test_processes_that_race_on_one_database(postgres_url: str) -> None:
    processes = [_start(postgres_url, f"w{number}", 40, KEYS) for number in range(3)]
    _release(processes)
    lines = [line for process in processes for line in _pipes(process)[1]]

    assert [process.wait() for process in processes] == [0, 0, 0]
    claims = _claims(lines)
    store = PostgresConsensus(postgres_url)
    check_history(store, claims)
    assert len(claims) == 3 * 40 * 2
    store.close()


def _end(postgres_url: str, claims: Sequence[Put], keys: Sequence[str], *, unclaimed: int) -> None:
    store = PostgresConsensus(postgres_url)
    check_history(store, claims, unclaimed=unclaimed)
    (head,) = set(store.heads(keys).values())  # else a step on two keys was torn
    assert store.compare_and_set([Put(key, head.seqno + 1, b"on") for key in keys])
    store.close()


@pytest.mark.long
@pytest.mark.parametrize("keys", [["a"], KEYS], ids=["one key", "two keys"])
def test_killed_processes_lose_nothing_that_they_were_told(postgres_url: str, keys: list[str]) -> None:
    """One is killed after the other, each after a seeded number of appends."""
    seeded = random.Random(7)
    processes = [_start(postgres_url, f"w{number}", 1_000_000, keys) for number in range(3)]
    _release(processes)
    lines = []
    for process in processes:
        lines += [_pipes(process)[1].readline() for _ in range(seeded.randrange(5, 30))]
        process.kill()
        lines += list(_pipes(process)[1])
    assert [process.wait() for process in processes] == [-9, -9, -9]
    _end(postgres_url, _claims(lines), keys, unclaimed=3)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.long
def test_a_server_that_goes_and_comes_under_load_loses_nothing(how: str) -> None:
    """Every append ends in a claim, however it was cut off: nothing is lost and nothing is there twice."""
    with PostgresServer.start() as server:
        processes = [_start(server.url(), f"w{number}", 100, KEYS) for number in range(3)]
        _release(processes)
        lines = []
        for round_ in range(2):
            for process in processes:
                lines += [_pipes(process)[1].readline() for _ in range(10 + 5 * round_)]
            if how == "stop":
                server.stop()
            else:
                server.kill()
            server.resume()
        lines += [line for process in processes for line in _pipes(process)[1]]

        assert [process.wait() for process in processes] == [0, 0, 0]
        claims = _claims(lines)
        assert len(claims) == 3 * 100 * 2
        _end(server.url(), claims, KEYS, unclaimed=0)
