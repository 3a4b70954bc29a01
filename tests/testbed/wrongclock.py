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


def clock_patch(seconds: int) -> str:
    """The patch for a clock that is so many seconds ahead."""
    return _PATCH.format(seconds=seconds)
