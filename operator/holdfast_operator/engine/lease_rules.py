"""The rules of a Lease (`coordination.k8s.io/v1`): when it is free, and what to write to hold it. Pure.

Invariants
- Clocks of different hosts are never compared. The holder relies on the Lease for `renew_deadline`, counted
  from just before it sent the renewal. Others take the Lease after it was unchanged for `duration`, which is
  longer, each by its own clock. So the holder stops before another can hold the Lease, if clocks run at about
  the same rate.
- A write contains the version that was read. So if two processes find the Lease free, only one gets it.
- Times of day in the Lease are for people. The code only compares them for equality.

The Lease decides who should act. The fence tokens in the stores decide who can.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

Json = dict[str, Any]

NOBODY: Final = ""
"""The holder of a released Lease."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The times of a Lease in seconds. Raises `ValueError` if two processes could hold the Lease at once."""

    duration: float = 12.0
    """How long a Lease must be unchanged before another process takes it. This is the cost of a dead
    leader."""
    renew_deadline: float = 8.0
    """How long a leader acts without a renewal. The difference to `duration` allows for slow clocks."""
    retry_period: float = 2.0
    """The time between two renewals, or between two checks of a process that stands by."""

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                f"a Lease of {self.duration:g} s that is renewed within {self.renew_deadline:g} s, every "
                f"{self.retry_period:g} s: the duration must be longer than the renew deadline, and that "
                "longer than the retry period"
            )


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as it was read."""

    version: str
    holder: str = NOBODY
    renewed: str = ""
    duration: float = 0.0
    transitions: int = 0

    @classmethod
    def of(cls, body: Json) -> "LeaseRecord":
        """Returns the record in a Lease object."""
        spec = body.get("spec") or {}
        return cls(
            version=str(body["metadata"]["resourceVersion"]),
            holder=str(spec.get("holderIdentity") or NOBODY),
            renewed=str(spec.get("renewTime") or ""),
            duration=float(spec.get("leaseDurationSeconds") or 0),
            transitions=int(spec.get("leaseTransitions") or 0),
        )


@dataclass(frozen=True, slots=True)
class Sight:
    """What a candidate saw: the record, and since when (by its own clock) it has been unchanged."""

    record: LeaseRecord
    since: float


def sighted(before: Sight | None, record: LeaseRecord, now: float) -> Sight:
    """Returns the sight after reading `record` at `now`."""
    same = before is not None and (before.record.holder, before.record.renewed) == (
        record.holder,
        record.renewed,
    )
    return Sight(record, before.since if same and before is not None else now)


def free_at(sight: Sight, me: str, timing: Timing) -> float:
    """Returns from when on `me` may take the Lease, with the version that was read."""
    record = sight.record
    if record.holder in {NOBODY, me}:
        return -math.inf
    return sight.since + (record.duration or timing.duration)


def taken(record: LeaseRecord | None, me: str, timing: Timing, now: datetime) -> Json:
    """Returns the `spec` with which `me` takes a Lease that was read as `record`."""
    passes = record is not None and record.holder != me
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": math.ceil(timing.duration),
        "acquireTime": micro_time(now),
        "renewTime": micro_time(now),
        "leaseTransitions": (record.transitions if record else 0) + passes,
    }


def renewed(now: datetime) -> Json:
    """Returns the changes to the `spec` for a renewal."""
    return {"renewTime": micro_time(now)}


def given_back() -> Json:
    """Returns the changes to the `spec` for a release."""
    return {"holderIdentity": NOBODY}


def micro_time(moment: datetime) -> str:
    """Returns a time as a Kubernetes MicroTime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
