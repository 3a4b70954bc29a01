"""What the worlds must meet, or their silence proves nothing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.campaign import Outcome

WANTED = {
    "writes done": 10,
    "writes rejected": 10,
    "writes unknown": 10,
    "writes to several shards": 10,
    "snapshots": 10,
    "changes followed": 10,
    "batches made by compaction": 10,
    "logs cut": 10,
    "fault: determinate": 10,
    "fault: indeterminate before": 10,
    "fault: indeterminate after": 10,
    "fault: death before": 10,
    "fault: death after": 10,
    "fault: slow": 10,
}
"""Each thing with how often at least a hundred worlds meet it."""


def table(outcome: "Outcome") -> list[str]:
    """How often each was met."""
    rows = [f"  {what:48} {count:>9,}" for what, count in sorted(outcome.met.items())]
    return [f"what {outcome.worlds:,} worlds met", *rows]
