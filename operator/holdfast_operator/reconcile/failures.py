"""What an error of the library means for a resource.

Invariants
- Every message says what to do next; none holds a secret.
- What may mend itself is tried again after a growing delay; so is what somebody mends outside of the cluster.
"""

from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    CodecMismatch,
    CorruptBlob,
    Deprecated,
    FenceRegressed,
    HoldfastError,
    LocationMismatch,
    ShardFinalized,
    StorageError,
    VersionTooNew,
)
from holdfast_operator.api.names import Reason
from holdfast_operator.reconcile.facts import RestoreFailed, UpgradePending
from holdfast_operator.reconcile.steps import Settle, reconciling, stalled
from holdfast_operator.runtime.logging import redact

_NEXT = {
    Reason.STORE_UNREACHABLE: "it is tried again by itself; check the store and its credentials",
    Reason.STORE_INCONSISTENT: "check spec.storage and the version of the operator",
    Reason.DATA_DELETED: "create another resource, with another organizationId or another location",
    Reason.INVALID_SPEC: "correct the spec",
    Reason.SCHEMA_MISMATCH: "correct the spec, or create another collection",
    Reason.FENCE_REGRESSED: "stop all writers and repair the fence",
    Reason.INTERNAL_ERROR: "it is tried again by itself; the operator's log has the details",
    Reason.CATALOG_OUT_OF_SYNC: "it is read again by itself",
}


def reason_of(error: HoldfastError) -> Reason:
    """The reason that an error is shown as."""
    match error:
        case FenceRegressed():
            return Reason.FENCE_REGRESSED
        case ShardFinalized():
            return Reason.DATA_DELETED
        case CatalogOutOfSync():
            return Reason.CATALOG_OUT_OF_SYNC
        case VersionTooNew():
            return Reason.VERSION_TOO_NEW
        case Deprecated():
            return Reason.DEPRECATED
        case UpgradePending():
            return Reason.UPGRADE_PENDING
        case RestoreFailed():
            return Reason.RESTORE_FAILED
        case CorruptBlob() | LocationMismatch():
            return Reason.STORE_INCONSISTENT
        case StorageError():
            return Reason.STORE_UNREACHABLE
        case CodecMismatch():
            return Reason.SCHEMA_MISMATCH
        case BadInput():
            return Reason.INVALID_SPEC
        case _:
            return Reason.INTERNAL_ERROR


def settled(error: HoldfastError, *, reason: Reason | None = None) -> Settle:
    """How a resource rests after `error`; `reason` where the caller knows better."""
    why = reason or reason_of(error)
    message = redact(f"{error}; {error.hint or _NEXT.get(why, 'correct the spec')}")
    if why is Reason.CATALOG_OUT_OF_SYNC:
        return Settle(reconciling(why, message), retry=True)
    return Settle(stalled(why, message), retry=True)
