"""SQL over the tables of a location, run by DuckDB. Needs the extra `sql`.

- A query is one SELECT, or EXPLAIN of one. DuckDB parses it, and shows which tables it names, so only these
  are opened.
- A query about the tables themselves (SHOW TABLES, DESCRIBE, `information_schema`) reads none. It sees empty
  tables with their columns, from the records. So it must not read rows as well, nor use a function that might
  read the empty tables.
- The tables that a query names are read as of one look at all of them. `as_of('orders', '2026-01-01')` in a
  query reads a table at another time. It is a macro that reads what was registered for its two constants. An
  expression such as `now() - INTERVAL 1 HOUR` is evaluated once, and the query gets its value instead.
- DuckDB passes only the text of an error of a scan. The data set keeps the error, which is raised instead.
- Each run of a query has its own connection, because a connection has only one open result. The database is
  shared, so what a run makes is temporary.
"""

import hashlib
import json
import os
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias

import pyarrow as pa

from holdfast.collections import CollectionInfo, StorageController
from holdfast.collections.complete_times import at_or_before
from holdfast.errors import BadInput, HoldfastError, LogRegressed
from holdfast.extras import needs
from holdfast.forks import ForkLock, OwnerProcess
from holdfast.persist import PersistClient
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.rows.canonical import to_polars
from holdfast.persist.rows.casts import shown
from holdfast.tables import duckdb_database
from holdfast.tables.duckdb_extra import first_line, import_duckdb, quoted, raise_interrupt, telling
from holdfast.tables.moments import Moment, dated, milliseconds
from holdfast.tables.opened import OpenTable
from holdfast.tables.opening import Entered
from holdfast.tables.scan import stream
from holdfast.tables.show import page, text
from holdfast.text import with_date

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from holdfast.tables.dataset import TableDataset

_AS_OF: Final = "as_of"
_FORM: Final = (
    "as_of takes the name of a table and a time, as in as_of('orders', '2026-01-01')"
    " or as_of('orders', now() - INTERVAL 1 HOUR)"
)
_BATCH_ROWS: Final = 65_536
_MOST_BOUND: Final = 8
_MOST_BOUND_FILES: Final = 16
_MOST_KNOWN: Final = 64
_LONGEST_KNOWN: Final = 16 * 1024
_SCHEMAS: Final = frozenset({"information_schema", "pg_catalog"})
_LISTS: Final = re.compile(
    r"(duckdb|pragma)_(tables|columns|constraints|table_info|show)|sqlite_(master|schema)|pg_(tables|class|attribute)"
)
"""What lists tables, besides the schemas that do."""
_ALLOWED: Final = frozenset(
    f"duckdb_{each}"
    for each in (
        *("columns", "constraints", "databases", "functions", "keywords", "schemas", "settings"),
        *("tables", "types", "views"),
    )
) | {"pragma_show", "pragma_table_info", "generate_series", "range", "unnest"}
"""Functions that read no rows of tables, so a query that lists tables may use them."""
_SHOWN: Final = frozenset(
    {"duckdb_columns", "duckdb_databases", "duckdb_indexes", "duckdb_tables", "duckdb_views"}
)
"""Views of DuckDB that others of its lists read by their name alone."""
_EXPLAIN: Final = re.compile(r"(\s*explain(?:\s+analyze)?)(?:\s*\([^()]*\))?", re.IGNORECASE)
"""How an EXPLAIN begins, without and with its options. A SELECT may also be in parentheses."""
_OF: Final = re.compile(r"\bas\s+of\b", re.IGNORECASE)
"""How other systems write the time of a table."""
_MOMENT: Final = re.compile(r"(date|timestamp)[a-z_ ]*", re.IGNORECASE)
# The tables are empty only here, and the temporary views are ours.
_LISTED: Final = """
    CREATE TEMP MACRO duckdb_tables() AS TABLE
        SELECT * REPLACE (NULL::BIGINT AS estimated_size) FROM system.main.duckdb_tables();
    CREATE TEMP MACRO duckdb_columns() AS TABLE
        FROM system.main.duckdb_columns() WHERE database_name <> 'temp';
    CREATE TEMP MACRO duckdb_views() AS TABLE
        FROM system.main.duckdb_views() WHERE database_name <> 'temp'"""
