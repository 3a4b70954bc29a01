"""A table at one time as a data set of Arrow, which DuckDB scans with the columns and conditions of a query.

- DuckDB calls `scanner` for each scan of a query, from its own threads. It has evaluated a condition that it
  passes, and does not evaluate it again. It doesn't pass conditions on floats, where NaN means something else
  to it than to Arrow.
- All scans have the contents of the one time, in the schema of that time.
- The table keeps its hold until the data set is collected.
- A relation that DuckDB reads from Parquet files refers to the data set too, in a branch without rows, which
  DuckDB's optimizer removes. So the relation, and what is made of it, keeps the hold. The files stay open, at
  most `_MOST_FILES` of a relation: its parts may be compacted and deleted at any time.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from holdfast.persist.checks import check_columns
from holdfast.persist.parts.whole import VerifiedFile
from holdfast.persist.rows.row_filter import both
from holdfast.tables.duckdb_extra import quoted
from holdfast.tables.filters import Where, filter_of
from holdfast.tables.opened import OpenTable
from holdfast.tables.scan import rows_of_contents, snapshot_of
from holdfast.text import naming

if TYPE_CHECKING:
    import duckdb

    from holdfast.tables.duckdb_files import PartFiles

_LEAST_ROWS: Final = 64 * 1024
"""To read the footers of parts again costs more than it saves for fewer rows."""
_MOST_FILES: Final = 16
_SAME_TYPES: Final = "DuckDB reads it under the same types"


class TableDataset(dataset.Dataset):  # type: ignore[misc] # pyarrow has no types
    """The rows of a table at a time (None: the latest) that `where` chooses. Any thread may scan it.

    `error` is the first error of a scan: DuckDB only passes its text on. It has no other methods of a
    data set.
    """

    def __init__(
        self,
        table: OpenTable,
        time: int | None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> None:
        self._table = table
        planned, self._snapshot = table.reading.begin(lambda reader: snapshot_of(reader, time))
        weakref.finalize(self, table.reading.end).atexit = False
        with naming(f"table {table.name}"):
            check_columns(planned, columns)
            self._filter = None if where is None else filter_of(where, planned)
        self._planned = planned
        names = planned.names if columns is None else columns
        self._arrow = pa.schema([planned.arrow.field(name) for name in names])
        self.time = None if self._snapshot is None else self._snapshot.as_of
        self.error: BaseException | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self._arrow

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
    ) -> "_Scanner":
        """Scan these columns (None: all) of the rows for which a condition holds."""
        wanted = self._filter
        if filter is not None:
            pushed = filter_of(filter, self._planned)
            wanted = pushed if wanted is None else both(wanted, pushed)
        names = self._arrow.names if columns is None else list(columns)
        schema = pa.schema([self._arrow.field(name) for name in names])
        return _Scanner(pa.RecordBatchReader.from_batches(schema, self._rows(wanted, names)))

    def relation(self, connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyRelation":
        """All rows as a relation of a connection. What is made of it keeps the data set too."""
        rows = connection.from_arrow(self)
        by_files = self._kept_relation(connection)
        return rows if by_files is None else by_files.union(rows.filter("false"))

    def _kept_relation(self, connection: "duckdb.DuckDBPyConnection") -> "duckdb.DuckDBPyRelation | None":
        """All rows as a relation that reads Parquet files, which stay open while this data set lives."""
        if self._snapshot is None or self._filter is not None or not self._planned.is_plain:
            return None
        import duckdb

        from holdfast.tables.duckdb_files import Served, serve_to, served

        files = self._snapshot.kept_files(_LEAST_ROWS, min(_MOST_FILES, served.room))
        if not files:
            return None
        names = [Served(file, partial(_while_open, self._table)) for file in files]
        weakref.finalize(self, served.end, names).atexit = False
        paths = served.serve(names)
        try:
            serve_to(connection)
            query = self._select(connection, files, paths)
            return None if query is None else connection.sql(query)
        except duckdb.Error:
            # The connection may not read files.
            return None

    @contextmanager
    def registered(
        self,
        connection: "duckdb.DuckDBPyConnection",
        name: str,
        served: "PartFiles | None",
        *,
        only_known: bool = False,
    ) -> Iterator[int]:
        """Let queries of a connection read the rows under a name while the block runs.

        The name is temporary. `served` are the files of the connection. If it is given, DuckDB decodes parts
        itself where it can, with `only_known` only if none is to be verified first. Yields how many.
        """
        with self._query(connection, served, only_known) as (query, count):
            if query is None:
                connection.register(name, self)
            else:
                connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {query}")
            yield count

    @contextmanager
    def _query(
        self, connection: "duckdb.DuckDBPyConnection", served: "PartFiles | None", only_known: bool
    ) -> Iterator[tuple[str | None, int]]:
        """The query of all rows that reads Parquet files, if there are such files, and how many it reads."""
        if served is None or self._snapshot is None or self._filter is not None or not self._planned.is_plain:
            yield None, 0
            return
        with self._snapshot.files(_LEAST_ROWS, most=served.room, only_known=only_known) as files:
            if not files:
                yield None, 0
                return
            with served.serving(files, self._reading) as paths:
                query = self._select(connection, files, paths)
                yield query, 0 if query is None else len(files)

    def _select(
        self, connection: "duckdb.DuckDBPyConnection", files: Sequence[VerifiedFile], paths: Sequence[str]
    ) -> str | None:
        """A query of Parquet files, unless DuckDB reads some columns under other types than from Arrow."""
        from holdfast.tables.duckdb_files import select_of

        assert self._snapshot is not None
        names = self._arrow.names
        columns = tuple(zip(self._snapshot.stored_columns(names), names, strict=True))
        query = select_of(paths, columns)
        # Binding the query decodes footers, so what it shows is kept with each of them.
        same = _SAME_TYPES, columns, self._arrow
        if any(same not in file.derived for file in files):
            expected = connection.from_arrow(self._arrow.empty_table())
            found = connection.sql(query).types == expected.types
            for file in files:
                file.derived[same] = found
        return query if all(file.derived[same] for file in files) else None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            # Without its hold, the table may lose the rest of the rows.
            self._table.check_open()
            yield
        except BaseException as error:
            self.error = self.error or error
            raise

    def _rows(self, wanted: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self._snapshot is None:
            return
        snapshot = self._snapshot.narrowed(names)
        if wanted is not None:
            snapshot = snapshot.filtered(wanted)
        try:
            yield from rows_of_contents(self._table, self._planned, iter(snapshot), names)
        except Exception as error:
            self.error = self.error or error
            raise


@contextmanager
def _while_open(table: OpenTable) -> Iterator[None]:
    # Without its hold, the table may lose the rest of the rows.
    table.check_open()
    yield


class _Scanner:
    """What DuckDB needs of a scanner of Arrow."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        return self._reader
