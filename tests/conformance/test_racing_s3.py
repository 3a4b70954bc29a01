"""Processes race on one log in S3. The tests kill processes, and the server under them.

`test_racing_writers.py` has the judge, and the negative controls that show that it can fail.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from conformance.test_racing_writers import _claims, _pipes, _release, _start, check_history
from holdfast.persist.stores import Consensus, Put
from holdfast.persist.stores.url import open_consensus
from testbed.minio import Minio

pytestmark = pytest.mark.s3

KEYS = ["a", "b"]


def opened(url: str) -> Consensus:
    return open_consensus(url, create=True, read_only=False)


@pytest.mark.long
def test_processes_that_race_on_one_bucket(minio: Minio, bucket: str) -> None:
    url = f"s3://{bucket}/log?endpoint={minio.endpoint}"
    processes = [_start(url, f"w{number}", 25, KEYS) for number in range(3)]
    _release(processes)
    lines = [line for process in processes for line in _pipes(process)[1]]

    assert [process.wait() for process in processes] == [0, 0, 0]
    claims = _claims(lines)
    store = opened(url)
    check_history(store, claims)
    assert len(claims) == 3 * 25 * 2
    store.close()


@pytest.mark.long
def test_killed_processes_lose_nothing_that_they_were_told(minio: Minio, bucket: str) -> None:
    url = f"s3://{bucket}/log?endpoint={minio.endpoint}"
    seeded = random.Random(7)
    processes = [_start(url, f"w{number}", 1_000_000, KEYS) for number in range(3)]
    _release(processes)
    lines = []
    for process in processes:
        lines += [_pipes(process)[1].readline() for _ in range(seeded.randrange(3, 9))]
        process.kill()
        lines += list(_pipes(process)[1])
    assert [process.wait() for process in processes] == [-9, -9, -9]

    store = opened(url)
    check_history(store, _claims(lines), unclaimed=3)
    (head,) = {entry.seqno for entry in store.heads(KEYS).values()}  # else a step on two keys was torn
    assert store.compare_and_set([Put(key, head + 1, b"on") for key in KEYS])
    store.close()


@pytest.mark.long
def test_a_server_that_goes_and_comes_under_load_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Minio.start(tmp_path / "minio") as server:
        for name, value in server.credentials.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.make_bucket()}/log?endpoint={server.endpoint}"
        processes = [_start(url, f"w{number}", 15, KEYS) for number in range(2)]
        _release(processes)
        lines = []
        for _ in range(2):
            for process in processes:
                lines += [_pipes(process)[1].readline() for _ in range(4)]
            server.kill()
            server.serve()
        lines += [line for process in processes for line in _pipes(process)[1]]

        assert [process.wait() for process in processes] == [0, 0]
        claims = _claims(lines)
        assert len(claims) == 2 * 15 * 2
        store = opened(url)
        check_history(store, claims)
        store.close()


def test_a_forked_child_has_a_log_of_its_own(minio: Minio, bucket: str) -> None:
    store = opened(f"s3://{bucket}?endpoint={minio.endpoint}")
    assert store.compare_and_set([Put("a", 1, b"parent")])
    turns = store._turns  # type: ignore[attr-defined]
    with turns.catching, turns.lock:  # as if another thread held them
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            try:
                os._exit(0 if store.compare_and_set([Put("a", 2, b"child")]) else 1)
            except BaseException:  # noqa: BLE001 - a child of a test must end here, whatever came
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert store.compare_and_set([Put("a", 3, b"parent again")])
    assert [entry.data for entry in store.scan("a", 0, 9)] == [b"parent", b"child", b"parent again"]
    store.close()
