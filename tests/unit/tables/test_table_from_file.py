"""`create_table` and `holdfast create --from`: columns and rows of a file, whole or not at all."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.errors import BadInput, UniquenessViolation
from holdfast.persist import PersistClient
from holdfast.tables.creating import create, table_of_file
from holdfast.tables.files.inference import schema_of_file
from testbed.faults import Fault
from unit.collections.stores import Stores
from unit.collections.test_collection_faults import at_every_write


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (["1", "-20", "0"], "int64"),
        (["9223372036854775807"], "int64"),
        (["9223372036854775808"], "string"),
        (["007", "12"], "string"),
        (["-0", "1"], "string"),
        (["1", "2.5"], "float64"),
        (["1e5", "0.25"], "float64"),
        (["12345678901234567", "0.5"], "string"),
        (["1234567890123456.5", "0.5"], "string"),
        (["0.12345678901234568", "-1.7976931348623157e308", "0.0e9", "5e-324"], "float64"),
        (["0.5", "0.123456789012345678"], "string"),
        (["0.5", "1.5e999"], "string"),
        (["0.5", "1.5e-999"], "string"),
        (["true", "false"], "bool"),
        (["true", "1"], "string"),
        (["2026-01-31"], "date32"),
        (["2026-02-31"], "string"),
        (["2026-01-31", "0000-01-01"], "string"),
        (["2026-01-31T10:00:00", "2026-01-31 10:00:00.25"], "timestamp"),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00+02:00"], "timestamp_utc"),
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00"], "string"),
        (["", "x"], "string"),
        (["1", "", "x"], "string"),
    ],
)
def test_a_type_is_chosen_only_if_no_value_loses_anything(
    tmp_path: Path, values: list[str], type_: str
) -> None:
    file = tmp_path / "a.csv"
    # The last value is far from the first block.
    filler = values[0] if values[1:] == ["", "x"] else ""
    body = [filler] * (300_000 if filler else 1) + values
    file.write_text("x,other\n" + "".join(f"{each},zzz\n" for each in body))
    (column, _) = schema_of_file(file, None).columns
    assert (column.type, column.nullable) == (type_, True)
    for each in table_of_file("t", file).source().pieces():
        assert each.num_rows


def test_a_table_of_a_file_has_its_columns_and_rows(tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text(
        'id,zip,at,day,note\n2,007,2026-01-01T10:00:00Z,2026-01-01,"a ""b"""\n1,,,2026-01-02,""\n'
    )
    with holdfast.create_table(tmp_path / "loc", "orders", file, key="id", retain="1d") as orders:
        assert orders.read().sort_by("id").to_pylist() == [
            {"id": 1, "zip": None, "at": None, "day": date(2026, 1, 2), "note": ""},
            {
                "id": 2,
                "zip": "007",
                "at": datetime(2026, 1, 1, 10, tzinfo=UTC),
                "day": date(2026, 1, 1),
                "note": 'a "b"',
            },
        ]
        assert orders.history()["what"].to_pylist() == ["create collection", "load"]
        orders.upsert([{"id": 1, "note": "x"}])
        assert orders.count() == 2
        with pytest.raises(UniquenessViolation, match="there is a table 'orders'"):
            holdfast.create_table(tmp_path / "loc", "orders", file)


