"""A catalog as JSON for people: what `holdfast catalog dump` prints and `load` reads.

By object type in the order of the registry, sorted by stored key, one object a line with its key and its
value. `key` and `value` are what `edit` and `delete` take, and a line is what `grep` and `diff` look at.

Invariants
- Lines come one after the other: beside the rows themselves nothing grows with the catalog.
- Equal catalogs have equal dumps.
- Rows are shown as objects of the version that their own config says: any readable catalog has a dump.
"""

import json
from collections.abc import Iterable, Iterator

from holdfast.catalog.config import USER_VERSION, check_version
from holdfast.catalog.objects.codec import Row, decode
from holdfast.catalog.objects.registry import COLLECTIONS, CONFIGS, Kind
from holdfast.catalog.upgrade import objects
from holdfast.catalog.version import CATALOG_VERSION

_encode = json.JSONEncoder(ensure_ascii=False).encode


def dump_lines(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a dump of `rows`, each with its end.

    Raises `CorruptBlob` when it comes to a row that can't be shown, and before any line for an unknown kind,
    and `VersionTooNew` or `Deprecated` for a version that can't be read.
    """
    of_kind: dict[int, list[Row]] = {kind: [] for kind in COLLECTIONS}
    for row in rows:
        of_kind[row.kind].append(row)
    version = _version(of_kind[Kind.CONFIG])
    start = "{"
    for collection in COLLECTIONS.values():
        found = of_kind.pop(collection.kind)
        yield f'{start}\n  "{collection.name}": ['
        comma = ""
        for row in sorted(found):
            key, value = objects.decode(version, row)
            yield f'{comma}\n    {{"key": {_encode(key)}, "value": {_encode(value)}}}'
            comma = ","
        yield "\n  ]" if found else "]"
        start = ","
    yield "\n}\n"


def dump_json(rows: Iterable[Row]) -> str:
    """`dump_lines` as one text."""
    return "".join(dump_lines(rows))


def _version(configs: Iterable[Row]) -> int:
    """The version that the config says; the current one where it says none."""
    for row in configs:
        config = decode(CONFIGS, row)
        if config.key.key == USER_VERSION:
            check_version(config.value.value)
            return config.value.value
    return CATALOG_VERSION
