"""How long nobody had a Lease, by what it says of its holders: the load of the machine doesn't count."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

TAKEOVER_S: Final = 20.0
"""So soon a standby leads, by the times in the Lease, after its leader died or froze."""


def unheld_seconds(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """From the last renewal of one holder to when the next one took the Lease.

    `before` is the Lease as the one left it, `after` as the next one, and nobody in between, has it.
    """
    left, taken = before["spec"], after["spec"]
    assert left["holderIdentity"], "it was given back, or nobody had it"
    assert taken["holderIdentity"] != left["holderIdentity"], f"{left['holderIdentity']} still has it"
    assert taken["leaseTransitions"] == left["leaseTransitions"] + 1, "others had it in between"
    between = datetime.fromisoformat(taken["acquireTime"]) - datetime.fromisoformat(left["renewTime"])
    return between.total_seconds()
