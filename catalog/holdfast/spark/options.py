"""The options of `format("holdfast")`: parsed once, checked before anything is opened.

| option | meaning |
|---|---|
| `url` | the persist location, such as `file:///srv/lake` (required) |
| `collection` | the id or the name of a collection (required) |
| `asOf` | the time to read at; the latest complete one when absent |
| `columns` | the columns to read: comma separated, or a JSON list |
| `partitions` | at most this many Spark partitions (8 by default) |
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import CLOSED, BadInput

# A Python task costs Spark about 30 ms whatever it does: few and fat ones.
DEFAULT_PARTITIONS = 8
MAX_PARTITIONS = 10_000

_KNOWN = ("url", "collection", "asOf", "columns", "partitions")
_NOT_YET = {
    "where": "filter the DataFrame instead: df.filter(...)",
    "mode": "only snapshots can be read yet",
}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read; `as_of` None is the latest complete time, `columns` None is all of them.

    Where it is: `url`, or `blob` and `consensus`.
    """

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None
    collection: str
    as_of: int | None = None
    columns: tuple[str, ...] | None = None
    partitions: int = DEFAULT_PARTITIONS


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Options as Spark hands them over, keys in any case; `BadInput` says which one is wrong and how."""
    given = {key.lower(): value for key, value in options.items()}
    # Only CREATE TABLE adds this. Spark 4.3 reads such a table without its OPTIONS.
    if "provider" in given:
        raise BadInput(
            "a table of Spark's catalog can't be a collection: CREATE TEMPORARY VIEW ... USING holdfast"
        )
    for name in ("url", "collection"):
        if not given.get(name):
            raise BadInput(f"option {name!r} is missing", hint=f'add .option("{name}", ...)')
    for name, instead in _NOT_YET.items():
        if name in given:
            raise BadInput(f"option {name!r} is not supported: {instead}")
    known = {name.lower() for name in _KNOWN}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadInput(f"unknown option {unknown[0]!r}; there are {', '.join(_KNOWN)}")
    if given["url"].startswith("memory:"):
        raise BadInput(
            f"{given['url']!r} lives in one process and Spark reads from others: use a location they share"
        )
    return ReadOptions(
        url=given["url"],
        collection=given["collection"],
        as_of=_integer("asOf", given["asof"], 0, CLOSED - 1) if "asof" in given else None,
        columns=_names(given["columns"]) if "columns" in given else None,
        partitions=(
            _integer("partitions", given["partitions"], 1, MAX_PARTITIONS)
            if "partitions" in given
            else DEFAULT_PARTITIONS
        ),
    )


def check_columns(columns: Sequence[str], available: Sequence[str]) -> None:
    """Refuse names that the collection doesn't have."""
    missing = [name for name in columns if name not in available]
    if missing:
        raise BadInput(f"the collection has no column {missing[0]!r}; it has {', '.join(available)}")


def _integer(name: str, text: str, least: int, greatest: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= greatest:
        raise BadInput(f"option {name!r} is {text!r}, not an integer from {least} to {greatest}")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise BadInput(f"option 'columns' is no JSON list: {error}") from None
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"option 'columns' is {text!r}, not a list of column names")
    if len(set(names)) != len(names):
        raise BadInput(f"option 'columns' names a column twice: {text}")
    return tuple(names)
