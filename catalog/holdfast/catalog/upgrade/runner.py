"""Upgrades a catalog: first fences other writers, then commits one version after the other.

- The steps are planned before the fence (see `plan`), so a refused upgrade changes nothing. If another
  process changes the catalog during the planning, the plan is lost. After `PLANS_BEFORE_FENCE` lost plans,
  the upgrade fences first. A refusal after that changes only the epoch.
- The fence stops writers of the old version. A writer finds the fence one commit before it could find rows
  that it can't decode. A reader first finds, in the commit of the first step, a version that is too new for
  it.
- A step and its new version are one commit. After a crash, the next process that opens the catalog continues
  from the stored version, with its own token. A process that was fenced during an upgrade finds that at its
  next commit.
- The time before the upgrade stays readable, so that you can still dump it afterwards.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

from holdfast.catalog import config
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.objects.codec import TAG_BYTES
from holdfast.catalog.objects.registry import OBJECT_TYPES
from holdfast.catalog.stores.preamble import Preamble, committed, read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.upgrade.plan import Chain, Plan
from holdfast.catalog.upgrade_report import UpgradeReport
from holdfast.errors import (
    AsOfTooEarly,
    CatalogOutOfSync,
    Fenced,
    FenceRegressed,
    OtherHistory,
    UpperMismatch,
)

PLANS_BEFORE_FENCE = 2
"""The number of lost plans after which the upgrade fences first."""

_UNTOUCHED = frozenset(kind.tag for kind, row in OBJECT_TYPES.items() if not row.migratable)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upgraded:
    """A catalog at the current version under `token`, in the state of `seen`."""

    seen: Preamble
    token: FenceToken
    report: UpgradeReport


def upgrade(
    store: CatalogStore, chain: Chain, take_over: Callable[[Preamble], FenceToken]
) -> Upgraded | None:
    """Fence the catalog with the token that `take_over` returns for its state, and upgrade it.

    Returns None if there is nothing to upgrade, perhaps because another process was faster. Then nobody is
    fenced.

    An error of `take_over` or of the plan changes nothing, or only the epoch (see above). Raises `Fenced` if
    another process takes over during the upgrade, which may leave the catalog at a version in between. After
    `Indeterminate`, open the catalog again.
    """
    start = time.monotonic()
    for attempt in count():
        seen = read_preamble(store, store.upper())
        if seen.config.get(config.USER_VERSION, chain.current) >= chain.current:
            return None
        take_over(seen)
        with ExitStack() as until_done:
            plan = None
            if attempt < PLANS_BEFORE_FENCE:
                try:
                    plan = until_done.enter_context(Plan(store, seen, chain))
                except AsOfTooEarly:
                    continue  # A writer made so many commits that the planned state is no longer readable.
            fenced = _fence(store, seen, take_over)
            if fenced is None:
                continue
            if plan is None:
                plan = until_done.enter_context(Plan(store, fenced[0], chain))
            return _commit(store, *fenced, plan, start)
    raise AssertionError


def upgrade_under(store: CatalogStore, seen: Preamble, token: FenceToken, plan: Plan) -> Upgraded | None:
    """Commit a plan after `seen`, if `token` is already the durable token.

    Returns None if objects have changed since the planning. Raises like `upgrade`.
    """
    start = time.monotonic()
    if not same_objects(store, plan.seen, seen):
        return None
    store.keep(seen.upper - 1, plan.source)
    return _commit(store, seen, token, plan, start)


def _fence(
    store: CatalogStore, planned: Preamble, take_over: Callable[[Preamble], FenceToken]
) -> tuple[Preamble, FenceToken] | None:
    """Write the token to the store. Returns None if objects have changed since `planned`."""
    seen = planned
    while True:
        token = take_over(seen)
        store.keep(seen.upper - 1, seen.config[config.USER_VERSION])
        fence = seen.fence(token)
        if not fence:
            # The store already has this token.
            return seen, token
        if committed(store, seen, fence):
            return seen.fenced(token), token
        seen = read_preamble(store, store.upper())
        if not same_objects(store, planned, seen):
            return None


def _commit(store: CatalogStore, seen: Preamble, token: FenceToken, plan: Plan, start: float) -> Upgraded:
    reports = []
    for step in plan.steps:
        began = time.monotonic()
        seen = _commit_step(store, seen, token, plan, step.source)
        reports.append(step.committed(time.monotonic() - began))
        _log.info("upgraded the catalog in %s from %s", store.place, reports[-1])
    report = UpgradeReport(plan.source, reports[-1].target, tuple(reports), time.monotonic() - start)
    return Upgraded(seen, token, report)


def _commit_step(
    store: CatalogStore, seen: Preamble, token: FenceToken, plan: Plan, version: int
) -> Preamble:
    """Commit the step from `version` after `seen`. Returns the preamble after the step."""
    while True:
        try:
            store.append(plan.updates(version, seen), seen.upper, fence=seen.fence_row)
        except (OtherHistory, UpperMismatch):
            found = read_preamble(store, store.upper())
            _check_token(token, found.token)
            if found.config.get(config.USER_VERSION) == version + 1:
                # Nobody else has this token, so this process made the commit, but did not see its result.
                return found
            if not same_objects(store, seen, found):
                raise CatalogOutOfSync(
                    f"the upgrade of the catalog in {store.place} stopped at version {version}: another"
                    " process changed the catalog without opening it for writing",
                    hint="find that process; then open the catalog again, which continues the upgrade",
                ) from None
            seen = found
            continue
        return seen.upgraded(version + 1)


def _check_token(mine: FenceToken, durable: FenceToken | None) -> None:
    if durable == mine:
        return
    if durable is None or durable < mine:
        raise FenceRegressed(mine, durable)
    raise Fenced(mine, durable)


def same_objects(store: CatalogStore, old: Preamble, new: Preamble) -> bool:
    """Whether a plan for `old` is valid for `new`: only rows that no step may change differ."""
    if new.upper < old.upper or new.config.get(config.USER_VERSION) != old.config[config.USER_VERSION]:
        return False
    try:
        changes = store.changes(old.upper, new.upper, fence=old.fence_row)
    except (AsOfTooEarly, OtherHistory):
        return False
    return all(update.row.key[:TAG_BYTES] in _UNTOUCHED for _, updates in changes for update in updates)
