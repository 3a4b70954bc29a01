"""The report of an upgrade: rows and bytes of every object type before and after."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """The number of rows, and the bytes of their keys and values."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class StepReport:
    """A committed step: sizes by the name of the object type, and its duration in seconds.

    Object types that no step may change are not included.
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
    """An upgrade of a catalog from version `source` to `target`. `seconds` is its total duration."""

    source: int
    target: int
    steps: tuple[StepReport, ...]
    seconds: float
