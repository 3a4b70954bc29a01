"""The situations that the worlds must meet. If they don't meet them, their success proves nothing."""

from typing import TYPE_CHECKING

from sim.history import Fate
from testbed.faults import Fault

if TYPE_CHECKING:
    from sim.campaign import Outcome

WANTED = frozenset(
    {
        *(f"writes {fate.value}" for fate in Fate),
        *(f"fault: {fault.value}" for fault in Fault if fault is not Fault.NONE),
        "writes to several shards",
        "snapshots",
        "snapshots of the newest",
        "transactions that read and wrote",
        "transactions that read several shards",
        "changes followed",
        "batches made by compaction",
        "logs cut",
        "holders fenced",
        "shards that evolved",
        "pending merges",
        "seals that cut",
        "processes fenced",
        "shared writers",
        "locks refused",
        "fault: slow",
        "fault: asleep before the effect",
        "fault: asleep after the effect",
        "fault: monotonic clock stood still",
        "fault: wall clock forward",
        "fault: wall clock back",
        "fault: blob can't be reached",
        "fault: consensus can't be reached",
        "fault: power loss",
        "fault: names lost with power",
        "fault: file torn by power",
    }
)


def never_met(outcome: "Outcome") -> set[str]:
    """What all the worlds together have not met."""
    return {what for what in WANTED if not outcome.met[what]}


def table(outcome: "Outcome") -> list[str]:
    """How often each was met."""
    rows = [f"  {what:48} {count:>9,}" for what, count in sorted(outcome.met.items())]
    return [f"what {outcome.worlds:,} worlds met", *rows]
