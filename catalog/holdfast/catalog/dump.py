"""A catalog as JSON: what `holdfast catalog dump` prints and `load` reads.

A dump is grouped by object type in the order of the registry, and sorted by stored key. Each line is one
object with its key and value, so that `grep` and `diff` work. `key` and `value` have the form that `edit` and
`delete` take.

Invariants
- Lines are produced one by one. Only the rows themselves are in memory.
- Equal catalogs have equal dumps.
- Rows are shown as objects of the version in their own config, so any readable catalog has a dump.
"""

import json
from collections.abc import Iterable, Iterator

from holdfast.catalog.config import USER_VERSION, check_version
from holdfast.catalog.objects.codec import Row, decode
from holdfast.catalog.objects.registry import CONFIGS, OBJECT_TYPES, Kind
from holdfast.catalog.upgrade import objects
from holdfast.catalog.version import CATALOG_VERSION

_encode = json.JSONEncoder(ensure_ascii=False).encode


def dump_lines(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a dump of `rows`, each with its line end.

    Raises `CorruptBlob` when it reaches a row that can't be shown. For an unknown kind it raises before any
    line. Raises `VersionTooNew` or `Deprecated` for a version that can't be read.
    """
    of_kind: dict[int, list[Row]] = {kind: [] for kind in OBJECT_TYPES}
    for row in rows:
        of_kind[row.kind].append(row)
    version = _version(of_kind[Kind.CONFIG])
    start = "{"
    for collection in OBJECT_TYPES.values():
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
    """All of `dump_lines` as one text."""
    return "".join(dump_lines(rows))


def _version(configs: Iterable[Row]) -> int:
    """The version in the config. The current one if the config has none."""
    for row in configs:
        config = decode(CONFIGS, row)
        if config.key.key == USER_VERSION:
            check_version(config.value.value)
            return config.value.value
    return CATALOG_VERSION
