"""Finds clients that a test leaves open behind its database, and tells what they log from what the test logs.

Such a client goes on: its upkeep and its pool of sessions log errors about a database that is gone, into the
log of whichever test runs then.
"""

import gc
import logging
import re
import threading
import time
from collections.abc import Collection, Iterable
from typing import Final

_OF_A_CLIENT: Final = re.compile(r"holdfast-(maintenance|notify|follow|hints)|pool-\d+-\S+")
"""The names of the threads of a client, and of the pool of sessions behind it."""
_ENDING_S: Final = 5.0
"""How long a thread may take to end after its client was closed."""
_POLL_S: Final = 0.02


def client_threads(before: Collection[threading.Thread] = ()) -> list[threading.Thread]:
    """Return the live threads of clients, without those of `before`."""
    threads = (each for each in threading.enumerate() if each not in before)
    return [each for each in threads if _OF_A_CLIENT.fullmatch(each.name)]


def left_open(before: Collection[threading.Thread]) -> list[str]:
    """Return the names of the client threads that began after `before` and do not end.

    A client that nobody refers to any more is collected first, which ends it.
    """
    if not client_threads(before):
        return []
    gc.collect()
    deadline = time.monotonic() + _ENDING_S
    while (left := client_threads(before)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return _names(left)


class OwnRecords(logging.Handler):
    """Keeps what this thread logs, and each thread that begins later."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        # Threads, not their identifiers: the system uses an identifier again.
        self._others = {*threading.enumerate()} - {threading.current_thread()}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record, unless an older thread logs it."""
        if threading.current_thread() not in self._others:
            self.records.append(record)


def _names(threads: Iterable[threading.Thread]) -> list[str]:
    return sorted({each.name for each in threads})
