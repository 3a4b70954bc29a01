"""Tables: the simple interface to collections. You read and write rows and need not track uppers.

`table` opens or creates a table. `write` changes several tables at one time, all or none of them. `sql`
queries the tables of a location. `create_table` makes a table of a file. `list_tables`, `drop_table` and
`copy_table` list, drop and copy tables. A table is a collection of `holdfast.collections`, so you can read,
write and hand over the same collection with that package at the same time.
"""

from holdfast.collections.copying import CopiedTable
from holdfast.tables.changes import Append, Delete, Merge, Revert, SetValues, Update, Upsert
from holdfast.tables.copying import copy_table, copy_tables
from holdfast.tables.creating import create_table
from holdfast.tables.exported import Exported
from holdfast.tables.filters import Where
from holdfast.tables.listing import TableInfo, drop_table, list_tables
from holdfast.tables.moments import Moment
from holdfast.tables.opening import table
from holdfast.tables.queries import SqlResult, sql
from holdfast.tables.rows import KeysLike, TableLike
from holdfast.tables.table import Table, write
from holdfast.tables.tail import Tail

__all__ = [
    "Append",
    "CopiedTable",
    "Delete",
    "Exported",
    "KeysLike",
    "Merge",
    "Moment",
    "Revert",
    "SetValues",
    "SqlResult",
    "Table",
    "TableInfo",
    "TableLike",
    "Tail",
    "Update",
    "Upsert",
    "Where",
    "copy_table",
    "copy_tables",
    "create_table",
    "drop_table",
    "list_tables",
    "sql",
    "table",
    "write",
]
