"""How the process gets its memory from the system.

glibc gives the threads of a process many heaps of their own, up to eight for each processor, and what one of
them let go of serves no other.
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
