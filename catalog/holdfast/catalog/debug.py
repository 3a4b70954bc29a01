"""Changes by the debug tool: one object by hand, or a whole dump.

Invariants
- A change opens the catalog for writing, which fences every process that uses it. A rehearsal before that
  finds what must be refused, and changes nothing. The rehearsal needs a client that only reads.
- Objects are edited only at the current version. Repairing one row must not upgrade all the others.
- Only `OpenableCatalog.raise_fence` changes the fence token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO, assert_never

from google.protobuf.message import Message

from holdfast.catalog import config
from holdfast.catalog.interfaces import Catalog, Loaded, OpenableCatalog, OpenMode
from holdfast.catalog.objects.allocation import goes_back
from holdfast.catalog.objects.codec import Row, decode
from holdfast.catalog.objects.json import (
    DumpEntry,
    collection_named,
    parse_key,
    parse_value,
    read_dump,
)
from holdfast.catalog.objects.message_json import json_text
from holdfast.catalog.objects.references import dangling
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, OBJECT_TYPES, ObjectType
from holdfast.catalog.upgrade import objects
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.errors import BadInput, CorruptBlob, Deprecated, Uninitialized, VersionTooNew


@dataclass(frozen=True)
class Rehearsal:
    """A valid change of one object. `value` is None for a deletion, `found` is None for an insertion."""

    collection: ObjectType[Any, Any]
    key: Message
    value: Message | None
    found: Message | None


def rehearse(
    openable: OpenableCatalog, collection: str, key: str, value: str | None, *, force: bool = False
) -> Rehearsal:
    """Return what `edit` would do, or `delete` if `value` is None. Raises the same errors. Writes nothing."""
    row = _changeable(collection)
    message = parse_key(row, key)
    wanted = None if value is None else parse_value(row, value)
    if row is CONFIGS:
        _check_config(message.key, None if wanted is None else wanted.value, force=force)
    _check_current(openable)
    generation = openable.deploy_generation() or 0
    with openable.open(
        OpenMode.SAVEPOINT, deploy_generation=generation, purpose="rehearsal of a repair"
    ) as catalog:
        found = _edited(catalog, row, message, wanted, force=force)
    if found is None and wanted is None:
        raise BadInput(
            f"{row} has no object with key {json_text(message)}",
            hint="'holdfast catalog dump' shows all objects with their keys",
        )
    return Rehearsal(row, message, wanted, found)


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
    """Set the object with `key` to `value`, or insert it. Returns the value before, or None for a new object.

    `collection` is the name of the type. Key and value are JSON as in a dump. `force` allows to change config
    that decides whether and by whom the catalog is read, to move an id allocator or a timeline back, and to
    write an id that is empty or refers to nothing. Raises `BadInput`, with nothing changed, if the catalog
    could not hold the result.
    """
    planned = rehearse(openable, collection, key, value, force=force)
    return _put(openable, planned, holder=holder, purpose=purpose, force=force)


def delete(
    openable: OpenableCatalog,
    collection: str,
    key: str,
    *,
    holder: str,
    purpose: str,
    force: bool = False,
) -> Message:
    """Remove the object with `key` and return its value.

    Raises `BadInput` if there is none, and like `edit`.
    """
    planned = rehearse(openable, collection, key, None, force=force)
    found = _put(openable, planned, holder=holder, purpose=purpose, force=force)
    if found is None:
        raise BadInput(
            f"{planned.collection} no longer has an object with key {json_text(planned.key)}:"
            " another process has removed it"
        )
    return found


def load(
    openable: OpenableCatalog,
    dump: TextIO,
    *,
    deploy_generation: int | None = None,
    holder: str,
    purpose: str,
) -> Loaded:
    """Load the contents of a dump into the catalog. See `OpenableCatalog.load`."""
    return openable.load(
        rows_of_dump(dump), deploy_generation=deploy_generation, holder=holder, purpose=purpose
    )


def rehearse_load(openable: OpenableCatalog, dump: TextIO) -> Loaded:
    """Return what `load` would do. Raises the same errors. Writes nothing."""
    return openable.load(rows_of_dump(dump), rehearse=True)


def rows_of_dump(dump: TextIO) -> Iterator[Row]:
    """The rows of a dump at the dump's version, without its fence token.

    Raises `BadInput` if the dump is not complete, and `VersionTooNew` or `Deprecated` for its version.
    """
    sections: list[ObjectType[Any, Any]] = []
    version: int | None = None
    for found in read_dump(dump):
        match found:
            case str(name):
                sections.append(collection_named(name))
            case DumpEntry(key, value):
                collection = sections[-1]
                if version is None and collection.migratable:
                    raise BadInput(f"the dump has no config {config.USER_VERSION} before its objects")
                # Objects that aren't migratable are the same at every version.
                row = objects.encode(version or CATALOG_VERSION, collection.kind, key, value)
                if collection is CONFIGS:
                    version = _version_of(row) or version
                if collection is not FENCE_TOKENS:
                    yield row
            case _:
                assert_never(found)
    missing = [row.name for row in OBJECT_TYPES.values() if row not in sections]
    if missing:
        raise BadInput(f"the dump is not complete: it has no {', '.join(missing)}")


def _version_of(row: Row) -> int | None:
    """The version in a row of the config, checked. None if the row has another key."""
    said = decode(CONFIGS, row)
    if said.key.key != config.USER_VERSION:
        return None
    config.check_version(said.value.value)
    return said.value.value


def _changeable(name: str) -> ObjectType[Any, Any]:
    collection = collection_named(name)
    if collection is FENCE_TOKENS:
        raise BadInput(
            "the fence token can't be edited", hint="raise it with 'holdfast catalog fence --at-least N'"
        )
    return collection


def _put(
    openable: OpenableCatalog, planned: Rehearsal, *, holder: str, purpose: str, force: bool
) -> Message | None:
    generation = openable.deploy_generation() or 0
    with openable.open(
        OpenMode.WRITABLE, deploy_generation=generation, holder=holder, purpose=purpose
    ) as catalog:
        return _edited(catalog, planned.collection, planned.key, planned.value, force=force)


def _edited(
    catalog: Catalog, collection: ObjectType[Any, Any], key: Message, value: Message | None, *, force: bool
) -> Message | None:
    if value is not None and not force:
        problem = catalog.in_transaction(
            lambda tx: dangling(collection, key, value, lambda of, its: tx.get(of, its) is not None)
        )
        if problem is not None:
            raise BadInput(problem, hint="to write it all the same, pass --force")
    if collection.cached and not force:
        # Checked again after the rehearsal: a process that ran until then may have moved it.
        there = catalog.in_transaction(lambda tx: tx.get(collection, key))
        if (problem := goes_back(collection, key, there, value)) is not None:
            raise BadInput(problem, hint="if ids may be given again, and times may go back, pass --force")
    found: Message | None = catalog.dangerous_edit(collection, key, value)
    return found


def _check_current(openable: OpenableCatalog) -> None:
    version = openable.config(config.USER_VERSION)
    if version is None:
        raise Uninitialized(f"the catalog in {openable.place} is not initialized")
    config.check_current(version)


def _check_config(key: str, value: int | None, *, force: bool) -> None:
    if key == config.USER_VERSION and value is None:
        raise BadInput(f"config {key} can't be deleted: a catalog must have it")
    if config.is_reserved(key) and not force:
        raise BadInput(
            f"config {key} decides whether and by whom the catalog is read",
            hint="to change it all the same, pass --force",
        )
    if value is not None:
        try:
            config.check_stored(key, value)
        except (CorruptBlob, VersionTooNew, Deprecated) as error:
            raise BadInput(f"no Holdfast could open the catalog with this value: {error}") from None
