"""Tables: collections as people use them, rows in and rows out, without uppers to look after.

`table` opens or creates one; `write` changes several at one time, all or nothing. A table is a collection of
`holdfast.collections`, and whatever writes, reads or hands over that one goes on beside it.
"""

from holdfast.tables.changes import Append, Delete, Update, Upsert
from holdfast.tables.opening import table
from holdfast.tables.table import Table, write
from holdfast.tables.tail import Tail

__all__ = ["Append", "Delete", "Table", "Tail", "Update", "Upsert", "table", "write"]
