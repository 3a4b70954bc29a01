"""The stash: an older store for a catalog, in a schema of a Postgres database or in a SQLite file.

`open_stash` returns a `Stash`: collections of `(key, value, time, diff)`. All collections share one timeline.
A commit moves it forward, and succeeds only if it names the current upper.
"""

from holdfast.stash.stash import (
    MAX_ROW_BYTES,
    MAX_STATEMENT_BYTES,
    MAX_TIME,
    Columns,
    KnownPast,
    Past,
    Stash,
    StashFrontiers,
    StashUpdate,
)
from holdfast.stash.url import DEFAULT_SCHEMA, check_url, open_stash

__all__ = [
    "DEFAULT_SCHEMA",
    "MAX_ROW_BYTES",
    "MAX_STATEMENT_BYTES",
    "MAX_TIME",
    "Columns",
    "KnownPast",
    "Past",
    "Stash",
    "StashFrontiers",
    "StashUpdate",
    "check_url",
    "open_stash",
]
