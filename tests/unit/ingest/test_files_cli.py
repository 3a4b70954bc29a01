"""Files that feed a collection, as people see it on the command line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import holdfast
from holdfast import BadInput, NoLocation
from holdfast.cli import main
from holdfast.persist import Schema


class Place:
    """A folder with files, and a location beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.url = str(folder / "location")

    def run(self, *command: str) -> Result:
        return CliRunner().invoke(main, [*command, "--url", self.url])

    def out(self, *command: str) -> str:
        result = self.run(*command)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def fed(self, name: str, columns: dict[str, str], *, key: str = "id", **source: Any) -> Result:
        spec = {
            "collection": name,
            "key": {key: columns.pop(key)},
            "columns": columns,
            "source": {"files": {"path": str(self.folder)}, **source},
        }
        file = self.folder.parent / "spec.yaml"
        file.write_text(yaml.safe_dump(spec))
        return self.run("ingest", str(file), "--once")

    def rows(self, name: str) -> list[dict[str, Any]]:
        with holdfast.table(self.url, name, mode="read") as table:
            found: list[dict[str, Any]] = table.to_pandas().to_dict("records")
            return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_last_record_of_a_key_in_a_file_wins(place: Place) -> None:
    lines = "".join(f"{number % 7},{number}\n" for number in range(2_000))
    place.file("a.csv", f"id,n\n{lines}")
    result = place.fed("last", {"id": "int64", "n": "int64?"}, format={"csv": {}}, envelope="Upsert")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("feeding last from file://")
    assert {each["id"]: each["n"] for each in place.rows("last")} == {
        number % 7: number for number in range(1993, 2000)
    }


def test_include_has_the_number_of_the_record(place: Place) -> None:
    place.file("a.csv", "id,n\n1,5\n2,x\n3,7\n")
    columns = {"id": "int64", "n": "int64?", "line": "int64"}
    assert place.fed("l", columns, format={"csv": {}}, include={"position": "line"}).exit_code == 0
    assert [(each["id"], each["line"]) for each in place.rows("l")] == [(1, 1), (3, 3)]
    assert [
        each["position"] for each in json_lines(place.out("collection", "errors", "l", "--format", "json"))
    ] == [2]


def test_bad_records_are_shown_as_text(place: Place) -> None:
    place.file("a.jsonl", '{"id": 1, "n": "Grüße"}\n')
    (place.folder / "b.jsonl").write_bytes(b"\xff\xfe\n")
    assert place.fed("bad", {"id": "int64", "n": "int64?"}, format={"json": {}}).exit_code == 0
    shown = json_lines(place.out("collection", "errors", "bad", "--format", "json"))
    assert [each["value"].strip() for each in shown] == ['{"id": 1, "n": "Grüße"}', "base64://4="]


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"include": {"partition": "f", "timestmp": "t"}}, "key, partition, position, record, timestamp"),
        ({"format": {"csv": {"delimiter": ";"}}}, "it may have nothing"),
    ],
)
def test_hints_name_all_fields(place: Place, source: dict[str, Any], hint: str) -> None:
    result = place.fed("x", {"id": "int64"}, **{"format": {"csv": {}}, **source})
    assert (result.exit_code, hint in result.stderr) == (2, True), result.stderr
    assert "no tables" not in result.stderr


def test_a_collection_that_feeds_another_one_is_not_dropped(place: Place) -> None:
    place.file("a.jsonl", '{"id": 1}\n')
    raw = {"file": "string", "line": "int64", "value": "string"}
    include = {"partition": "file", "position": "line"}
    assert place.fed("raw", dict(raw), key="line", format={"raw": {}}, include=include).exit_code == 0
    source = {"collection": {"name": "raw", "columns": include}, "format": {"json": {}}}
    holdfast.ingest_source(place.url, "orders", source, schema=ORDERS, once=True)
    refused = place.run("collection", "drop", "raw", "--yes")
    assert refused.exit_code == 1
    assert "collection raw is still held by 'feeds orders" in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert [each["value"] for each in place.rows("raw")] == ['{"id": 1}']
    place.out("collection", "drop", "raw", "--yes", "--force")


ORDERS = Schema.of({"id": "int64"})


def test_a_schema_that_is_none_is_bad_input(place: Place) -> None:
    block = {"files": {"path": str(place.folder)}, "format": {"json": {}}}
    with pytest.raises(BadInput, match="must be a Schema, not dict"):
        holdfast.ingest_source(place.url, "x", block, schema={"id": "int64"}, once=True)  # type: ignore[arg-type]


def test_python_creates_a_collection_as_the_command_does(place: Place) -> None:
    place.file("a.jsonl", '{"id": 1, "page": "/"}\n')
    block: dict[str, Any] = {"files": {"path": str(place.folder)}, "format": {"json": {}}}
    assert place.fed("command", {"id": "int64", "page": "string"}, **block).exit_code == 0
    types = {"id": "int64", "page": "string"}
    given: list[tuple[str, dict[str, Any]]] = [
        ("as_table", {"columns": types, "key": "id"}),
        ("as_names", {"columns": types, "key": ["id"]}),
        ("as_file", {"columns": {"page": "string"}, "key": {"id": "int64"}}),
        ("as_schema", {"schema": Schema.of({"id": "int64"}, {"page": "string"})}),
    ]
    for name, columns in given:
        holdfast.ingest_source(Path(place.url), name, block, **columns, once=True)
        # Once more, with and without the columns.
        holdfast.ingest_source(place.url, name, block, **columns, once=True)
        holdfast.ingest_source(place.url, name, block, once=True)
        assert place.rows(name) == place.rows("command") == [{"id": 1, "page": "/"}]
    found = {each.name: (each.columns, each.key) for each in holdfast.list_tables(place.url)}
    assert set(map(str, found.values())) == {str(found["command"])}
    with pytest.raises(BadInput, match="has other columns"):
        holdfast.ingest_source(place.url, "as_table", block, columns={"id": "int64"}, key="id", once=True)


