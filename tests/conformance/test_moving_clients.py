"""Applications continue and lose nothing while another process moves their catalog to persist and back.

A writer, a reader and a follower are processes with the library. The mover is the command. Afterwards the
tests compare their histories by the clock that all processes of a host share.
"""

import json
import os
import subprocess
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conformance.moving_client import ORG, linked, numbers
from holdfast.catalog import OpenMode
from holdfast.catalog.move.truth import Backend
from testbed.children import plain_path
from testbed.minio import Minio

CLIENT = Path(__file__).with_name("moving_client.py")
PATIENCE_S = 240.0
PACE = 15
"""How many commits, looks and changes there are at least before, between and after the moves."""

Line = dict[str, Any]


class Application:
    """A process that uses the catalog, and what it has told so far."""

    def __init__(self, does: str, address: Line) -> None:
        self.does = does
        self.lines: list[Line] = []
        self._came = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [sys.executable, str(CLIENT), does, json.dumps(address)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": plain_path(CLIENT.parent.parent)},
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def go_on(self, what: str) -> None:
        """Wait until it has told `PACE` things of a kind from now on."""
        enough = len(self.told(what)) + PACE
        self.wait_for(lambda: len(self.told(what)) >= enough, f"{PACE} times {what}")

    def wait_for(self, reached: Callable[[], bool], what: str) -> None:
        """Wait until something is so; it must not end before."""
        with self._came:
            self._came.wait_for(lambda: reached() or self._ended, PATIENCE_S)
            assert reached(), f"no {what} of {self.does}; the last lines: {self.lines[-5:]}"

    def told(self, what: str) -> list[Line]:
        """All lines of a kind."""
        return [line for line in self.lines if what in line]

    def end(self) -> None:
        """Let it come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listener.join(PATIENCE_S)
        assert self._process.wait(PATIENCE_S) == 0, f"{self.does} failed"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self.lines.append(json.loads(line))
                self._came.notify_all()
        with self._came:
            self._ended = True
            self._came.notify_all()


@contextmanager
def applications(address: Line) -> Iterator[Sequence[Application]]:
    """A writer, a reader and a follower."""
    running: list[Application] = []
    try:
        for does in ("write", "read", "follow"):
            running.append(Application(does, address))
            running[-1].wait_for(lambda: bool(running[-1].lines), "line")  # the first makes the catalog
        yield running
    finally:
        for each in running:
            each.kill()


def migrate(address: Line, command: str) -> None:
    """Run `holdfast migrate`, to persist or back from there."""
    persist = address["persist"]
    if "blob" in persist:
        persist_options = ["--persist", persist["blob"], "--consensus", persist["consensus"]]
    else:
        persist_options = ["--persist", persist["url"]]
    done = subprocess.run(
        [
            *(Path(sys.executable).parent / "holdfast", "migrate", command),
            *("--stash", address["stash"], *persist_options, "--organization-id", str(ORG)),
            *("--id", "there", *(("--target", "persist") if command == "run" else ())),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_reads(writes: Sequence[Line], reads: Sequence[Line]) -> None:
    """No read misses what was acknowledged before it began, or has what was not begun when it ended."""
    began, ended = [line["began"] for line in writes], [line["ended"] for line in writes]
    for line in reads:
        assert bisect_left(ended, line["began"]) <= line["read"], f"stale: {line}"
        assert line["read"] <= bisect_left(began, line["ended"]), f"from nowhere: {line}"


def followed(lines: Sequence[Line]) -> int:
    """How many numbers came: each once and in order, or there when the catalog was read anew."""
    count = 0
    for line in lines:
        if "anew" in line:
            assert line["anew"] >= count, line
            count = line["anew"]
        elif "number" in line:
            assert (line["number"], line["diff"]) == (count, 1), line
            count += 1
    return count


def go_there_and_back(address: Line) -> None:
    """All of it, with the three applications running."""
    with applications(address) as (writer, reader, follower):
        for command, truth in (("run", Backend.PERSIST), ("rollback", Backend.STASH)):
            known = [len(each.told("lost")) for each in (writer, reader, follower)]
            migrate(address, command)
            for each, count in zip((writer, reader, follower), known, strict=True):
                each.wait_for(lambda each=each, count=count: len(each.told("lost")) > count, "loss")
            for each, what in ((writer, "acked"), (reader, "read"), (follower, "number")):
                each.go_on(what)
            assert linked(address, "read").source_of_truth() is truth
        writer.end()
        total = len(writer.told("acked"))
        follower.wait_for(lambda: followed(follower.lines) == total, f"{total} numbers")
        reader.end()
        follower.end()
        everybody = (writer, reader, follower)
    assert [line["acked"] for line in writer.told("acked")] == list(range(total))
    check_reads(writer.told("acked"), [line for each in everybody for line in each.told("read")])
    assert followed(follower.lines) == total
    errors = {line["lost"] for each in everybody for line in each.told("lost")}
    assert errors <= {"NotSourceOfTruth", "MigrationInProgress"}
    assert {line["truth"] for line in reader.told("lost")} >= {"Stash", "Persist"}
    with linked(address, "read").open(OpenMode.READ_ONLY) as catalog:
        assert numbers(catalog) == total


@pytest.mark.long
def test_applications_go_on_on_embedded_stores(tmp_path: Path) -> None:
    go_there_and_back(
        {"stash": f"sqlite://{tmp_path}/stash.db", "persist": {"url": f"file://{tmp_path}/store"}}
    )


@pytest.mark.s3
@pytest.mark.postgres
@pytest.mark.long
def test_applications_go_on_on_servers(minio: Minio, bucket: str, postgres_url: str) -> None:
    blob = f"s3://{bucket}/catalog?endpoint={minio.endpoint}"
    address = {"stash": f"{postgres_url}?schema=shop", "persist": {"blob": blob, "consensus": postgres_url}}
    go_there_and_back(address)


@pytest.mark.long
def test_the_judges_catch_a_stale_read_and_a_lost_change() -> None:
    writes = [{"acked": n, "began": 10 * n, "ended": 10 * n + 5} for n in range(3)]
    check_reads(writes, [{"read": 1, "began": 6, "ended": 9}, {"read": 1, "began": 12, "ended": 17}])
    with pytest.raises(AssertionError, match="stale"):
        check_reads(writes, [{"read": 0, "began": 6, "ended": 9}])
    with pytest.raises(AssertionError, match="from nowhere"):
        check_reads(writes, [{"read": 2, "began": 6, "ended": 9}])
    assert followed([{"anew": 2}, {"number": 2, "diff": 1}, {"anew": 3}]) == 3
    for wrong in ({"number": 3, "diff": 1}, {"number": 1, "diff": 1}, {"number": 2, "diff": -1}, {"anew": 1}):
        with pytest.raises(AssertionError):
            followed([{"anew": 2}, wrong])
