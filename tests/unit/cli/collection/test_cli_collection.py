"""`holdfast collection` as a user runs it, on a location of files."""

import json
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.persist import PersistClient


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder / 'location'}"

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["collection", *arguments, "--url", self.url])

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def flights(shell: Shell) -> Shell:
    columns = ["--key", "id:int64", "--column", "name:string?"]
    shell.out("create", "flights", "--id", "c1", *columns, "--shards", "2")
    shell.out(
        "write", "flights", shell.file("one.csv", "id,name\n1,a\n2,b\n2,b\n"), "--at", "1970-01-01T00:00:10"
    )
    return shell


def test_what_is_written_is_read_in_every_format(flights: Shell) -> None:
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 2, "name": "b"}]

    def by_id(found: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted(found, key=str)

    assert (
        by_id([json.loads(line) for line in flights.out("read", "flights", "--format", "json").splitlines()])
        == rows
    )
    assert sorted(flights.out("read", "c1", "--format", "csv").splitlines()) == [
        '"id","name"',
        '1,"a"',
        '2,"b"',
        '2,"b"',
    ]
    assert flights.out("read", "flights").splitlines()[0].split() == ["id", "name"]
    target = flights.folder / "out.parquet"
    flights.out("read", "flights", "--output", str(target), "--diff")
    assert by_id(pq.read_table(target).to_pylist()) == [
        {"id": 1, "name": "a", "_diff": 1},
        {"id": 2, "name": "b", "_diff": 2},
    ]
    target = flights.folder / "out.arrow"
    flights.out("read", "flights", "--output", str(target))
    with pa.ipc.open_file(target) as reader:
        assert by_id(reader.read_all().to_pylist()) == rows


def test_time_travel_by_number_and_by_date(flights: Shell) -> None:
    flights.out(
        "write", "flights", flights.file("two.json", '{"id": 1, "name": "a", "_diff": -1}\n'), "--at", "20000"
    )
    assert len(flights.out("read", "flights", "--as-of", "1970-01-01T00:00:10").splitlines()) == 4
    assert len(flights.out("read", "flights", "--as-of", "19999").splitlines()) == 4
    assert len(flights.out("read", "flights").splitlines()) == 3
    assert len(flights.out("read", "flights", "--as-of", "5000").splitlines()) == 1


def test_rows_may_bring_their_own_times(flights: Shell) -> None:
    path = flights.folder / "times.parquet"
    pq.write_table(pa.table({"id": [7, 8], "name": ["x", "y"], "_time": [11_000, 30_000]}), path)
    flights.out("write", "flights", str(path), "--new-upper", "40000")
    assert len(flights.out("read", "flights", "--as-of", "29999").splitlines()) == 5
    assert len(flights.out("read", "flights", "--as-of", "39999").splitlines()) == 6


def test_a_list_and_a_description_tell_the_frontiers(flights: Shell) -> None:
    (fact,) = json.loads(flights.out("list", "--format", "json"))
    assert fact == {
        "name": "flights",
        "id": "c1",
        "state": "Active",
        "shards": 2,
        "since": 0,
        "upper": 10_001,
        "ahead_ms": None,
    }
    assert flights.out("list").splitlines()[1].split() == ["flights", "c1", "Active", "2", "0", "10001"]
    told = json.loads(flights.out("describe", "flights", "--format", "json"))
    assert told["columns"][1] == {
        "name": "name",
        "type": "string",
        "nullable": True,
        "key": False,
        "comment": None,
    }
    assert len(told["renditions"][0]["shards"]) == 2
    assert "rendition r1" in flights.out("describe", "c1")


def test_a_dropped_collection_is_gone(flights: Shell) -> None:
    refused = flights.run("drop", "flights")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    lines = "".join(f"{number},{uuid4()}\n" for number in range(100, 9000))
    flights.out("write", "flights", flights.file("many.csv", f"id,name\n{lines}"))
    assert len(parts(flights)) > 0
    flights.out("drop", "flights", "--yes")
    assert json.loads(flights.out("list", "--format", "json")) == []
    assert "Dropped" in flights.out("describe", "c1")
    assert parts(flights) == []
    assert flights.out("drop", "c1", "--yes") == "dropped flights (c1)\n"
    assert "no collection" in flights.run("drop", "flights", "--yes").stderr


def test_a_drop_that_was_killed_is_ended_by_its_name(flights: Shell) -> None:
    lines = "".join(f"{number},{uuid4()}\n" for number in range(100, 9000))
    flights.out("write", "flights", flights.file("many.csv", f"id,name\n{lines}"))
    with PersistClient.open(flights.url) as client:
        StorageController(client).drop_collection("c1")
    assert len(parts(flights)) > 0
    flights.out("create", "flights", "--id", "c2", "--key", "id:int64")
    flights.out("drop", "flights", "--yes")
    assert len(parts(flights)) > 0, "this name has a new owner"
    flights.out("drop", "flights", "--yes", "--keep-garbage", "3600")
    assert len(parts(flights)) > 0, "a backup may need them"
    assert flights.out("drop", "flights", "--yes") == "dropped flights (c1)\n"
    assert parts(flights) == []


def parts(stores: Shell) -> list[Path]:
    """The files of rows in the location."""
    return [path for path in Path(stores.folder).rglob("*") if path.is_file() and path.name.startswith("p")]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["read", "nope"], 2, "no collection has the id or name 'nope'"),
        (["describe", "nope"], 2, "no collection"),
        (["read", "flights", "--as-of", "yesterday"], 2, "'yesterday' is neither"),
        (["read", "flights", "--as-of", "10001"], 1, "not complete"),
        (["read", "flights", "--as-of", "-1"], 2, "'-1' is out of range"),
        (["diff", "flights", "--from", "99999"], 1, "not complete"),
        (["create", "other"], 2, "collection other needs columns"),
        (["restore", "flights", "{folder}/one.csv", "--yes"], 2, "_manifest.json: Not a directory"),
        (["read", "flights", "--output", "x.doc"], 2, "doesn't show its format"),
        (["write", "flights", "missing.csv"], 2, "can't read missing.csv"),
        (["write", "flights", "{folder}/one.csv", "--at", "5"], 2, "rows can't be added at 5"),
        (["write", "flights", "{folder}/wrong.csv"], 2, "column 'nam' is not in the schema"),
        (["write", "flights", "{folder}/wrong.parquet"], 2, "is not parquet"),
        (["create", "flights", "--key", "id:int64"], 2, "name 'flights'"),
        (["create", "other", "--key", "id"], 2, "has no type"),
        (["create", "other", "--key", "id:int6"], 2, "unknown column type"),
        (["create", "other", "--key", "id:int64", "--shards", "0"], 2, "shards is 0"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    flights: Shell, arguments: list[str], code: int, message: str
) -> None:
    flights.file("wrong.csv", "id,nam\n1,a\n")
    flights.file("wrong.parquet", "id,nam\n1,a\n")
    before = flights.out("list", "--format", "json")
    result = flights.run(*(argument.format(folder=flights.folder) for argument in arguments))
    first, *hints = result.stderr.splitlines()
    assert (result.exit_code, message in first, result.stdout) == (code, True, "")
    assert first.startswith("holdfast: ")
    assert all(hint.startswith("  hint: ") for hint in hints)
    assert flights.out("list", "--format", "json") == before


def test_a_location_that_is_not_there_is_not_made_by_looking(shell: Shell) -> None:
    result = shell.run("list")
    assert result.exit_code == 3
    assert not (shell.folder / "location").exists()


def test_an_empty_collection_says_so(shell: Shell) -> None:
    shell.out("create", "empty", "--key", "id:int64")
    result = shell.run("read", "empty")
    assert (result.exit_code, result.stdout) == (0, "id\n")
    result = shell.run("diff", "empty", "--from", "0")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "id  _diff\n", "empty is empty\n")
