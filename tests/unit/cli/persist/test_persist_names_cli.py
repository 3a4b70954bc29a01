"""`holdfast persist names`, and the schemas that `inspect` shows."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.persist import PersistClient, PersistConfig, Schema

BEFORE = Schema.of({"id": "int64"}, {"name": "string"})
AFTER = Schema.of({"id": "int64"}, {"name": "string?", "stock": "int32?"})


def ok(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["persist", *arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'location'}"


@pytest.fixture
def shard(url: str) -> str:
    with PersistClient.open(url, config=PersistConfig(hostname="ship")) as client:
        client.finalize(client.create_or_load("gone", BEFORE))
        shard = client.create_or_load("products, [red]all[/]", BEFORE)
        client.evolve(shard, AFTER)
        client.critical_since(shard, purpose="retention", opaque=b"secret")
    return shard


def test_names_are_shown_with_what_they_stand_for(url: str, shard: str) -> None:
    result = ok("names", url)
    header, gone, products = result.stdout.splitlines()
    assert header.split() == ["NAME", "SHARD", "HAS"]
    assert gone.split()[0] == "gone"
    assert gone.endswith("finalized")
    assert products.startswith("products, [red]all[/]")
    assert shard in products
    assert products.endswith(str(AFTER))
    assert result.stderr == "2 names\n"
    first, second = json.loads(ok("names", url, "--json").stdout)
    assert (first["name"], first["finalized"]) == ("gone", True)
    assert second == {
        "name": "products, [red]all[/]",
        "shard_id": shard,
        "schema": str(AFTER),
        "finalized": False,
    }


def test_a_location_without_names_says_so(url: str) -> None:
    with PersistClient.open(url):
        pass
    result = ok("names", url)
    assert (result.stdout, result.stderr) == ("", "0 names\n")


def test_inspect_shows_all_schemas_of_a_shard_and_no_token(url: str, shard: str) -> None:
    lines = ok("inspect", url, shard).stdout.splitlines()
    assert any(line.split()[:2] == ["value", "name"] and line.endswith("stock int32?") for line in lines)
    assert any(line.startswith("earlier schema") and line.endswith(f"1: {BEFORE}") for line in lines)
    (held,) = [line for line in lines if "retention" in line]
    assert "token " in held
    assert "secret" not in "\n".join(lines)
    assert json.loads(ok("inspect", url, shard, "--json").stdout)["schemas"] == [
        f"1: {BEFORE}",
        f"2: {AFTER}",
    ]
