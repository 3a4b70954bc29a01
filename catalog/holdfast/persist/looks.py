"""One look at the store for all reads of one operation.

A linearized read includes every commit that ended before the operation began. An operation that reads five
shards, or one shard five times, needs no more than that. So in a block `one_look`, a read may return what
was read since the block began, by this thread or another one. Outside of such a block, each read asks the
store.

A commit of this thread, whether it succeeds or not, and `look_again` begin a new look: the reads after it
include everything before it. A loop that reads until it finds something must call `look_again`.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_moments: Final = itertools.count(1)
_began: Final[ContextVar[int]] = ContextVar("began", default=0)


def moment() -> int:
    """Return a number that is greater than those of all earlier moments of this process."""
    return next(_moments)


def earliest() -> int:
    """Return the moment from which on a read counts for the caller: that of its block, or now."""
    return _began.get() or moment()


@contextmanager
def one_look() -> Iterator[None]:
    """Let the reads of this block share what they read. Inside of another block it changes nothing."""
    if _began.get():
        yield
        return
    token = _began.set(moment())
    try:
        yield
    finally:
        _began.reset(token)


def look_again() -> None:
    """Let the following reads ask the store again."""
    if _began.get():
        _began.set(moment())
