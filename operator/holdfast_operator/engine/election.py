"""The rules of a Lease (`coordination.k8s.io/v1`): when it is free, and what is written to have it. Pure.

Invariants
- No two clocks are compared. Who has the Lease counts on it for `renew_deadline` from the moment before it
  asked for the renewal; others take it when they saw it unchanged for the longer `duration`, each by its own
  clock. So the one has let go before another can have it, if clocks run at about the same pace.
- A write names the version that was read: of two that find it free one gets it.
- What the Lease says of a time of day is for people; it is only compared for being the same.

The Lease decides who should act; who can is decided by the fence tokens in the stores.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

Json = dict[str, Any]

NOBODY: Final = ""
"""The holder of a Lease that was given back."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds. Raises `ValueError` where they could give the Lease to two."""

    duration: float = 12.0
    """For so long a Lease must have looked the same before another takes it: what a dead leader costs."""
    renew_deadline: float = 8.0
    """For so long a leader acts without a renewal. What is left to `duration` pays for slow clocks."""
    retry_period: float = 2.0
    """Between two renewals, and between two looks of one that stands by."""

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
        """The record in a Lease object, whoever wrote it."""
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
    """What a candidate saw: the record, and since when (its own seconds) it has been renewed no more."""

    record: LeaseRecord
    since: float


def sighted(before: Sight | None, record: LeaseRecord, now: float) -> Sight:
    """The sight after reading `record` at `now`."""
    same = before is not None and (before.record.holder, before.record.renewed) == (
        record.holder,
        record.renewed,
    )
    return Sight(record, before.since if same and before is not None else now)


def free_at(sight: Sight, me: str, timing: Timing) -> float:
    """When the Lease is free for `me`: then or earlier it may be taken, with the version that was read."""
    record = sight.record
    if record.holder in {NOBODY, me}:
        return -math.inf
    return sight.since + (record.duration or timing.duration)


def taken(record: LeaseRecord | None, me: str, timing: Timing, now: datetime) -> Json:
    """The `spec` of a Lease that `me` takes, which looked like `record` before."""
    passes = record is not None and record.holder != me
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": math.ceil(timing.duration),
        "acquireTime": micro_time(now),
        "renewTime": micro_time(now),
        "leaseTransitions": (record.transitions if record else 0) + passes,
    }


def renewed(now: datetime) -> Json:
    """What changes in the `spec` with a renewal."""
    return {"renewTime": micro_time(now)}


def given_back() -> Json:
    """What changes in the `spec` of a Lease that nobody needs to wait for."""
    return {"holderIdentity": NOBODY}


def micro_time(moment: datetime) -> str:
    """As Kubernetes writes a MicroTime."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
