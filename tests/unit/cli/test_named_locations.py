"""Commands and Python name a location in the same way: a URL, a path, or a name in a file of the user."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.locations import NamedLocation, named_location, named_locations
from holdfast.persist import PersistClient

ORG = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location with a table, and a file that names it @shop. Its consensus store is apart."""
    file = tmp_path / "config.toml"
    file.write_text(
        f'[locations.shop]\nurl = "{tmp_path}/blobs"\nconsensus = "sqlite:///{tmp_path}/log.sqlite"\n'
        f'[locations]\nother = "{tmp_path}/other"\n'
    )
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HOLDFAST_URL", "HOLDFAST_BLOB_URL", "HOLDFAST_CONSENSUS_URL"):
        monkeypatch.delenv(name, raising=False)
    with holdfast.table("@shop", "orders", columns={"id": "int64"}) as orders:
        orders.append([{"id": 7}])
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_each_command_and_python_take_a_name(shop: Path) -> None:
    for words in (
        ["ls", "--url", "@shop"],
        ["collection", "describe", "orders", "--url", "@shop"],
        ["persist", "inspect", "--url", "@shop"],
        ["persist", "inspect", "@shop"],
        ["persist", "backup", "@shop", str(shop / "backup")],
        ["catalog", "init", "--url", "@shop", "--organization-id", ORG],
    ):
        done = run(*words)
        assert done.exit_code == 0, (words, done.output)
    with PersistClient.open("@shop", mode="read") as client, holdfast.table(client, "orders") as orders:
        assert orders.read()["id"].to_pylist() == [7]
    pair = {"url": shop / "blobs", "consensus": f"sqlite:///{shop}/log.sqlite"}
    with holdfast.table(name="orders", mode="read", **pair) as orders:
        assert orders.count() == 1
    with holdfast.sql(query="SELECT id FROM orders", **pair) as result:
        assert result.read()["id"].to_pylist() == [7]


def test_the_variables_are_the_same_for_all(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "@shop")
    # A name is a whole location, so this variable, for another URL, does not count.
    monkeypatch.setenv("HOLDFAST_CONSENSUS_URL", "sqlite:////nothing/here")
    for words in (["ls"], ["persist", "names"], ["catalog", "init", "--organization-id", ORG]):
        assert run(*words).exit_code == 0, words
    assert "--stash, or --url, is missing" in run("catalog", "epoch").output
    monkeypatch.setenv("HOLDFAST_URL", str(shop / "blobs"))
    monkeypatch.setenv("HOLDFAST_CONSENSUS_URL", f"sqlite:///{shop}/log.sqlite")
    for words in (["ls"], ["persist", "names"], ["catalog", "epoch", "--organization-id", ORG]):
        assert run(*words).exit_code == 0, words


def test_a_first_argument_that_is_no_url_is_what_it_was(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "@shop")
    target = shop / "backup"
    assert run("persist", "backup", str(target)).exit_code == 0
    assert target.is_dir()
    assert "does not exist" in run("persist", "inspect", "s00000000-0000-4000-8000-000000000000").output
    monkeypatch.delenv("HOLDFAST_URL")
    restored = run("persist", "restore", str(target), "--url", "@other")
    assert restored.exit_code == 0, restored.output
    assert run("ls", "--url", "@other").exit_code == 0


def test_what_names_no_location_is_refused(shop: Path) -> None:
    missing = run("ls", "--url", "@shp")
    assert missing.exit_code == 2
    assert missing.stderr == (
        f"holdfast: there is no location @shp in {shop}/config.toml\n  hint: it has: @shop, @other\n"
    )
    both = run("ls", "--url", "@shop", "--consensus", "sqlite:///x")
    assert (both.exit_code, "@shop names a whole location" in both.stderr) == (2, True)
    none = run("ls")
    assert (none.exit_code, "--url is missing" in none.stderr) == (2, True)
    with pytest.raises(holdfast.BadInput, match="@shop names a whole location"):
        holdfast.table("@shop", "orders", consensus="sqlite:///x")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("[locations\n", 1, "not TOML"),
        ("[locations]\na = 'b\n", 2, "not TOML"),
        ("[location.a]\nurl = '/x'\n", 1, "unknown setting 'location'"),
        ("\nlocations = 3\n", 2, "locations must be a table"),
        ("[locations]\nok = '/x'\n\na = 3\n", 4, "location a must be a table or a URL"),
        ("[locations]\na = 'x'\n", 2, "must have a URL or an absolute path"),
        ("[locations.a]\nurl = '/x'\nport = 1\n", 3, "location a has an unknown 'port'"),
        ("[locations.a]\n\nurl = [\n1]\n", 4, "url of location a must be a text in quotes"),
        ("[locations.a]\nconsensus = 'sqlite:///x'\n", 1, "location a has no url"),
        ("[locations]\n'a b' = '/x'\n", 2, "'a b' can't name a location"),
        ("[locations.a]\nurl='/x'\nconsensus='postgresql://u:hush@h/d'\n", 3, "has a password"),
        ("[locations.a]\nurl='/x'\nconsensus='postgresql://h/d?sslPassword=hush'\n", 3, "has a password"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, what: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    refused = run("ls", "--url", "@a")
    assert refused.exit_code == 2
    first, *_ = refused.stderr.splitlines()
    assert first.startswith(f"holdfast: {file}, line {line}: "), first
    assert what in first
    assert "hush" not in refused.stderr


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert named_locations() == {}
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text("[locations]\na = 's3://bucket/prefix?region=eu-west-1'\n")
    assert named_location("@a") == NamedLocation("s3://bucket/prefix?region=eu-west-1")
    monkeypatch.setenv("HOLDFAST_CONFIG", os.fspath(tmp_path / "none.toml"))
    with pytest.raises(holdfast.BadInput, match="which does not exist"):
        named_locations()
