"""Holdfast: the durable state of a database environment, as definite, time-travelling collections.

`holdfast.table(url, name)` is a table that many processes may write, read and follow; see `holdfast.tables`.
Nothing is imported before it is asked for: `import holdfast` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.tables import Delete, Table, Tail, Update, Upsert, table, write

__all__ = ["Delete", "Table", "Tail", "Update", "Upsert", "table", "write"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast import tables

    return getattr(tables, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
