"""One look at the store for all reads of one operation.

A linearized read includes every commit that ended before the operation began. An operation that reads five
shards, or one shard five times, needs no more than that. So in a block `one_look`, some reads may return what
was read since the block began, by this thread or another one: the frontiers of a shard (`Machine.look`).
Outside of such a block, each read asks the store.

- Reads that share a look have no order among them. A later one may show an earlier moment of its shard than
  one before it. If two shards must be compared, read both at one moment (`refresh_all`).
- A commit of this thread, whether it succeeds or not, `Machine.refresh` and `look_again` begin a new look:
  the reads after it include everything before it. A loop that reads until it finds something must do so.
- A block belongs to its thread. Neither threads nor tasks that begin in it have a part in it.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_moments: Final = itertools.count(1)


class _Block(threading.local):
    # The moment when the look of this thread's block began; 0 outside of a block.
    began = 0


_block: Final = _Block()


def moment() -> int:
    """Return a number that is greater than those of all earlier moments of this process."""
    return next(_moments)


def earliest() -> int:
    """Return the earliest moment of a read that the caller may use: the start of its look, or now."""
    return _block.began or moment()


@contextmanager
def one_look() -> Iterator[None]:
    """Let the reads of this block share what they read. Inside of another block it changes nothing."""
    if _block.began:
        yield
        return
    _block.began = moment()
    try:
        yield
    finally:
        _block.began = 0


def look_again() -> None:
    """Let the following reads ask the store again."""
    if _block.began:
        _block.began = moment()
