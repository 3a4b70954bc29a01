"""The settings of a persist client, with their units and the reasons for their defaults."""

import socket
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from holdfast.errors import BadInput

Maintenance: TypeAlias = Literal["background", "inline", "off"]

# The least value of each number. Floats are seconds.
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
    """Updates of up to this many encoded bytes are stored in the state itself: one write instead of two."""

    part_target_bytes: int = 128 * 1024 * 1024
    """Parts are cut at about this many bytes in memory: large enough to scan fast, small enough to hold."""

    rollup_every: int = 128
    """Versions between rollups. A client that opens a shard replays at most this many."""

    builder_threads: bool = True
    """Whether a batch builder sorts, encodes and uploads in separate threads."""

    compaction_fanin: int = 8
    """How many adjacent batches of one level are merged. 8 keeps 10,000 appends below 40 batches."""

    gc_grace_s: float = 3600.0
    """Seconds between a blob's last use and its deletion, for readers without a lease and for failovers.

    A shard keeps at most its 32 newest replaced rollups for so long, and all others for 60 seconds."""

    retain_for_s: float = 0.0
    """Seconds for which garbage, including rollups, is kept for a restore. The default keeps nothing.

    To be able to restore a backup of the consensus store, set it to at least the age of the oldest one."""

    lease_s: float = 900.0
    """Seconds without a heartbeat after which the registration of a reader or writer is dropped.

    Using a handle sends the heartbeats that are due. The upkeep thread sends them for readers that are not
    used.
    """

    poll_interval_s: float = 0.005
    """Seconds between reads of Consensus by a waiting listener, if nothing gives hints of changes."""

    hinted_poll_interval_s: float = 1.0
    """The same if there are hints. One may be lost, for example because its writer died before sending it."""

    retry_deadline_s: float = 10.0
    """Seconds for which a failing storage call is retried before the caller gets the error.

    The time for which the process is stopped does not count: one attempt counts at most half of the time. So
    a store that hangs is tried twice. An attempt takes 20 s for S3, and 30 s for a Postgres server that
    vanished."""

    clock_ahead_s: float = 60.0
    """Seconds that this host's clock may be ahead of the store's clock.

    If it is further ahead, writes without a time get the store's time, and this is logged. A fast clock would
    otherwise move a collection's time for everyone. The default is far more than the error of hosts with
    synchronized clocks, and short enough to wait for."""

    maintenance: Maintenance = "background"
    """Where rollups, compaction and garbage collection run: in a thread of the client, or in the writer's."""

    audit_pushdown: bool = False
    """Also read what statistics say can be skipped, and raise an error if they are wrong (for tests)."""

    debug_validate: bool = False
    """Check every invariant after each transition (for tests)."""

    hostname: str = field(default_factory=socket.gethostname)
    """Recorded with each version and hold, to show people which host made it."""

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
                raise BadInput(f"PersistConfig.{name} must be {what}, not {value!r:.60}")
        for name in ("builder_threads", "audit_pushdown", "debug_validate"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"PersistConfig.{name} must be True or False, not {getattr(self, name)!r:.60}")
        if self.maintenance not in get_args(Maintenance):
            known = ", ".join(map(repr, get_args(Maintenance)))
            raise BadInput(f"PersistConfig.maintenance must be one of {known}, not {self.maintenance!r:.60}")
        if not isinstance(self.hostname, str):
            raise BadInput(f"PersistConfig.hostname must be a string, not {self.hostname!r:.60}")
