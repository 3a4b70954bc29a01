"""Queries in which DuckDB decodes the parts of tables itself, compared with those that get Arrow batches."""

import datetime as dt
import gc
import math
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import duckdb
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import BadInput, CorruptBlob, HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.parts.part_store import PartGone
from holdfast.persist.parts.whole import VerifiedFile
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_place import S3Place
from holdfast.tables import SqlResult, Table, dataset
from holdfast.tables.dataset import TableDataset
from holdfast.tables.duckdb_files import _Input, served
from testbed.minio import Minio
from unit.tables.test_table_scan import COLUMNS, ROW, CountingBlob, busy
from unit.tables.test_table_sql import CONDITIONS, counts

_PARTS = PersistConfig(maintenance="off", inline_max_bytes=0)
_PARQUET, _ARROW = "by DuckDB", "by Arrow"
MANY = 10_000


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_LEAST_ROWS", 0)


def opened(config: PersistConfig = _PARTS) -> tuple[MemoryBlob, PersistClient]:
    blob = MemoryBlob()
    return blob, PersistClient(Location.of(blob, MemoryConsensus()), config=config)


@pytest.fixture
def there() -> Iterator[tuple[MemoryBlob, PersistClient, Table]]:
    blob, client = opened()
    with client, holdfast.table(client, "t", columns={"id": "int64", "s": "string?"}, key="id") as table:
        table.append({"id": range(MANY), "s": [f"text {i}" for i in range(MANY)]})
        yield blob, client, table


def same(client: PersistClient, query: str, **options: Any) -> str:
    """Compare the rows of a query with those that it has without files. Returns how it read its table."""
    ways = [_ARROW]
    chosen = dataset.TableDataset._query

    @contextmanager
    def chooses(*given: Any) -> Iterator[Any]:
        with chosen(*given) as found:
            if found[0] is not None:
                ways.append(_PARQUET)
            yield found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset.TableDataset, "_query", chooses)
        result = holdfast.sql(client, query, **options)
        found = result.read()
        patch.setattr("holdfast.tables.duckdb_database.part_files", lambda: None)
        expected = result.read()
        result.close()
    assert found.schema == expected.schema
    assert counts(found) == counts(expected)
    return ways.pop()


