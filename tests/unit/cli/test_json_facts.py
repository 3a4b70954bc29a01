"""What commands that change something show with `--format json`: one JSON value, and nothing else."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController

ORGANIZATION = str(uuid.UUID(int=7))


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder / "shop")

    def facts(self, *words: str, at: tuple[str, ...] | None = None, code: int = 0) -> Any:
        where = ("--url", self.url) if at is None else at
        done = CliRunner().invoke(main, [*words, "--format", "json", *where])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def names(facts: Any) -> list[str]:
    return [each["name"] for each in facts["columns"]]


@pytest.mark.long
def test_changes_of_a_collection_show_facts(shell: Shell) -> None:
    created = CliRunner().invoke(
        main,
        ["create", "orders", "--key", "id:int64", "--column", "note:string?", "--json", "--url", shell.url],
    )
    made = json.loads(created.stdout)
    assert (made["name"], made["shards"], made["retain"], names(made)) == ("orders", 1, "7d", ["id", "note"])
    with holdfast.table(shell.url, "orders") as orders:
        first = orders.append([{"id": 1, "note": "a"}])
        orders.upsert([{"id": 1, "note": "b"}])
        StorageController(orders.client).hold("orders", "report 7")

    def of(*words: str) -> Any:
        facts = shell.facts("collection", *words)
        assert facts.pop("id") == made["id"]
        assert facts.pop("name") == "orders"
        return facts

    assert of("release", "orders", "report 7") == {"purpose": "report 7", "released": 1}
    assert names(of("alter", "orders", "--add", "left:int64?")) == ["id", "note", "left"]
    assert names(of("rename-column", "orders", "left", "stock")) == ["id", "note", "stock"]
    dropped = of("drop-column", "orders", "stock")
    assert (dropped["column"], dropped["from"] > first) == ("stock", True)
    assert of("comment", "orders", "note", "a text") == {"column": "note", "comment": "a text"}
    assert of("comment", "orders", "note", "") == {"column": "note", "comment": None}
    assert of("retain", "orders", "30d") == {"retain": "30d"}
    reverted = of("revert", "orders", "--to", str(first))
    assert (reverted["as_of"], reverted["time"] > first) == (first, True)
    handed = of("handover", "orders", "--shards", "2")
    assert (handed["rendition"], handed["shards"], handed["from"] > first) == ("r2", 2, True)
    assert of("handover", "orders", "--shards", "2") == handed
    advanced = of("advance", "orders")
    assert advanced["done"] == []
    assert advanced["waits"][0].startswith("r1")
    (kept,) = shell.facts("collection", "upkeep")["collections"]
    assert (kept["name"], kept["since"], kept["done"]) == ("orders", None, [])
    (copied,) = shell.facts("copy", "orders", "--to", str(shell.folder / "copy"))["copied"]
    assert (copied["name"], copied["rows"], copied["was_there"]) == ("orders", 1, False)
    exported = CliRunner().invoke(
        main, ["collection", "export", "orders", str(shell.folder / "e"), "--url", shell.url]
    )
    assert exported.exit_code == 0, exported.output
    restored = of("restore", "orders", str(shell.folder / "e"), "--yes")
    assert (restored["rendition"], restored["rows"], restored["created"]) == ("r3", 1, False)
    assert shell.facts("collection", "rename", "orders", "sold") == {
        "name": "sold",
        "id": made["id"],
        "before": "orders",
    }
    (gone,) = shell.facts("drop", "sold", "--yes")["dropped"]
    assert (gone["name"], gone["id"], gone["slots"]) == ("sold", made["id"], [])


def test_commands_of_catalogs_show_facts(shell: Shell) -> None:
    stash = ("--stash", f"sqlite://{shell.folder / 'stash.db'}")

    def of(*words: str, at: tuple[str, ...] = stash, code: int = 0) -> Any:
        return shell.facts(*words, at=at, code=code)

    place = of("catalog", "init")["catalog"]
    again = of("catalog", "init")
    assert (again["initialized"], again["epoch"]) == (False, 1)
    assert of("catalog", "epoch") == {"catalog": place, "epoch": 1}
    checked = of("catalog", "upgrade-check")
    assert (checked["catalog"], checked["version"]) == (place, checked["upgraded"])
    assert checked["objects"] > 0
    key, value = '{"name": "theme"}', '{"value": "dark"}'
    edited = of("catalog", "edit", "settings", key, value, "--yes", "--force")
    assert (edited["type"], edited["key"], edited["done"], edited["before"]) == (
        "settings",
        json.loads(key),
        "inserted",
        None,
    )
    assert of("catalog", "edit", "settings", key, value, "--yes", "--force")["done"] == "unchanged"
    deleted = of("catalog", "delete", "settings", key, "--yes", "--force")
    assert (deleted["done"], deleted["before"]) == ("deleted", json.loads(value))
    fenced = of("catalog", "fence", "--above", "0", "--yes")
    assert fenced["after"]["epoch"] > fenced["before"]["epoch"]
    same = of("catalog", "fence", "--at-least", "1", "--yes")
    assert same["before"] == same["after"] == fenced["after"]
    dump = shell.folder / "dump.json"
    assert CliRunner().invoke(main, ["catalog", "dump", *stash, "--target", str(dump)]).exit_code == 0
    loaded = of("catalog", "load", str(dump), "--yes")
    assert (loaded["catalog"], loaded["epoch"]) == (place, fenced["after"]["epoch"] + 1)


def test_commands_of_migrations_show_facts(shell: Shell) -> None:
    stash = ("--stash", f"sqlite://{shell.folder / 'stash.db'}")
    persist = ("--url", shell.url, "--organization-id", ORGANIZATION)
    shell.facts("catalog", "init", at=stash)
    holdfast.table(shell.url, "any", columns={"id": "int64"}).close()

    def of(*words: str, at: tuple[str, ...] = (*stash, *persist)) -> Any:
        return shell.facts("migrate", *words, at=at)

    planned = of("plan", "--id", "m1", "--target", "persist")
    assert (planned["from"], planned["to"], planned["links"], planned["refused"]) == (
        "Stash",
        "Persist",
        True,
        None,
    )
    assert planned["steps"]
    linked = of("link", "--truth", "stash", "--yes")
    assert (linked["done"], linked["sourceOfTruth"]) == ("linked", "Stash")
    assert of("link", "--truth", "stash", "--yes")["done"] == "already linked"
    ran = of("run", "--id", "m1", "--target", "persist")
    assert (ran["id"], ran["sourceOfTruth"]) == ("m1", "Persist")
    assert of("run", "--id", "m1", "--target", "persist") == of("abandon", "--id", "m1", "--yes") == ran
    back = of("rollback", "--id", "m1")
    assert back["sourceOfTruth"] == "Stash"
    assert of("run", "--id", "m2", "--target", "persist")["sourceOfTruth"] == "Persist"
    assert of("detach", "--yes")["done"] == "detached"
