"""From what a catalog holds to what it is to hold: the updates of one append. Pure.

Invariants
- The fence token is nobody's content: it is neither taken nor touched here. Nor is reserved config, which
  says what one store is, but for the version, which belongs to the contents.
- `exact` compares stored bytes and decodes nothing, so it also replaces what can't be decoded.
- `merged` gives nothing back that must not go back: append-only rows stay, id allocators and timestamps
  only grow, and the config that decides by whom the catalog is read stays as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.catalog import config
from holdfast.catalog.objects.codec import Row, Update, decode
from holdfast.catalog.objects.registry import COLLECTIONS, CONFIGS, ID_ALLOCATORS, TIMESTAMPS, Kind
from holdfast.errors import BadInput

# Of a tag a new bytes object is made each time, which costs more than to compare it with that of a row.
_FENCE_TOKEN, _CONFIG = Kind.FENCE_TOKEN.tag, Kind.CONFIG.tag


def contents_of(rows: Iterable[Row]) -> dict[bytes, Row]:
    """Rows by their keys, without what is of the store alone; `BadInput` when a key is there twice."""
    found: dict[bytes, Row] = {}
    for row in rows:
        if not is_content(row):
            continue
        if found.setdefault(row.key, row) is not row:
            raise BadInput(f"an object of {COLLECTIONS[row.kind]} is there twice: {_show(row)}")
    return found


def is_content(row: Row) -> bool:
    """Whether a row goes where the contents go: all but the fence token and the config of the store itself.

    Raises `CorruptBlob` for a row of the config that can't be decoded.
    """
    tag = row.key[:2]
    if tag == _CONFIG:
        key = decode(CONFIGS, row).key.key
        return key == config.USER_VERSION or not config.is_reserved(key)
    return tag != _FENCE_TOKEN


def exact(stored: Iterable[Row], wanted: Mapping[bytes, Row]) -> Iterator[Update]:
    """The changes that leave exactly `wanted`."""
    missing = dict(wanted)
    for row in stored:
        if not is_content(row):
            continue
        if missing.get(row.key) == row:
            del missing[row.key]
        else:
            yield Update(row, -1)
    for row in missing.values():
        yield Update(row, 1)


def merged(stored: Iterable[Row], wanted: Mapping[bytes, Row]) -> Iterator[Update]:
    """The changes that leave `wanted`, as far as nothing goes back that must not.

    Raises `BadInput` when an append-only object is there with another value.
    """
    missing = dict(wanted)
    for row in stored:
        if row.key[:2] == Kind.FENCE_TOKEN.tag:
            continue
        becomes = _becomes(row, missing.pop(row.key, None))
        if becomes != row:
            yield Update(row, -1)
            if becomes is not None:
                yield Update(becomes, 1)
    for row in missing.values():
        if not _is_reserved(row):
            yield Update(row, 1)


def _becomes(row: Row, wanted: Row | None) -> Row | None:
    collection = COLLECTIONS[row.kind]
    if collection.append_only:
        if wanted not in (None, row):
            raise BadInput(
                f"{collection} has that key with another value: {_show(row)}",
                hint="an object of an append-only type is never replaced: load into a new catalog",
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
    collection = COLLECTIONS[row.kind]
    mine, other = (getattr(decode(collection, each).value, field) for each in (row, wanted))
    return row if mine >= other else wanted


def _is_reserved(row: Row) -> bool:
    return row.key[:2] == Kind.CONFIG.tag and config.is_reserved(decode(CONFIGS, row).key.key)


def _show(row: Row) -> str:
    key: Any = decode(COLLECTIONS[row.kind], row).key
    return " ".join(str(key).split()) or "(empty)"
