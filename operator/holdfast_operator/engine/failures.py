"""Maps errors of the library to reasons and messages of a resource.

Invariants
- Every message says what to do next. No message contains a secret.
- An error that may disappear by itself, or by a fix outside of the cluster, is retried after a growing delay.
"""

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    CodecMismatch,
    ContentsDiffer,
    CorruptBlob,
    Deprecated,
    FenceRegressed,
    HoldfastError,
    LinkConflict,
    LinkedElsewhere,
    LocationMismatch,
    MigrationConflict,
    MigrationInProgress,
    MigrationTimedOut,
    NotErased,
    NotSourceOfTruth,
    ShardFinalized,
    StorageError,
    StrategyMismatch,
    VersionTooNew,
)
from holdfast_operator.api.names import Reason
from holdfast_operator.engine.logging import redact
from holdfast_operator.engine.steps import Settle, reconciling, stalled

RETRIES: Final = "the operator retries by itself"

_NEXT = {
    Reason.STORE_UNREACHABLE: f"{RETRIES}; check the store and its credentials",
    Reason.STORE_INCONSISTENT: "check spec.storage and the version of the operator",
    Reason.DATA_DELETED: "create another resource, with another organizationId or another location",
    Reason.INVALID_SPEC: "correct the spec",
    Reason.SCHEMA_MISMATCH: "correct the spec, or create another collection",
    Reason.FENCE_REGRESSED: "stop all writers and repair the fence",
    Reason.INTERNAL_ERROR: f"{RETRIES}; its log has the details",
    Reason.CATALOG_OUT_OF_SYNC: "the operator reads it again by itself",
    Reason.MIGRATION_IN_PROGRESS: RETRIES,
    Reason.LINK_CONFLICT: "check that spec.stash and spec.storage name the two stores of this catalog",
}
_ABOUT_CREDENTIALS: Final = re.compile(r"credential|password|AWS_ACCESS_KEY_ID", re.IGNORECASE)
_WHOSE_CREDENTIALS: Final = (
    "the operator uses those in the Secret that the spec names for the store (credentialsSecretRef), and "
    "reads it again by itself; without them, its own from its environment (the chart's value "
    "credentialsSecret)"
)
_MENDS_ITSELF = {Reason.CATALOG_OUT_OF_SYNC, Reason.NOT_SOURCE_OF_TRUTH, Reason.MIGRATION_IN_PROGRESS}


_REASONS: Sequence[tuple[type[HoldfastError], Reason]] = (
    (FenceRegressed, Reason.FENCE_REGRESSED),
    (ShardFinalized, Reason.DATA_DELETED),
    (CatalogOutOfSync, Reason.CATALOG_OUT_OF_SYNC),
    (VersionTooNew, Reason.VERSION_TOO_NEW),
    (Deprecated, Reason.DEPRECATED),
    (LinkConflict, Reason.LINK_CONFLICT),
    (StrategyMismatch, Reason.STRATEGY_MISMATCH),
    (NotSourceOfTruth, Reason.NOT_SOURCE_OF_TRUTH),
    (LinkedElsewhere, Reason.STASH_MISSING),
    (MigrationInProgress, Reason.MIGRATION_IN_PROGRESS),
    (MigrationConflict, Reason.CONFLICT),
    (MigrationTimedOut, Reason.MIGRATION_TIMED_OUT),
    (ContentsDiffer, Reason.CONTENTS_DIFFER),
    (CorruptBlob, Reason.STORE_INCONSISTENT),
    (NotErased, Reason.STORE_INCONSISTENT),
    (LocationMismatch, Reason.STORE_INCONSISTENT),
    (StorageError, Reason.STORE_UNREACHABLE),
    (CodecMismatch, Reason.SCHEMA_MISMATCH),
    (BadInput, Reason.INVALID_SPEC),
)
"""The first type that matches an error decides."""


class ReasonedError(HoldfastError):
    """An error of the operator that has its own reason."""

    reason: ClassVar[Reason]


def reason_of(error: HoldfastError) -> Reason:
    """Returns the reason to show for an error."""
    if isinstance(error, ReasonedError):
        return error.reason
    found = (reason for type_, reason in _REASONS if isinstance(error, type_))
    return next(found, Reason.INTERNAL_ERROR)


def outcome_of(error: BaseException) -> str:
    """Returns the outcome label for a store call that ended with `error`: `unreachable` or `error`."""
    silent = isinstance(error, HoldfastError) and reason_of(error) is Reason.STORE_UNREACHABLE
    return "unreachable" if silent else "error"


def settled(error: HoldfastError, *, reason: Reason | None = None) -> Settle:
    """Returns what a resource shows after `error`. A `reason` from the caller takes precedence."""
    why = reason or reason_of(error)
    message = redact(f"{error}; {error.hint or _NEXT.get(why, 'correct the spec')}")
    if why is Reason.STORE_UNREACHABLE and _ABOUT_CREDENTIALS.search(f"{error} {error.hint}"):
        message = f"{message}; {_WHOSE_CREDENTIALS}"
    if why in _MENDS_ITSELF:
        return Settle(reconciling(why, message), retry=True)
    return Settle(stalled(why, message), retry=True)
