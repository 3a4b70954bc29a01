"""Reads and upgrades what the wheel of an earlier commit of this repository wrote.

The tests need the history of the repository. If a clone has none, they are skipped with the reason. If
`$HOLDFAST_REQUIRE` names `postgres`, as in CI, they fail.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.catalogs import HOLDER, writable
from conformance.linked_commands import done
from holdfast.catalog import (
    CATALOG_VERSION,
    IdKind,
    OpenableCatalog,
    OpenMode,
    persist_catalog,
    stash_catalog,
)
from holdfast.catalog.objects.registry import COMMENTS, ROLES
from holdfast.cli import main
from holdfast.errors import UpgradeNeeded
from holdfast.persist import PersistClient
from testbed.earlier import EarlierHoldfast
from testbed.errors import Unavailable
from testbed.require import Tier, required

CATALOG_OF_15 = "fda084de8d777cf13476566dfef070d34fb07b15"
"""The last commit whose catalogs are at version 15; it has no catalogs in a stash."""
WITH_STASH = "645fc424bbfcaf687be38e5ea5a404fa809375ba"
"""One that has tables and linked catalogs, at version 19."""
WRITER = Path(__file__).with_name("earlier_writer.py")
LINKED = Path(__file__).with_name("linked_commands.py")
ORG = "11111111-2222-3333-4444-555555555555"

Earlier = Callable[[str], EarlierHoldfast]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    folder = tmp_path_factory.mktemp("earlier")

    @cache
    def made(commit: str) -> EarlierHoldfast:
        try:
            return EarlierHoldfast(commit, folder)
        except Unavailable as error:
            if Tier.POSTGRES in required(os.environ):
                raise
            pytest.skip(str(error))

    return made


class Place:
    """Where an earlier process writes a catalog: its arguments, and the catalog for this Holdfast."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self._clients: list[PersistClient] = []

    def openable(self, mode: Any = "write") -> OpenableCatalog:
        kind, *urls = self.arguments
        if kind == "stash":
            return stash_catalog(urls[0], read_only=mode == "read")
        url = {"url": urls[0]} if len(urls) == 1 else {"blob": urls[0], "consensus": urls[1]}
        client = PersistClient.open(**url, mode=mode)  # type: ignore[arg-type]
        self._clients.append(client)
        return persist_catalog(client, ORG)

    def close(self) -> None:
        """Close all clients, which ends their upkeep."""
        for client in self._clients:
            client.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match request.param:
        case "persist in files":
            made = Place("persist", f"file://{tmp_path}/store")
        case "persist on Postgres":
            made = Place("persist", f"file://{tmp_path}/blob", request.getfixturevalue("postgres_url"))
        case "stash in SQLite":
            made = Place("stash", f"sqlite://{tmp_path}/stash.db")
        case "stash in Postgres":
            made = Place("stash", request.getfixturevalue("postgres_url"))
        case _:
            raise AssertionError(request.param)
    yield made
    made.close()


def on_postgres(*values: str, marks: Sequence[pytest.MarkDecorator] = ()) -> Any:
    return pytest.param(*values, marks=[pytest.mark.postgres, *marks])


@pytest.mark.parametrize(
    ("commit", "place"),
    [
        (CATALOG_OF_15, "persist in files"),
        on_postgres(CATALOG_OF_15, "persist on Postgres", marks=[pytest.mark.long]),
        pytest.param(WITH_STASH, "persist in files", marks=pytest.mark.long),
        on_postgres(WITH_STASH, "persist on Postgres", marks=[pytest.mark.long]),
        pytest.param(WITH_STASH, "stash in SQLite", marks=pytest.mark.long),
        on_postgres(WITH_STASH, "stash in Postgres"),
    ],
    indirect=["place"],
)
def test_a_catalog_of_an_earlier_holdfast_is_upgraded_under_its_writer(
    earlier: Earlier, commit: str, place: Place
) -> None:
    with earlier(commit).start(WRITER, *place.arguments) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        told = json.loads(writer.stdout.readline())
        assert told["version"] == {CATALOG_OF_15: 15, WITH_STASH: 19}[commit]
        assert shown(json.loads(place.openable("read").dump())) == shown(told["dump"])
        if told["version"] < CATALOG_VERSION:
            with pytest.raises(UpgradeNeeded):
                place.openable("read").open(OpenMode.READ_ONLY)
        # This changes nothing: the open below finds what the earlier process wrote.
        with place.openable().open(OpenMode.SAVEPOINT, **HOLDER) as tried:
            expected = shown(json.loads(tried.dump()))
        assert shown(json.loads(place.openable("read").dump())) == shown(told["dump"])
        with writable(place.openable()) as catalog:
            assert catalog.catalog_version == CATALOG_VERSION
            assert catalog.fence_token().epoch == told["epoch"] + 1
            assert shown(json.loads(catalog.dump())) == expected
            names = {found.value.name for found in catalog.objects(ROLES)}
            assert {f"role {number}" for number in range(60, 301)} <= names
            assert not {f"role {number}" for number in range(1, 60)} & names
            assert [found.value.comment for found in catalog.objects(COMMENTS)] == ["of an earlier version"]
            for name, id_ in told["items"].items():
                if name != "gone":
                    assert catalog.ensure_item("holdfast", "public", name) == id_
            # No id comes twice.
            new = catalog.allocate_ids(IdKind.USER_ITEM, 1)[0]
            used = {*told["allocated"], *(int(id_[1:]) for id_ in told["items"].values())}
            assert new > max(used)
            writer.stdin.write("\n")
            writer.stdin.flush()
            after = json.loads(writer.stdout.readline())
            # The file of a stash in SQLite is one of layout 2 by now, and the tables of layout 1 are gone.
            in_sqlite = place.arguments[1].startswith("sqlite")
            assert after["commit"] == ("Determinate" if in_sqlite else "Fenced")
            if told["version"] < CATALOG_VERSION or in_sqlite:
                assert after["open"] == "VersionTooNew"
                assert catalog.allocate_ids(IdKind.USER_ITEM, 1) == [new + 1]
        assert writer.wait(60) == 0


