"""The keys of the catalog's config: a map from names to u64 that is readable at every version.

Booleans are 0 or 1; any other value is an error, not "true".
"""

from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import BadInput, CorruptBlob, Deprecated, UpgradeNeeded, VersionTooNew

USER_VERSION = "user_version"

TOMBSTONE = "tombstone"
"""Whether this store is retired; see `move.truth`."""
STASH_LINKED = "stash_linked"
"""On persist: 0 while a stash is being linked, 1 when it is."""
LINK = "link"
"""In both stores: the random number of their link, so that two stores that don't belong together are told."""
MIGRATION_STRATEGY = "migration_strategy"
"""In the stash: the `Strategy` of the link."""
TRUTH = "truth"
"""1 in a linked store that is certainly the source of truth; taken away before that could change."""
TRUTH_SINCE = "truth_since"
"""The time from which this store's contents are the catalog's: what it held before is no past of them."""
SETTLING = "settling"
"""On persist: while it is being decided by hand which store counts; 1 the stash, 2 persist."""
MIGRATION_DEADLINE = "migration_deadline"
"""In the stash: until when the migration that is running shuts others out, in ms since the epoch."""

BOOLEANS = frozenset({TOMBSTONE, STASH_LINKED, TRUTH})

# What only an open, an upgrade or a migration may write: it decides whether and by whom a catalog is read.
RESERVED = frozenset(
    {
        USER_VERSION,
        TOMBSTONE,
        STASH_LINKED,
        LINK,
        MIGRATION_STRATEGY,
        TRUTH,
        TRUTH_SINCE,
        SETTLING,
        MIGRATION_DEADLINE,
    }
)
MIGRATION_RECORD = "migration/"
"""In the stash: the beginning of the keys that tell how far each migration is."""
MIGRATION_TARGET = "migration_target/"
"""In the stash: of those that tell where each of them goes to, 1 the stash, 2 persist."""
LINK_NOTE = "link_note/"
"""In both stores: what each notes about the other one; see `move.notes`."""


def is_reserved(key: str) -> bool:
    """Whether only an open, an upgrade or a migration may write the key."""
    return key in RESERVED or key.startswith((MIGRATION_RECORD, MIGRATION_TARGET, LINK_NOTE))


def check_version(version: int) -> None:
    """Refuse a catalog of a version that this Holdfast can't read: `VersionTooNew`, `Deprecated`."""
    if version > CATALOG_VERSION:
        raise VersionTooNew(
            f"the catalog is at version {version}, this Holdfast knows versions up to {CATALOG_VERSION}"
        )
    if version < MIN_VERSION:
        raise Deprecated(
            f"the catalog is at version {version}, this Holdfast upgrades from version {MIN_VERSION} on"
        )


def check_current(version: int) -> None:
    """As `check_version`, and `UpgradeNeeded` for objects that are older than those of this Holdfast."""
    check_version(version)
    if version < CATALOG_VERSION:
        raise UpgradeNeeded(
            f"the catalog is at version {version}, and must be upgraded to {CATALOG_VERSION} to be read"
        )


def check_stored(key: str, value: int) -> None:
    """As `check_version`, and `CorruptBlob` for a stored boolean other than 0 and 1."""
    if key == USER_VERSION:
        check_version(value)
    elif key in BOOLEANS and value not in (0, 1):
        raise CorruptBlob(f"config {key}", "0 or 1", str(value))


def check_changeable(key: str) -> None:
    """Refuse to change a key in a transaction that is none of its business: `BadInput`."""
    if is_reserved(key):
        raise BadInput(f"config {key} is not changed in a transaction: an open or an upgrade writes it")
