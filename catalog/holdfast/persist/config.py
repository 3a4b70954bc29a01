"""The settings of a persist client, each with its unit and the reason for its default."""

import socket
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from holdfast.errors import BadInput

Maintenance: TypeAlias = Literal["background", "inline", "off"]

# The least value of each number; floats are seconds.
_LEAST: Final[dict[str, int | float]] = {
    "inline_max_bytes": 0,
    "part_target_bytes": 1,
    "rollup_every": 1,
    "compaction_fanin": 2,
    "gc_grace_s": 0.0,
    "retain_for_s": 0.0,
    "lease_s": 0.0,
    "poll_interval_s": 0.0,
    "hinted_poll_interval_s": 0.0,
    "retry_deadline_s": 0.0,
    "clock_ahead_s": 0.0,
}
_MOST_SECONDS: Final = 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class PersistConfig:
    """How a client writes, reads and cleans up."""

    inline_max_bytes: int = 64 * 1024
    """Updates up to this many encoded bytes go into the state itself: one write instead of two."""

    part_target_bytes: int = 128 * 1024 * 1024
    """Parts are cut at about this many bytes in memory: large enough to scan fast, small enough to hold."""

    rollup_every: int = 128
    """Versions between rollups: what a newcomer has to replay at most."""

    builder_threads: bool = True
    """Whether a batch builder sorts, encodes and uploads in threads of its own beside the caller's."""

    compaction_fanin: int = 8
    """How many neighbouring batches of one level are merged: 8 keeps 10,000 appends below 40 batches."""

    gc_grace_s: float = 3600.0
    """Seconds between a blob's last use and its deletion, for readers without a lease."""

    retain_for_s: float = 0.0
    """Seconds for which garbage is kept for a restore, rollups too: at least the age of the oldest backup of
    the consensus store that is to be of use. None by default: data is only kept for those who ask."""

    lease_s: float = 900.0
    """Seconds without a heartbeat after which a reader's or writer's registration is dropped.

    Use sends the heartbeats that are due, a thread for upkeep those of readers that are not used.
    """

    poll_interval_s: float = 0.005
    """Seconds between looks at Consensus by a listener that waits, where nothing tells of changes."""

    hinted_poll_interval_s: float = 1.0
    """The same where something does, for a hint that was lost: its writer died before it gave it."""

    retry_deadline_s: float = 10.0
    """Seconds for which a failing storage call is tried again before the error reaches the caller.

    Time for which the process is stopped does not count: one attempt counts no more than half of them."""

    clock_ahead_s: float = 60.0
    """Seconds that this host's clock may be ahead of the store's. If it is further ahead, what is written
    without a time gets the store's time, and this is logged: a fast clock would move a collection's time for
    everyone. The default is far beyond hosts that keep their time, and little enough to wait for."""

    maintenance: Maintenance = "background"
    """Where rollups, compaction and garbage collection run: a thread of the client, or the writer's."""

    audit_pushdown: bool = False
    """Read what statistics say can be skipped too, and refuse a part where they are wrong (tests)."""

    debug_validate: bool = False
    """Check every invariant after each transition (tests)."""

    hostname: str = field(default_factory=socket.gethostname)
    """Recorded with each version and hold, to tell people who did it."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(least, int):
                fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
                what = f"an integer of at least {least}"
            else:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                fits = number and least <= value <= _MOST_SECONDS
                what = f"a number of seconds from {least:g} to {_MOST_SECONDS:g}"
            if not fits:
                raise BadInput(f"PersistConfig.{name} is {what}, not {value!r:.60}")
        for name in ("builder_threads", "audit_pushdown", "debug_validate"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"PersistConfig.{name} is True or False, not {getattr(self, name)!r:.60}")
        if self.maintenance not in get_args(Maintenance):
            known = ", ".join(map(repr, get_args(Maintenance)))
            raise BadInput(f"PersistConfig.maintenance is one of {known}, not {self.maintenance!r:.60}")
        if not isinstance(self.hostname, str):
            raise BadInput(f"PersistConfig.hostname is a text, not {self.hostname!r:.60}")