def test_columns_that_make_no_collection_are_refused(place: Place) -> None:
    block = {"files": {"path": str(place.folder)}, "format": {"json": {}}}
    given: list[tuple[dict[str, Any], str]] = [
        ({"key": "id"}, "a key without columns"),
        ({"columns": {"id": "int64"}, "schema": ORDERS}, "can't be used together"),
        ({"columns": ORDERS.arrow, "key": {"id": "int64"}}, "can't have types"),
        ({"columns": {"id": "int64"}, "key": "k"}, "key column 'k'"),
    ]
    for columns, told in given:
        with pytest.raises(BadInput, match=told):
            holdfast.ingest_source(place.url, "x", block, **columns, once=True)
    with pytest.raises(NoLocation, match="does not exist"):
        holdfast.ingest_source(place.url, "x", block, once=True)
    assert not Path(place.url).exists()


def test_the_consensus_store_may_be_apart(place: Place) -> None:
    place.file("a.jsonl", '{"id": 1}\n')
    block = {"files": {"path": str(place.folder)}, "format": {"json": {}}}
    stores: dict[str, Any] = {"consensus": f"sqlite://{place.url}.db"}
    blobs = f"file://{place.url}-blobs"
    holdfast.ingest_source(blobs, "x", block, columns={"id": "int64"}, key="id", once=True, **stores)
    with holdfast.table(blobs, "x", mode="read", **stores) as table:
        assert table.count() == 1


def test_the_terminal_shows_odd_names_escaped(place: Place) -> None:
    name = "a\n\tb\x1b[31m\x9b.jsonl"
    place.file(name, '{"id": 1}\nbad\n')
    os.mkfifo(place.folder / "c\x1b[32m")
    for source in ({}, {"onError": {"collect": {"limit": 0}}}):
        result = place.fed(f"odd{len(source)}", {"id": "int64", "n": "int64?"}, format={"json": {}}, **source)
        assert result.exit_code == (1 if source else 0)
        assert f"left out in file://{place.folder}: c\\x1b[32m (a named pipe)" in result.stderr.splitlines()
        if source:
            assert "the next one is in partition a\\n\\tb\\x1b[31m\\x9b.jsonl: " in result.stderr
        assert str_without_lines(result.stderr).isprintable()
    for kept in ("offsets", "errors"):
        shown = place.out("collection", kept, "odd0")
        assert "a\\n\\tb\\x1b[31m\\x9b.jsonl" in shown
        assert str_without_lines(shown).isprintable()
        assert [
            each["partition"]
            for each in json_lines(place.out("collection", kept, "odd0", "--format", "json"))
        ] == [name]


def str_without_lines(text: str) -> str:
    return text.replace("\n", "")


def test_the_terminal_shows_bytes_that_are_no_text_escaped(place: Place) -> None:
    (place.folder / os.fsdecode(b"\x1b\xe9.jsonl")).touch()
    result = place.fed("odd", {"id": "int64"}, format={"json": {}})
    assert result.exit_code == 1
    assert "the name of file \\x1b\\xe9.jsonl is not text in UTF-8, so it can't be bound\n" in result.stderr


def test_a_file_is_not_copied_for_each_of_its_records(place: Place) -> None:
    """These records times the size of their file are more than an array of Arrow can hold."""
    place.file("a.csv", "id,text\n" + "".join(f"{number},{'x' * 500}\n" for number in range(2_200)))
    done = place.fed("texts", {"id": "int64", "text": "string"}, format={"csv": {}})
    assert done.exit_code == 0, done.output
    assert place.out("count", "texts").strip() == "2200"


def test_a_location_moves_with_what_its_sources_have_fed(place: Place) -> None:
    place.file("a.csv", "id,n\n1,5\n2,x\n")
    columns = {"n": "int64?"}
    assert place.fed("l", {"id": "int64", **columns}, format={"csv": {}}).exit_code == 0
    to, old = str(place.folder.parent / "copy"), place.url
    # A run that finds the copy up to date says it too.
    for _ in range(2):
        result = place.run("copy", "--all", "--to", to)
        assert result.exit_code == 0, result.stderr
        assert "l has the offsets and errors of its source" in result.stderr
    place.file("b.csv", "id,n\n3,7\n")
    assert place.fed("l", {"id": "int64", **columns}, format={"csv": {}}).exit_code == 0
    found = json.loads(place.out("copy", "--all", "--to", to, "--json"))
    assert [(each["was_fed"], each["rows"]) for each in found["copied"]] == [(True, 2)]
    kept = [place.out("collection", what, "l") for what in ("offsets", "errors")]
    place.url = to
    assert [place.out("collection", what, "l") for what in ("offsets", "errors")] == kept
    (place.folder / "a.csv").unlink()
    place.file("c.csv", "id,n\n4,y\n5,9\n")
    assert place.fed("l", {"id": "int64", **columns}, format={"csv": {}}).exit_code == 0
    assert sorted((each["id"], each["n"]) for each in place.rows("l")) == [(1, 5), (3, 7), (5, 9)]
    assert place.out("collection", "errors", "l").count(".csv") == 2
    place.url = old
    refused = place.run("copy", "l", "--to", to)
    assert refused.exit_code == 2
    assert "the copy 'l' was fed on from its source, or written by others" in refused.stderr
