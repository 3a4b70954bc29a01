"""Whether Polars works in this process, because its threads don't survive a fork.

- Polars starts its threads when it is first used. A forked child has none of them, and Polars does not start
  new ones there. A call that needs a thread waits for ever. Polars has no way to start its threads again.
- So a child of a process that has used Polars never calls it. `polars_works` returns False there, and
  `holdfast.persist.rows.arrow_rows` does the same work with Arrow, whose threads do start again in a child.
- Use by Holdfast is recorded here. Use by other code shows in the names of the threads, on Linux.
- It does not matter how Polars itself is imported. An import alone starts no thread that a call needs.
"""

import os
import re
import sys
from pathlib import Path
from typing import Final

_WORKERS: Final = re.compile(
    rf"({re.escape(os.environ.get('POLARS_THREAD_NAME', 'polars')[:13])}-\d|tokio-rt-worker|async-executor-)"
)
"""The names of the threads that a call may need. Other libraries may have threads with these names too."""
_ANY_THREAD: Final = re.compile(r"polars-|" + _WORKERS.pattern)
_TASKS: Final = Path("/proc/self/task")
_FORKED_WITHOUT_EXEC: Final = 0x40

_used = False
_seen = False
_lost = False


def polars_works() -> bool:
    """Whether the caller may use Polars. If this returns True, the caller must use it at once."""
    global _used  # a forked child must know it
    _used = True
    return not _lost


def _has_thread(named: re.Pattern[str]) -> bool:
    """Whether this process has a thread with such a name. Returns False if the system does not show it."""
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return False
    return any(named.match(_name_of(task)) for task in tasks)


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:
        return ""  # the thread has ended


def _lost_before_import() -> bool:
    """Whether the process was forked after Polars was imported and before this module was imported."""
    if "polars" not in sys.modules or _has_thread(_ANY_THREAD):
        return False
    try:
        flags = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[6]
    except (OSError, IndexError):
        return False
    return bool(int(flags) & _FORKED_WITHOUT_EXEC)


def _before_fork() -> None:
    global _seen
    _seen = not _used and "polars" in sys.modules and _has_thread(_WORKERS)


def _after_fork_in_child() -> None:
    global _lost
    _lost = _lost or _used or _seen


_lost = _lost_before_import()
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
