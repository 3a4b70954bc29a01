"""SQL on tables: `Table.to_duckdb` and `holdfast.sql`, compared with DuckDB on plain Arrow tables."""

import datetime as dt
import gc
import math
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.collections import CollectionReader, StorageController
from holdfast.collections.frontiers import uppers_together
from holdfast.errors import AsOfNotYetAvailable, BadInput, CorruptBlob, HoldfastError, UsedAfterFork
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.parts import verified
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from holdfast.tables import SqlResult, Table
from holdfast.tables.dataset import TableDataset
from holdfast.text import with_date
from testbed.forking import in_child
from unit.collections.stores import Stores
from unit.tables.test_table_scan import COLUMNS, ROW, CountingBlob, busy, counting

__all__ = ["counting"]
FIELD = pc.field
LISTING = {"pragma_show", "pragma_table_info", "generate_series", "range", "unnest"}
VALUES: dict[str, list[str]] = {
    "id": ["-3", "0", "1", "2.5", "6"],
    "f": ["-1.5", "0.0", "1.5", "'nan'::double", "'inf'::double", "'-inf'::double"],
    "s": ["''", "'a'", "'b'", "'zz'", f"'{'z' * 5000}'"],
    "n": ["-1", "0", "40000", "1.5"],
}


@st.composite
def leaves(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    value = draw(st.sampled_from(VALUES[name]))
    match draw(st.integers(0, 5)):
        case 0:
            return f"{name} IS NULL"
        case 1:
            return f"{name} IS NOT NULL"
        case 2:
            values = draw(st.lists(st.sampled_from(VALUES[name]), min_size=1))
            return f"{name} IN ({', '.join(values)})"
        case 3:
            return f"{name} BETWEEN {value} AND {draw(st.sampled_from(VALUES[name]))}"
        case _:
            return f"{name} {draw(st.sampled_from(['=', '<>', '<', '<=', '>', '>=']))} {value}"


CONDITIONS = st.recursive(
    leaves(),
    lambda inner: (
        st.builds("({} AND {})".format, inner, inner)
        | st.builds("({} OR {})".format, inner, inner)
        | st.builds("(NOT {})".format, inner)
    ),
    max_leaves=4,
)


def counts(rows: pa.Table) -> Counter[str]:
    """The rows as a multiset in which NaN equals itself."""
    return Counter(map(repr, (tuple(row.values()) for row in rows.to_pylist())))


@settings(max_examples=40)
@given(rows=st.lists(ROW, max_size=8), condition=CONDITIONS, columns=st.sampled_from(["*", "n, id", "s"]))
def test_duckdb_finds_what_it_finds_in_a_plain_table(
    rows: list[dict[str, Any]], condition: str, columns: str
) -> None:
    client = Stores().open()
    with client, holdfast.table(client, "t", columns=COLUMNS) as table, duckdb.connect() as connection:
        for row in rows:
            table.append([row])
        connection.register("plain", table.read())
        connection.register("ours", table.to_duckdb(connection=connection))
        query = f"SELECT {columns} FROM {{}} WHERE {condition}"
        expected = counts(connection.sql(query.format("plain")).to_arrow_table())
        assert counts(connection.sql(query.format("ours")).to_arrow_table()) == expected
        with holdfast.sql(client, query.format("t")) as result:
            assert counts(result.read()) == expected


def test_values_of_all_types_come_back() -> None:
    now = dt.datetime(2026, 1, 1, 12, 30, 15, 7, dt.UTC).replace(tzinfo=None)
    row: dict[str, tuple[str, Any]] = {
        "a": ("bool", True),
        "b": ("int8", -128),
        "c": ("uint64", 2**64 - 1),
        "d": ("float32", 1.5),
        "e": ("string", "ä\0b"),
        "f": ("binary", b"\x00\xff"),
        "g": ("date32", dt.date(2026, 1, 1)),
        "h": ("timestamp", now),
        "i": ("timestamp_utc", now.replace(tzinfo=dt.UTC)),
        "j": ("decimal128(38,10)", Decimal("12345678901234567890.0123456789")),
        "k": ("int64?", None),
    }
    client = Stores().open()
    with (
        client,
        holdfast.table(client, "t", columns={name: kind for name, (kind, _) in row.items()}) as table,
    ):
        table.append([{name: value for name, (_, value) in row.items()}])
        literals = {
            "b": "-128",
            "c": "18446744073709551615",
            "e": "'ä' || chr(0) || 'b'",
            "f": r"'\x00\xFF'::blob",
            "g": "DATE '2026-01-01'",
            "h": "TIMESTAMP '2026-01-01 12:30:15.000007'",
            "i": "TIMESTAMPTZ '2026-01-01 14:30:15.000007+02'",
            "j": "12345678901234567890.0123456789",
        }
        where = " AND ".join(f"{name} = {value}" for name, value in literals.items())
        with holdfast.sql(client, f"SELECT * FROM t WHERE a AND k IS NULL AND {where}") as result:
            assert result.read().to_pylist() == [{name: value for name, (_, value) in row.items()}]
            assert result.schema.field("i").type == pa.timestamp("us", "UTC")
            assert result.to_pandas()["b"].tolist() == result.to_polars()["b"].to_list() == [-128]


def test_a_condition_reads_only_what_statistics_allow(
    counting: tuple[CountingBlob, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No decoded rows are kept.
    monkeypatch.setattr(verified, "_GROUP_BYTES", 0)
    blob, table = counting
    whole = sum(each.size for each in blob.list("") if "/p" in each.key)
    with duckdb.connect() as connection:
        relation = table.to_duckdb(connection=connection)
        for condition, rows in (("id = 5", 1), ("s < '00000009' AND n = 7", 9), ("id BETWEEN 5 AND 8", 4)):
            relation.filter(condition).to_arrow_table()
            blob.read_bytes = 0
            assert relation.filter(condition).to_arrow_table().num_rows == rows
            assert 0 < blob.read_bytes < whole / 4
        blob.read_bytes = 0
        assert relation.filter("n = 8").to_arrow_table().num_rows == 0
        assert blob.read_bytes == 0
        assert table.to_duckdb(where=FIELD("id") < 7, connection=connection).filter("id > 4").count("*")


def test_only_the_columns_of_the_query_are_passed_on_and_rows_as_they_are_needed(
    counting: tuple[CountingBlob, Table],
) -> None:
    _, table = counting
    rows = TableDataset(table._opened, None)
    asked: list[Any] = []

    class Asked(TableDataset):
        def __init__(self) -> None:
            pass

        schema = rows.schema

        def scanner(self, columns: Any = None, filter: Any = None) -> Any:  # noqa: A002
            asked.append((columns, str(filter)))
            return rows.scanner(columns, filter)

    with duckdb.connect() as connection:
        connection.register("t", Asked())
        first = connection.sql("SELECT n + 1 FROM t WHERE id > 3").to_arrow_reader(1000)
        first.read_next_batch()
        assert asked == [(["n"], "(id > 3)")]
        del first


@pytest.fixture
def tables() -> Iterator[tuple[PersistClient, Table, Table]]:
    client = Stores().open()
    columns = {"id": "int64", "n": "int64?"}
    with (
        client,
        holdfast.table(client, "orders", columns=columns, key="id") as orders,
        holdfast.table(client, "Order Lines", columns=columns, key="id") as lines,
    ):
        yield client, orders, lines


def values(client: PersistClient, query: str, **options: Any) -> list[tuple[Any, ...]]:
    with holdfast.sql(client, query, **options) as result:
        return [tuple(row.values()) for row in result.read().to_pylist()]


def test_each_table_is_read_at_its_latest_time_and_others_by_as_of(
    tables: tuple[PersistClient, Table, Table],
) -> None:
    client, orders, lines = tables
    with holdfast.sql(client, "SELECT * FROM orders") as empty:
        assert empty.times == {"orders": None}
        assert empty.schema == pa.schema([("id", pa.int64()), ("n", pa.int64())])
        assert empty.read().num_rows == 0
        assert "empty" in repr(empty)
    first = orders.append([{"id": 1, "n": 10}, {"id": 2, "n": 20}])
    lines.append([{"id": 1, "n": 7}])
    orders.delete([1])
    query = f"""
        WITH orders AS (SELECT * FROM ORDERS)
        SELECT old.n, l.n AS m, (SELECT count(*) FROM orders)
        FROM As_Of('Orders', {first}) old JOIN "order lines" l USING (id)
    """
    with holdfast.sql(client, query) as result:
        assert result.times == {
            "ORDERS": orders.upper - 1,
            "order lines": lines.upper - 1,
            f"as_of('Orders', '{first}')": first,
        }
        assert [tuple(row.values()) for row in result.read().to_pylist()] == [(10, 7, 1)]
    assert values(client, "SELECT count(*) FROM orders", as_of=first) == [(2,)]
    text = dt.datetime.fromtimestamp(first / 1000, dt.UTC).isoformat()
    assert values(client, f"SELECT count(*) FROM as_of('orders', '{text}')") == [(2,)]
    assert values(client, "SELECT n FROM orders WHERE id = ?", parameters=[2]) == [(20,)]
    assert values(client, "SELECT n FROM orders WHERE id = $key", parameters={"key": 2}) == [(20,)]
    late = "2099-01-01"
    for options in ({"as_of": late}, {}):
        source = "orders" if options else f"as_of('orders', '{late}')"
        with pytest.raises(AsOfNotYetAvailable) as refused:
            holdfast.sql(client, f"SELECT * FROM {source}", **options)
        assert "or_earlier" in refused.value.hint
        assert values(client, f"SELECT n FROM {source}", or_earlier=True, **options) == [(20,)]
    assert busy(orders) == 0


def test_a_result_is_the_same_each_time_and_holds_what_it_reads(
    tables: tuple[PersistClient, Table, Table],
) -> None:
    client, orders, _ = tables
    time = orders.append([{"id": 1, "n": 10}])
    with holdfast.sql(client, "SELECT * FROM orders ORDER BY id") as result:
        streams = result.scan(), result.scan()
        orders.upsert([{"id": 1, "n": 11}, {"id": 2}])
        orders._opened.controller.set_retention_hold("orders", time + 1)
        assert result.read().to_pylist() == pa.table(result).to_pylist() == [{"id": 1, "n": 10}]
        assert [each.read_all().num_rows for each in streams] == [1, 1]
        assert orders.since <= time
    with pytest.raises(BadInput, match="closed"):
        result.scan()
    assert isinstance(result, SqlResult)


def test_a_relation_keeps_the_hold_the_time_and_the_columns_of_its_table(
    tables: tuple[PersistClient, Table, Table],
) -> None:
    _, orders, _ = tables
    orders.append([{"id": 1, "n": 10, "_diff": 1}])
    with duckdb.connect() as connection:
        relation = orders.to_duckdb(connection=connection)
        assert busy(orders) == 1
        orders.upsert([{"id": 1, "n": 11}])
        later = holdfast.persist.Schema.of({"id": "int64"}, {"n": "int64?", "late": "int64?"})
        orders._opened.controller.evolve_collection(orders._opened.info.collection_id, later)
        assert relation.fetchall() == [(1, 10)]
        assert relation.aggregate("sum(n)").fetchall() == [(10,)]
        assert orders.to_duckdb(columns=["n"], connection=connection).fetchall() == [(11,)]
        for wrong in ({"columns": ["x"]}, {"where": FIELD("x") > 1}):
            with pytest.raises(HoldfastError):
                orders.to_duckdb(connection=connection, **wrong)
        del relation
    gc.collect()
    assert busy(orders) == 0


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("selec", "sql: Parser Error: syntax error"),
        ("EXPLAIN CREATE TABLE x AS SELECT 1", "sql: the query is not one SELECT"),
        ("EXPLAIN ANALYZE COPY orders TO '/proc/x'", "sql: the query is not one SELECT"),
        ("SELECT * FROM query_table('orders')", "sql: query_table can't be used"),
        ("SELECT * FROM orders, information_schema.tables", "sql: the query reads tables, and also asks"),
        ("SELECT * FROM (DESCRIBE orders), orders", "sql: the query reads tables, and also asks"),
        ("SELECT * FROM as_of('orders', TIMESTAMP 'soon')", "sql: Conversion Error: invalid timestamp"),
        ("SELECT * FROM as_of('orders', 'soon'::VARCHAR)", "sql: as_of needs two constants"),
        ("SELECT * FROM nothing", "sql: Catalog Error: Table with name nothing does not exist!"),
        ("SELECT x FROM orders", "sql: Binder Error"),
        ("SELECT 1; SELECT 2", "sql: the query is not one SELECT"),
        ("", "sql: the query is not one SELECT"),
        ("CREATE TABLE x AS SELECT * FROM orders", "sql: the query is not one SELECT"),
        (
            "SELECT * FROM as_of('orders', now() > now())",
            "sql: the time of as_of is 'false', of type BOOLEAN",
        ),
        ("SELECT * FROM as_of('orders', id)", "sql: the time of as_of is no constant"),
        ("SELECT * FROM as_of('orders', (SELECT max(id) FROM orders))", "sql: the time of as_of can't be a"),
        ("SELECT * FROM as_of('orders', now() - NULL::INTERVAL)", "sql: the time of as_of is None"),
        ("SELECT * FROM as_of('orders')", "sql: as_of needs two constants"),
        ("SELECT * FROM as_of('nothing', 1)", "sql: there is no table 'nothing' for as_of"),
        ("SELECT * FROM as_of('orders', 'soon')", "'soon' is neither a number of milliseconds"),
        ("SELECT * FROM orders AT (TIMESTAMP => now())", "sql: AT can't be used for table orders"),
        ("SELECT * FROM orders AS OF '2026-01-01'", "sql: Parser Error: syntax error"),
        ("SELECT 'a'::int + n FROM orders", "sql: Conversion Error"),
        ("SELECT * FROM client", "sql: Catalog Error"),
    ],
)
def test_a_wrong_query_is_refused_in_one_line(
    tables: tuple[PersistClient, Table, Table], query: str, error: str
) -> None:
    client, orders, _ = tables
    orders.append([{"id": 1}])
    with pytest.raises(BadInput) as refused:
        values(client, query)
    assert str(refused.value).startswith(error)
    if " AS OF " in query or " AT " in query:
        assert "as in as_of('orders', '2026-01-01')" in refused.value.hint
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("SELECT * FROM oders", "did you mean orders? the tables are: Order Lines, orders"),
        ("DESCRIBE x", "the tables are: Order Lines, orders"),
        ("SELECT nn FROM orders", 'similar columns: "n"'),
        ("SELECT orders.idd FROM orders", "did you mean id?"),
        ("SELECT lenght('a') FROM orders", 'did you mean "length"?'),
        ("SELECT x.id FROM orders", 'the tables of the query: "orders"'),
    ],
)
def test_the_hint_of_a_wrong_name_shows_similar_ones(
    tables: tuple[PersistClient, Table, Table], query: str, hint: str
) -> None:
    with pytest.raises(BadInput) as refused:
        values(tables[0], query)
    assert (refused.value.hint, "\n" in str(refused.value)) == (hint, False)


