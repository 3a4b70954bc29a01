"""How the process gives memory back to the system.

What a burst of work leaves free in the middle of a heap stays with the process until it is trimmed: a third
of what 400 new collections had added. That threads have heaps of their own costs nothing beside it: with two
heaps for all of them an operator of a thousand collections had 240 MB, and 235 MB without that limit.
"""

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Give the system what is free in the heaps; nothing happens where the C library can't."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
