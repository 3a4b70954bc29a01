"""Messages for a Catalog that this operator can't take over now, with commands for you to run. Pure.

Invariants
- If the stored fence token is lower than before, the catalog stays closed until the epoch is again at least
  what it was. Only a person who looks at the store can decide that its state is the right one.
- A command is complete: it contains the location and the organization, but never credentials.
"""

import shlex
from datetime import datetime, timedelta
from typing import Final

from holdfast.catalog import CATALOG_VERSION, FenceToken
from holdfast.errors import Fenced, StoreUnreachable
from holdfast_operator.api.names import Reason
from holdfast_operator.catalogs.facts import Durable, Opening
from holdfast_operator.engine.health import Health
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.engine.steps import Settle, reconciling, stalled
from holdfast_operator.places.long_calls import UnderWay
from holdfast_operator.places.storage import url_with

LONGEST: Final = 8
"""An open whose store responds to some requests may take this many times as long as a silent store."""

Found = Durable | StoreUnreachable | None
"""The stored state of a catalog that isn't open, or why it can't be read. None if it can't be understood."""


def catalog_command(name: str, opening: Opening, *arguments: str) -> str:
    """Returns the command `holdfast catalog <name>` for a catalog, quoted for a shell."""
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
    """Returns what to show for a Catalog that could not be opened because another process fenced it."""
    durable = error.durable
    if isinstance(durable, FenceToken) and durable.deploy_generation > opening.deploy_generation:
        message = f"{error}; set spec.deployGeneration to at least {durable.deploy_generation}"
        return Settle(stalled(Reason.DEPLOY_GENERATION_TOO_LOW, message))
    message = f"{error}; another process took it over during the open; the operator retries by itself"
    return Settle(reconciling(Reason.FENCED_BY_OTHER, message), retry=True)


def needs_fence(found: Durable | None, least: int) -> bool:
    """Returns whether the catalog stays closed, because its epoch is lower than `least` or unknown."""
    return found is None or found.epoch is None or found.epoch < least


def regressed(opening: Opening, found: Durable | None, least: int) -> Health:
    """Returns the health of a catalog whose stored epoch is lower than `least`, and what to do."""
    if found is not None and found.epoch is None:
        return stalled(
            Reason.FENCE_REGRESSED,
            f"{opening.storage} no longer has a catalog of {opening.organization_id}, which was open at "
            f"epoch {least}; restore the contents of the store, and the operator opens it by itself; "
            "to start with an empty catalog, delete this resource and create it again",
        )
    epoch = "unknown" if found is None else found.epoch
    command = catalog_command("fence", opening, "--at-least", str(least))
    return stalled(
        Reason.FENCE_REGRESSED,
        f"the stored epoch is {epoch}, but the catalog was open at {least}: the store was restored from "
        "an older state; stop all writers and find out which state is the right one; to continue with this "
        f"one, run `{command}`, and the operator opens the catalog again by itself",
    )


def no_answer(
    opening: Opening, wait: UnderWay, now: datetime, found: Found, silence: timedelta
) -> Health | None:
    """Returns the health of a Catalog whose store is unreachable, or None if its open only takes long.

    `found` is the result of another request to the store. A store is unreachable in two cases: that request
    fails and the open has waited for `silence`; or the request succeeds, but the open has waited for
    `LONGEST` times `silence` although the catalog needs neither a restore nor an upgrade.
    """
    then = "the open continues when it responds; check the store and its credentials"
    text = ""
    if isinstance(found, StoreUnreachable):
        if wait.since is None:
            text = "the store doesn't respond, and other opens already wait for it"
        elif now - wait.since >= silence:
            text = f"the store has not responded since {timestamp(wait.since)}"
    elif wait.since is not None and now - wait.since >= silence * LONGEST and not _is_long(opening, found):
        text = f"the store responds only in part, or very slowly, since {timestamp(wait.since)}"
    return stalled(Reason.STORE_UNREACHABLE, f"{text}; {then}") if text else None


def _is_long(opening: Opening, found: Durable | None) -> bool:
    """Returns whether the open does more than read the catalog."""
    if found is None or found.catalog_version is None:
        return opening.restore is not None
    return found.catalog_version != CATALOG_VERSION
