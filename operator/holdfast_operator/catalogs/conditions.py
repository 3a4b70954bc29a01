"""Conditions and messages about a Catalog's restore, upgrade and shadow, and about a slow open. Pure."""

from collections.abc import Iterable
from datetime import datetime

from holdfast.catalog import CATALOG_VERSION
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.upgrade_report import Size, UpgradeReport
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import ANNOTATION_REOPEN, ConditionType, Reason
from holdfast_operator.catalogs.facts import Durable, Opening, ShadowFacts
from holdfast_operator.catalogs.takeovers import catalog_command
from holdfast_operator.engine.health import Health, WantedCondition
from holdfast_operator.engine.status_writer import timestamp
from holdfast_operator.engine.steps import reconciling
from holdfast_operator.places.storage import StashLocation


def restored_condition(spec: CatalogSpec, restored_from: str | None) -> tuple[WantedCondition, ...]:
    """Returns the condition for `spec.restoreFrom` of an open catalog, or nothing if the field isn't set."""
    if spec.restore_from is None:
        return ()
    if restored_from:
        text = f"the catalog was new and was filled with {restored_from}"
        return (WantedCondition(ConditionType.RESTORED, "True", Reason.RESTORED, text),)
    text = "the catalog existed already, so spec.restoreFrom has no effect; remove it"
    return (WantedCondition(ConditionType.RESTORED, "False", Reason.RESTORE_IGNORED, text),)


def shadow_condition(place: StashLocation | None, shadow: ShadowFacts | None) -> tuple[WantedCondition, ...]:
    """Returns the condition that compares an open catalog with its shadow, or nothing if it has none."""
    if place is None or shadow is None:
        return ()
    if shadow.diverged:
        text = (
            f"{shadow.diverged}; to rebuild the shadow, set the annotation {ANNOTATION_REOPEN} to a new value"
        )
        return (WantedCondition(ConditionType.SHADOW_DIVERGED, "True", Reason.SHADOW_DIVERGED, text),)
    if shadow.out_of_date:
        text = f"nothing is compared, the catalog continues without its shadow: {shadow.out_of_date}"
        return (WantedCondition(ConditionType.SHADOW_DIVERGED, "Unknown", Reason.SHADOW_OUT_OF_DATE, text),)
    text = f"the catalog holds the same on persist and in the stash in {place.url}"
    return (WantedCondition(ConditionType.SHADOW_DIVERGED, "False", Reason.SHADOW_IN_STEP, text),)


def upgrade_message(report: UpgradeReport, kept: Kept | None, opening: Opening) -> str:
    """Returns one line about an upgrade: the versions, the sizes, and how to read the previous version."""
    before, after = (_total(sizes.values()) for sizes in sizes_of(report))
    text = (
        f"upgraded from format version {report.source} to {report.target}: {before.rows} rows of "
        f"{before.bytes} bytes became {after.rows} of {after.bytes}"
    )
    if kept is None:
        return text
    command = catalog_command("dump", opening, "--as-of", str(kept.time))
    return f"{text}; version {kept.version} stays readable: {command}"


def sizes_of(report: UpgradeReport) -> tuple[dict[str, Size], dict[str, Size]]:
    """Returns sizes by the name of the object type, before and after all steps."""
    before: dict[str, Size] = {}
    after: dict[str, Size] = {}
    for step in report.steps:
        before = {**step.before, **before}
        after = {**after, **step.after}
    return before, after


def opening_since(opening: Opening, since: datetime | None, found: Durable | None) -> Health:
    """Returns the health of a Catalog that takes long to open. `found` is its stored state, if known."""
    if since is None:
        return reconciling(Reason.OPENING, "waiting for other catalogs to open, which take long")
    version = found.catalog_version if found else None
    if version is None and opening.restore is not None:
        text = f"restoring {opening.restore} since {timestamp(since)}"
        return reconciling(Reason.RESTORING, f"{text}; the catalog opens when this is done")
    if version is not None and version < CATALOG_VERSION and not opening.observed:
        text = f"upgrading from format version {version} to {CATALOG_VERSION} since {timestamp(since)}"
        return reconciling(Reason.UPGRADING, f"{text}; the catalog opens when this is done")
    text = f"opening the catalog since {timestamp(since)}"
    return reconciling(Reason.OPENING, f"{text}; it is large, or its store is slow")


def _total(sizes: Iterable[Size]) -> Size:
    found = list(sizes)
    return Size(sum(each.rows for each in found), sum(each.bytes for each in found))
