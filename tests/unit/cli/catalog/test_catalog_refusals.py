"""A refusal of `holdfast catalog` is one line: what, where, what to do. No byte changes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, OpenMode
from holdfast.cli import main
from unit.cli.catalogs import ORG, Place, files, make_place

Dump = dict[str, list[dict[str, Any]]]

EVERY_COMMAND = [
    ["init"],
    ["dump"],
    ["epoch"],
    ["edit", "settings", '{"name": "n"}', '{"value": "1"}'],
    ["delete", "settings", '{"name": "catalog_content_version"}'],
    ["load", "{dir}/good.json", "--yes"],
    ["fence", "--at-least", "7"],
    ["kept"],
    ["kept", "--release", "18", "--yes"],
    ["upgrade-check"],
]
each_command = pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: command[0])

USER_1 = '{"id": {"user": "1"}}'
BAD_OBJECTS = [
    (["edit", "items", "{id}", "{}"], "key of items is not JSON"),
    (["edit", "items", "", "{}"], "key of items is not JSON"),
    (["edit", "items", "[" * 100_000, "{}"], "key of items is not JSON"),
    (["edit", "items", "[]", "{}"], "key of items is not a JSON object"),
    (["edit", "items", "null", "{}"], "key of items is not a JSON object"),
    (["edit", "items", USER_1, "7"], "value of items is not a JSON object"),
    (["edit", "items", USER_1, '{"name": "a", "name": "b"}'], "twice"),
    (["edit", "items", '{"ids": {}}', "{}"], 'no field named "ids"'),
    (["edit", "items", '{"id": 1}', "{}"], "not a key of items"),
    (["edit", "items", '{"id": {"user": "x"}}', "{}"], "not a key of items"),
    (["edit", "items", '{"id": {"user": -1}}', "{}"], "not a key of items"),
    (["edit", "items", '{"id": {"user": "1", "system": "2"}}', "{}"], "not a key of items"),
    (["edit", "items", USER_1, '{"name": 5}'], "not a value of items"),
    (["edit", "items", USER_1, '{"name": ["a"]}'], "not a value of items"),
    (["edit", "items", USER_1, '{"type": "OBJECT_TYPE_NONE"}'], "not a value of items"),
    (["edit", "item", USER_1, "{}"], "no object type 'item'"),
    (["delete", "", USER_1], "no object type ''"),
    (["edit", "fence_token", "{}", "{}"], "fence token can't be edited"),
    (["delete", "fence_token", "{}"], "fence token can't be edited"),
    (["edit", "databases", '{"id": {"user": "9"}}', '{"name": "holdfast"}'], "databases"),
    (["edit", "config", '{"key": "user_version"}', '{"value": "15"}'], "config user_version decides"),
    (["edit", "config", '{"key": "user_version"}', '{"value": "999"}', "--force"], "no Holdfast could open"),
    (["edit", "config", '{"key": "tombstone"}', '{"value": "7"}', "--force"], "expected 0 or 1, found 7"),
    (["delete", "config", '{"key": "user_version"}', "--force"], "can't be deleted"),
    (["delete", "config", '{"key": "truth"}'], "config truth decides"),
    (["delete", "items", '{"id": {"user": "9"}}'], 'items has no object with key {"id": {"user": "9"}}'),
    (["delete", "audit_log", '{"id": "99"}'], "audit_log has no object with key"),
    (["edit", "items", "-", "-"], "can't both come from standard input"),
    (["edit", "items", "@{dir}/nothing", "{}"], "can't read KEY from {dir}/nothing"),
    (["edit", "items", USER_1, "@{dir}"], "can't read VALUE from {dir}"),
    (["edit", "items", "@{dir}/binary", "{}"], "not UTF-8 text"),
    (["edit", "items"], "Missing argument"),
    (["edit", "items", USER_1], "Missing argument"),
    (["load"], "Missing argument"),
    (["load", "{dir}/good.json"], "needs confirmation"),
    (["load", "{dir}/nothing", "--yes"], "can't read {dir}/nothing"),
    (["load", "{dir}", "--yes"], "can't read {dir}"),
    (["load", "{dir}/binary", "--yes"], "{dir}/binary is not UTF-8 text"),
    (["fence"], "either --at-least N or --above N"),
    (["fence", "--at-least", "9", "--above", "9"], "either --at-least N or --above N"),
    (["fence", "--above", str((1 << 63) - 1)], "out of range"),
    (["fence", "--at-least", "-1"], "not an integer from 0"),
    (["fence", "--at-least", str(1 << 64)], "not an integer from 0"),
    (["fence", "--at-least", str((1 << 64) - 1)], "out of range"),
    (["fence", "--at-least", str(1 << 63)], "out of range"),
    (["delete", "id_allocators", '{"name": "user_item"}'], "can't be deleted"),
    (["dump", "--as-of", "soon"], "not an integer from 0"),
    (["dump", "--target", "{dir}"], "not a regular file"),
    (["dump", "--target", "{dir}/nothing/file"], "is not a folder"),
]


def version(to: int) -> Callable[[Dump], object]:
    def change(dump: Dump) -> object:
        dump["config"] = [{"key": {"key": "user_version"}, "value": {"value": str(to)}}]
        return dump

    return change


def put(section: str, key: Any, value: Any) -> Callable[[Dump], object]:
    return lambda dump: {**dump, section: [*dump.get(section, []), {"key": key, "value": value}]}


def without(section: str) -> Callable[[Dump], object]:
    return lambda dump: {name: rows for name, rows in dump.items() if name != section}


BAD_DUMPS: list[tuple[str, Callable[[Dump], object], str]] = [
    ("nothing", lambda _: b"", "expected '{'"),
    ("a list", lambda _: [], "expected '{'"),
    ("text", lambda _: b"dump", "expected '{'"),
    ("a half", lambda dump: json.dumps(dump).encode()[:-40], "dump"),
    ("more than one", lambda dump: json.dumps(dump).encode() * 2, "continues after its end"),
    ("no section", lambda _: {}, "it has no fence_token"),
    ("a section too few", without("comments"), "it has no comments"),
    ("a section too many", put("widgets", {}, {}), "no object type 'widgets'"),
    ("no version", lambda dump: {**dump, "config": []}, "no config user_version"),
    ("a version to come", version(CATALOG_VERSION + 1), f"is at version {CATALOG_VERSION + 1}"),
    ("a version long gone", version(MIN_VERSION - 1), f"is at version {MIN_VERSION - 1}"),
    ("another version", version(CATALOG_VERSION - 1), ""),
    ("an unknown field", put("roles", {"id": {"user": "1"}}, {"nom": "r"}), "nom"),
    ("a wrong type", put("roles", {"id": {"user": "1"}}, {"name": 7}), "roles"),
    ("no key", lambda dump: {**dump, "roles": [{"value": {}}]}, "not a key and a value"),
    ("no object", lambda dump: {**dump, "roles": [7]}, "roles"),
    ("no list", lambda dump: {**dump, "roles": {}}, "expected '['"),
    ("a key twice", put("databases", {"id": {"user": "1"}}, {"name": "other"}), "twice"),
    ("a name twice", put("databases", {"id": {"user": "9"}}, {"name": "holdfast"}), "contradict each other"),
    (
        "history rewritten",
        lambda dump: {**dump, "audit_log": [{"key": {"id": "1"}, "value": {}}]},
        "audit_log",
    ),
]


@pytest.fixture(params=["persist in files", "stash in a file"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Path]]:
    """A catalog that a database runs on, and a folder with files to give to commands."""
    for name in ("store", "dir"):
        (tmp_path / name).mkdir()
    place = make_place(request.param, tmp_path / "store", request)
    assert place.run("init").exit_code == 0
    (tmp_path / "dir" / "good.json").write_text(place.dump())
    (tmp_path / "dir" / "binary").write_bytes(b"\xff\xfe{")
    yield place, tmp_path / "dir"
    place.close()


def refused(result: Result, code: int, message: str) -> None:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    first, *hints = result.stderr.splitlines()
    assert first.startswith("holdfast: ")
    assert message in first
    assert len(hints) <= 1
    assert all(hint.startswith("  hint: ") for hint in hints)
    assert len(first) < 600
    assert "secret" not in result.stderr


def filled(command: list[str], folder: Path) -> list[str]:
    return [word.replace("{dir}", str(folder)) for word in command]


@pytest.mark.parametrize(
    ("command", "message"),
    BAD_OBJECTS,
    ids=[f"{n}-{message[:40]}" for n, (_, message) in enumerate(BAD_OBJECTS)],
)
def test_bad_input_changes_nothing(running: tuple[Place, Path], command: list[str], message: str) -> None:
    place, folder = running
    before = place.stored()
    refused(place.run(*filled(command, folder)), 2, message.replace("{dir}", str(folder)))
    assert place.stored() == before


@pytest.mark.parametrize(
    ("change", "message"), [row[1:] for row in BAD_DUMPS], ids=[row[0] for row in BAD_DUMPS]
)
def test_a_bad_dump_changes_nothing(
    running: tuple[Place, Path], change: Callable[[Dump], object], message: str, tmp_path: Path
) -> None:
    place, folder = running
    changed = change(json.loads((folder / "good.json").read_text()))
    (folder / "bad.json").write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())
    before = place.stored()
    refused(place.run("load", str(folder / "bad.json"), "--yes"), 2, message)
    assert place.stored() == before
    new = [f"file://{tmp_path}/new" if option.startswith("file:") else option for option in place.options]
    new = [f"sqlite://{tmp_path}/new" if option.startswith("sqlite:") else option for option in new]
    if message and message != "audit_log":
        refused(CliRunner().invoke(main, ["catalog", "load", *new, str(folder / "bad.json")]), 2, message)
        assert not (tmp_path / "new").exists()


def test_what_is_refused_fences_nobody(running: tuple[Place, Path]) -> None:
    place, folder = running
    with place.openable().open(OpenMode.WRITABLE, holder="db", purpose="runs") as catalog:
        for command, _ in BAD_OBJECTS:
            assert place.run(*filled(command, folder)).exit_code == 2
        catalog.confirm_leadership()


@pytest.mark.parametrize("command", EVERY_COMMAND[1:], ids=lambda command: command[0])
def test_a_catalog_that_is_not_initialized_stays_so(tmp_path: Path, command: list[str]) -> None:
    """But by load, which makes one."""
    if command[0] == "load":
        return
    stash = tmp_path / "stash.sqlite"
    run = CliRunner()
    refused(run.invoke(main, ["catalog", *command, "--stash", f"sqlite://{stash}"]), 1, "is not initialized")
    assert list(tmp_path.iterdir()) == []
    url = f"file://{tmp_path}/at"
    other = ["--persist", url, "--organization-id", ORG]
    refused(run.invoke(main, ["catalog", *command, *other]), 3, "does not exist")
    assert list(tmp_path.iterdir()) == []
    assert (
        run.invoke(main, ["catalog", "init", "--persist", url, "--organization-id", ORG[::-1]]).exit_code == 0
    )
    before = files(tmp_path)
    refused(run.invoke(main, ["catalog", *command, *other]), 1, "is not initialized")
    assert files(tmp_path) == before


def stash_options(url: str) -> list[str]:
    return ["--stash", url]


def consensus_options(url: str) -> list[str]:
    return ["--persist", "memory://blobs-of-refusals", "--consensus", url, "--organization-id", ORG]


@pytest.fixture(scope="module")
def good() -> str:
    """A dump that can be loaded."""
    options = ["--persist", "memory://a-good-dump", "--organization-id", ORG]
    assert CliRunner().invoke(main, ["catalog", "init", *options]).exit_code == 0
    return CliRunner().invoke(main, ["catalog", "dump", *options]).stdout


@pytest.mark.parametrize("options", [stash_options, consensus_options])
@each_command
def test_a_server_that_is_not_there_is_a_store_that_fails(
    tmp_path: Path, good: str, command: list[str], options: Callable[[str], list[str]]
) -> None:
    (tmp_path / "good.json").write_text(good)
    url = "postgresql://u:secret@127.0.0.1:1/db?connect_timeout=5"
    result = CliRunner().invoke(main, ["catalog", *filled(command, tmp_path), *options(url)])
    refused(result, 3, "127.0.0.1:1/db")


@pytest.mark.postgres
@pytest.mark.parametrize("options", [stash_options, consensus_options])
@each_command
def test_a_wrong_password_is_not_shown(
    tmp_path: Path, good: str, command: list[str], options: Callable[[str], list[str]], postgres_url: str
) -> None:
    (tmp_path / "good.json").write_text(good)
    user, _, rest = postgres_url.removeprefix("postgresql://").partition("@")
    url = f"postgresql://{user.partition(':')[0]}:wrong-secret@{rest}"
    refused(CliRunner().invoke(main, ["catalog", *filled(command, tmp_path), *options(url)]), 3, "password")


@each_command
def test_a_file_that_is_no_stash_is_left_alone(tmp_path: Path, good: str, command: list[str]) -> None:
    (tmp_path / "text").write_text("this is no database, but text, and it is longer than a header is")
    (tmp_path / "good.json").write_text(good)
    before = files(tmp_path)
    for name in ("text", "", "text/below"):
        options = ["--stash", f"sqlite://{tmp_path}/{name}"]
        result = CliRunner().invoke(main, ["catalog", *filled(command, tmp_path), *options])
        assert result.exit_code in (1 if command[0] == "upgrade-check" else 2, 2, 3), (name, result.output)
        refused(result, result.exit_code, str(tmp_path))
        assert files(tmp_path) == before