def shown(dump: dict[str, Any]) -> dict[str, Any]:
    """What a dump holds beside its fence token; a type without objects is as good as none."""
    return {name: entries for name, entries in dump.items() if entries and name != "fence_token"}


def run(*arguments: str) -> str:
    """What this Holdfast's command line program prints."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("commit", [CATALOG_OF_15, WITH_STASH])
@pytest.mark.long
def test_the_collections_of_an_earlier_holdfast_are_read_and_written_by_both(
    earlier: Earlier, commit: str, tmp_path: Path
) -> None:
    old = earlier(commit).holdfast
    at = ("--url", f"file://{tmp_path}/store")
    old("collection", "create", *at, "--key", "id:int64", "--column", "v:string?", "--shards", "2", "t")
    contents: list[str] = []
    rows = tmp_path / "rows.csv"
    # Each goes on with what the other wrote, and the new one leaves rollups and compacted parts behind.
    for number, holdfast in enumerate((old, run, run, old, run, old)):
        lines = [f"{number * 50 + row},x{number}" for row in range(50)]
        rows.write_text("\n".join(["id,v", *lines, ""]))
        holdfast("collection", "write", *at, "t", str(rows))
        contents += lines
    run("persist", "compact", at[1], "--full")
    for holdfast in (old, run):
        header, *found = holdfast("collection", "read", *at, "--format", "csv", "t").splitlines()
        assert header.replace('"', "") == "id,v"
        assert sorted(line.replace('"', "") for line in found) == sorted(contents)
    run("persist", "verify", at[1])


STORY = (
    *("write a", "move first None", "write b", "back first Compare", "write c", "emergency d", "emergency e"),
    *("write f", "move second Compare", "write g", "back second None", "emergency h", "write i"),
)
TURNS = {
    "the earlier one": lambda _: True,
    "the earlier one begins": lambda number: number % 2 == 0,
    "the new one begins": lambda number: number % 2 == 1,
    "the earlier one moves": lambda number: not STORY[number].startswith("write"),
    "the earlier one writes": lambda number: STORY[number].startswith("write"),
}
"""Which commands of the story the earlier Holdfast does."""


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.postgres
@pytest.mark.long
def test_an_earlier_holdfast_and_this_one_move_a_linked_catalog_in_turns(
    earlier: Earlier, tmp_path: Path, postgres_url: str, turns: str
) -> None:
    tell_the_story(earlier, TURNS[turns], f"file://{tmp_path}/store", postgres_url)


@pytest.mark.parametrize("first", [1, 4, 7, 11])
@pytest.mark.long
def test_this_holdfast_goes_on_with_a_linked_catalog_in_sqlite(
    earlier: Earlier, tmp_path: Path, first: int
) -> None:
    """The earlier one does not use the catalog after this one has written to its stash."""
    places = f"file://{tmp_path}/store", f"sqlite://{tmp_path}/stash.db"
    tell_the_story(earlier, lambda number: number < first, *places)
    with earlier(WITH_STASH).start(LINKED, *places) as process:
        said, _ = process.communicate("look\nwrite j\n")
    assert [json.loads(line)["error"].partition(":")[0] for line in said.splitlines()] == [
        "VersionTooNew"
    ] * 2


def tell_the_story(earlier: Earlier, is_turn_of_earlier: Callable[[int], bool], *places: str) -> None:
    """Do the commands of the story, some of them with the earlier Holdfast."""
    wanted: list[str] = []
    with earlier(WITH_STASH).start(LINKED, *places) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, command in enumerate(STORY):
            if is_turn_of_earlier(number):
                process.stdin.write(f"{command}\n")
                process.stdin.flush()
                told = json.loads(process.stdout.readline())
                assert "error" not in told, f"{command}: {told}"
                found = told["items"]
            else:
                found = done(*places, *command.split())
            name = command.split()[1]
            wanted += [name] if len(name) == 1 else []
            assert found == wanted, command
            # This Holdfast opens whatever either has left behind.
            assert done(*places, "look") == wanted, command
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_clone_without_the_commit_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is not in this repository; the clone has no history"):
        EarlierHoldfast("0" * 40, tmp_path)
