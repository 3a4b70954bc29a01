"""The updates of one append that turn the stored contents of a catalog into the wanted ones. Pure.

Invariants
- The fence token is not content: it is neither read nor changed here. Neither is reserved config, which
  describes the store, except the version, which belongs to the contents.
- `exact` compares stored bytes and decodes nothing, so it also replaces rows that can't be decoded.
- `merged` never moves protected values back: append-only rows stay, id allocators and timestamps only grow,
  and config that decides by whom the catalog is read stays as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.catalog import config
from holdfast.catalog.objects.codec import Row, RowUpdate, decode
from holdfast.catalog.objects.registry import CONFIGS, ID_ALLOCATORS, OBJECT_TYPES, TIMESTAMPS, Kind
from holdfast.errors import BadInput

# `Kind.tag` creates a new bytes object each time, which costs more than comparing it with a row's tag.
_FENCE_TOKEN, _CONFIG = Kind.FENCE_TOKEN.tag, Kind.CONFIG.tag


def contents_of(rows: Iterable[Row]) -> dict[bytes, Row]:
    """Rows by key, without rows that describe the store. Raises `BadInput` if a key occurs twice."""
    found: dict[bytes, Row] = {}
    for row in rows:
        if not is_content(row):
            continue
        if found.setdefault(row.key, row) is not row:
            raise BadInput(f"an object of {OBJECT_TYPES[row.kind]} occurs twice: {_show(row)}")
    return found


def is_content(row: Row) -> bool:
    """Whether a row belongs to the contents: all rows except the fence token and config about the store
    itself.

    Raises `CorruptBlob` for a row of config that can't be decoded.
    """
    tag = row.key[:2]
    if tag == _CONFIG:
        key = decode(CONFIGS, row).key.key
        return key == config.USER_VERSION or not config.is_reserved(key)
    return tag != _FENCE_TOKEN


def exact(stored: Iterable[Row], wanted: Mapping[bytes, Row]) -> Iterator[RowUpdate]:
    """The changes that leave exactly `wanted`."""
    missing = dict(wanted)
    for row in stored:
        if not is_content(row):
            continue
        if missing.get(row.key) == row:
            del missing[row.key]
        else:
            yield RowUpdate(row, -1)
    for row in missing.values():
        yield RowUpdate(row, 1)


def merged(stored: Iterable[Row], wanted: Mapping[bytes, Row]) -> Iterator[RowUpdate]:
    """The changes that leave `wanted`, except that protected values don't go back.

    Raises `BadInput` if an append-only object exists with another value.
    """
    missing = dict(wanted)
    for row in stored:
        if row.key[:2] == Kind.FENCE_TOKEN.tag:
            continue
        becomes = _becomes(row, missing.pop(row.key, None))
        if becomes != row:
            yield RowUpdate(row, -1)
            if becomes is not None:
                yield RowUpdate(becomes, 1)
    for row in missing.values():
        if not _is_reserved(row):
            yield RowUpdate(row, 1)


def _becomes(row: Row, wanted: Row | None) -> Row | None:
    collection = OBJECT_TYPES[row.kind]
    if collection.append_only:
        if wanted not in (None, row):
            raise BadInput(
                f"{collection} has an object with that key and another value: {_show(row)}",
                hint="objects of append-only types are never replaced: load into a new catalog",
            )
        return row
    if _is_reserved(row):
        return row
    if collection is ID_ALLOCATORS:
        return _greater(row, wanted, "next_id")
    if collection is TIMESTAMPS:
        return _greater(row, wanted, "ts")
    return wanted


def _greater(row: Row, wanted: Row | None, field: str) -> Row:
    if wanted is None:
        return row
    collection = OBJECT_TYPES[row.kind]
    mine, other = (getattr(decode(collection, each).value, field) for each in (row, wanted))
    return row if mine >= other else wanted


def _is_reserved(row: Row) -> bool:
    return row.key[:2] == Kind.CONFIG.tag and config.is_reserved(decode(CONFIGS, row).key.key)


def _show(row: Row) -> str:
    key: Any = decode(OBJECT_TYPES[row.kind], row).key
    return " ".join(str(key).split()) or "(empty)"
