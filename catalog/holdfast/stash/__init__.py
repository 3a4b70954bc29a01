"""The legacy time-varying key-value store of catalogs: in a schema of Postgres, or in a SQLite file.

`open_stash` gives a `Stash`: collections of `(key, value, time, diff)`, all of them on one timeline, which
only moves by commits that name its upper.
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
