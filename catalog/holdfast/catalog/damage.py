"""The error for a damaged catalog, in any store."""

from holdfast.errors import CorruptBlob


def corrupt(what: str, expected: str, found: str) -> CorruptBlob:
    """Return the error for contents of a catalog that no Holdfast has written.

    The store itself can be intact, so a check of the store may find nothing.
    """
    return CorruptBlob(
        what,
        expected,
        found,
        hint="restore the store of the catalog from a backup, or load a dump into a new store with"
        " 'holdfast catalog load'",
    )
