"""The debug tool's changes: one object by hand, or a whole dump.

Invariants
- A change opens the catalog for writing and so fences every process that runs on it; what is refused is
  refused before, by a rehearsal on a savepoint, and changes nothing.
- The fence token is changed by `OpenableCatalog.raise_fence` only.
"""

from collections.abc import Iterator
from typing import Any, TextIO, assert_never

from google.protobuf.message import Message

from holdfast.durable import config
from holdfast.durable.codec import Row, decode
from holdfast.durable.interfaces import Loaded, OpenableCatalog, OpenMode
from holdfast.durable.objectjson import (
    Entry,
    collection_named,
    parse_key,
    parse_value,
    read_dump,
)
from holdfast.durable.registry import COLLECTIONS, CONFIGS, FENCE_TOKENS, Collection
from holdfast.durable.upgrade import objects
from holdfast.durable.version import CATALOG_VERSION
from holdfast.errors import BadInput, CorruptBlob, Deprecated, Uninitialized, VersionTooNew


def edit(
    openable: OpenableCatalog,
    collection: str,
    key: str,
    value: str,
    *,
    holder: str,
    purpose: str,
    force: bool = False,
) -> Message | None:
    """Give the object of `key` that value, or insert it; the value that it had, None when it is new.

    `collection` is the name of the type, key and value are JSON as a dump shows them. `force` is needed for
    config that decides whether and by whom the catalog is read. Raises `BadInput` and changes nothing when
    the catalog could not hold the result.
    """
    row = _changeable(collection)
    object_ = row, parse_key(row, key), parse_value(row, value)
    found: Message | None = _put(openable, object_, holder=holder, purpose=purpose, force=force)
    return found


def delete(
    openable: OpenableCatalog,
    collection: str,
    key: str,
    *,
    holder: str,
    purpose: str,
    force: bool = False,
) -> Message:
    """Remove the object of `key` and give its value; `BadInput` when there is none. Otherwise as `edit`."""
    row = _changeable(collection)
    object_ = row, parse_key(row, key), None
    found: Message = _put(openable, object_, holder=holder, purpose=purpose, force=force)
    return found


def load(
    openable: OpenableCatalog,
    dump: TextIO,
    *,
    deploy_generation: int | None = None,
    holder: str,
    purpose: str,
) -> Loaded:
    """Put the contents of a dump into the catalog; see `OpenableCatalog.load`."""
    return openable.load(
        rows_of_dump(dump), deploy_generation=deploy_generation, holder=holder, purpose=purpose
    )


def rows_of_dump(dump: TextIO) -> Iterator[Row]:
    """The rows of a dump at the version that it is of, without its fence token.

    Raises `BadInput` when it isn't a whole dump, `VersionTooNew` or `Deprecated` by its version.
    """
    sections: list[Collection[Any, Any]] = []
    version: int | None = None
    for found in read_dump(dump):
        match found:
            case str(name):
                sections.append(collection_named(name))
            case Entry(key, value):
                collection = sections[-1]
                if version is None and collection.migratable:
                    raise BadInput(f"the dump has no config {config.USER_VERSION} in front of its objects")
                # What isn't migratable is the same at every version.
                row = objects.encode(version or CATALOG_VERSION, collection.kind, key, value)
                if collection is CONFIGS:
                    version = _version_of(row) or version
                if collection is not FENCE_TOKENS:
                    yield row
            case _:
                assert_never(found)
    missing = [row.name for row in COLLECTIONS.values() if row not in sections]
    if missing:
        raise BadInput(f"the dump is not whole: it has no {', '.join(missing)}")


def _version_of(row: Row) -> int | None:
    """The version that a row of the config says, checked; None when it says something else."""
    said = decode(CONFIGS, row)
    if said.key.key != config.USER_VERSION:
        return None
    config.check_version(said.value.value)
    return said.value.value


def _changeable(name: str) -> Collection[Any, Any]:
    collection = collection_named(name)
    if collection is FENCE_TOKENS:
        raise BadInput(
            "the fence token is not edited by hand", hint="raise it with holdfast catalog fence --at-least N"
        )
    return collection


def _put(
    openable: OpenableCatalog,
    object_: tuple[Collection[Any, Any], Any, Any],
    *,
    holder: str,
    purpose: str,
    force: bool,
) -> Any:
    collection, key, value = object_
    if collection is CONFIGS:
        _check_config(key.key, None if value is None else value.value, force=force)
    if not openable.is_initialized():
        raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    generation = openable.deploy_generation() or 0
    found: Any = None
    for mode in (OpenMode.SAVEPOINT, OpenMode.WRITABLE):
        with openable.open(mode, deploy_generation=generation, holder=holder, purpose=purpose) as catalog:
            found = catalog.dangerous_edit(collection, key, value)
        if found is None and value is None:
            raise BadInput(f"{collection} has no such key: {_show(key)}")
    return found


def _check_config(key: str, value: int | None, *, force: bool) -> None:
    if key == config.USER_VERSION and value is None:
        raise BadInput(f"config {key} can't be deleted: without it there is no catalog")
    if config.is_reserved(key) and not force:
        raise BadInput(
            f"config {key} decides whether and by whom the catalog is read",
            hint="to change it all the same: --force",
        )
    if value is not None:
        try:
            config.check_stored(key, value)
        except (CorruptBlob, VersionTooNew, Deprecated) as error:
            raise BadInput(f"no Holdfast could open the catalog then: {error}") from None


def _show(message: Message) -> str:
    return " ".join(str(message).split()) or "(empty)"