@pytest.mark.long
def test_values_of_all_types_are_the_same() -> None:
    now = dt.datetime(2026, 1, 1, 12, 30, 15, 7000, dt.UTC).replace(tzinfo=None)
    types: dict[str, tuple[str, list[Any]]] = {
        "bool": ("bool", [True, False]),
        "int8": ("int8", [-128, 127]),
        "int16": ("int16?", [None, 32767]),
        "int32": ("int32", [-(2**31), 5]),
        "int64": ("int64?", [-(2**63), None]),
        "uint8": ("uint8", [0, 255]),
        "uint16": ("uint16", [0, 65535]),
        "uint32": ("uint32", [0, 2**32 - 1]),
        "uint64": ("uint64", [0, 2**64 - 1]),
        "float32": ("float32?", [-0.0, math.inf]),
        "float64": ("float64?", [None, -math.inf]),
        "string": ("string?", ["ä\0b", "z" * 9000]),
        "binary": ("binary?", [b"\x00\xff", None]),
        "date32": ("date32", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "stamp": ("timestamp", [now, now.replace(year=1)]),
        "utc": ("timestamp_utc", [now.replace(tzinfo=dt.UTC), dt.datetime(9999, 1, 1, tzinfo=dt.UTC)]),
        "dec": ("decimal128(38,10)?", [Decimal("-12345678901234567890.0123456789"), None]),
        "small": ("decimal128(9,2)", [Decimal("-1.25"), Decimal("9999999.99")]),
    }
    _, client = opened()
    with client:
        for name, (kind, given_values) in types.items():
            with holdfast.table(client, name, columns={"x": kind}) as table:
                table.append({"x": [*given_values, *given_values]})
            assert same(client, f'SELECT x, x IS NULL AS n FROM "{name}"') == _PARQUET, name
        for name, kind in {
            "nested": "struct<a: int64?, b: list<string?>?>?",
            "seconds": "timestamp(s)?",
            "ms": "timestamp(ms)?",
            "ns": "timestamp(ns)?",
            "time": "time(us)?",
            "zone": "timestamp(us,Europe/Berlin)?",
        }.items():
            with holdfast.table(client, name, columns={"id": "int64", "x": kind}) as table:
                values: list[Any] = [None, now]
                if name == "nested":
                    values = [None, {"a": 1, "b": ["x"]}]
                elif name == "time":
                    values = [None, dt.time(1, 2, 3, 4)]
                elif name == "zone":
                    values = [None, now.replace(tzinfo=dt.UTC)]
                elif name == "seconds":
                    values = [None, now.replace(microsecond=0)]
                table.append([{"id": i, "x": each} for i, each in enumerate(values)])
            same(client, f'SELECT * FROM "{name}"')


@pytest.mark.long
@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(
    rows=st.lists(st.tuples(ROW, st.sampled_from([1, 1, 1, 2, -1])), min_size=1, max_size=8),
    changes=st.lists(st.sampled_from(["add", "widen", "rename", "drop", "none"]), max_size=2),
    condition=CONDITIONS,
    has_nan=st.booleans(),
)
def test_rows_of_any_history_are_the_same(
    rows: list[tuple[dict[str, Any], int]], changes: list[str], condition: str, has_nan: bool
) -> None:
    _, client = opened()
    with client, holdfast.table(client, "t", columns=COLUMNS) as table:
        times = []
        steps: list[str | tuple[dict[str, Any], int]] = [*rows[:4], *changes, *rows[4:]]
        for number, step in enumerate(steps):
            if isinstance(step, str):
                # The same change twice is refused.
                with suppress(BadInput):
                    change(table, step, number)
                continue
            row, diff = step
            if not has_nan and row["f"] is not None and math.isnan(row["f"]):
                row = {**row, "f": 0.5}
            there = {name: value for name, value in row.items() if name in table.schema.names}
            if diff < 0:
                table.append([there])
            times.append(table.append([{**there, "_diff": diff}]))
        same(client, "SELECT * FROM t")
        if set(COLUMNS) <= set(table.schema.names):
            same(client, f"SELECT * FROM t WHERE {condition}", as_of=times[0])


def change(table: Table, what: str, number: int) -> None:
    names = table.schema.names
    if what == "add":
        table.alter(add={f"more{number}": "string?"})
    elif what == "widen" and "n" in names:
        table.alter(types={"n": "int64?"})
    elif what == "rename" and "n" in names:
        table.rename_column("n", f"renamed{number}")
    elif what == "drop" and "s" in names:
        table.drop_column("s")


def test_when_duckdb_decodes_parts_itself(there: tuple[MemoryBlob, PersistClient, Table]) -> None:
    _, client, table = there
    first = table.latest_time()
    query = "SELECT sum(id), max(s) FROM t WHERE id % 7 = 3"
    assert same(client, query) == _PARQUET
    assert same(client, "SELECT id, s FROM t WHERE id BETWEEN 77 AND 99") == _PARQUET
    # Several runs that only add rows, also some that come after the time.
    table.append({"id": range(MANY, MANY + 9), "s": ["x"] * 9})
    assert same(client, query) == same(client, query, as_of=first) == _PARQUET
    # Names and hidden columns are those of the record.
    table.alter(add={"late": "int64?"})
    assert same(client, "SELECT * FROM t") == _ARROW
    # Rows were removed.
    removed = table.delete([1, 2])
    assert same(client, query, as_of=removed) == _ARROW
    assert same(client, "SELECT count(*) FROM t") == _ARROW
    with holdfast.table(client, "twice", columns={"id": "int64"}) as twice:
        twice.append([{"id": 1, "_diff": 2}])
        assert same(client, "SELECT * FROM twice") == _ARROW
    for config in (PersistConfig(maintenance="off"), PersistConfig(audit_pushdown=True, inline_max_bytes=0)):
        _, other = opened(config)
        with other, holdfast.table(other, "t", columns={"id": "int64"}) as inline:
            inline.append([{"id": 1}])
            assert same(other, "SELECT * FROM t") == _ARROW


def test_renamed_and_dropped_columns(there: tuple[MemoryBlob, PersistClient, Table]) -> None:
    _, client, table = there
    before = table.latest_time()
    table.rename_column("s", "words")
    assert same(client, "SELECT max(words), count(*) FROM t WHERE words LIKE '%7'") == _PARQUET
    table.drop_column("words")
    assert same(client, "SELECT * FROM t") == same(client, "SELECT words FROM t", as_of=before) == _PARQUET


def test_a_part_with_nan_is_not_read_by_its_statistics() -> None:
    _, client = opened()
    with client, holdfast.table(client, "t", columns={"f": "float64", "n": "int64"}) as table:
        table.append({"f": [0.5, math.nan, 1.0], "n": [1, 2, 3]})
        for condition, found in (("f > 100", 2), ("isnan(f)", 2), ("f = 'nan'::double", 2)):
            with holdfast.sql(client, f"SELECT n FROM t WHERE {condition}") as result:
                assert result.read().to_pylist() == [{"n": found}]
        with holdfast.sql(client, "SELECT max(f) FROM t") as result:
            assert math.isnan(result.read().column(0)[0].as_py())


def test_names_that_differ_only_in_case_are_not_mixed_up() -> None:
    _, client = opened()
    columns = {"id": "int64", "note": "int64?"}
    with client, holdfast.table(client, "t", columns=columns, key="id") as table:
        table.rename_column("note", "old")
        table.alter(add={"Note": "int64?"})
        table.append({"id": [1, 2], "old": [3, 4], "Note": [5, None]})
        assert same(client, "SELECT * FROM t") == _ARROW
        table.drop_column("old")
        assert same(client, "SELECT sum(Note) FROM t WHERE Note IS NOT NULL") == _ARROW
        table.alter(add={"ID": "int64?"})
        with pytest.raises(BadInput, match="the columns 'id' and 'ID', which SQL can't tell apart"):
            holdfast.sql(client, 'SELECT "ID" FROM t')


@pytest.mark.parametrize("type_", ["string", "binary", "decimal128(38,2)"])
def test_a_null_beside_one_value_is_found(type_: str) -> None:
    """DuckDB 2.0 finds others in such a row group, if it has no dictionary."""
    value = {"string": "n/a", "binary": b"n/a"}.get(type_, Decimal(7))
    own = {"string": "{}", "binary": "{}"}.get(type_)
    many = 40_000
    first = [Decimal(i) if own is None else own.format(i) for i in range(many)]
    texts = [each.encode() if type_ == "binary" and isinstance(each, str) else each for each in first]
    _, client = opened()
    with client, holdfast.table(client, "t", columns={"id": "int64", "x": f"{type_}?"}, key="id") as table:
        table.append({"id": range(10 * many), "x": [*texts, *([value, None] * (9 * many // 2))]})
        for condition, found in (("x IS NULL", 9 * many // 2), ("x IS NOT NULL", many + 9 * many // 2)):
            with holdfast.sql(client, f"SELECT count(*) AS n FROM t WHERE {condition}") as result:
                assert result.read().to_pylist() == [{"n": found}]


def test_a_query_reads_no_files_of_tables_by_itself(there: tuple[MemoryBlob, PersistClient, Table]) -> None:
    _, client, _ = there
    with holdfast.sql(client, "SELECT file FROM glob('holdfast://*'), t") as result:
        assert result.read().num_rows == 0


def test_damaged_bytes_are_an_error_that_names_the_part(
    there: tuple[MemoryBlob, PersistClient, Table],
) -> None:
    blob, client, _ = there
    key = max(blob.list(""), key=lambda each: each.size).key
    data = blob.get(key)
    assert data is not None
    with holdfast.sql(client, "SELECT sum(id), count(DISTINCT s) FROM t") as result:
        expected = result.read()
        # The part is known by now. So this is found by the checksums of its blocks.
        for place in (4, len(data) // 2, len(data) - 20):
            blob.put(key, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(CorruptBlob, match=key.rpartition("/")[2]):
                result.read()
        blob.put(key, data)
    with holdfast.sql(client, "SELECT sum(id), count(DISTINCT s) FROM t") as result:
        assert result.read() == expected


def test_a_query_whose_part_was_deleted_goes_on_with_others(
    there: tuple[MemoryBlob, PersistClient, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, _ = there
    read_at = VerifiedFile.read_at
    left = 0

    def gone(self: VerifiedFile, start: int, size: int) -> bytes:
        nonlocal left
        left -= 1
        if left < 0:
            raise PartGone("p1")
        return read_at(self, start, size)

    query = "SELECT count(*), sum(id), max(s) FROM t"
    with holdfast.sql(client, query) as result:
        expected = result.read()
        monkeypatch.setattr(VerifiedFile, "read_at", gone)
        for allowed in range(8):
            left = allowed
            assert result.read() == expected
    with monkeypatch.context() as patch:
        patch.setattr(SqlResult, "_read", lambda *_: yields_and_fails(expected.to_batches()[0]))
        left = 10**6
        with holdfast.sql(client, query) as result, pytest.raises(HoldfastError, match="compacted") as error:
            result.read()
        assert error.value.hint == "run the query again"


def yields_and_fails(batch: Any) -> Iterator[Any]:
    yield batch
    raise PartGone("p1")


def test_nothing_is_read_after_the_table_was_closed(there: tuple[MemoryBlob, PersistClient, Table]) -> None:
    _, _, table = there
    rows = TableDataset(table._opened, None)
    table.close()
    with pytest.raises(BadInput, match="table t is closed") as error, rows._reading():
        pass
    assert rows.error is error.value


def test_threads_of_duckdb_read_where_they_seek() -> None:
    data = bytes(range(256)) * 4
    part: Any = SimpleNamespace(size=len(data), read_at=lambda start, size: data[start : start + size])
    file = _Input(part, nullcontext)
    turns = threading.Barrier(8)
    wrong = []

    def reads(number: int) -> None:
        for turn in range(50):
            place = (number * 97 + turn * 13) % 900
            turns.wait()
            assert file.seek(place) == file.tell() == place
            turns.wait()
            if file.read(100) != data[place : place + 100]:
                wrong.append(place)

    threads = [threading.Thread(target=reads, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with pytest.raises(BadInput, match="can't read the files of a table by itself"):
        file.read(1)


def test_queries_share_a_database_and_see_only_their_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tables.duckdb_database._shared", None)
    with ExitStack() as stack:
        connect = stack.enter_context(mock.patch("duckdb.connect", wraps=duckdb.connect))
        found = []
        for number, config in enumerate((_PARTS, _PARTS, PersistConfig(maintenance="off"))):
            client = stack.enter_context(opened(config)[1])
            table = stack.enter_context(holdfast.table(client, "t", columns={"n": "int64"}))
            table.append({"n": [number] * 3})
            found.append(stack.enter_context(holdfast.sql(client, "SELECT n FROM t")).scan())
        assert [set(each.read_all()["n"].to_pylist()) for each in found] == [{0}, {1}, {2}]
        other = stack.enter_context(opened()[1])
        with pytest.raises(BadInput, match="Table with name t does not exist"):
            holdfast.sql(other, "SELECT n FROM t")
        assert connect.call_count == 1


FORKS = """
import os, sys, holdfast
from pathlib import Path

def query(name):
    with holdfast.table(Path(sys.argv[1], name).as_uri(), "t", columns={"n": "int64"}) as table:
        table.append({"n": [1, 2]})
    with holdfast.sql(Path(sys.argv[1], name).as_uri(), "SELECT sum(n)::BIGINT AS n FROM t") as found:
        assert found.read().to_pylist() == [{"n": 3}]

query("parent")
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
query("parent again" if child else "child")
"""


@pytest.mark.long
def test_a_forked_child_has_its_own_database_and_ends(tmp_path: Path) -> None:
    run = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)]
    subprocess.run(run, check=True, timeout=100)


@pytest.mark.long
@pytest.mark.s3
def test_a_query_of_parts_in_s3_reads_only_its_columns(minio: Minio, bucket: str) -> None:
    blob = CountingBlob(S3Blob(S3Place(bucket=bucket, endpoint=minio.endpoint)))
    columns = {"id": "int64", "s": "string", "n": "int32"}
    with (
        PersistClient(Location.of(blob, MemoryConsensus()), config=_PARTS) as client,
        holdfast.table(client, "t", columns=columns, key="id") as table,
    ):
        many = 30 * MANY
        table.append(
            {"id": range(many), "s": [random.randbytes(16).hex() for _ in range(many)], "n": [7] * many}
        )
        whole = max(each.size for each in blob.list(""))
        for query, most in (
            ("SELECT max(s), sum(n) FROM t WHERE id % 2 = 0", 1.1),
            ("SELECT sum(n), count(*) FROM t", 0.1),
            ("SELECT sum(id) FROM t WHERE n = 7", 0.1),
            ("SELECT s FROM t WHERE id BETWEEN 77 AND 99", 0.2),
            ("SELECT s FROM t WHERE n = 8", 0.1),
        ):
            # The first read of a part reads all of it.
            assert same(client, query) == _PARQUET
            with holdfast.sql(client, query) as result:
                blob.read_bytes = 0
                result.read()
            assert blob.read_bytes < most * whole, query


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[Path, Table]]:
    with holdfast.table(tmp_path, "t", columns={"id": "int64", "s": "string?"}, key="id") as table:
        table.append({"id": range(MANY), "s": [f"text {i}" for i in range(MANY)]})
        yield tmp_path, table


def parts_of(folder: Path) -> list[Path]:
    """The files of the parts with rows of the table."""
    return [each for each in folder.rglob("p*") if each.is_file()]


def test_duckdb_decodes_the_parts_of_a_relation_of_a_local_table(local: tuple[Path, Table]) -> None:
    _, table = local
    query = "SELECT id, s FROM ours WHERE id BETWEEN 77 AND 99 OR s = 'text 5' ORDER BY id"
    expected = [(5, "text 5"), *((i, f"text {i}") for i in range(77, 100))]
    with duckdb.connect() as connection:
        ours = table.to_duckdb(connection=connection)
        assert "PARQUET" in ours.explain().upper()
        assert "ARROW" not in ours.explain().upper()
        assert ours.count("*").fetchall() == [(MANY,)]
        assert connection.sql(query).fetchall() == expected
        some = table.to_duckdb(columns=["s"], limit=3, connection=connection)
        assert some.columns == ["s"]
        assert some.to_arrow_table().num_rows == 3
        # What a condition chooses before the query is read as before.
        chosen = table.to_duckdb(where=[("id", "<", 5)], connection=connection)
        assert "PARQUET" not in chosen.explain().upper()
        assert chosen.count("*").fetchall() == [(5,)]


def test_a_view_of_a_relation_keeps_the_hold_and_the_files(local: tuple[Path, Table]) -> None:
    _, table = local
    before = len(served._files)
    with duckdb.connect() as connection:
        connection.register("ours", table.to_duckdb(connection=connection))
        gc.collect()
        table.append({"id": [MANY], "s": [None]})
        assert busy(table) == 1
        assert len(served._files) == before + 1
        assert connection.sql("SELECT count(s), max(id) FROM ours").fetchall() == [(MANY, MANY - 1)]
        connection.unregister("ours")
        gc.collect()
        assert busy(table) == 0
        more = table.to_duckdb(connection=connection).filter("id > 5")
        gc.collect()
        assert more.count("*").fetchall() == [(MANY - 5,)]
        assert busy(table) == 1
        del more
        gc.collect()
        assert busy(table) == 0
        assert len(served._files) == before


def test_a_relation_stays_readable_if_its_parts_are_deleted(local: tuple[Path, Table]) -> None:
    folder, table = local
    with duckdb.connect() as connection:
        ours = table.to_duckdb(connection=connection)
        for part in parts_of(folder):
            part.unlink()
        assert ours.aggregate("count(DISTINCT s), sum(id)").fetchall() == [(MANY, MANY * (MANY - 1) // 2)]
        assert ours.filter("s = 'text 7'").fetchall() == [(7, "text 7")]


@pytest.mark.parametrize("how", ["changed", "shorter"])
def test_a_relation_refuses_damaged_bytes(local: tuple[Path, Table], how: str) -> None:
    folder, table = local
    (part,) = parts_of(folder)
    data = part.read_bytes()
    with duckdb.connect() as connection:
        connection.register("ours", table.to_duckdb(connection=connection))
        middle = len(data) // 3
        part.write_bytes(
            data[:middle]
            if how == "shorter"
            else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        )
        with pytest.raises(duckdb.Error, match=part.name):
            connection.sql("SELECT count(DISTINCT s), sum(id) FROM ours").fetchall()
        part.write_bytes(data)


def test_a_relation_of_a_connection_that_reads_no_files(local: tuple[Path, Table]) -> None:
    _, table = local
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        ours = table.to_duckdb(connection=connection)
        assert "PARQUET" not in ours.explain().upper()
        assert ours.count("*").fetchall() == [(MANY,)]


def test_a_relation_is_not_read_after_its_table_was_closed(local: tuple[Path, Table]) -> None:
    folder, _ = local
    other = holdfast.table(folder, "t", mode="read")
    with duckdb.connect() as connection:
        ours = other.to_duckdb(connection=connection)
        assert ours.count("*").fetchall() == [(MANY,)]
        other.close()
        with pytest.raises(duckdb.Error, match="table t is closed"):
            ours.fetchall()


def test_queries_that_run_together_use_different_names(
    there: tuple[MemoryBlob, PersistClient, Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, _ = there
    query = "SELECT count(*) AS n FROM t"
    expected = [{"n": MANY}]
    with holdfast.sql(client, query) as first:
        assert first.read().to_pylist() == expected
    before = set(served._files)
    with holdfast.sql(client, query) as first, holdfast.sql(client, query) as second:
        names = set(served._files) - before
        assert {name.rpartition("-")[2] for name in names} == {"0", "1"}
        assert len({name.rpartition("-")[0] for name in names}) == 1
        # The second one is bound, and has not begun. A new database follows.
        monkeypatch.setattr("holdfast.tables.duckdb_database._FOOTER_BYTES", 0)
        connect = mock.Mock(wraps=duckdb.connect)
        monkeypatch.setattr(duckdb, "connect", connect)
        assert first.read().to_pylist() == expected
        with holdfast.sql(client, query) as third:
            assert third.read().to_pylist() == expected
        assert connect.call_count >= 1
        assert second.read().to_pylist() == second.read().to_pylist() == expected
    assert set(served._files) == before
