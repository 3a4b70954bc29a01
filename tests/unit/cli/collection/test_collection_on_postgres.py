"""`holdfast collection` and `holdfast ingest` with blobs in a folder and the consensus store in Postgres."""

import json
import re
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main

pytestmark = pytest.mark.postgres
NAMES = ("HOLDFAST_URL", "HOLDFAST_BLOB_URL", "HOLDFAST_CONSENSUS_URL")


class Stores:
    """The stores of a location, and the ways in which a user can name them."""

    def __init__(self, folder: Path, consensus: str) -> None:
        self.blob, self.consensus = f"file://{folder / 'blobs'}", consensus

    def run(self, *command: str, consensus: str | None = None) -> Result:
        options = ["--url", self.blob, "--consensus", consensus or self.consensus]
        return CliRunner().invoke(main, [*command, *options], env=dict.fromkeys(NAMES))

    def out(self, *command: str) -> str:
        result = self.run(*command)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
def stores(tmp_path: Path, postgres_url: str) -> Stores:
    (tmp_path / "one.csv").write_text("id,name\n1,a\n2,b\n")
    (tmp_path / "two.csv").write_text("id,name\n2,c\n")
    return Stores(tmp_path, postgres_url)


def secret(url: str) -> str:
    found = re.search(r"//[^:/]+:([^@]+)@", url)
    assert found is not None
    return found[1]


def refused(result: Result, code: int, message: str) -> str:
    """Check that a command shows one line and at most one hint, and return the hint."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    line, *hints = result.stderr.splitlines()
    assert line.startswith("holdfast: ")
    assert message in line
    assert len(hints) <= 1
    return "".join(hints)


def test_a_collection_is_created_written_shown_and_dropped(stores: Stores, tmp_path: Path) -> None:
    stores.out("collection", "create", "orders", "--key", "id:int64", "--column", "name:string?")
    stores.out("collection", "write", "orders", str(tmp_path / "one.csv"), "--at", "10")
    stores.out("collection", "write", "orders", str(tmp_path / "two.csv"), "--upsert")
    rows = stores.out("collection", "read", "orders", "--format", "json")
    assert [json.loads(each) for each in rows.splitlines()] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "c"},
    ]
    assert '"b"' in stores.out("collection", "read", "orders", "--as-of", "10", "--format", "csv")
    (listed,) = json.loads(stores.out("collection", "list", "--json"))
    assert listed["name"] == "orders"
    stores.out("collection", "alter", "orders", "--add", "note:string?")
    described = json.loads(stores.out("collection", "describe", "orders", "--json"))
    assert [each["name"] for each in described["columns"]] == ["id", "name", "note"]
    assert [each["command"] for each in described["history"]]
    for show in ("holds", "jobs"):
        assert json.loads(stores.out("collection", show, "orders", "--json")) is not None
    stores.out("collection", "diff", "orders", "--from", "10")
    stores.out("collection", "tail", "orders", "--for", "0")
    stores.out("collection", "comment", "orders", "name", "who it is")
    stores.out("collection", "handover", "orders", "--shards", "2")
    stores.out("collection", "drop", "orders", "--yes")
    assert json.loads(stores.out("collection", "list", "--json")) == []
    with psycopg.connect(stores.consensus) as connection:
        found = connection.execute("SELECT count(*) FROM holdfast.entries").fetchone()
    assert found is not None
    assert found[0] > 0


def test_files_are_ingested(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.jsonl").write_text('{"id": 1}\nbad\n')
    spec = tmp_path / "orders.yaml"
    spec.write_text(
        "collection: orders\nkey: {id: int64}\nsource:\n"
        f"  files: {{path: {tmp_path / 'in'}, pattern: '*.jsonl'}}\n  format: {{json: {{}}}}\n"
    )
    assert "fed orders with 2 messages, 1 update, 1 bad record" in stores.out("ingest", str(spec), "--once")
    assert "0 messages" in stores.out("ingest", str(spec), "--once", "--quiet")
    assert stores.out("collection", "read", "orders", "--format", "csv").splitlines() == ['"id"', "1"]
    assert "one.jsonl" in stores.out("collection", "offsets", "orders")
    assert "not a JSON object" in stores.out("collection", "errors", "orders")


@pytest.mark.parametrize("name", ["HOLDFAST_URL", "HOLDFAST_BLOB_URL"])
def test_the_stores_are_named_by_variables(stores: Stores, name: str) -> None:
    stores.out("collection", "create", "orders", "--key", "id:int64")
    variables = {**dict.fromkeys(NAMES), name: stores.blob, "HOLDFAST_CONSENSUS_URL": stores.consensus}
    listed = CliRunner().invoke(main, ["collection", "list"], env=variables)
    assert listed.exit_code == 0, listed.output
    assert "orders" in listed.stdout


@pytest.mark.parametrize("command", ["collection create orders --key id:int64", "collection list"])
def test_a_wrong_host_is_one_clear_line_without_the_password(stores: Stores, command: str) -> None:
    wrong = "postgresql://u:secret-word@127.0.0.1:1/db?connect_timeout=5"
    result = stores.run(*command.split(), consensus=wrong)
    refused(result, 3, "127.0.0.1:1/db")
    assert "secret-word" not in result.output


def test_the_wrong_database_is_refused_and_the_hint_names_both_stores(stores: Stores) -> None:
    stores.out("collection", "create", "orders", "--key", "id:int64")
    other = f"{stores.consensus}?schema=another"
    for command in ("collection list", "collection create more --key id:int64"):
        result = stores.run(*command.split(), consensus=other)
        hint = refused(result, 2, "(schema another) has no consensus tables")
        assert f"holdfast persist recover {stores.blob} --consensus 'postgresql://USER:PASSWORD@" in hint
        assert secret(other) not in result.output
