"""Conditions of a Catalog beside its health: what became of `spec.restoreFrom`. Pure."""

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
