"""What a Catalog shows that this operator can't take over, or not yet; and commands to paste. Pure.

Invariants
- A catalog whose fence token went back is not opened before its epoch is again what it was: only somebody
  who looked at the store knows that its state is the right one.
- A command is complete: location and organization are in it, credentials never.
"""

import shlex
from datetime import datetime, timedelta
from typing import Final

from holdfast.catalog import CATALOG_VERSION, FenceToken
from holdfast.errors import Fenced, StoreUnreachable
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs.facts import Durable, Opening
from holdfast_operator.engine.status import Health, timestamp
from holdfast_operator.engine.steps import Settle, reconciling, stalled
from holdfast_operator.places.longcalls import UnderWay
from holdfast_operator.places.storage import url_with

LONGEST: Final = 8
"""So many times as long as a silent store an open may take whose store answers in parts."""

Found = Durable | StoreUnreachable | None
"""What a store says of a catalog that isn't open; None where that makes no sense."""


def catalog_command(name: str, opening: Opening, *arguments: str) -> str:
    """The `holdfast catalog` command of that name for a catalog, as a shell takes it."""
    storage = opening.storage
    place = ["--persist", storage.url or storage.blob or ""]
    if storage.consensus is not None:
        place += ["--consensus", storage.consensus]
    if opening.stash is not None:
        place = ["--stash", url_with(opening.stash, {}), *place]
    return shlex.join(
        ["holdfast", "catalog", name, *place, "--organization-id", opening.organization_id, *arguments]
    )


def shut_out(error: Fenced, opening: Opening) -> Settle:
    """How a Catalog rests that could not be opened because of another's token."""
    durable = error.durable
    if isinstance(durable, FenceToken) and durable.deploy_generation > opening.deploy_generation:
        message = f"{error}; set spec.deployGeneration to at least that of the durable token"
        return Settle(stalled(Reason.DEPLOY_GENERATION_TOO_LOW, message))
    message = f"{error}; somebody took it over while it was opened, it is tried again by itself"
    return Settle(reconciling(Reason.FENCED_BY_OTHER, message), retry=True)


def needs_fence(found: Durable | None, least: int) -> bool:
    """Whether a catalog whose token went back stays closed: its epoch is lower than `least`, or unknown."""
    return found is None or found.epoch is None or found.epoch < least


def regressed(opening: Opening, found: Durable | None, least: int) -> Health:
    """What such a catalog shows, and what is to be done."""
    if found is not None and found.epoch is None:
        return stalled(
            Reason.FENCE_REGRESSED,
            f"there is no catalog of {opening.organization_id} in {opening.storage} any more, and it was "
            f"open at epoch {least}: bring the contents of the store back, it is then opened by itself; "
            "to begin with an empty one delete this resource and create it again",
        )
    epoch = "unknown" if found is None else found.epoch
    command = catalog_command("fence", opening, "--at-least", str(least))
    return stalled(
        Reason.FENCE_REGRESSED,
        f"the durable epoch is {epoch}, and the catalog was open at {least}: the store was restored from an "
        "older state; stop all writers and find out which state is the right one; to go on with this one run "
        f"`{command}`, the catalog is then opened again by itself",
    )


def no_answer(
    opening: Opening, wait: UnderWay, now: datetime, found: Found, silence: timedelta
) -> Health | None:
    """What a Catalog shows whose open waits for a store in vain; None where it may only take long.

    `found` is what the store answered beside it. One that answered nothing for `silence` is not reachable;
    nor is one that answers in parts, where after `LONGEST` times as long not even a catalog is open that is
    neither restored nor upgraded.
    """
    then = "the open goes on when it answers; check the store and its credentials"
    text = ""
    if isinstance(found, StoreUnreachable):
        if wait.since is None:
            text = "the store doesn't answer, and other opens wait for it already"
        elif now - wait.since >= silence:
            text = f"the store has not answered since {timestamp(wait.since)}"
    elif wait.since is not None and now - wait.since >= silence * LONGEST and not _is_long(opening, found):
        text = f"the store answers in parts only, or very slowly, since {timestamp(wait.since)}"
    return stalled(Reason.STORE_UNREACHABLE, f"{text}; {then}") if text else None


def _is_long(opening: Opening, found: Durable | None) -> bool:
    """Whether the open has more to do than to read a catalog."""
    if found is None or found.catalog_version is None:
        return opening.restore is not None
    return found.catalog_version != CATALOG_VERSION
