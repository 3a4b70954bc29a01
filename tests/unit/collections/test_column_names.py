"""Renamed columns: whatever reads or writes has the new name, and no program writes into a wrong column."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import (
    CollectionSpec,
    StorageController,
    plan_changes,
    read_changes,
    read_collection_part,
)
from holdfast.collections.uploads import upload_part
from holdfast.errors import BadInput, CodecMismatch
from holdfast.persist import PersistClient, Schema, Updates
from holdfast.tables import Table
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "a": "string?", "b": "string?", "at": "list<int32>?"}
NAMES = ["id", "b", "a", "at"]
"""After the swap, in the order of the columns."""


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def client(stores: Stores) -> Iterator[PersistClient]:
    with stores.open(inline_max_bytes=0, audit_pushdown=True) as opened:
        yield opened


@pytest.fixture
def table(client: PersistClient) -> Table:
    comments = {"a": "was a"}
    made = holdfast.table(client, "t", columns=COLUMNS, key="id", shards=2, comments=comments)
    made.append([{"id": i, "a": f"a{i}", "b": f"b{i}", "at": None} for i in range(4)])
    return made


def swap(table: Table) -> None:
    """`a` and `b` change their names, which is the worst that can happen to a stale program."""
    table.rename_column("a", "free")
    table.rename_column("b", "a")
    table.rename_column("free", "b")


def values(rows: Any, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows.to_pylist())


def test_all_reads_have_the_new_names_at_all_times(table: Table, client: PersistClient) -> None:
    first = table.latest_time()
    table.tail(first)
    swap(table)
    second = table.upsert([{"id": 1, "a": "new a", "b": "new b"}])
    assert table.schema.names == table.read().schema.names == NAMES
    assert values(table.read(first), "id", "a", "b")[1] == (1, "b1", "a1")
    assert values(table.read(columns=["b"]), "b") == [("a0",), ("a2",), ("a3",), ("new b",)]
    assert table.comments == {"b": "was a"}
    for where in (pc.field("a") == "b2", [("a", "=", "b2")]):
        assert values(table.scan(["id", "b"], where).read_all(), "id", "b") == [(2, "a2")]
        assert table.count(where, first) == 1
    assert table.count([("a", "=", "a2")]) == table.count(pc.field("a") == "a2") == 0
    differing = values(table.diff(first), "id", "a", "b", "_diff")
    assert differing == [(1, "b1", "a1", -1), (1, "new a", "new b", 1)]
    with table.tail(first) as tail:
        found = pa.concat_tables([tail.next(5) for _ in range(1)])
    assert values(found, "a", "b", "_time", "_diff") == [
        ("b1", "a1", second, -1),
        ("new a", "new b", second, 1),
    ]
    with StorageController(client).reader("t", purpose="test") as reader:
        assert reader.schema.names == tuple(NAMES)
        parts = reader.snapshot_parts(first, 2)
        read = [batch for each in parts for batch in read_collection_part(client, each, ["a"])]
        assert values(pa.Table.from_batches(read), "a") == [("b0",), ("b1",), ("b2",), ("b3",)]
        pieces = [
            each for part in plan_changes(reader, first, second, 1) for each in read_changes(client, part)
        ]
        assert values(pa.concat_tables(pieces), "a", "_diff") == [("b1", -1), ("new a", 1)]
        updates = [each.table for each in reader.listen(first, second) if isinstance(each, Updates)]
        assert values(pa.concat_tables(updates), "b", "_diff") == [("a1", -1), ("new b", 1)]


def test_a_filter_never_uses_what_it_learned_under_other_names(table: Table) -> None:
    where = [("a", "=", "a2")]
    expression = pc.field("a") == "a2"
    assert table.count(where) == table.count(expression) == 1
    swap(table)
    assert table.count(where) == table.count(expression) == 0
    assert table.count([("b", "=", "a2")]) == table.count(pc.field("b") == "a2") == 1


def test_all_writes_take_the_new_names(table: Table) -> None:
    swap(table)
    table.merge([{"id": 0, "b": "merged"}])
    table.update(where=[("a", "=", "b1")], set={"a": pc.field("b")})
    table.update([2], lambda rows: rows.set_column(1, "b", pa.array(["made"])))
    table.delete(where=pc.field("b") == "a3")
    assert values(table.read(), "id", "a", "b") == [(0, "b0", "merged"), (1, "a1", "a1"), (2, "b2", "made")]
    table.rename_column("id", "number")
    assert table.key == ("number",)
    table.delete([0])
    table.upsert({"number": [1], "a": ["last"]})
    assert values(table.read(), "number", "a", "b") == [(1, "last", None), (2, "b2", "made")]


@pytest.mark.parametrize("opened", ["with a writer", "only read", "unused"])
def test_another_process_never_writes_into_a_wrong_column(stores: Stores, table: Table, opened: str) -> None:
    with stores.open() as other, holdfast.table(other, "t") as stale:
        if opened == "with a writer":
            stale.append([{"id": 8, "a": "a8", "b": "b8"}])
        elif opened == "only read":
            assert stale.count() == 4
        swap(table)
        stale.append([{"id": 9, "a": "now a", "b": "now b"}])
        assert values(stale.scan(where=[("id", "=", 9)]).read_all(), "a", "b") == [("now a", "now b")]
        assert values(table.scan(where=[("id", "=", 9)]).read_all(), "a", "b") == [("now a", "now b")]
        table.rename_column("a", "c")
        with pytest.raises(BadInput, match="column 'a'"):
            stale.append([{"id": 10, "a": "lost?"}])
        table.rename_column("c", "d")
        stale.upsert([{"id": 9, "d": "now d"}])
        assert values(table.scan(where=[("id", "=", 9)]).read_all(), "d", "b") == [("now d", None)]


def test_an_old_name_gets_a_clear_line(table: Table, client: PersistClient) -> None:
    table.rename_column("a", "c")
    with pytest.raises(BadInput, match="column 'a'") as refused:
        table.append([{"id": 1, "a": "x"}])
    assert refused.value.hint == "column 'a' is called 'c' now"
    with pytest.raises(BadInput, match="table t: column 'a' is called 'c' now"):
        holdfast.table(client, "t", columns=COLUMNS, key="id")
    assert holdfast.table(client, "t", columns={"id": "int64", "c": "string?"}, key="id").count() == 4
    upper = table.upper
    for old, new, told in (("x", "y", "no column 'x'"), ("c", "b", "has a column 'b'"), ("c", "_c", "_")):
        with pytest.raises(BadInput, match=told):
            table.rename_column(old, new)
    assert table.upper == upper


def test_a_new_column_with_an_old_name_is_another_column(table: Table, client: PersistClient) -> None:
    first = table.latest_time()
    table.rename_column("a", "c")
    controller = StorageController(client)
    schema = controller.describe("t").schema
    wider = Schema.of({"id": "int64"}, {**{each.name: each for each in schema.value}, "a": "int32?"})
    info = controller.evolve_collection("t", wider)
    assert info.stored_schema.names == ("id", "a", "b", "at", "a.2")
    table.upsert([{"id": 0, "a": 5, "c": "text"}])
    assert values(table.scan(["a", "c"], [("id", "=", 0)]).read_all(), "a", "c") == [(5, "text")]
    assert values(table.scan(["a", "c"], [("id", "=", 0)], first).read_all(), "a", "c") == [(None, "a0")]
    table.rename_column("c", "text")
    table.rename_column("a", "number")
    assert table.count([("number", "=", 5)]) == 1


def test_a_writer_with_the_old_names_is_refused(client: PersistClient) -> None:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("c", "c", Schema.of({"k": "int64"}, {"v": "string?"})))
    writer = controller.writer("c", purpose="test")
    writer.append([{"k": 1, "v": "x"}], 0, 10)
    controller.rename_column("c", "v", "w", command_id="once")
    controller.rename_column("c", "v", "w", command_id="once")
    assert writer.schema.names == ("k", "v")
    with pytest.raises(CodecMismatch, match="column 'v' of collection c is called 'w' now"):
        writer.append([{"k": 2, "v": "y"}], 10, 20)
    with pytest.raises(CodecMismatch):
        writer.upper()
    renewed = controller.writer("c", purpose="test")
    assert renewed.upper() == 11
    with renewed.bulk() as bulk:
        bulk.add([{"k": 2, "w": "y"}])
        client.multi_write(bulk.prepare(renewed.position(), 20).steps)
    with controller.reader("c", purpose="test") as reader:
        assert values(reader.snapshot().to_table(), "k", "w") == [(1, "x"), (2, "y")]


def test_a_new_rendition_and_a_restore_keep_names(table: Table, client: PersistClient, tmp_path: Any) -> None:
    swap(table)
    before = values(table.read(), "id", "a", "b")
    controller = StorageController(client)
    made = controller.renditions.create("t", shards=3, hash_columns=("a", "id"))
    assert made.hash_columns == ("b", "id")
    controller.hydrate("t", made.id)
    table.append([{"id": 10, "a": "late a", "b": "late b"}])
    controller.renditions.hand_over("t", made.id)
    after = [*before, (10, "late a", "late b")]
    assert values(table.read(), "id", "a", "b") == after
    table.upsert([{"id": 11, "b": "b11"}])
    table.export(tmp_path / "snapshot")
    table.delete(where=[])
    from holdfast.collections import RestoreSource

    controller.restore_collection("t", RestoreSource.open(tmp_path / "snapshot"))
    assert values(table.read(), "id", "a", "b")[:5] == after
    assert table.count([("b", "=", "b11")]) == 1
    # A job reads pieces and uploads them to the shards of a rendition.
    made = controller.renditions.create("t", shards=2)
    with controller.reader("t", purpose="test") as reader:
        (piece,) = reader.snapshot_parts(max_parts=1)
    writers = [client.writer(s, controller.describe("t").stored_schema, purpose="x") for s in made.shards]
    tickets = [each.upload_ticket() for each in writers]
    uploads = upload_part(client, piece, made, tickets)
    assert sum(each.rows for each in uploads) == table.count()


def test_sql_has_the_new_names(tmp_path: Any) -> None:
    with holdfast.table(tmp_path, "t", columns=COLUMNS, key="id") as table:
        table.append([{"id": 1, "a": "x", "b": "y"}])
        swap(table)
        assert holdfast.sql(tmp_path, "select a, b from t where a = 'y'").read().to_pylist() == [
            {"a": "y", "b": "x"}
        ]
        assert table.to_duckdb(where=[("b", "=", "x")]).select("a").fetchall() == [("y",)]


def test_on_the_command_line(tmp_path: Any) -> None:
    def run(*arguments: str, code: int = 0, given: bytes | None = None) -> str:
        result = CliRunner().invoke(
            main, ["collection", *arguments, "--url", (tmp_path / "lake").as_uri()], input=given
        )
        assert result.exit_code == code, result.output
        return result.output

    run("create", "t", "--key", "id:int64", "--column", "a:string?")
    (tmp_path / "rows.csv").write_text("id,a\n1,x\n")
    run("write", "t", str(tmp_path / "rows.csv"))
    assert run("rename-column", "t", "a", "c") == "t: key (id int64), value (c string?)\n"
    (tmp_path / "rows.csv").write_text("id,c\n2,y\n")
    run("write", "t", str(tmp_path / "rows.csv"))
    (tmp_path / "rows.csv").write_text("id,a\n3,z\n")
    assert "column 'a'" in run("write", "t", str(tmp_path / "rows.csv"), code=2)
    rows = [json.loads(line) for line in io.StringIO(run("read", "t", "--format", "json"))]
    assert rows == [{"id": 1, "c": "x"}, {"id": 2, "c": "y"}]
    assert "has no column 'a'" in run("rename-column", "t", "a", "b", code=2)
    run("alter", "t", "--add", "a:int32?")
    assert [each["name"] for each in json.loads(run("describe", "t", "--json"))["columns"]] == [
        "id",
        "c",
        "a",
    ]


def test_a_collection_of_a_source_keeps_its_names(client: PersistClient) -> None:
    controller = StorageController(client)
    schema = Schema.of({"k": "int64"}, {"v": "string?"})
    controller.create_collection(CollectionSpec("fed", "fed", schema, source_fed=True))
    with pytest.raises(BadInput, match="a source feeds"):
        controller.rename_column("fed", "v", "w")
    controller.create_collection(CollectionSpec("c", "c", schema))
    location = client.location_id
    controller.hold("c", f"feeds fed: {location}/fed/r1")
    with pytest.raises(BadInput, match="reads its columns by their names"):
        controller.rename_column("c", "v", "w")
    assert controller.describe("c").schema == schema
