"""How soon a standby leads after its leader, by its Lease. The load of the machine does not count."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from holdfast_operator.engine.lease_rules import Timing

TAKEOVER_S: Final = 20.0
"""So soon a standby leads after its leader died or froze."""


def check_takeover(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """It was in time, but not before a leader that may live counts on the Lease no more.

    `before` is the Lease as the one left it, who didn't give it back, `after` as the next one has it.
    """
    left, taken = before["spec"], after["spec"]
    assert left["holderIdentity"], "it was given back, or nobody had it"
    assert taken["holderIdentity"] != left["holderIdentity"], f"{left['holderIdentity']} still has it"
    assert taken["leaseTransitions"] == left["leaseTransitions"] + 1, "others had it in between"
    between = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(left["renewTime"])
    seconds = between.total_seconds()
    assert Timing().renew_deadline < seconds <= TAKEOVER_S, f"{seconds} s from the last renewal"
