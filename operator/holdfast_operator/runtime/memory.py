"""How the process gets its memory from the system, and gives it back.

glibc gives the threads of a process many heaps of their own, up to eight for each processor, and what one of
them let go of serves no other. What a burst of work leaves free in the middle of a heap stays with the
process until it is trimmed: a third of what 400 new collections had added.
"""

import ctypes
import sys
from contextlib import suppress
from typing import Final

_M_ARENA_MAX: Final = -8
_HEAPS: Final = 2


def share_heaps() -> None:
    """Have threads that begin from now on share two heaps; nothing happens where the C library has none."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)


def give_back() -> None:
    """Give the system what is free in the heaps; nothing happens where the C library can't."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
