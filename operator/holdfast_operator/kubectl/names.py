"""Parses the names of objects on the command line: `demo`, `catalog/demo`, `coll/flights`."""

from typing import Final

from holdfast.errors import BadInput
from holdfast_operator.api.names import GROUP, Kind

_SHORT: Final = {
    "cat": Kind.CATALOG,
    "catmig": Kind.CATALOG_MIGRATION,
    "coll": Kind.STORAGE_COLLECTION,
    "collsnap": Kind.COLLECTION_SNAPSHOT,
}
_WORDS: Final = {
    **_SHORT,
    "collection": Kind.STORAGE_COLLECTION,
    "collections": Kind.STORAGE_COLLECTION,
    "migration": Kind.CATALOG_MIGRATION,
    "migrations": Kind.CATALOG_MIGRATION,
    "snapshot": Kind.COLLECTION_SNAPSHOT,
    "snapshots": Kind.COLLECTION_SNAPSHOT,
    **{word: kind for kind in Kind for word in (kind.value.lower(), kind.plural)},
}


def parse(text: str) -> tuple[Kind | None, str]:
    """Returns the kind, or None if it isn't given, and the name. Raises `BadInput`."""
    word, slash, name = text.partition("/")
    if not slash:
        return None, text
    kind = _WORDS.get(word.lower().removesuffix(f".{GROUP}"))
    if kind is None or not name or "/" in name:
        raise BadInput(
            f"{text!r} is not a valid name",
            hint="write NAME, catalog/NAME, collection/NAME, migration/NAME or snapshot/NAME",
        )
    return kind, name


def name_of(text: str, kind: Kind) -> str:
    """Returns the name of an object of this kind. Raises `BadInput` if the text names another kind."""
    found, name = parse(text)
    if found not in (None, kind):
        raise BadInput(f"{text!r} is a {found}, but this command needs a {kind}")
    return name


def short(kind: Kind) -> str:
    """Returns the short word for a kind."""
    match kind:
        case Kind.CATALOG:
            return "catalog"
        case Kind.CATALOG_MIGRATION:
            return "migration"
        case Kind.STORAGE_COLLECTION:
            return "collection"
        case Kind.COLLECTION_SNAPSHOT:
            return "snapshot"
