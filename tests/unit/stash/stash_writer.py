"""A process of the stash's tests: commits, or consolidates, until its count is reached or it is killed.

Arguments: URL, what to do, its name, count. It says "ready" and waits for a line. `commit` commits rows with
its name and a number at the upper, as often as it succeeds `count` times, and tells of each commit that it
knows to have happened. `hang` begins a commit and stops in the middle of its updates. `consolidate` tells
each batch.
"""

import os
import sys
import time
from collections.abc import Iterator

from holdfast.errors import Determinate, Indeterminate, StoreUnreachable, UpperMismatch
from holdfast.stash import Stash, StashUpdate, open_stash

PARENT = os.getppid()
ROWS = 3


def commit(stash: Stash, payload: bytes) -> int:
    """Commit rows of the payload, which no other commit has, and give the time.

    A commit of unknown outcome happened or not once the upper is past it; before, the same is tried again.
    """
    rows = [StashUpdate(number, payload, b"", 1) for number in range(ROWS)]
    unknown: int | None = None
    while True:
        if os.getppid() != PARENT:
            sys.exit("the test has ended")
        try:
            upper = stash.frontiers().upper
            if unknown is not None and upper > unknown:
                if any(update.key == payload for _, update in stash.changes(unknown, unknown + 1)):
                    return unknown
                unknown = None
            stash.append(rows, upper)
            return upper
        except UpperMismatch:
            pass
        except (Determinate, StoreUnreachable):
            time.sleep(0.01)
        except Indeterminate:
            unknown = upper


def hanging(count: int) -> Iterator[StashUpdate]:
    for number in range(count):
        yield StashUpdate(1, b"half %d" % number, bytes(1000), 1)
    print("hanging", flush=True)
    sys.stdin.read()


def main(url: str, what: str, name: str, count: str) -> None:
    with open_stash(url, create=True) as stash:
        print("ready", flush=True)
        sys.stdin.readline()
        match what:
            case "commit":
                for number in range(int(count)):
                    payload = f"{name}/{number}"
                    print(commit(stash, payload.encode()), payload, flush=True)
            case "hang":
                stash.append(hanging(int(count)), stash.frontiers().upper)
            case "consolidate":
                while not stash.consolidate(max_batches=1):
                    print("batch", flush=True)
            case _:
                raise AssertionError(what)


main(*sys.argv[1:])
