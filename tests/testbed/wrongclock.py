"""A patch for an operator's process, as if its host had a wrong clock."""

from typing import Final

_PATCH: Final = """
from datetime import UTC, datetime, timedelta
from holdfast.persist.clock import Clock
from holdfast_operator.engine import kube
from holdfast_operator.engine.clock import SystemClock

def shift(owner, name, seconds):
    right = getattr(owner, name)
    setattr(owner, name, lambda *given: right(*given) + seconds)

shift(Clock, "wall_ms", {seconds} * 1000)
shift(SystemClock, "wall", timedelta(seconds={seconds}))
shift(kube, "_host_time", timedelta(seconds={seconds}))
"""
_DISK: Final = """
from holdfast.persist.stores.file import FileBlob

shift(FileBlob, "clock_ms", {seconds} * 1000)
"""


def clock_patch(seconds: int, *, disk: bool = False) -> str:
    """The patch for a clock that is so many seconds ahead. With `disk`, local files get its time too."""
    return (_PATCH + _DISK * disk).format(seconds=seconds)
