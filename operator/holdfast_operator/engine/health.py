"""The health of a resource: its phase, a reason and a message, and the conditions that show them. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, assert_never

from holdfast_operator.api.names import ConditionType, Reason


class Phase(StrEnum):
    """The state of a resource in the terms of kstatus."""

    READY = "ready"
    RECONCILING = "reconciling"
    STALLED = "stalled"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Health:
    """The phase of a resource, its reason, and a message that says what to do next."""

    phase: Phase
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class WantedCondition:
    """A condition to write."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str


def health_conditions(health: Health) -> tuple[WantedCondition, WantedCondition, WantedCondition]:
    """Returns the conditions Ready, Reconciling and Stalled for a health."""

    def three(
        ready: Literal["True", "False"], *, reconciling: bool, stalled: bool
    ) -> tuple[WantedCondition, WantedCondition, WantedCondition]:
        return (
            WantedCondition(ConditionType.READY, ready, health.reason, health.message),
            WantedCondition(
                ConditionType.RECONCILING, "True" if reconciling else "False", health.reason, health.message
            ),
            WantedCondition(
                ConditionType.STALLED, "True" if stalled else "False", health.reason, health.message
            ),
        )

    match health.phase:
        case Phase.READY:
            return three("True", reconciling=False, stalled=False)
        case Phase.RECONCILING:
            return three("False", reconciling=True, stalled=False)
        case Phase.STALLED:
            return three("False", reconciling=False, stalled=True)
        case Phase.SUSPENDED:
            return three("False", reconciling=False, stalled=False)
        case _:
            assert_never(health.phase)