def test_a_query_shows_which_tables_and_columns_there_are(
    tables: tuple[PersistClient, Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, orders, _ = tables
    orders.append([{"id": 1}])
    types = {"at": "timestamp_utc", "price": "decimal128(9,2)?", "place": "struct<x: float64>?"}
    holdfast.table(client, "more", columns=types).close()
    # No table is opened.
    monkeypatch.setattr(CollectionReader, "__init__", None)
    assert values(client, "SHOW TABLES") == [("Order Lines",), ("more",), ("orders",)]
    assert [row[2:5] for row in values(client, "DESCRIBE")] == [
        ("Order Lines", ["id", "n"], ["BIGINT", "BIGINT"]),
        ("more", [*types], ["TIMESTAMP WITH TIME ZONE", "DECIMAL(9,2)", "STRUCT(x DOUBLE)"]),
        ("orders", ["id", "n"], ["BIGINT", "BIGINT"]),
    ]
    columns = [("id", "BIGINT", "NO", "PRI"), ("n", "BIGINT", "YES", None)]
    for described in ("DESCRIBE orders", 'DESCRIBE "order lines"', "SELECT * FROM (DESCRIBE orders)"):
        assert [row[:4] for row in values(client, described)] == columns
    assert values(client, "SELECT column_name FROM (DESCRIBE SELECT n + 1 AS x FROM orders)") == [("x",)]
    listed = "SELECT table_name, {} FROM {} ORDER BY ALL"
    assert values(client, listed.format("table_type", "information_schema.tables")) == [
        (name, "BASE TABLE") for name in ("Order Lines", "more", "orders")
    ]
    nullable = values(client, listed.format("column_name, is_nullable", "information_schema.columns"))
    assert nullable[:2] == [("Order Lines", "id", "NO"), ("Order Lines", "n", "YES")]
    # The tables of DuckDB are empty, so it doesn't know how large ours are.
    assert {row[1] for row in values(client, listed.format("estimated_size", "duckdb_tables()"))} == {None}
    for source in ("pg_tables", "sqlite_master"):
        assert len(values(client, f"SELECT * FROM {source}")) == 3
    with holdfast.sql(client, "SHOW TABLES") as result:
        assert result.times == {}
    with holdfast.table(client, "MORE", columns=types), pytest.raises(BadInput, match="are the same name"):
        values(client, "SHOW TABLES")


def test_a_function_that_may_read_rows_is_not_run_with_a_list_of_tables(
    tables: tuple[PersistClient, Table, Table],
) -> None:
    client, orders, _ = tables
    orders.append([{"id": 1}])
    found = duckdb.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE starts_with(function_type, 'table')"
    )
    names = {str(name) for (name,) in found.fetchall()}
    assert {"histogram", "histogram_values", "pragma_storage_info", "query"} < names
    ran = set()
    for name in names:
        try:
            values(client, f"SELECT * FROM {name}('orders') AS f, (SHOW TABLES) AS l")
        except BadInput as raised:
            if "also asks which tables or columns" in str(raised) or "can't be used" in str(raised):
                continue
        ran.add(name)
    assert all(name.startswith("duckdb_") for name in ran - LISTING), "functions without rows of a table"
    assert ran & {"duckdb_table_sample", "duckdb_logs", "duckdb_temporary_files"} == set()
    error = "sql: the query runs histogram, and also asks which tables or columns there are"
    for query in (
        "SELECT h.* FROM histogram(orders, id) h, (SHOW TABLES)",
        "SELECT * FROM Histogram('orders', id) WHERE EXISTS (FROM pg_catalog.pg_tables)",
        "SELECT * FROM (DESCRIBE orders), (SELECT (SELECT count(*) FROM system.main.histogram(orders, id)))",
    ):
        with pytest.raises(BadInput) as refused:
            values(client, query)
        assert str(refused.value).replace("system.main.", "") == error
    with pytest.raises(BadInput, match=r"runs system\.main\.duckdb_tables") as refused:
        values(client, "SELECT estimated_size FROM system.main.duckdb_tables()")
    assert refused.value.hint == "write duckdb_tables, without a schema"
    assert (
        values(client, "SELECT name FROM (SHOW TABLES), range(2) WHERE name = 'orders'") == [("orders",)] * 2
    )
    # A query of columns runs nothing.
    described = values(client, "DESCRIBE SELECT r.range, o.id FROM range(2) r, repeat(1, 2), orders o")
    assert [row[0] for row in described] == ["range", "id"]


def test_tables_with_the_names_of_duckdbs_lists(tables: tuple[PersistClient, Table, Table]) -> None:
    client, _, _ = tables
    used = [f"DuckDB_{each}" for each in ("tables", "columns", "views", "indexes", "databases")]
    for name in used:
        with holdfast.table(client, name, columns={"id": "int64"}, key="id") as table:
            table.append([{"id": 7}])
    names = sorted([("Order Lines",), ("orders",), *((name,) for name in used)])
    for query in (
        "SHOW TABLES",
        "SHOW TABLES FROM main",
        "SELECT name FROM (SHOW ALL TABLES)",
        "SELECT table_name FROM information_schema.tables",
        "SELECT table_name FROM duckdb_tables()",
        "SELECT DISTINCT table_name FROM information_schema.columns",
        "SELECT table_name FROM duckdb_columns() WHERE NOT internal AND column_name = 'id'",
        "SELECT tablename FROM pg_tables",
        "SELECT name FROM sqlite_master WHERE type = 'table'",
    ):
        assert sorted(values(client, query)) == names, query
    assert len(values(client, "SHOW SCHEMAS")) == 1
    for name in used:
        assert values(client, f"SELECT * FROM {name}") == [(7,)]
    assert [row[0] for row in values(client, "DESCRIBE duckdb_tables")] == ["id"]
    assert [row[1] for row in values(client, "SELECT * FROM pragma_table_info('duckdb_tables')")] == ["id"]


def test_a_result_shows_its_columns_and_rows(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    at = orders.append([{"id": 1, "n": 5}, {"id": 2}])
    with holdfast.sql(client, "SELECT id, n, '<b>' || chr(10) AS note FROM orders ORDER BY id") as result:
        head, *rows = repr(result).split("\n")
        assert head == f"<SqlResult: id int64, n int64, note string; orders {with_date(at)}>"
        assert rows == ["id  n  note", "1   5  <b>\\n", "2      <b>\\n"]
        assert "<th>note</th></tr><tr><td>1</td><td>5</td><td>&lt;b&gt;" in result._repr_html_()
    assert "the result of the query is closed" in repr(result)
    assert "the result of the query is closed" in result._repr_html_()
    with holdfast.sql(client, "SHOW TABLES") as result:
        assert repr(result) == "<SqlResult: name string>\nname\nOrder Lines\norders"
    with holdfast.sql(client, "SELECT r.range AS x, o.id AS x FROM range(9) r, orders o") as result:
        assert result.schema.names == result.read().column_names == result.to_polars().columns == ["x", "x_1"]
        assert repr(result).endswith("and more rows")
        assert repr(result).count("\n") == 12
        assert result._repr_html_().count("<tr>") == 11
    with holdfast.sql(client, "SELECT id FROM orders WHERE false") as result:
        assert repr(result) == f"<SqlResult: id int64; orders {with_date(at)}>"
    assert busy(orders) == 0


def test_a_table_may_have_a_name_that_duckdb_uses(tables: tuple[PersistClient, Table, Table]) -> None:
    client, _, _ = tables
    with holdfast.table(client, "pg_tables", columns={"id": "int64"}) as table:
        table.append([{"id": 7}])
        assert values(client, "SELECT * FROM pg_tables") == [(7,)]
        assert ("pg_tables",) in values(client, "SHOW TABLES")


def test_an_explanation_reads_no_rows_and_a_summary_does(
    tables: tuple[PersistClient, Table, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, orders, _ = tables
    first = orders.append([{"id": 1, "n": 5}, {"id": 2}])
    ((_, low, high, *_),) = values(client, "SELECT * FROM (SUMMARIZE orders) WHERE column_name = 'id'")
    assert (low, high) == ("BIGINT", "1")
    assert values(client, "EXPLAIN ANALYZE SELECT * FROM orders")[0][0] == "analyzed_plan"
    monkeypatch.setattr(TableDataset, "_rows", None)
    for query in (
        "EXPLAIN SELECT * FROM orders WHERE id > 1",
        "/* why */ explain (format json) (SELECT n FROM orders)",
        f"EXPLAIN SELECT * FROM as_of('orders', {first})",
    ):
        ((what, plan),) = values(client, query)
        assert what == "physical_plan"
        assert "PYTHON_ARROW_SCAN" in plan
    assert values(client, "EXPLAIN SELECT n FROM orders WHERE id = $id", parameters={"id": 1})


def test_a_time_may_be_a_literal_of_sql(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    first = orders.append([{"id": 1}])
    orders.append([{"id": 2}])
    moment = dt.datetime.fromtimestamp(first / 1000, dt.UTC)
    there = moment.astimezone(dt.timezone(dt.timedelta(hours=5))).isoformat(" ")
    text = moment.replace(tzinfo=None).isoformat(" ")
    for literal in (
        f"TIMESTAMP '{text}'",
        f"'{text}'::TIMESTAMP",
        f"CAST('{text}' AS TIMESTAMP_NS)",
        f"TIMESTAMPTZ '{text}'",
        f"TIMESTAMPTZ '{there}'",
        f"TIMESTAMP WITH TIME ZONE '{there}'",
    ):
        with holdfast.sql(client, f"SELECT id FROM as_of('orders', {literal})") as result:
            assert list(result.times.values()) == [first]
            assert result.read().to_pylist() == [{"id": 1}]
    with holdfast.sql(client, "SELECT * FROM as_of('orders', DATE '1970-01-02')") as result:
        assert result.times == {"as_of('orders', '1970-01-02')": 86_400_000}


def test_a_time_may_be_an_expression(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    first = orders.append([{"id": 1}])
    orders.append([{"id": 2}])
    since = "TIMESTAMPTZ '1970-01-01 00:00:00+00'"
    for time in (
        f"{since} + INTERVAL '{first} milliseconds'",
        f"{first} + 0",
        f"epoch_ms({first}::BIGINT)",
        f"make_timestamp({first * 1000})",
    ):
        query = f"SELECT id, $n AS n FROM as_of('orders', {time}) o WHERE id = $n OR id = 2"
        with holdfast.sql(client, query, parameters={"n": 1}) as result:
            assert list(result.times.values()) == [first]
            assert result.read().to_pylist() == result.read().to_pylist() == [{"id": 1, "n": 1}]
        assert values(client, f"EXPLAIN (FORMAT json) SELECT * FROM as_of('orders', {time})")
        assert values(client, f"SELECT id, ? FROM as_of('orders', {time})", parameters=[5]) == [(1, 5)]
    query = (
        "FROM as_of('orders', now() - INTERVAL '1 hour') JOIN as_of('orders', current_date - 1) USING (id)"
    )
    with holdfast.sql(client, query, or_earlier=True) as result:
        assert len(result.times) == 2
    query = "FROM as_of('orders', now()) UNION FROM as_of('orders', current_timestamp)"
    with holdfast.sql(client, query, or_earlier=True) as result:
        assert len(result.times) == 1
    with pytest.raises(holdfast.AsOfNotYetAvailable):
        holdfast.sql(client, "FROM as_of('orders', now() + INTERVAL 1 DAY)")


def test_names_that_differ_only_in_their_case(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    with holdfast.table(client, "Orders", columns={"id": "int64"}) as other:
        other.append([{"id": 7}])
        assert values(client, 'SELECT id FROM "Orders"') == [(7,)]
        assert values(client, "SELECT id FROM orders") == []
        for query in ("SELECT * FROM ORDERS", 'SELECT * FROM "Orders", orders'):
            with pytest.raises(BadInput):
                values(client, query)
        assert values(client, "SELECT count(*) FROM orders, as_of('Orders', 1)", or_earlier=True) == [(0,)]
    assert orders.upper == 0


def test_errors_of_a_scan_keep_their_class(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    orders.append([{"id": 1, "n": 1, "_diff": -1}])
    with pytest.raises(BadInput, match="the count of a row is -"):
        values(client, "SELECT sum(n) FROM orders")
    assert values(client, "SELECT n FROM orders WHERE id = 2") == []
    blob = MemoryBlob()
    other = PersistClient(
        Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off", inline_max_bytes=0)
    )
    with other, holdfast.table(other, "t", columns={"id": "int64"}) as table:
        table.append([{"id": 1}])
        (shard,) = table._opened.info.holding.shards
        for each in blob.list(""):
            if shard in each.key and "/p" in each.key:
                blob.put(each.key, b"x" * each.size)
        with pytest.raises(CorruptBlob):
            values(other, "SELECT * FROM t")
        with duckdb.connect() as connection, pytest.raises(duckdb.Error, match="crc32c"):
            table.to_duckdb(connection=connection).fetchall()


def test_writes_of_several_tables_are_seen_whole(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, lines = tables
    holdfast.write({orders: [{"id": 0}], lines: [{"id": 0}]})
    ended = threading.Event()

    def writes() -> None:
        number = 1
        while not ended.is_set():
            holdfast.write({orders: [{"id": number}], lines: [{"id": number}]})
            number += 1

    thread = threading.Thread(target=writes)
    thread.start()
    try:
        for _ in range(5):
            query = 'SELECT count(*) FROM orders UNION ALL SELECT count(*) FROM "Order Lines"'
            ((first,), (second,)) = values(client, query)
            assert first == second
    finally:
        ended.set()
        thread.join()


def test_a_handover_during_the_look_is_seen(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, lines = tables
    holdfast.write({orders: [{"id": 0}], lines: [{"id": 0}]})
    reads = 0
    with StorageController(client) as controller:
        ids = [each._opened.info.collection_id for each in (orders, lines)]

        def read(shards: Any) -> dict[str, int]:
            nonlocal reads
            reads += 1
            if reads == 1:
                controller.renditions.create("orders", shards=2)
                controller.hydrate("orders", "r2")
                controller.renditions.hand_over("orders", "r2")
                for _ in range(3):
                    holdfast.write({orders: [{"id": reads}], lines: [{"id": reads}]})
            return client.recent_uppers(shards)

        found = uppers_together(lambda: [controller.describe(each) for each in ids], read)
        assert reads == 2
        assert found == controller.uppers(ids) == dict(zip(ids, (orders.upper, lines.upper), strict=True))
        assert controller.uppers([]) == {}


def test_a_location_by_its_url_is_only_read(tmp_path: Path) -> None:
    with holdfast.table(tmp_path / "lake", "t", columns={"id": "int64", "f": "float64"}) as table:
        table.append([{"id": 1, "f": math.nan}, {"id": 2, "f": 1.0}])

    def written() -> dict[Path, int]:
        return {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*") if each.suffix != ".sqlite-shm"}

    before = written()
    with holdfast.sql(tmp_path / "lake", "SELECT id FROM t WHERE f > 2") as result:
        assert result.read().to_pylist() == [{"id": 1}]
    assert before == written()
    with pytest.raises(holdfast.NoLocation):
        holdfast.sql(tmp_path / "none", "SELECT 1")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_result_in_a_forked_child_is_refused(tables: tuple[PersistClient, Table, Table]) -> None:
    client, orders, _ = tables
    orders.append([{"id": 1}])
    result = holdfast.sql(client, "SELECT * FROM orders")

    def child() -> None:
        with pytest.raises(UsedAfterFork):
            result.read()
        result.close()

    in_child(child)
    assert result.read().num_rows == 1
    result.close()


def test_a_sum_of_whole_numbers_is_exact_and_an_int_if_it_is_cast() -> None:
    with Stores().open() as client, holdfast.table(client, "t", columns={"n": "int64"}) as table:
        table.append({"n": [2**63 - 1, 2**63 - 1]})
        with holdfast.sql(client, "SELECT sum(n) AS total, sum(1)::BIGINT AS small FROM t") as found:
            assert found.schema == pa.schema([("total", pa.decimal128(38, 0)), ("small", pa.int64())])
            rows = found.read().to_pylist()
        assert rows == [{"total": Decimal(2**64 - 2), "small": 2}]
        assert type(rows[0]["small"]) is int
        with (
            holdfast.sql(client, "SELECT sum(n)::BIGINT FROM t") as found,
            pytest.raises(HoldfastError, match="out of range"),
        ):
            found.read()


@pytest.mark.parametrize("value", ["x::UHUGEINT", "[x::UHUGEINT]", "{'x': x::UHUGEINT}"])
def test_a_type_that_would_change_values_is_refused(value: str) -> None:
    query = f"SELECT {value} AS n FROM (SELECT 340282366920938463463374607431768211455 AS x)"
    with Stores().open() as client:
        with pytest.raises(BadInput, match=r"column 'n' is .*UHUGEINT") as refused:
            holdfast.sql(client, query)
        assert "n::VARCHAR" in refused.value.hint
