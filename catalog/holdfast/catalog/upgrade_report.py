"""What an upgrade did, for those who watch it: rows and bytes of every object type before and after."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How many rows there are, and how many bytes their keys and values have."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StepReport:
    """One step, committed: sizes by the name of the object type, and what it took, in seconds.

    Object types that no step may change are left out.
    """

    source: int
    target: int
    before: Mapping[str, Size]
    after: Mapping[str, Size]
    seconds: float

    def __str__(self) -> str:
        changed = ", ".join(
            f"{name} {old.rows} rows of {old.bytes} bytes to {new.rows} of {new.bytes}"
            for name, old in self.before.items()
            if (new := self.after[name]) != old
        )
        took = f"version {self.source} to {self.target} in {self.seconds:.1f} s"
        return f"{took}: {changed or 'no change of sizes'}"


@dataclass(frozen=True)
class UpgradeReport:
    """An upgrade of a catalog from version `source` to `target`; `seconds` is all of it."""

    source: int
    target: int
    steps: tuple[StepReport, ...]
    seconds: float
