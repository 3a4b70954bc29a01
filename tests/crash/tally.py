"""Counts what the campaigns of the long set did, by pair of stores."""

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass
class Tally:
    """The numbers of some campaigns. A campaign that broke off counts for what it had done until then."""

    campaigns: int = 0
    operations: int = 0
    """Those that were acknowledged."""
    unknown: int = 0
    """Operations of unknown outcome: the process was killed first, or was told that nobody knows."""
    kills: int = 0
    disturbances: int = 0
    """Failovers and restarts of servers."""
    violations: int = 0
    """Campaigns that found one, or broke off."""

    def add(self, other: "Tally") -> None:
        """Add the numbers of another one."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


_HEADINGS = (
    "campaigns",
    "operations",
    "unknown outcomes",
    "kills",
    "failovers or restarts",
    "violations",
)


def table(tallies: Mapping[str, Tally]) -> str:
    """A row for each pair, and one for all of them."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    named = {**tallies, "all": total}
    rows = [("pair", *_HEADINGS)]
    rows += [
        (name, *(str(getattr(tally, field.name)) for field in fields(tally))) for name, tally in named.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )
