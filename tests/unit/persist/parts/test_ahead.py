"""Calls in threads, a few ahead of who takes the results."""

import subprocess
import sys
import threading
import time

import pytest

from holdfast.persist.parts.ahead import READ_AHEAD, in_threads


def test_results_come_in_order() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0)
        return number

    assert list(in_threads(slow_first, [(number,) for number in range(20)])) == list(range(20))


def test_only_a_few_calls_are_ahead() -> None:
    begun: list[int] = []
    results = in_threads(begun.append, [(number,) for number in range(20)])
    for taken in (1, 2):
        next(results)
        deadline = time.monotonic() + 30
        while len(begun) < READ_AHEAD + taken and time.monotonic() < deadline:
            time.sleep(0.01)
        # One more would begin at once.
        time.sleep(0.05)
        # Each is called in any thread.
        assert sorted(begun) == list(range(READ_AHEAD + taken))


def test_an_error_comes_in_the_place_of_its_result() -> None:
    def third_fails(number: int) -> int:
        if number == 2:
            raise ValueError("the third call")
        return number

    results = in_threads(third_fails, [(number,) for number in range(20)])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="the third call"):
        next(results)


def test_who_closes_it_waits_for_what_runs() -> None:
    ended: list[int] = []
    before = {*threading.enumerate()}

    def slow(number: int) -> None:
        time.sleep(0.1)
        ended.append(number)

    results = in_threads(slow, [(number,) for number in range(20)])
    next(results)
    results.close()
    found = list(ended)
    time.sleep(0.3)
    assert ended == found
    begun = {*threading.enumerate()} - before
    assert not [each for each in begun if each.name.startswith("holdfast-read")]


def test_it_goes_on_when_no_thread_can_be_started() -> None:
    """Threads that outlive the main thread, and functions of `atexit`, still read."""
    program = """
import atexit, sys, threading, time
from holdfast.persist.parts.ahead import in_threads

def read(what):
    begun = in_threads(lambda number: number, [(number,) for number in range(9)])
    found = [next(begun)]
    while what == "thread" and threading.main_thread().is_alive():
        time.sleep(0.01)
    print(what, sum(found) + sum(begun))

atexit.register(read, "atexit")
threading.Thread(target=read, args=("thread",)).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("thread 36\natexit 36\n", "")
