"""What a Catalog tells beside its health: of a restore, and of an upgrade. Pure."""

from collections.abc import Iterable

from holdfast.durable.store import Kept
from holdfast.durable.upgrade.report import Size, UpgradeReport
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import ConditionType, Reason
from holdfast_operator.runtime.status import Mark


def mark_restored(spec: CatalogSpec, restored_from: str | None) -> tuple[Mark, ...]:
    """What became of `spec.restoreFrom` in a catalog that is open; nothing where it isn't asked for."""
    if spec.restore_from is None:
        return ()
    if restored_from:
        text = f"the catalog was new and was filled with {restored_from}"
        return (Mark(ConditionType.RESTORED, "True", Reason.RESTORED, text),)
    text = "the catalog was there already: spec.restoreFrom has no effect; remove it"
    return (Mark(ConditionType.RESTORED, "False", Reason.RESTORE_IGNORED, text),)


def told_upgrade(report: UpgradeReport, kept: Kept | None) -> str:
    """One line on an upgrade: versions, sizes, and where the catalog of before is."""
    before, after = (_total(sizes.values()) for sizes in sizes_of(report))
    text = (
        f"upgraded from format version {report.source} to {report.target}: {before.rows} rows of "
        f"{before.bytes} bytes became {after.rows} of {after.bytes}"
    )
    if kept is None:
        return text
    return f"{text}; version {kept.version} is kept readable: holdfast catalog dump --as-of {kept.time}"


def sizes_of(report: UpgradeReport) -> tuple[dict[str, Size], dict[str, Size]]:
    """Sizes by the name of the object type, before and after all steps."""
    before: dict[str, Size] = {}
    after: dict[str, Size] = {}
    for step in report.steps:
        before = {**step.before, **before}
        after = {**after, **step.after}
    return before, after


def _total(sizes: Iterable[Size]) -> Size:
    found = list(sizes)
    return Size(sum(each.rows for each in found), sum(each.bytes for each in found))