_MACRO: Final = f"""CREATE TEMP MACRO {_AS_OF}(name, "time") AS TABLE
    FROM query_table('holdfast_' || md5(name || chr(1) || "time"))"""


Files: TypeAlias = Literal["all", "known", "none"]
"""Which parts DuckDB decodes itself: all that it can, only those that need not be verified first, or none."""


class _Named(NamedTuple):
    """A table that a query names: with its name alone, or in `as_of` with a time."""

    name: str
    time: str | None = None

    @property
    def view(self) -> str:
        """The name under which DuckDB knows it."""
        if self.time is None:
            return self.name
        text = f"{self.name}\x01{self.time}"
        return f"holdfast_{hashlib.md5(text.encode()).hexdigest()}"  # noqa: S324 - the macro's name for it

    def __str__(self) -> str:
        return self.name if self.time is None else f"{_AS_OF}('{self.name}', '{self.time}')"


class _Parsed(NamedTuple):
    """What a query is about.

    `query` has the values of the expressions that are times. `names` and `times` are the tables that it
    reads. `described` are the tables whose columns it shows. `functions` are the table functions that it
    runs. `lists` says whether it asks which tables there are; it also does if the location has no table of a
    name in `may_list`.
    """

    query: str
    names: list[_Named]
    times: list[_Named]
    described: list[_Named]
    functions: list[str]
    may_list: list[str]
    lists: bool

    @property
    def other_functions(self) -> list[str]:
        """The functions that a query may not run if it also asks about tables."""
        return [each for each in self.functions if each.lower() not in _ALLOWED]

    @property
    def shows_columns(self) -> bool:
        """Whether it asks for the columns of tables that it names."""
        return bool(self.described) or any(each.lower().startswith("pragma_") for each in self.functions)


class _Declared(NamedTuple):
    """Tables of which DuckDB gets the columns. Those in `hidden` have names that its own lists read."""

    tables: Sequence[CollectionInfo]
    hidden: Sequence[str]


