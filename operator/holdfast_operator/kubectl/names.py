"""How people name our objects on a command line: `demo`, `catalog/demo`, `coll/flights`."""

from typing import Final

from holdfast.errors import BadInput
from holdfast_operator.api.names import GROUP, Kind

_SHORT: Final = {"cat": Kind.CATALOG, "catmig": Kind.CATALOG_MIGRATION, "coll": Kind.STORAGE_COLLECTION}
_WORDS: Final = {
    **_SHORT,
    "collection": Kind.STORAGE_COLLECTION,
    "collections": Kind.STORAGE_COLLECTION,
    "migration": Kind.CATALOG_MIGRATION,
    "migrations": Kind.CATALOG_MIGRATION,
    **{word: kind for kind in Kind for word in (kind.value.lower(), kind.plural)},
}


def parse(text: str) -> tuple[Kind | None, str]:
    """The kind, None where it isn't said, and the name. Raises `BadInput`."""
    word, slash, name = text.partition("/")
    if not slash:
        return None, text
    kind = _WORDS.get(word.lower().removesuffix(f".{GROUP}"))
    if kind is None or not name or "/" in name:
        raise BadInput(
            f"{text!r} names nothing", hint="write a name, or catalog/NAME, collection/NAME, migration/NAME"
        )
    return kind, name


def name_of(text: str, kind: Kind) -> str:
    """The name of an object of one kind. Raises `BadInput` for another one."""
    found, name = parse(text)
    if found not in (None, kind):
        raise BadInput(f"{text!r} is a {found}, and this command is about a {kind}")
    return name


def short(kind: Kind) -> str:
    """What people type for a kind."""
    match kind:
        case Kind.CATALOG:
            return "catalog"
        case Kind.CATALOG_MIGRATION:
            return "migration"
        case Kind.STORAGE_COLLECTION:
            return "collection"
