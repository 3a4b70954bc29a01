"""A catalog as JSON for people: what `holdfast catalog dump` prints and `load` reads.

By object type in the order of the registry, sorted by stored key, one object a line with its key and its
value. `key` and `value` are what `edit` and `delete` take, and a line is what `grep` and `diff` look at.

Invariants
- Lines come one after the other: beside the rows themselves nothing grows with the catalog.
- Equal catalogs have equal dumps.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.durable.codec import Row, decode
from holdfast.durable.messagejson import message_to_json
from holdfast.durable.registry import COLLECTIONS

_encode = json.JSONEncoder(ensure_ascii=False).encode


def shown(row: Row) -> tuple[Any, Any]:
    """Key and value of a row of the current version as JSON; `CorruptBlob` when it isn't one."""
    object_ = decode(COLLECTIONS[row.kind], row)
    return message_to_json(object_.key), message_to_json(object_.value)


def dump_lines(rows: Iterable[Row], show: Callable[[Row], tuple[Any, Any]] = shown) -> Iterator[str]:
    """The lines of a dump of `rows`, each with its end; `show` gives key and value of a row as JSON.

    Raises `CorruptBlob` when it comes to a row that can't be shown, and for an unknown kind before any line.
    """
    of_kind: dict[int, list[Row]] = {kind: [] for kind in COLLECTIONS}
    for row in rows:
        of_kind[row.kind].append(row)
    start = "{"
    for collection in COLLECTIONS.values():
        found = of_kind.pop(collection.kind)
        yield f'{start}\n  "{collection.name}": ['
        comma = ""
        for row in sorted(found):
            key, value = show(row)
            yield f'{comma}\n    {{"key": {_encode(key)}, "value": {_encode(value)}}}'
            comma = ","
        yield "\n  ]" if found else "]"
        start = ","
    yield "\n}\n"


def dump_json(rows: Iterable[Row]) -> str:
    """`dump_lines` as one text."""
    return "".join(dump_lines(rows))