class SqlResult:
    """The rows of a query. Each read runs it again, at the same times, so the rows are the same.

    `times` are the times at which the tables were read, as in the query: `orders`, or
    `as_of('orders', '2026-01-01')`. The time of a table that nobody has written yet is None. Close it, or use
    it as a context manager. Thread-safe, except `close`.
    """

    def __init__(
        self,
        query: str,
        parameters: object,
        rows: "Mapping[_Named, TableDataset]",
        declared: _Declared,
        tables: Sequence[str],
        close: Callable[[], None],
    ) -> None:
        self._query = query
        self._parameters = parameters
        self._rows = dict(rows)
        self._declared = declared
        self._tables = tables
        self._close = close
        self._closed = False
        self._schema: pa.Schema | None = None
        self._owner = OwnerProcess()
        # The query, bound when this was made, and what ends it: for the first scan.
        self._bound: list[tuple[duckdb.DuckDBPyRelation, ExitStack]] = []
        self.times: Final[Mapping[str, int | None]] = {str(name): each.time for name, each in rows.items()}
        self._bind()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        # No rows are read, so neither are the footers of parts.
        with self._relation("none") as (relation, _):
            self._schema = _schema_of(relation)
            return self._schema

    def scan(self) -> pa.RecordBatchReader:
        """Stream the rows. DuckDB may keep much of them in memory, or on disk, to sort or to group them.

        The reader is for one thread. Raises `BadInput` if the query is wrong, and like `Table.scan`.
        """
        try:
            found, names, ends = self._begun()
        except PartGone:
            found, names, ends = self._begun("none")
        schema = pa.schema([each.with_name(name) for each, name in zip(found.schema, names, strict=True)])
        return stream(schema, self._batches(found, schema.names, ends), ends.close)

    def read(self) -> pa.Table:
        """All rows, in memory. Raises like `scan`."""
        return self.scan().read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """All rows as a pandas data frame. Needs the extra `pandas`. Raises like `scan`."""
        with needs("pandas", "to_pandas of a query"):
            import pandas as pd
        frame: pd.DataFrame = self.read().to_pandas()
        return frame

    def to_polars(self) -> "pl.DataFrame":
        """All rows as a Polars data frame. Raises like `scan`."""
        return to_polars(self.read())

    def close(self) -> None:
        """Release the tables. Does nothing in a forked child."""
        if not self._closed and self._owner.is_here:
            self._closed = True
            try:
                if (bound := self._first()) is not None:
                    bound[1].close()
                self._rows.clear()
            finally:
                self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Let other libraries read the rows as an Arrow stream."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """The columns, the times and a few rows. Runs the query."""
        return f"<SqlResult: {self._shown()}>{text(lambda _: self.scan())}"

    def _repr_html_(self) -> str:
        return page("SqlResult", self._shown(), lambda _: self.scan())

    def _shown(self) -> str:
        schema = self.schema if self._schema is None and not self._closed else self._schema
        columns = ", ".join(f"{each.name} {each.type}" for each in schema or ())
        times = (
            f"{name} {'empty' if time is None else with_date(time)}" for name, time in self.times.items()
        )
        return "; ".join(filter(None, (columns, ", ".join(times))))

    def _bind(self) -> None:
        """Refuse a wrong query. If few parts are to be read, all verified, keep it for the first scan."""
        with ExitStack() as stack:
            relation, count = stack.enter_context(self._relation("known"))
            if not count:
                # This also evaluates what is constant.
                self._schema = _schema_of(relation)
            elif count <= _MOST_BOUND_FILES and len([*_bound]) < _MOST_BOUND:
                # Before its first scan, the result has these files open.
                self._bound.append((relation, stack.pop_all()))
                _bound.add(self)

    def _first(self) -> "tuple[duckdb.DuckDBPyRelation, ExitStack] | None":
        """The query that was bound when this was made. None if it was used."""
        _bound.discard(self)
        try:
            return self._bound.pop()
        except IndexError:
            return None

    def _begun(self, files: Files = "all") -> tuple[pa.RecordBatchReader, list[str], ExitStack]:
        """Run the query. Return its rows, the names of its columns, and what ends it.

        Raises `PartGone` only if it reads `files`.
        """
        self._check_open()
        if files == "none":
            for rows in self._rows.values():
                rows.error = None
        with ExitStack() as stack:
            bound = self._first() if files == "all" else None
            if bound is None:
                relation, _ = stack.enter_context(self._relation(files))
            else:
                relation = bound[0]
                stack.push(bound[1])
            names = _names_of(relation)
            found = relation.to_arrow_reader(_BATCH_ROWS)
            return found, names, stack.pop_all()

    def _check_open(self) -> None:
        self._owner.check("this result of a query")
        if self._closed:
            raise BadInput("the result of the query is closed", hint="call holdfast.sql again")

    @contextmanager
    def _relation(self, files: Files) -> "Iterator[tuple[duckdb.DuckDBPyRelation, int]]":
        """The query in a connection of its own, bound to the tables.

        With it, how many files it reads, or 0 if it does not only read files.
        DuckDB decodes the parts of tables itself where it can: "all" of them, or only those that are "known".
        """
        self._check_open()
        makes_tables = bool(self._declared.tables)
        with (
            closing(duckdb_database.connection(own_database=makes_tables)) as connection,
            self._telling(),
            ExitStack() as registered,
        ):
            served = duckdb_database.part_files() if files != "none" and self._rows else None
            only_known = files == "known"
            counts = [
                registered.enter_context(
                    rows.registered(connection, name.view, served, only_known=only_known)
                )
                for name, rows in self._rows.items()
            ]
            if any(name.time is not None for name in self._rows):
                connection.execute(_MACRO)
            if self._declared.tables:
                _declare(connection, self._declared)
            relation = connection.sql(self._query, params=self._parameters)
            _check_types(relation)
            yield relation, sum(counts) if all(counts) else 0

    def _batches(
        self, found: pa.RecordBatchReader, names: list[str], ends: ExitStack
    ) -> Iterator[pa.RecordBatch]:
        given = 0
        try:
            for batch in self._read(found, names):
                yield batch
                given += 1
            return
        except PartGone:
            if given:
                raise HoldfastError(
                    "sql: the query reads a part of a table that was compacted and deleted meanwhile",
                    hint="run the query again",
                ) from None
        # Nothing was read yet, so it can be run again, in a way that goes on with other parts.
        ends.close()
        found, _, again = self._begun("none")
        ends.push(again)
        yield from self._read(found, names)

    def _read(self, found: pa.RecordBatchReader, names: list[str]) -> Iterator[pa.RecordBatch]:
        with closing(found), self._telling():
            while True:
                try:
                    yield found.read_next_batch().rename_columns(names)
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:
                    self._raise_first(error)
                    raise_interrupt(error)
                    raise BadInput(f"sql: {first_line(error)}") from None

    @contextmanager
    def _telling(self) -> Iterator[None]:
        with telling(self._tables, [name for rows in self._rows.values() for name in rows.schema.names]):
            try:
                yield
            except Exception as error:
                self._raise_first(error)
                raise

    def _raise_first(self, error: Exception) -> None:
        """Raise the error of a scan, if there is one."""
        for rows in self._rows.values():
            first = rows.error
            if first is not None and first is not error:
                if not isinstance(first, Exception):
                    # It ends this run of the query, and no later one.
                    rows.error = None
                raise first from None


_lock: Final = ForkLock()
_bound: "Final[weakref.WeakSet[SqlResult]]" = weakref.WeakSet()
"""Results that were not read yet, and have files open for that."""
_known_queries: "Final[OrderedDict[str, _Parsed]]" = OrderedDict()
"""What the last queries were about, by their texts."""


def _schema_of(relation: "duckdb.DuckDBPyRelation") -> pa.Schema:
    return relation.limit(0).to_arrow_table().rename_columns(_names_of(relation)).schema


def _names_of(relation: "duckdb.DuckDBPyRelation") -> list[str]:
    """The names of the columns. If several have one name, these get the names that DuckDB writes to a file.

    Polars, JSON objects and most readers of Parquet need distinct names.
    """
    names = relation.columns
    # `limit` makes the names distinct.
    return names if len(set(names)) == len(names) else relation.limit(0).columns


def _check_types(relation: "duckdb.DuckDBPyRelation") -> None:
    """Refuse a type that DuckDB passes on as a decimal with other values."""
    for name, type_ in zip(relation.columns, relation.types, strict=True):
        if "UHUGEINT" in str(type_):
            raise BadInput(
                f"sql: column {name!r} is {type_}, which Arrow has no type for",
                hint=f"cast it, for example {name}::DECIMAL(38,0) or {name}::VARCHAR",
            )


def sql(
    url: str | os.PathLike[str] | PersistClient,
    query: str,
    *,
    as_of: Moment | None = None,
    or_earlier: bool = False,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    consensus: str | None = None,
) -> SqlResult:
    """Run a SELECT of DuckDB's SQL on the tables of a location, by their names. Needs extra `sql`.

    `SHOW TABLES`, `DESCRIBE orders`, `EXPLAIN SELECT ...` and queries of `information_schema` work too. They
    read no rows.

    Each table is read at its own latest complete time, and all of these times come from one look, so a write
    of several tables is seen as a whole or not at all. With `as_of`, all tables are read at that time. In
    the query, `as_of('orders', '2026-01-01T12:00')` reads one table at another time, which may also be a
    literal such as `TIMESTAMP '2026-01-01 12:00:00'`, in UTC, or an expression such as
    `now() - INTERVAL 1 HOUR`, by the clock of this process. With `or_earlier`, a table that is not complete
    at such a time is read at its latest complete time before it.

    A sum of whole numbers is a decimal without fraction, decimal128(38, 0), because it may be greater than an
    int64. Cast it for another type: `sum(count)::BIGINT`.

    Only the columns that the query needs are passed on, and only rows that its conditions may choose are
    read. `url` and `consensus` are as in `holdfast.table`. `parameters` are the values of `?` (a list) or
    `$name` (a dict). Nothing is written, unless `url` is a client that may write: then the tables are held
    until the result is closed, and reads at a time may complete it, as in `Table.read`.

    All bytes that DuckDB gets are compared with checksums. The first read of a part by a client reads all of
    it for that. A client of a local location stays open for 10 idle seconds, so a repeated query does not
    verify the parts again. It never shows a location that was deleted, replaced or made again: each query
    looks whether the location is still the same one. It is only for queries of the same user of the system.
    A location that was moved can't be opened at its new place while a result or a table of this process still
    uses it at the former one. The error names what to close.

    Raises:
        BadInput: DuckDB isn't installed, the query is not one SELECT, or DuckDB refuses it.
        AsOfNotYetAvailable: a table is not complete at the time. See `or_earlier`.
        AsOfTooEarly: the time is before the since of a table.
        NoLocation: there is no location at the URL.
    """
    import_duckdb("holdfast.sql")
    if not isinstance(query, str):
        raise BadInput(f"query must be text, not {shown(query)}")
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping | None):
        raise BadInput(
            f"parameters must be a list for ?, or a dict for $name, not {shown(parameters)}",
            hint="such as [5], or {'id': 5}",
        )
    time = None if as_of is None else milliseconds(as_of)
    parsed = _parsed(query)
    what = f"the result of the query {shown(query)}"
    while True:
        entered = Entered(url, "read", what, consensus=consensus)
        try:
            return _result(entered, parsed, time, parameters, or_earlier=or_earlier)
        except LogRegressed:
            # A client that just opened the location would not know what was there before.
            if not entered.was_idle:
                raise


def _result(
    entered: Entered, parsed: _Parsed, time: int | None, parameters: object, *, or_earlier: bool
) -> SqlResult:
    """Bind a query to the tables that it reads. Leaves the location with the result, or if it fails."""
    controller = entered.controller
    opened: dict[str, OpenTable] = {}

    def close(*, stays: bool = True, gone: bool = False) -> None:
        # Ctrl-C may end any of these, and the others run nevertheless.
        with ExitStack() as ends:
            ends.callback(entered.leave, stays=stays, gone=gone)
            for table in opened.values():
                ends.callback(table.close)

    try:
        infos = {info.name: info for info in controller.list_collections()}
        wanted = _by_name(parsed.names, infos)
        wanted += [(each, _required(each.name, infos)) for each in parsed.times]
        declared = [info for _, info in _by_name(parsed.described, infos)]
        hidden: list[str] = []
        if parsed.lists or any(_known(name, infos) is None for name in parsed.may_list):
            there = [_Named(name) for name, info in infos.items() if not info.dropped]
            declared = [info for _, info in _by_name(there, infos)]
            if not parsed.shows_columns:
                hidden = [info.name for info in declared if info.name.lower() in _SHOWN]
        if declared and wanted:
            raise BadInput(
                "sql: the query reads tables, and also asks which tables or columns there are",
                hint="use two queries",
            )
        if declared and parsed.other_functions:
            name = parsed.other_functions[0]
            plain = name.rpartition(".")[2]
            raise BadInput(
                f"sql: the query runs {name}, and also asks which tables or columns there are",
                hint=f"write {plain}, without a schema" if plain.lower() in _ALLOWED else "use two queries",
            )
        for _, info in wanted:
            # Hold before the look: what it finds stays readable.
            opened.setdefault(info.collection_id, _held(controller, info))
        uppers = controller.uppers(list(opened))
        rows = {
            each: _rows(
                opened[info.collection_id],
                time if each.time is None else milliseconds(each.time),
                uppers[info.collection_id],
                or_earlier=or_earlier,
            )
            for each, info in wanted
        }
        entered.watch()
        # This refuses a wrong query.
        return SqlResult(parsed.query, parameters, rows, _Declared(declared, hidden), sorted(infos), close)
    except BaseException as error:
        close(stays=False, gone=isinstance(error, LogRegressed))
        raise


def _parsed(query: str) -> _Parsed:
    """What a query is about. Raises `BadInput`."""
    with _lock:
        if (known := _known_queries.get(query)) is not None:
            _known_queries.move_to_end(query)
            return known
    parsed = _newly_parsed(query)
    # The values of times are those of now.
    if parsed.query == query and len(query) <= _LONGEST_KNOWN:
        with _lock:
            _known_queries[query] = parsed
            if len(_known_queries) > _MOST_KNOWN:
                _known_queries.popitem(last=False)
    return parsed


def _newly_parsed(query: str) -> _Parsed:
    with closing(duckdb_database.connection()) as connection, telling():
        # All expressions have one now().
        connection.begin()
        found, begun = _tree(connection, query)
        query = _trimmed(query)
        are_evaluated = False
        names: dict[_Named, None] = {}
        times: dict[_Named, None] = {}
        described: dict[_Named, None] = {}
        functions: list[str] = []
        may_list: list[str] = []
        lists = False
        for node, is_described in _nodes(found):
            match node:
                case {"type": "BASE_TABLE", "table_name": str(name), "at_clause": dict()}:
                    raise BadInput(f"sql: AT can't be used for table {name}", hint=_FORM)
                case {"type": "BASE_TABLE", "schema_name": str(schema), "table_name": str(name)}:
                    if schema.lower() in _SCHEMAS:
                        lists = True
                        continue
                    if _LISTS.fullmatch(name.lower()):
                        may_list.append(name)
                    (described if is_described else names)[_Named(name)] = None
                case {
                    "type": "TABLE_FUNCTION",
                    "function": {
                        "function_name": str(name),
                        "schema": schema,
                        "arguments": given,
                    } as function,
                }:
                    if name.lower() == _AS_OF:
                        are_evaluated |= _evaluate_time(connection, given)
                        times[_Named(*_constants(connection, given))] = None
                        continue
                    if name.lower() in ("query", "query_table"):
                        raise BadInput(f"sql: {name} can't be used", hint="write the tables into the query")
                    if _LISTS.fullmatch(name.lower()):
                        lists = True
                    if not is_described:
                        # With a schema, it may not be the macro that `_declare` makes.
                        functions.append(".".join(filter(None, (function["catalog"], schema, name))))
                case {"type": "SHOW_REF", "query": None}:
                    lists = True
        if are_evaluated:
            query = begun + _text(connection, found)
    return _Parsed(query, list(names), list(times), list(described), functions, may_list, lists)


def _tree(connection: "duckdb.DuckDBPyConnection", query: str) -> tuple[Any, str]:
    """The SELECT of a query, like `_serialized`, without error, and what is in front of it.

    Raises `BadInput`.
    """
    import duckdb

    try:
        statements = connection.extract_statements(query)
    except duckdb.ParserException as error:
        if _OF.search(query):
            raise BadInput(f"sql: {first_line(error)}", hint=_FORM) from None
        raise
    found, begun = None, ""
    if len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT:
        found = _serialized(connection, query)
    elif len(statements) == 1 and statements[0].type == duckdb.StatementType.EXPLAIN:
        found, begun = _explained(connection, statements[0].query)
    if found is None:
        raise BadInput(
            "sql: the query is not one SELECT",
            hint="to change tables, use 'holdfast write', or the methods of holdfast.Table",
        )
    if found["error"]:
        raise BadInput(f"sql: {found['error_message']}")
    return found, begun


def _trimmed(query: str) -> str:
    """The query without a last comment, and without the semicolons before it.

    DuckDB takes a semicolon at the end of a relation, but not a comment after it.
    """
    if "--" not in query and "/*" not in query:
        return query
    import duckdb

    # The places of tokens count bytes.
    text = query.encode()
    end = len(text)
    for start, kind in reversed(duckdb.tokenize(query)):
        if kind != duckdb.token_type.comment and text[start:end].strip(b"; \t\r\n"):
            break
        end = start
    return text[:end].decode()


def _serialized(connection: "duckdb.DuckDBPyConnection", query: str) -> Any:
    """A SELECT as a tree of JSON, or an object with its error."""
    return json.loads(connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])


def _text(connection: "duckdb.DuckDBPyConnection", tree: Any) -> str:
    """The text of a tree."""
    row = connection.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)]).fetchall()[0]
    return str(row[0])


def _explained(connection: "duckdb.DuckDBPyConnection", query: str) -> tuple[Any, str]:
    """The SELECT that an EXPLAIN is about, like `_serialized`, and what is in front of it. None if it isn't
    about one.
    """
    begun = _EXPLAIN.match(query)
    for start in () if begun is None else (begun.end(1), begun.end()):
        found = _serialized(connection, query[start:])
        if not found["error"]:
            return found, query[:start]
    return None, ""


def _nodes(parsed: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """All nodes of a tree, each with whether it is in a DESCRIBE."""
    waiting = [(parsed, False)]
    while waiting:
        match waiting.pop():
            case dict() as node, is_described:
                yield node, is_described
                is_described = is_described or node.get("show_type") == "DESCRIBE"
                waiting += [(each, is_described) for each in reversed(node.values())]
            case list() as nodes, is_described:
                waiting += [(each, is_described) for each in reversed(nodes)]


def _declare(connection: "duckdb.DuckDBPyConnection", declared: _Declared) -> None:
    """Make empty tables in DuckDB, so that it can show their names and columns."""
    connection.execute(_LISTED)
    for name in declared.hidden:
        # DuckDB looks for temporary views first.
        view = quoted(name)
        connection.execute(f"CREATE TEMP VIEW {view} AS FROM system.main.{view}")
    for info in declared.tables:
        schema = info.schema
        relation = connection.from_arrow(schema.arrow.empty_table())
        columns = [
            f"{quoted(field.name)} {type_}{'' if field.nullable else ' NOT NULL'}"
            for field, type_ in zip(schema.arrow, relation.types, strict=True)
        ]
        # A key of DuckDB can't be null.
        if schema.key and not any(column.nullable for column in schema.key):
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, schema.key_names))})")
        connection.execute(f"CREATE TABLE {quoted(info.name)} ({', '.join(columns)})")


def _evaluate_time(connection: "duckdb.DuckDBPyConnection", given: Sequence[Any]) -> bool:
    """Replace an expression that is the time of `as_of` by its value. Returns whether it is one.

    Constants stay, for `_constants`. Raises `BadInput` if the value depends on rows or isn't a time.
    """
    import duckdb

    if len(given) != 2 or given[1]["name"]:
        return False
    expression = given[1]["expression"]
    if "literal" in expression or "literal" in (expression.get("child") or {}):
        return False
    if any("subquery" in node or node.get("type") == "VALUE_PARAMETER" for node, _ in _nodes(expression)):
        raise BadInput("sql: the time of as_of can't be a subquery or a parameter", hint=_FORM)
    tree = _serialized(connection, "SELECT NULL")
    tree["statements"][0]["node"]["select_list"] = [{**expression, "alias": "made"}]
    asked = _text(connection, tree)
    try:
        found = f"SELECT made::VARCHAR, typeof(made) FROM ({asked})"  # noqa: S608 - DuckDB made the text
        value, type_ = connection.execute(found).fetchall()[0]
    except (duckdb.BinderException, duckdb.CatalogException) as error:
        raise BadInput(f"sql: the time of as_of is no constant: {first_line(error)}", hint=_FORM) from None
    if value is None or not (_MOMENT.fullmatch(type_) or type_ in ("BIGINT", "INTEGER")):
        raise BadInput(
            f"sql: the time of as_of is {shown(value)}, of type {type_}: as_of needs two constants",
            hint=_FORM,
        )
    literal = _serialized(connection, "SELECT 'x'")["statements"][0]["node"]["select_list"][0]
    literal["literal"]["text"] = value
    given[1]["expression"] = literal
    return True


def _constants(connection: "duckdb.DuckDBPyConnection", given: Sequence[Any]) -> list[str]:
    """The texts of two constants: of a moment, the text to which DuckDB converts it."""
    found = []
    for each in given:
        match each:
            case {"name": "", "expression": {"literal": {"kind": "STRING" | "INTEGER", "text": str(text)}}}:
                found.append(text)
            case {
                "name": "",
                "expression": {
                    "type": "OPERATOR_CAST",
                    "child": {"literal": {"kind": "STRING", "text": str(text)}},
                    "type_expr": {"type_name": str(type_)},
                },
            } if _MOMENT.fullmatch(type_):
                made = connection.execute(f"SELECT CAST(? AS {type_})::VARCHAR", [text])
                found.append(made.fetchall()[0][0])
    if len(found) != 2 or len(given) != 2:
        raise BadInput("sql: as_of needs two constants", hint=_FORM)
    return found


def _by_name(
    names: Sequence[_Named], infos: Mapping[str, CollectionInfo]
) -> list[tuple[_Named, CollectionInfo]]:
    """The tables that a query names, each once. DuckDB may know the other names."""
    found: dict[str, tuple[_Named, CollectionInfo]] = {}
    for each in names:
        info = _known(each.name, infos)
        if info is None:
            continue
        first, other = found.setdefault(each.name.lower(), (each, info))
        if other != info:
            raise BadInput(f"sql: {first} and {each} are the same name for DuckDB, and different tables")
    return list(found.values())


def _known(name: str, infos: Mapping[str, CollectionInfo]) -> CollectionInfo | None:
    """The table with a name, in any case, as in SQL. None if there is none: DuckDB may know another one."""
    if name in infos:
        return infos[name]
    found = [info for each, info in infos.items() if each.lower() == name.lower()]
    if len(found) > 1:
        raise BadInput(
            f"sql: {name} can be {' or '.join(sorted(each.name for each in found))}", hint="quote it as it is"
        )
    return found[0] if found else None


def _required(name: str, infos: Mapping[str, CollectionInfo]) -> CollectionInfo:
    info = _known(name, infos)
    if info is None:
        raise BadInput(f"sql: there is no table {name!r} for as_of", hint=_FORM)
    return info


def _held(controller: StorageController, info: CollectionInfo) -> OpenTable:
    table = OpenTable(controller.client, controller, info)
    table.reading.run(lambda reader: reader.since())
    return table


def _rows(table: OpenTable, time: int | None, upper: int, *, or_earlier: bool) -> "TableDataset":
    from holdfast.tables.dataset import TableDataset

    what = f"table {table.name}"
    if time is None:
        time = upper - 1 if upper else None
    elif or_earlier and upper:
        since = table.reading.run(lambda reader: reader.since())
        time = at_or_before(time, since, upper, what)
    else:
        table.complete(
            time, "give or_earlier=True, or --or-earlier, to use the latest complete time before it"
        )
    with dated(what):
        rows = TableDataset(table, time)
    _check_distinct(table.name, rows.schema.names)
    return rows


def _check_distinct(table: str, columns: Sequence[str]) -> None:
    """Raise `BadInput` if columns differ only in case. DuckDB would take one for the other."""
    known: dict[str, str] = {}
    for name in columns:
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise BadInput(
                f"sql: table {table} has the columns {other!r} and {name!r}, which SQL can't tell apart",
                hint="rename one of them, or use read instead of SQL",
            )
