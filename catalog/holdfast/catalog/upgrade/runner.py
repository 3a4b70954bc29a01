"""Upgrading a catalog: the fence first, then one version after the other, each in one commit.

- The steps are worked out before the fence (see `plan`), so that what is refused changes nothing. While a
  running process goes on changing the catalog that work is lost; then the fence is put first, and a refusal
  after it leaves all but the epoch as it was.
- The fence stops whoever writes the old version. It finds the fence one commit before it could meet rows that
  it can't decode; readers find a version too new for them first in the commit of the first step.
- A step and the new version are one commit. Whoever opens the catalog after a crash goes on from the version
  that he finds, with a token of his own; he who was fenced meanwhile is told at his next commit.
- The time before the upgrade is kept readable, so that a dump of it can be taken afterwards.
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
from holdfast.catalog.objects.registry import COLLECTIONS
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
"""How many times the steps are worked out for nothing before the fence is put first."""

_UNTOUCHED = frozenset(kind.tag for kind, row in COLLECTIONS.items() if not row.migratable)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upgraded:
    """A catalog that is at the current version under `token`, as of `seen`."""

    seen: Preamble
    token: FenceToken
    report: UpgradeReport


def upgrade(
    store: CatalogStore, chain: Chain, take_over: Callable[[Preamble], FenceToken]
) -> Upgraded | None:
    """Fence the catalog with the token that `take_over` gives for what is there, and upgrade it.

    None where there is nothing to upgrade, perhaps because another process was faster: nobody is fenced then.
    Raises what `take_over` and `Plan` do, and nothing is changed then; `Fenced` when another process takes
    over meanwhile, which leaves the catalog at some version between; `Indeterminate`: open it again.
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
                    continue  # whoever runs has changed it that often meanwhile
            fenced = _fence(store, seen, take_over)
            if fenced is None:
                continue
            if plan is None:
                plan = until_done.enter_context(Plan(store, fenced[0], chain))
            return _commit(store, *fenced, plan, start)
    raise AssertionError


def upgrade_under(store: CatalogStore, seen: Preamble, token: FenceToken, plan: Plan) -> Upgraded | None:
    """Commit what was planned, on the state of `seen`, where `token` is the durable one already.

    None when objects have changed since it was planned. Raises as `upgrade`.
    """
    start = time.monotonic()
    if not same_objects(store, plan.seen, seen):
        return None
    store.keep(seen.upper - 1, plan.source)
    return _commit(store, seen, token, plan, start)


def _fence(
    store: CatalogStore, planned: Preamble, take_over: Callable[[Preamble], FenceToken]
) -> tuple[Preamble, FenceToken] | None:
    """Put the token into the store; None when objects have changed since `planned`."""
    seen = planned
    while True:
        token = take_over(seen)
        store.keep(seen.upper - 1, seen.config[config.USER_VERSION])
        fence = seen.fence(token)
        if not fence:
            # It was taken over with that token before.
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
    """Commit the step from `version` on the state of `seen`; the preamble after it."""
    while True:
        try:
            store.append(plan.updates(version, seen), seen.upper, fence=seen.fence_row)
        except (OtherHistory, UpperMismatch):
            found = read_preamble(store, store.upper())
            _check_token(token, found.token)
            if found.config.get(config.USER_VERSION) == version + 1:
                # Nobody else has this token: it is what this process committed, and was not told of.
                return found
            if not same_objects(store, seen, found):
                raise CatalogOutOfSync(
                    "somebody changed the catalog without taking over while it was upgraded",
                    hint="open it again: the upgrade goes on from where it is",
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
    """Whether what was worked out on `old` holds on `new`: nothing but what no step may change differs."""
    if new.upper < old.upper or new.config.get(config.USER_VERSION) != old.config[config.USER_VERSION]:
        return False
    try:
        changes = store.changes(old.upper, new.upper, fence=old.fence_row)
    except (AsOfTooEarly, OtherHistory):
        return False
    return all(update.row.key[:TAG_BYTES] in _UNTOUCHED for _, updates in changes for update in updates)
