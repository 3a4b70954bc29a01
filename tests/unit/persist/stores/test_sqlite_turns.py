"""Turns of processes that append to one SQLite file. They change how fast, and never what."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.persist.stores import Put, SqliteConsensus, sqlite_turns
from holdfast.persist.stores.sqlite_turns import FolderTurns

HOLD = """
import sys
from pathlib import Path
from holdfast.persist.stores.sqlite_turns import FolderTurns
with FolderTurns(Path(sys.argv[1])).turn():
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.readline()
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has a turn until it reads a line."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def is_free(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def until_free(folder: Path) -> None:
    end = time.monotonic() + 60
    while not is_free(folder):
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("ends", ["its turn ends", "it is killed"])
def test_a_turn_begins_when_the_one_before_ends(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_turns, "_LONGEST_S", 60.0)
    turns, order = FolderTurns(tmp_path), []
    with held(tmp_path) as process:

        def end() -> None:
            order.append("ended")
            if ends == "it is killed":
                process.kill()
            else:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()

        timer = threading.Timer(0.2, end)
        timer.start()
        with turns.turn():
            order.append("mine")
            assert not is_free(tmp_path)
        assert order == ["ended", "mine"]
        until_free(tmp_path)
        timer.join()
    turns.close()


def test_a_stopped_process_delays_the_others_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_turns, "_LONGEST_S", 0.1)
    log = SqliteConsensus(tmp_path / "consensus.sqlite")
    with held(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(1, 4):
            with log.turn(["k"]):
                assert log.compare_and_set([Put("k", number, b"row")])
        waiting = [thread for thread in threading.enumerate() if thread.name == "holdfast-turn"]
        assert len(waiting) == 1, "each turn leaves a thread"
        os.kill(process.pid, signal.SIGCONT)
    waiting[0].join(60)
    # What came too late is given back.
    until_free(tmp_path)
    with log.turn(["k"]):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    log.close()


def test_an_error_ends_the_turn(tmp_path: Path) -> None:
    turns = FolderTurns(tmp_path)
    with pytest.raises(KeyboardInterrupt), turns.turn():
        raise KeyboardInterrupt
    assert is_free(tmp_path)


def test_without_the_folder_there_are_no_turns(tmp_path: Path) -> None:
    done = False
    with FolderTurns(tmp_path / "gone").turn():
        done = True
    assert done


def test_a_forked_child_takes_turns_of_its_own(tmp_path: Path) -> None:
    log = SqliteConsensus(tmp_path / "consensus.sqlite")
    with log.turn(["k"]):
        pass
    child = os.fork()
    if not child:
        with log.turn(["k"]):
            os._exit(3 if is_free(tmp_path) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with log.turn(["k"]):
        child = os.fork()
        if not child:
            # It has left the turn of its parent to its parent.
            os._exit(3 if is_free(tmp_path) else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_free(tmp_path)
    log.close()
