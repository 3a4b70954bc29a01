"""The keys of the catalog's config: a map from names to u64 that you can read at every version.

Booleans are 0 or 1. Any other value is an error, and doesn't count as true.
"""

from holdfast.catalog.damage import corrupt
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.errors import BadInput, Deprecated, UpgradeNeeded, VersionTooNew

USER_VERSION = "user_version"

TOMBSTONE = "tombstone"
"""Whether this store is retired. See `move.truth`."""
STASH_LINKED = "stash_linked"
"""On persist: 0 while a stash is being linked, 1 once it is linked."""
LINK = "link"
"""In both stores: the random number of their link. It shows whether two stores belong together."""
MIGRATION_STRATEGY = "migration_strategy"
"""In the stash: the `Strategy` of the link."""
TRUTH = "truth"
"""1 in a linked store that is certainly the source of truth. It is removed before that can change."""
TRUTH_SINCE = "truth_since"
"""The earliest time of this store whose contents are the catalog's.

Contents at earlier times are not part of its history.
"""
SETTLING = "settling"
"""On persist, while somebody decides by hand which store counts: 1 for the stash, 2 for persist."""
MIGRATION_DEADLINE = "migration_deadline"
"""In the stash: the time, in milliseconds since 1970, until which the running migration shuts others out."""

BOOLEANS = frozenset({TOMBSTONE, STASH_LINKED, TRUTH})

# Only an open, an upgrade or a migration may write these keys, because they decide which processes can read
# a catalog.
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
"""In the stash: the prefix of the keys with the record of each migration."""
MIGRATION_TARGET = "migration_target/"
"""In the stash: the prefix of the keys with the target of each migration: 1 for the stash, 2 for persist."""
LINK_NOTE = "link_note/"
"""In both stores: the prefix of the keys with each store's notes about the other one. See `move.notes`."""


def is_reserved(key: str) -> bool:
    """Whether only an open, an upgrade or a migration may write this key."""
    return key in RESERVED or key.startswith((MIGRATION_RECORD, MIGRATION_TARGET, LINK_NOTE))


def check_version(version: int) -> None:
    """Raise `VersionTooNew` or `Deprecated` for a version that this Holdfast can't read."""
    if version > CATALOG_VERSION:
        raise VersionTooNew(
            f"the catalog is at version {version}, this Holdfast knows versions up to {CATALOG_VERSION}"
        )
    if version < MIN_VERSION:
        raise Deprecated(
            f"the catalog is at version {version}, this Holdfast upgrades from version {MIN_VERSION} on"
        )


def check_current(version: int) -> None:
    """Like `check_version`. Also raises `UpgradeNeeded` if the objects are of an older version."""
    check_version(version)
    if version < CATALOG_VERSION:
        raise UpgradeNeeded(
            f"the catalog is at version {version}, and must be upgraded to {CATALOG_VERSION} to be read"
        )


def check_stored(key: str, value: int) -> None:
    """Like `check_version`. Also raises `CorruptBlob` for a stored boolean other than 0 and 1."""
    if key == USER_VERSION:
        check_version(value)
    elif key in BOOLEANS and value not in (0, 1):
        raise corrupt(f"config {key}", "0 or 1", str(value))


def check_changeable(key: str) -> None:
    """Raise `BadInput` for a key that a transaction may not change."""
    if is_reserved(key):
        raise BadInput(f"a transaction can't change config {key}: only an open or an upgrade writes it")
