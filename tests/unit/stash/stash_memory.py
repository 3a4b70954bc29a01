"""Commits and reads a lot in one process, and prints its peak memory in MiB, before and after."""

import resource
import sys
from collections.abc import Iterator

from holdfast.stash import StashUpdate, open_stash


def rows() -> Iterator[StashUpdate]:
    for number in range(40):
        yield StashUpdate(1, b"%d" % number, number.to_bytes(1, "big") * (4 << 20), 1)
    for number in range(10_000):
        yield StashUpdate(2, b"%d" % number, bytes(200), 1)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


with open_stash(sys.argv[1], create=True) as stash:
    stash.append([StashUpdate(1, b"", bytes(4 << 20), 1)], 0)
    sum(1 for _ in stash.rows(0))
    before = peak()
    stash.append(rows(), 1)
    assert sum(1 for _ in stash.rows(1)) == 10_041
    assert sum(1 for _ in stash.changes(1)) == 10_040
    print(before, peak())
