"""Returns free memory to the system.

After a burst of work, the process keeps the memory that is free in the middle of a heap until it is trimmed.
For 400 new collections, this was a third of the added memory. The number of heaps doesn't matter: an operator
with a thousand collections uses 240 MB with two heaps for all threads, and 235 MB without that limit.

Arrow's own allocator keeps what each thread has used, and no other thread can return it. For 500 new
collections of one catalog, this was a third of the added memory. So Arrow uses the C library's heaps too.
"""

import ctypes
import sys
from contextlib import suppress

import pyarrow as pa


def use_one_allocator() -> None:
    """Lets Arrow use the C library's heaps, which `give_back` trims."""
    pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Returns free heap memory to the system. Does nothing if the C library doesn't support it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