def test_json_parquet_and_arrow_keep_their_types(tmp_path: Path) -> None:
    rows = [{"id": 1, "tags": ["a"], "p": {"x": 1.5}}, {"id": 2, "note": "2026-01-01", "big": 2**100}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = holdfast.create_table(tmp_path / "loc", "a", tmp_path / "a.jsonl", key="id", shards=2)
    found = made.read().sort_by("id")
    assert found["tags"].to_pylist() == [["a"], None]
    assert found["big"].to_pylist() == [None, 2**100]
    assert found["note"].to_pylist() == [None, "2026-01-01"]
    parquet.write_table(found, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as out, pa.ipc.new_file(out, found.schema) as writer:
        writer.write_table(found)
    for name in ("a.parquet", "a.arrow"):
        again = holdfast.create_table(tmp_path / "loc", name, tmp_path / name, key="id")
        assert again.read().sort_by("id") == found


@pytest.mark.parametrize(
    ("name", "text", "arguments", "said"),
    [
        (
            "a.csv",
            "id,x\n1,2\n,3\n",
            ["--key", "id"],
            "a.csv: column 'id' is not nullable, but 1 row has a null",
        ),
        ("a.csv", "id,x\n1,2\n", ["--key", "nope"], "a.csv: there is no column 'nope' (id, x)"),
        ("a.csv", "id,x\n1,2\n3\n", [], "a.csv: it is not csv"),
        ("a.csv", "id,x\n1,y\n", ["--column", "x:int64"], "column 'x': 'y' in line 2 is not a valid int64"),
        ("a.csv", "id,id\n1,2\n", [], "column 'id' is given twice"),
        ("a.csv", "", [], "a.csv: it is empty"),
        ("a.csv", "caf\udce9,x\n1,2\n", [], "a.csv: column name 'caf\ufffd' is not UTF-8"),
        ("a.csv", "x\na\ncaf\udce9\n", [], "a.csv: column 'x': the text in line 3 is not UTF-8"),
        ("a.csv", f"{'x' * 200_000}\n1\n", [], "a.csv: can't read the names of its columns"),
        ("a.csv", "_time,id\n1,2\n", [], "a table can't have a column '_time'"),
        ("a.json", '{"a": 1}\n[2]\n', [], "a.json"),
        ("a.json", '{"a": 1}\n{"a": "x"}\n', [], "a.json"),
        ("a.parquet", "no", [], "a.parquet: it is not parquet"),
        ("a.txt", "no", [], "doesn't show its format"),
    ],
)
def test_a_bad_file_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, text: str, arguments: list[str], said: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    result = holdfast_create(tmp_path, "t", "--from", str(tmp_path / name), *arguments)
    assert result.exit_code == 2, result.output
    first, *hints = result.stderr.splitlines()
    assert said in first
    assert all(each.startswith("  hint: ") for each in hints)
    assert not (tmp_path / "loc").exists()


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    result = holdfast_create(
        tmp_path, "t", "--from", str(tmp_path / "a.csv"), "--key", "id:int32", "--column", "x:decimal128(5,2)"
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == f"key (id int32), value (x decimal128(5,2)): 1 row of {tmp_path / 'a.csv'}\n"
    assert "keeps its history: 7d" in result.stdout
    assert holdfast_create(tmp_path, "u", "--format", "csv").exit_code == 2


def test_the_file_that_made_a_table_is_not_added_twice(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,x\n1,2\n")
    assert holdfast_create(tmp_path, "t", "--from", str(file), "--key", "id").exit_code == 0
    holdfast.create_table(tmp_path / "loc", "u", file, key="id").close()

    def write(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(
            main, ["write", name, str(file), "--url", str(tmp_path / "loc"), *arguments]
        )

    for name in ("t", "u"):
        refused = write(name)
        assert refused.exit_code == 1
        assert f"{file} was written to {name} before, 1 row on " in refused.stderr
        assert write(name, "--once").exit_code == 0
        assert holdfast.table(tmp_path / "loc", name).count() == 1
        assert write(name, "--again").exit_code == 0
        assert holdfast.table(tmp_path / "loc", name).count() == 2


def holdfast_create(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["create", *arguments, "--url", str(folder / "loc")])


@pytest.mark.parametrize("fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER])
@pytest.mark.parametrize("inline_max_bytes", [64 * 1024, 0], ids=["inline", "uploaded"])
def test_a_kill_leaves_the_table_with_all_rows_or_no_table(
    tmp_path: Path, fault: Fault, inline_max_bytes: int
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id,x\n" + "".join(f"{number},a\n" for number in range(50)))
    given = table_of_file("t", file, shards=2)

    def work(client: PersistClient) -> Any:
        return create(StorageController(client), given)

    outcomes = at_every_write(fault, work, lambda stores: None, inline_max_bytes=inline_max_bytes)
    assert len(outcomes) >= 2
    for stores, ended in outcomes:
        client: PersistClient = stores.open()
        tables = holdfast.list_tables(client)
        assert tables or not ended
        if tables:
            assert holdfast.table(client, "t").count() == 50
        else:
            assert create(StorageController(stores.open()), given)[1] == 50


def test_an_error_of_the_store_leaves_no_shard(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    stores = Stores()
    client = stores.open(inline_max_bytes=0)
    given = table_of_file("t", tmp_path / "a.csv")
    holdfast.table(client, "t", columns={"id": "int64"})
    before = set(client.shards())
    with pytest.raises((UniquenessViolation, BadInput)):
        create(StorageController(client), given)
    added = set(client.shards()) - before
    assert all(client.inspect(each).finalized for each in added)


def test_a_whole_number_of_json_never_changes_silently(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text('{"id": 1, "n": 9007199254740993}\n{"id": 2, "n": 1.5}\n')
    with pytest.raises(BadInput, match="column 'n': the whole number 9007199254740993 in line 1") as refused:
        holdfast.create_table(tmp_path / "shop", "t", file, key="id")
    assert "decimal128(38,9)" in refused.value.hint
    with holdfast.create_table(
        tmp_path / "shop", "t", file, key="id", columns={"n": "decimal128(38,9)?"}
    ) as table:
        assert sorted(table.read()["n"].to_pylist()) == [Decimal("1.5"), 2**53 + 1]
    # Those that a float has stay numbers.
    file.write_text(f'{{"n": {2**53}}}\n{{"n": {10**20}}}\n{{"n": -{2**60}}}\n{{"n": 1.5}}\n')
    with holdfast.create_table(tmp_path / "shop", "u", file) as table:
        assert sorted(table.read()["n"].to_pylist()) == [-(2.0**60), 1.5, 2.0**53, 1e20]
    file.write_text('{"n": [{"x": 9007199254740993}, {"x": 0.5}]}\n')
    with pytest.raises(BadInput, match="would change as a float"):
        holdfast.create_table(tmp_path / "shop", "v", file)
