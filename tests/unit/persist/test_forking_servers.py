"""Programs that open a client and then fork workers: gunicorn with --preload, and a pool of processes."""

import gc
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import UsedAfterFork
from holdfast.persist import PersistClient, PersistConfig, Schema
from testbed.postgres import free_port

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
CONFIG = PersistConfig(inline_max_bytes=0, lease_s=2.0)
_BOOT_S = 60.0
_APPLICATION = """
import json, os, threading, time
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig, Schema

SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
CLIENT = PersistClient.open(os.environ["LOCATION"], config=PersistConfig(inline_max_bytes=0, lease_s=2.0))
SHARD = CLIENT.create_or_load("shard", SCHEMA)
WRITER = CLIENT.writer(SHARD, SCHEMA, purpose="web")
WRITER.compare_and_append([{"k": 0, "v": "x"}], 0, 1)
READER = CLIENT.reader(SHARD, purpose="web")
own = None

def inherited():
    asked = {
        "upper": lambda: CLIENT.recent_upper(SHARD),
        "append": lambda: WRITER.compare_and_append([{"k": 1, "v": "x"}], 1, 2),
        "snapshot": lambda: READER.snapshot(0).to_table(),
        "reader": lambda: CLIENT.reader(SHARD, purpose="web"),
    }
    said = {}
    for name, ask in asked.items():
        try:
            ask()
        except Exception as error:
            said[name] = type(error).__name__
        else:
            said[name] = ""
    READER.close()
    WRITER.close()
    CLIENT.close()
    return said

def anew():
    global own
    own = own or PersistClient.open(os.environ["LOCATION"])
    with own.writer(SHARD, SCHEMA, purpose="worker") as writer:
        upper = own.recent_upper(SHARD)
        writer.compare_and_append([{"k": upper, "v": "y"}], upper, upper + 1)
    return upper

def application(environ, start_response):
    answer = {"/inherited": inherited, "/anew": anew}[environ["PATH_INFO"]]()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), "answer": answer}).encode()]
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/location"


@pytest.fixture
def ask(tmp_path: Path, url: str) -> Iterator[Callable[[str], dict[str, object]]]:
    """Ask gunicorn, which opens a client in its master process and serves in two workers."""
    (tmp_path / "served.py").write_text(_APPLICATION)
    port = free_port("127.0.0.1")
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}"]
    with (tmp_path / "gunicorn.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--no-control-socket", "served:application"],
            cwd=tmp_path,
            env={**os.environ, "LOCATION": url},
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + _BOOT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                pytest.fail((tmp_path / "gunicorn.log").read_text())
            time.sleep(0.1)

    def get(path: str) -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            said: dict[str, object] = json.load(answer)
        return said

    try:
        yield get
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert "Traceback" not in (tmp_path / "gunicorn.log").read_text()


def holders(url: str) -> tuple[int, int]:
    """How many readers and writers of purpose "web" the shard has."""
    with PersistClient.open(url, mode="read") as client:
        state = client.session.machine(client.names()["shard"]).refresh()
        readers = [reader for reader in state.leased_readers.values() if reader.purpose == "web"]
        return len(readers), len([w for w in state.writers.values() if w.purpose == "web"])


def test_workers_of_gunicorn_get_one_error_and_leave_the_leases_of_the_master(
    url: str, ask: Callable[[str], dict[str, object]]
) -> None:
    asked = ("upper", "append", "snapshot", "reader")
    before = holders(url)
    pids = set()
    for _ in range(8):
        said = ask("/inherited")
        pids.add(said["pid"])
        assert said["answer"] == dict.fromkeys(asked, UsedAfterFork.__name__)
    assert before == (1, 1)
    time.sleep(1.5 * CONFIG.lease_s)
    # The thread of the master still renews the lease of its reader.
    assert holders(url)[0] == 1
    uppers = [ask("/anew")["answer"] for _ in range(4)]
    assert uppers == [1, 2, 3, 4]
    assert pids


def _in_worker(_: int) -> tuple[int, str, int]:
    try:
        _CLIENT[0].recent_upper(_SHARD[0])
    except UsedAfterFork as error:
        said = str(error)
    else:
        said = ""
    with PersistClient.open(_URL[0], config=CONFIG) as own:
        return os.getpid(), said, own.recent_upper(_SHARD[0])


_CLIENT: list[PersistClient] = []
_SHARD: list[str] = []
_URL: list[str] = []


@pytest.fixture
def no_garbage() -> None:
    """What earlier tests of this process left is not collected in forked children.

    Clients of Kafka, for example, have threads that a child lacks, and to destroy one there ends it.
    """
    gc.collect()
    gc.freeze()


@pytest.mark.long
def test_workers_of_a_forked_pool_open_their_own_clients(url: str, no_garbage: None) -> None:
    """As Celery's prefork pool does: workers inherit, work, and are replaced after a few tasks."""
    with PersistClient.open(url, config=CONFIG) as client:
        shard = client.create_or_load("shard", SCHEMA)
        writer = client.writer(shard, SCHEMA, purpose="web")
        writer.compare_and_append([{"k": 0, "v": "x"}], 0, 1)
        reader = client.reader(shard, purpose="web")
        _CLIENT[:], _SHARD[:], _URL[:] = [client], [shard], [url]
        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=2) as pool:
            found = pool.map(_in_worker, range(8), chunksize=1)
        assert len({pid for pid, _, _ in found}) >= 4
        assert all("process" in said for _, said, _ in found)
        assert {upper for _, _, upper in found} == {1}
        assert reader.snapshot(0).to_table().num_rows == 1
        writer.compare_and_append([{"k": 1, "v": "x"}], 1, 2)
        assert holders(url) == (1, 1)
